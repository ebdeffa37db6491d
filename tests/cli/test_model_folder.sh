#!/usr/bin/env bash
# A Hugging Face folder as the model: a run starts from it, carries it over, goes on from its own checkpoints in the
# same bits, and refuses folders and token files that are not the model's before anything is written.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
base=$folder/base

# The folder: a checkpoint of ours, without what only we need, and with what others have.
must "$TRAIN" "$config" train.steps=5 "output.dir=$folder/first" model.rope_theta=7e5
cp -rL "$folder/first/latest" "$base"
rm "$base"/{optimizer.safetensors,run.json,state.json,checksums.json}
sed -i 's/"use_cache": true/"use_cache": false, "pad_token_id": 11, "x": {"y": 1.0}/' "$base/config.json"
echo '{"temperature": 0.5}' >"$base/generation_config.json"
echo 'template' >"$base/chat_template.jinja"
sed 's/"model": {[^}]*}/"model": "base"/' <(tr '\n' ' ' <"$config") >"$folder/go_on.json"

# ---- Continue pretraining
go_on() { "$TRAIN" "$folder/go_on.json" "output.dir=$folder/$1" "${@:2}" >"$folder/said" 2>"$folder/said.err"; }
works a_folder_is_a_model_to_go_on_from "$TRAIN" "$folder/go_on.json" "output.dir=$folder/second" train.steps=5
last=$(losses val "$folder/first/log.jsonl" | tail -1 | sed 's/.*"loss":\([^,]*\),.*/\1/')
start=$(losses val "$folder/second/log.jsonl" | head -1 | sed 's/.*"loss":\([^,]*\),.*/\1/')
check its_weights_give_the_loss_that_they_had "$start at the start, $last before" test "$start" = "$last"
check the_resolved_config_needs_the_folder_no_more "$(cat "$folder/second/run.json")" \
  grep -q '"rope_theta": 700000.0' "$folder/second/run.json"
check the_resolved_config_names_it "$(cat "$folder/second/run.json")" \
  grep -qF "\"init_from\": \"$base\"" "$folder/second/run.json"
carried_over() { # RUN
  local file=$1/latest/config.json
  grep -q '"pad_token_id": 11' "$file" && grep -q '"x": {"y": 1.0}' "$file" && grep -q '"use_cache": false' "$file" &&
    cmp "$base/generation_config.json" "$1/latest/generation_config.json" &&
    cmp "$base/chat_template.jinja" "$1/latest/chat_template.jinja"
}
check what_we_do_not_set_is_carried_over "$(cat "$folder/second/latest/config.json")" carried_over "$folder/second"

# ---- Interrupted and resumed: the same bytes of every file, from a folder and from nothing
for start in "$folder/go_on.json" "$config"; do
  again=("$TRAIN" "$start" "output.dir=$folder/again" train.steps=8 train.save_interval=4)
  must "${again[@]}"
  mv "$folder/again/step-00000008" "$folder/at_once"
  must "${again[@]}" train.resume=auto
  check "resumed_from_$(basename "$start" .json)_every_file_has_the_same_bytes" \
    "$(diff -r "$folder/at_once" "$folder/again/step-00000008" 2>&1)" \
    diff -rq "$folder/at_once" "$folder/again/step-00000008"
  rm -r "$folder/again" "$folder/at_once"
done

# ---- The same with weights in bf16, the folder gone meanwhile
go_on whole train.steps=8 output.save_dtype=bf16
go_on parts train.steps=8 output.save_dtype=bf16 train.save_interval=4
rm -r "$folder/parts/step-00000008"
mv "$base" "$base.moved"
must "$TRAIN" "$folder/parts/run.json" train.resume=auto data.tokenizer=
mv "$base.moved" "$base"
check a_resumed_run_in_bf16_ends_in_the_same_bits "checkpoints differ" same_bits "$folder/whole" "$folder/parts"
check a_resumed_run_carries_over_the_same "$(ls "$folder/parts/latest")" carried_over "$folder/parts"
check bf16_halves_the_model "$(ls -l "$folder"/*/latest/model.safetensors)" test \
  "$(stat -c %s "$folder/parts/latest/model.safetensors")" -lt \
  "$(($(stat -c %s "$base/model.safetensors") * 6 / 10))"

# ---- Refused
refuses another_rope_theta_is_refused 'model.rope_theta 700000.0 -> 500000.0' "$config" "train.init_from=$base"
refuses a_shorter_context_is_refused 'max_position_embeddings 32 -> 16' "$folder/go_on.json" \
  model.max_position_embeddings=16 train.sequence_length=16
must "$TRAIN" "$folder/go_on.json" "output.dir=$folder/longer" model.max_position_embeddings=64 train.steps=1 \
  optimizer.warmup_steps=0
check a_longer_context_is_allowed "$(cat "$folder/longer/latest/config.json")" \
  grep -q '"max_position_embeddings": 64' "$folder/longer/latest/config.json"
refuses a_folder_without_config_json_is_refused 'config.json' "$config" "model=$folder/data"
cp -r "$base" "$folder/edited"
sed -i 's/"model_type": "llama"/"sliding_window": 32, "model_type": "mistral"/' \
  "$folder/edited/config.json"
must "$TRAIN" "$folder/go_on.json" "model=$folder/edited" "output.dir=$folder/mistral" train.steps=1 \
  optimizer.warmup_steps=0
saved_as_a_llama() { grep -q '"LlamaForCausalLM"' "$1" && grep -q '"model_type": "llama"' "$1" && ! grep -q window "$1"; }
check a_mistral_whose_window_is_never_reached_is_saved_as_a_llama "$(cat "$folder/mistral/latest/config.json")" \
  saved_as_a_llama "$folder/mistral/latest/config.json"

# ---- One reader: every command and key takes the same folders, and refuses the same damage
run=$folder/first
echo 'a short text' >"$folder/short.txt"
must "$TRAIN" "$config" "output.dir=$run" model.rope_theta=7e5 train.steps=6 train.resume=auto train.keep_best=true
readers=(eval generate model init_from tokenizer prepare)
reader() { # NAME FOLDER: the command line that reads it, in `line`
  rm -rf "$folder/out"
  case $1 in
  eval) line=("$TRAIN" --eval "$2" --data "$folder/short.txt") ;;
  generate) line=("$TRAIN" --generate "$2" --prompt line --tokens 4) ;;
  model) line=("$TRAIN" --plan "$config" "model=$2") ;;
  init_from) line=("$TRAIN" "$config" model.rope_theta=7e5 "train.init_from=$2" "output.dir=$folder/out" train.steps=1
    optimizer.warmup_steps=0) ;;
  tokenizer) line=("$TRAIN" "$config" "data.tokenizer=$2" "output.dir=$folder/out" train.steps=1 optimizer.warmup_steps=0) ;;
  prepare) line=("$PREPARE" --out "$folder/out" --tokenizer "$2" "$folder/text.txt") ;;
  esac
}
for reader in "${readers[@]}"; do
  for named in "$run" "$run/latest/" "$run/best" "$run/step-00000005" "$base"; do
    reader "$reader" "$named"
    "${line[@]}" >"$folder/said" 2>"$folder/said.err" </dev/null
    status=$?
    check "${reader}_takes_${named##*folder/}" "$(cat "$folder/said.err")" test $status = 0 -a ! -s "$folder/said.err"
  done
done
# refused_by_all NAME WORDS FOLDER: one sentence with the words from each reader, and nothing written.
refused_by_all() {
  local why
  for reader in "${readers[@]}"; do
    reader "$reader" "$3"
    before=$(listing)
    "${line[@]}" >"$folder/said" 2>"$folder/said.err" </dev/null
    why=$(why_no_clear_error $? "$2")
    check "${1}_is_refused_by_$reader" "$why" test -z "$why"
  done
}
damaged() { # EDIT [FILE]: a copy of a checkpoint in $folder/damaged, edited
  rm -rf "$folder/damaged" && cp -rL "$run/latest" "$folder/damaged"
  sed -i "$1" "$folder/damaged/${2:-config.json}"
}
damaged 's/"rope_theta": 700000.0/"rope_theta": 100.0/'
refused_by_all another_rope_theta 'remove checksums.json' "$folder/damaged"
damaged 's/"rope_theta"/"rope_tieta"/'
refused_by_all a_damaged_key 'config.json' "$folder/damaged"
rm "$folder/damaged/checksums.json"
reader eval "$folder/damaged"
works without_checksums_an_edited_folder_is_taken "${line[@]}"
damaged 's/ByteLevel/BiteLevel/' tokenizer.json
refused_by_all a_damaged_tokenizer 'tokenizer.json' "$folder/damaged"
rm -rf "$folder/damaged" && mkdir "$folder/damaged"
refused_by_all an_empty_folder "$folder/damaged" "$folder/damaged"
refused_by_all no_folder "$folder/none" "$folder/none"

# ---- Another run's checkpoint of which one has lost its checksums
cp -r "$run" "$folder/lost"
rm "$folder/lost/step-00000006/checksums.json"
for reader in "${readers[@]}"; do
  reader "$reader" "$folder/lost"
  "${line[@]}" >"$folder/said" 2>"$folder/said.err" </dev/null
  check "${reader}_passes_over_a_checkpoint_that_lost_its_checksums" "$(cat "$folder/said.err")" \
    grep -q "step-00000006' is passed over: it has no checksums.json, as '.*/step-00000005' has" "$folder/said.err"
done

# ---- What others have in place of the files that are read
mkdir "$folder/pickled"
cp "$base/config.json" "$folder/pickled"
touch "$folder/pickled/pytorch_model.bin"
refuses pytorch_model_bin_alone_is_named 'pytorch_model.bin only' "$folder/go_on.json" "model=$folder/pickled"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >"$folder/pickled/model.safetensors"
refuses a_git_lfs_pointer_is_named 'git lfs pull' "$folder/go_on.json" "model=$folder/pickled"
refuses bytes_in_a_vocabulary_of_32000_are_refused "model.vocab_size is 32000, but the tokenizer '" "$config" \
  model.vocab_size=32000
cp -r "$folder/whole" "$folder/other"
sed -i 's/"tokenizer": "[0-9]*"/"tokenizer": "5"/' "$folder/other/latest/state.json"
rm "$folder/other/latest/checksums.json"
resume=("$folder/other/run.json" "output.dir=$folder/other" train.resume=auto)
refuses another_tokenizer_than_the_checkpoints_is_refused 'trained with another tokenizer than' "${resume[@]}"
must "$TRAIN" "${resume[@]}" train.resume_allow_changes=true train.steps=9
check another_tokenizer_may_be_allowed "$(cat "$folder/other/latest/state.json")" \
  cmp -s <(grep tokenizer "$folder/whole/latest/state.json") <(grep tokenizer "$folder/other/latest/state.json")
refuses a_tokenizer_that_is_not_there_is_named 'data.tokenizer' "$config" data.tokenizer=/no/such/folder
exit "$failed"
