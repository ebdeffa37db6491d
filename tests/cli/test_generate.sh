#!/usr/bin/env bash
# ./train --generate and --eval on folders of all kinds, and the commands that train prints.
# shellcheck disable=SC2016 # programs for awk
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
run=$folder/run

# A byte model that was trained on half of its positions.
must "$TRAIN" "$config" train.sequence_length=16 train.batch_size=4 train.steps=200

generate() { "$TRAIN" --generate "$@" </dev/null; }
# value NAME ARGUMENTS...: what --eval prints after the name.
value() {
  local name=$1
  shift
  "$TRAIN" --eval "$@" | sed -n "s/^$name *//p"
}

# ---- What it reads
with=$(generate "$run" --prompt 'line 7' --tokens 60 | od -c)
mkdir "$folder/old"
cp "$run"/latest/{config.json,model.safetensors,run.json} "$folder/old"
check a_byte_model_without_a_tokenizer_json_takes_bytes 'its text differs' \
  test "$with" = "$(generate "$folder/old" --prompt 'line 7' --tokens 60 | od -c)"
sed -i 's/"sequence_length": 16/"sequence_length": 4/' "$folder/old/run.json"
check the_context_is_the_models_and_not_the_runs 'its text differs' \
  test "$with" = "$(generate "$folder/old" --prompt 'line 7' --tokens 60 | od -c)"
check standard_input_is_a_prompt 'its text differs' test "$with" = \
  "$(printf 'line 7' | "$TRAIN" --generate "$run" --tokens 60 | od -c)"
said=$(generate tests/fixtures/gqa_untied --prompt '3 4 5' --tokens 9)
check without_a_tokenizer_ids_are_taken_and_written "it said '$said'" \
  grep -qE '^3 4 5( [0-9]+){1,9}$' <<<"$said"
weighs() { generate "$run" --prompt 'line 7' --tokens 200 --weights "$1" | od -c; }
check fp8_weights_write_another_text 'it is the same' test "$(weighs fp8)" != "$(weighs bf16)"
check fp8_weights_write_the_same_text_again 'it differs' test "$(weighs fp8)" = "$(weighs fp8)"
refuses fp8_weights_come_in_16s 'this model has 32, 24 and 32' \
  --generate tests/fixtures/gqa_untied --prompt '3 4' --weights fp8
refuses without_a_tokenizer_text_is_refused "'Once' is none" --generate tests/fixtures/gqa_untied \
  --prompt 'Once'
refuses an_id_beyond_the_vocabulary_is_refused 'vocab_size of 40' \
  --generate tests/fixtures/gqa_untied --prompt '3 40'
check it_goes_on_past_the_trained_length 'it ended' \
  test "$(generate "$run" --prompt '' --tokens 100 --seed 4 | wc -c)" -gt 60
"$TRAIN" --generate "$run" --prompt a --tokens 5 >/dev/full 2>"$folder/said.err"
check a_full_disk_ends_it "$(cat "$folder/said.err")" grep -q 'cannot write to standard output' \
  "$folder/said.err"

# ---- Where it ends
ends() { # NAME JSON: with this eos_token_id in generation_config.json it ends at the same token
  echo "{\"eos_token_id\": $2}" >"$folder/old/generation_config.json"
  check "$1" "it wrote '$(generate "$folder/old" --prompt '' --tokens 60 | head -c 200)'" \
    test "$(generate "$folder/old" --prompt '' --tokens 60 | od -c)" = "$cut"
}
whole=$(generate "$run" --prompt '' --tokens 60)
check the_text_has_an_e 'choose another seed' grep -q e <<<"$whole"
cut=$(printf '%s\n' "${whole%%e*}" | od -c)
ends it_ends_at_eos_token_id 101
ends it_ends_at_any_of_a_list '[257, 300, 101]'
cut=$(printf '%s\n' "$whole" | od -c)
ends null_leaves_the_tokenizers_end null
echo '{"eos_token_id": "</s>"}' >"$folder/old/generation_config.json"
refuses an_eos_token_id_that_is_no_id_is_refused 'eos_token_id is "</s>"' --generate "$folder/old" \
  --prompt a
rm "$folder/old/generation_config.json"

# ---- What is wrong with the weights, or with the moment
size=$(stat -c %s "$folder/old/model.safetensors")
printf '\377\377\377\177' |
  dd of="$folder/old/model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
"$TRAIN" --generate "$folder/old" --prompt a --temperature 0 >"$folder/said" 2>"$folder/said.err"
status=$?
check weights_that_are_nan_end_in_a_sentence "status $status, it said $(cat "$folder/said.err")" \
  test "$status$(grep -c 'not finite' "$folder/said.err")$(wc -l <"$folder/said.err")" = 111
check and_in_no_zero_bytes "$(od -c "$folder/said")" \
  test "$(tr -dc '\0' <"$folder/said" | wc -c)" = 0
refuses their_loss_is_refused 'not finite' --eval "$folder/old" --data "$folder/data"

"$TRAIN" "$config" "output.dir=$folder/beside" train.steps=100000 train.save_interval=1 \
  train.keep_checkpoints=1 >"$folder/beside.said" 2>&1 &
process=$!
until [ -e "$folder/beside/latest" ]; do sleep 0.01; done
failures=0
for _ in {1..60}; do
  generate "$folder/beside" --prompt a --tokens 1 >"$folder/said" 2>&1 ||
    { failures=$((failures + 1)); sed 's/^/# /' "$folder/said"; }
done
check the_run_was_still_saving 'it had ended' kill -0 $process
kill $process; wait $process
check a_run_that_replaces_its_checkpoint_is_read "$failures of 60 failed" test $failures = 0

# ---- --eval
loss=$(value loss "$run" --data "$folder/data") of_fp8=$(value loss "$run" --data "$folder/data" --weights fp8)
check fp8_weights_have_a_loss_of_their_own "losses '$loss' and '$of_fp8'" \
  awk -v a="${loss%% *}" -v b="${of_fp8%% *}" 'BEGIN { d = b / a - 1; exit !(d != 0 && d < 0.02 && d > -0.02) }'
# Tokens of which 8 whole batches of 2 windows are made, so that nothing is left over.
slice() { token_slice "$folder/data/val-00000.bin" "$@"; } # COUNT [FIRST]
slice 513 >"$folder/even.bin"
must "$TRAIN" "$config" "output.dir=$folder/evened" "data.val=$folder/even.bin" train.eval_batches=0
logged=$(grep '"val","step":20' "$folder/evened/log.jsonl" | sed 's/.*"loss":\([0-9.]*\).*/\1/')
loss=$(value loss "$folder/evened" --data "$folder/even.bin" --length 32 --batch 2)
check the_loss_is_the_runs_own "it is $loss, the run's was $logged" \
  test "$(LC_ALL=C printf '%.6f nats a token' "$logged")" = "$loss"
said=$(value loss "$folder/evened" --data "$folder/even.bin" --length 32 --batch 3)
check it_does_not_depend_on_the_batch "it is $said" test "$loss" = "$said"
# A window of one token sees that token alone: files may be cut anywhere.
halves() { value 'data' "$run" --data "$folder/half*.bin" --length 1; }
slice 301 >"$folder/half1.bin"
slice 1 >"$folder/half2.bin"
said=$(halves)
check every_token_but_a_files_first_has_a_loss "it said '$said'" \
  test "$said" = '300 tokens with a loss, of 2 files, in windows of 1'
# 10 windows of 29 and one of 10 tokens, together and apart. Observed: 3e-7 apart, as printed.
slice 291 >"$folder/whole.bin"
slice 11 290 >"$folder/rest.bin"
said=$(for file in half1 whole rest; do
  value loss "$run" --data "$folder/$file.bin" --length 29
done)
check the_last_window_may_be_shorter "the losses are $said" awk '
  { loss[NR] = $1 }
  END { difference = loss[1] - (290 * loss[2] + 10 * loss[3]) / 300
        exit !(NR == 3 && loss[3] != loss[1] && difference < 2e-6 && difference > -2e-6)
  }' <<<"$said"
said=$(value 'bits per byte' "$run" --data "$folder/half1.bin")
nats=$(value loss "$run" --data "$folder/half1.bin")
check bits_per_byte_are_the_losses_over_the_bytes "it said '$said' for '$nats'" \
  awk -v said="$said" -v nats="$nats" 'BEGIN {
    split(said, bits, /[ ,]+/); split(nats, loss)
    exit !(bits[3] == 1 && (difference = bits[1] * log(2) - loss[1]) < 1e-5 && difference > -1e-5)
  }'
said=$(value 'data' "$run" --data "$folder/text.txt")
check a_text_is_encoded_as_it_is_read "it said '$said'" \
  grep -q "^$(($(wc -c <"$folder/text.txt") + 1)) tokens with a loss, of 1 file" <<<"$said"
check perplexity_is_the_losss_exponential "$(value perplexity "$run" --data "$folder/half1.bin")" \
  awk -v p="$(value perplexity "$run" --data "$folder/half1.bin")" -v l="$nats" \
  'BEGIN { exit !(log(p) - l < 1e-5 && l - log(p) < 1e-5) }'
{
  slice 40 | head -c 1024
  for i in {0..39}; do printf '%b' "\\x$(printf %02x "$i")\\0"; done
} >"$folder/ids.bin"
said=$(value 'bits per byte' tests/fixtures/gqa_untied --data "$folder/ids.bin")
check ids_without_a_tokenizer_have_no_bytes "it said '$said'" grep -q '^not known' <<<"$said"
refuses eval_without_data_is_refused '--eval needs --data' --eval "$run"
refuses a_missing_data_file_is_named "$folder/absent.bin" --eval "$run" --data "$folder/absent.bin"
echo '{"text": "a"}' >"$folder/text.jsonl"
refuses compressed_text_is_sent_to_prepare './prepare' --eval "$run" --data "$folder/text.jsonl"
cp "$folder/text.jsonl" "$folder/lines.txt"
refuses under_any_name './prepare' --eval "$run" --data "$folder/lines.txt"
gzip -c "$folder/text.txt" >"$folder/packed"
refuses and_any_compression './prepare' --eval "$run" --data "$folder/packed"
: >"$folder/nothing.txt"
refuses an_empty_text_is_refused "nothing.txt' is empty" --eval "$run" --data "$folder/nothing.txt"
printf '\xef\xbb\xbf' >"$folder/mark.txt"
refuses a_mark_alone_is_no_text "mark.txt' is empty" --eval "$run" --data "$folder/mark.txt"
head -c 500 "$folder/text.txt" >"$folder/bare.txt"
{ cat "$folder/mark.txt" "$folder/bare.txt"; } >"$folder/marked.txt"
check a_mark_in_front_changes_nothing 'the loss differs' \
  test "$(value loss "$run" --data "$folder/marked.txt")" = "$(value loss "$run" --data "$folder/bare.txt")"
{ printf '<|begin_of_text|>'; cat "$folder/bare.txt"; printf '<|end_of_text|>'; } >"$folder/spelled.txt"
check nor_do_bos_and_eos_that_are_spelled_out 'the loss differs' \
  test "$(value loss "$run" --data "$folder/spelled.txt")" = "$(value loss "$run" --data "$folder/bare.txt")"
mkdir "$folder"/{lora,mistral,gguf}
touch "$folder/lora/adapter_config.json" "$folder/mistral/consolidated.safetensors" "$folder/gguf/model.Q4.gguf"
refuses an_adapter_is_named 'it holds a LoRA adapter, not a model' --generate "$folder/lora" --prompt a
refuses consolidated_weights_are_named "it holds a model in Mistral's own form" --generate "$folder/mistral" --prompt a
refuses gguf_is_named "it holds a model in llama.cpp's form" --generate "$folder/gguf" --prompt a
refuses so_is_the_file "is a model in llama.cpp's form" "$config" "model=$folder/gguf/model.Q4.gguf"
refuses a_length_beyond_the_positions_is_refused 'max_position_embeddings of 32' --eval "$run" \
  --data "$folder/data" --length 33
refuses ids_that_the_model_lacks_are_refused 'has the token id 257, but the model knows only 0 to 39: make token files with' \
  --eval tests/fixtures/gqa_untied --data "$folder/data"
slice 1 >"$folder/one.bin"
refuses a_token_alone_is_refused 'has no token to predict' --eval "$run" --data "$folder/one.bin"

# ---- A tokenizer of its own
must "$PREPARE" --train-tokenizer 300 --out "$folder/bpe" "$folder/text.txt"
must "$PREPARE" --tokenizer "$folder/bpe" --out "$folder/bpe-data" "$folder/text.txt"
must "$TRAIN" "$config" model.vocab_size=300 "data.train=$folder/bpe-data/train-*.bin" \
  "data.val=$folder/bpe-data/val-*.bin" "output.dir=$folder/bpe-run" train.steps=100
said=$(generate "$folder/bpe-run" --prompt 'line 7' --tokens 40 --temperature 0)
check its_prompt_and_text_are_text "it said '$said'" grep -q '^line 7.*[a-z]' <<<"$said"
said=$(value 'bits per byte' "$folder/bpe-run" --data "$folder/bpe-data")
check its_tokens_have_several_bytes "it said '$said'" grep -qE 'at [2-9]\.' <<<"$said"
refuses files_of_another_tokenizer_are_refused 'another tokenizer' --eval "$folder/bpe-run" \
  --data "$folder/data"

# ---- Printed commands
dir="$folder/it's here"
mkdir "$dir"
cp "$config" "$dir/my config.json"
"$TRAIN" "$dir/my config.json" "output.dir=$dir/run" >"$folder/said" 2>&1
command=$(sed -n 's/.*write with it: .\/train //p' "$folder/said")
said=$(eval "\"$TRAIN\" $command" </dev/null | tr -d '\0')
check the_command_that_writes_can_be_pasted "'$command' said '$said'" grep -q '^\.\.\.' <<<"$said"
rm "$folder/said" # the run before has said tok/s, too
"$TRAIN" "$dir/my config.json" "output.dir=$dir/run" train.resume=auto \
  train.resume_allow_changes=true train.steps=1000000 >"$folder/said" 2>&1 &
process=$!
wait_for 'tok/s' "$folder/said" $process
kill -INT $process; wait $process
command=$(sed -n 's/.*resume with: .\/train //p' "$folder/said")
said=$(eval "\"$TRAIN\" --plan $command" 2>&1)
check the_command_that_resumes_can_be_pasted "'$command' said '$said'" \
  grep -qF '"steps": 1000000' <<<"$said"
exit $failed
