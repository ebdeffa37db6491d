#!/usr/bin/env bash
# The start of a run is twelve lines at most, whatever is set; a finished run says so in one. The log and --plan have
# the rest.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400

# A value other than the default for every key that may have one here, so that no table could be longer.
all_set=(model.max_position_embeddings=64 model.rms_norm_eps=1e-6 model.rope_theta=10000 model.tie_word_embeddings=true
  model.initializer_range=0.03 data.shuffle=false data.tokenizer=bytes train.gradient_accumulation=2 train.loss_chunks=2
  train.recompute=mlp train.seed=7 train.zero_init=true train.eval_interval=10 train.keep_checkpoints=2 train.keep_best=true
  train.sample_interval=-1 train.sample_tokens=9 train.max_nonfinite=5 train.max_minutes=60 train.resume_allow_changes=true optimizer.schedule=wsd
  optimizer.decay_steps=5 optimizer.momentum_warmup=2 optimizer.min_learning_rate=1e-4 optimizer.beta1=0.8 optimizer.beta2=0.9 optimizer.eps=1e-7
  optimizer.weight_decay=0.2 optimizer.clip_norm=2 optimizer.norm_rate=2 backend.precision=fp8
  backend.moments=bf16 backend.masters=bf16 backend.graphs=false
  output.save_dtype=bf16 output.profile_steps=2)

# trains NAME OVERRIDES...: what the start says is in $folder/NAME.start, up to the first line with a loss.
trains() {
  local name=$1 status
  shift
  "$TRAIN" "$config" "output.dir=$folder/$name" "$@" >"$folder/said" 2>&1 </dev/null
  status=$?
  sed '/^step .* loss /,$d' "$folder/said" >"$folder/$name.start"
  check "${name}_trains" "status $status, it said: $(tail -n 2 "$folder/said")" \
    test $status = 0 -a "$(grep -c '^step .* loss ' "$folder/said")" -gt 0
}
# short NAME: the start of that run; for a reader of the test its lines are shown.
short() {
  local lines
  lines=$(wc -l <"$folder/$1.start")
  check "the_start_of_${1}_is_twelve_lines_at_most" "$lines lines: $(cat "$folder/$1.start")" test "$lines" -gt 4 -a "$lines" -le 12
}
has() { # NAME WORDS
  check "the_start_of_${1}_has_${2//[^a-z0-9]/_}" "$(cat "$folder/$1.start")" grep -qF -- "$2" "$folder/$1.start"
}

# ---- A new run
trains new
short new
for words in 'model      ' 'backend    cpu: 1 thread' 'data       ' 'tokenizer  ' 'steps      20 of 2 x 32 tokens' 'memory     ' \
  'config     ' 'optimizer: learning_rate=0.003 warmup_steps=5' 'threads=1'; do
  has new "$words"
done
check keys_with_their_defaults_are_left_out "$(cat "$folder/new.start")" test -z "$(grep weight_decay "$folder/new.start")"
trains all_set "${all_set[@]}"
short all_set
has all_set 'precision  fp8: '
has all_set 'profile    steps 10 to 11'
check settings_without_room_are_counted "$(cat "$folder/all_set.start")" \
  grep -qE ' and [0-9]+ more, as log.jsonl has them$' "$folder/all_set.start"
check twelve_lines_are_what_all_of_it_takes "$(cat "$folder/all_set.start")" test "$(wc -l <"$folder/all_set.start")" = 12
check no_line_is_very_long "$(awk 'length > 140' "$folder/all_set.start")" \
  test -z "$(grep -v '^backend' "$folder/all_set.start" | awk 'length > 140')"

# ---- What is not said any more
log_has() { # NAME PATTERN: of the log of the run all_set
  check "the_log_has_$1" "$(head -n 1 "$folder/all_set/log.jsonl" | cut -c 1-2000)" grep -qE -- "$2" "$folder/all_set/log.jsonl"
}
log_has all_keys '"kind":"start",.*"config":\{"model":\{.*"weight_decay":0.2,.*"profile_steps":2'
log_has the_memory_plan '"memory":\{"planned":[0-9]+,"free":[0-9]+,"host_copy":[0-9]+,"items":\[\{"name":"master weights","shape":"fp32","bytes":[0-9]+\}'
log_has where_the_start_took_its_time '"kind":"opened",.*"phases":\{"program":'
log_has the_machine '"device":"1 thread, oneDNN '
total=$("$TRAIN" --plan "$config" "${all_set[@]}" | sed -nE 's/^  total +//p')
check the_plan_has_the_total_that_the_start_says "$total; $(grep '^memory' "$folder/all_set.start")" \
  grep -qF "memory     $total, the largest part " "$folder/all_set.start"

# ---- Names of any bytes: the log is UTF-8, and JSON, all the same
broken=$folder/$'br\xffoken \xed\xa0\x80\nname'
must "$TRAIN" "$config" "output.dir=$broken" train.steps=2 train.sample_interval=0 train.sample_tokens=5
must "$TRAIN" "$config" "output.dir=$broken" train.steps=3 train.resume=auto
check the_log_is_utf8_whatever_the_names_are "$(head -c 300 "$broken/log.jsonl")" iconv -f UTF-8 -t UTF-8 -o /dev/null "$broken/log.jsonl"
check its_lines_are_whole "$(cat "$broken/log.jsonl")" test "$(grep -cvE '^\{"kind":"[a-z]+","step":[0-9]+.*\}$' "$broken/log.jsonl")" = 0

# ---- Resumed
trains new train.resume=auto train.steps=40 optimizer.learning_rate=0.001
short new
has new 'resumed    at step 20 of 40: train.steps 20 -> 40, optimizer.learning_rate 0.003 -> 0.001; the learning rate '
trains all_set "${all_set[@]}" train.resume=auto train.steps=40 backend.precision=bf16 optimizer.decay_steps=9 train.seed=8
short all_set
has all_set ', backend.precision "fp8" -> "bf16"'

# ---- Finished
# finished NAME WORDS OVERRIDES...: one line with the words, the status 0, and nothing changes.
sums() { (cd "$folder/new" && find . -type f -exec cksum {} + | LC_ALL=C sort); }
finished() {
  local name=$1 words=$2 before status
  shift 2
  before=$(sums)
  "$TRAIN" "$config" "output.dir=$folder/new" train.steps=40 optimizer.learning_rate=0.001 train.resume=auto "$@" \
    >"$folder/said" 2>"$folder/said.err" </dev/null
  status=$?
  check "$name" "status $status, $(cat "$folder/said" "$folder/said.err")" \
    test "$status $(wc -l <"$folder/said") $(grep -cF -- "$words" "$folder/said") $(wc -c <"$folder/said.err")" = '0 1 1 0'
  check "${name}_and_changes_nothing" "$(diff <(echo "$before") <(sums))" test "$before" = "$(sums)"
}
finished a_finished_run_says_so_in_one_line "nothing to do: the run is done, at step 40 of 40; the model: $folder/new/step-00000040;"
finished a_run_beyond_its_end_says_so_in_one_line 'nothing to train: the run is at step 40 already, beyond train.steps=30;' train.steps=30
refuses a_finished_run_is_refused_with_another_batch 'train.batch_size 2 -> 1' "$config" "output.dir=$folder/new" \
  train.steps=40 train.resume=auto train.batch_size=1
# What a signal kept from the end is made up for: there is no record that the run is done.
sed -i '/"stop"/d' "$folder/new/log.jsonl"
trains new train.resume=auto train.steps=40 optimizer.learning_rate=0.001
check a_run_without_a_record_of_its_end_is_validated_again "$(cat "$folder/said")" grep -q '^step 40 | validation loss' "$folder/said"

# ---- The model's folder is named, whatever became of the link
rm "$folder/new/latest" && ln -s step-00000099 "$folder/new/latest"
finished a_link_to_nothing_does_not_matter "write with it: ./train --generate $folder/new/step-00000040 "
rm "$folder/new/latest" && mkdir "$folder/new/latest"
finished a_folder_in_its_place_does_not_matter "write with it: ./train --generate $folder/new/step-00000040 "
command=$(sed -n 's/.* write with it: //p' "$folder/said")
check the_printed_command_writes "$command" eval "\"$TRAIN\" ${command#./train} --tokens 3 >/dev/null"
exit "$failed"
