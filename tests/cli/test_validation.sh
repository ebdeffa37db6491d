#!/usr/bin/env bash
# A run's validation: a fair sample of the split, all of it where that is asked for, and one measure at a time.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
write_config "$config"
sed -i 's/"steps": 20/"steps": 40/' "$config"

# kinds LINES [mixed]: text of four kinds, as unlike as text and noise, one after the other; mixed: line by line.
kinds() {
  awk -v lines="$1" -v mixed="${2:-}" '
    function line(kind, n,   text) {
      if (kind == 0) return "line " n " is a line of a small text, and so is the next one."
      text = ""
      while (length(text) < 60) text = text substr(letters, 1 + int(rand() * 10 * kind ^ 2), 1)
      return text
    }
    BEGIN {
      srand(7)
      for (i = 33; i < 123; i++) letters = letters sprintf("%c", i)
      for (i = 0; i < 4 * lines; i++) print mixed ? line(i % 4, i) : line(int(i / lines), i)
    }'
}

# value KEY KIND RUN: of the last record of that kind.
value() { grep "\"kind\":\"$2\"" "$folder/$3/log.jsonl" | tail -n 1 | sed -nE "s/.*\"$1\":([^,}]*).*/\\1/p"; }
# evaluated NAME DIR DATA LENGTH: what --eval prints after the name.
evaluated() { "$TRAIN" --eval "$2" --data "$3" --length "$4" 2>"$folder/said.err" | sed -nE "s/^$1 +([0-9.]*).*/\\1/p"; }
# again FROM RUN OVERRIDES...: goes on from FROM's checkpoint of step 40, which it validates at once, for a step. Its line
# is in $folder/said then, and the records of step 40 alone in its log.
again() {
  local from=$1 run=$2
  shift 2
  "$TRAIN" "$config" "train.resume=$folder/$from/step-00000040" "output.dir=$folder/$run" train.steps=41 \
    train.eval_interval=40 train.resume_allow_changes=true "$@" >"$folder/$run.said" 2>&1 ||
    { fails "${run}_trains" "$(tail -n 2 "$folder/$run.said")" && exit 1; }
  grep '^step 40 | validation' "$folder/$run.said" >"$folder/said"
  grep '"step":40,' "$folder/$run/log.jsonl" >"$folder/$run/step-40" && mv "$folder/$run/step-40" "$folder/$run/log.jsonl"
}

# ---- A sample of a split whose parts are unlike, and all of it
kinds 300 mixed >"$folder/text.txt"
must "$PREPARE" --out "$folder/data" "$folder/text.txt"
kinds 4200 >"$folder/unlike.txt"
must "$PREPARE" --out "$folder/unlike" "$folder/unlike.txt"
windows=7000
token_slice "$folder/unlike/train-00000.bin" $((128 * windows + 1)) >"$folder/split.bin"
shape=(model.hidden_size=16 model.intermediate_size=32 model.num_hidden_layers=1 model.max_position_embeddings=128
  train.sequence_length=128 train.batch_size=8 "data.val=$folder/split.bin" backend.threads=0)
must "$TRAIN" "$config" "${shape[@]}" "output.dir=$folder/long" train.steps=40 train.save_interval=40 train.eval_interval=40 \
  train.eval_batches=20 optimizer.learning_rate=0.01
again long whole "${shape[@]}" train.eval_batches=0
sample=$(grep '"kind":"val","step":40,' "$folder/long/log.jsonl" | sed -nE 's/.*"loss":([^,}]*).*/\1/p')
error=$(grep '"kind":"val","step":40,' "$folder/long/log.jsonl" | sed -nE 's/.*"stderr":([^,}]*).*/\1/p')
whole=$(value loss val whole)
echo "# 20 batches: $sample +- $error; all 7000 windows: $whole"
check a_sample_is_within_three_standard_errors_of_the_split "$sample +- $error and $whole" \
  near "$sample" "$whole" "$(awk -v e="$error" 'BEGIN { print 3 * e }')"
check which_are_small "$error" near "$error" 0.03 0.03
check its_line_has_the_error_and_the_bits "$(grep '^step 40 | val' "$folder/whole.said")" grep -qE \
  '^step 40 \| validation loss [0-9.]+, [0-9.]+ bits per byte, over 896.0k tokens, all windows \(best so far\)$' "$folder/said"
check all_of_the_split_has_no_error_of_a_sample "$(value stderr val whole)" test "$(value stderr val whole)" = 0
check all_of_it_is_what_eval_finds "$whole, --eval $(evaluated loss "$folder/long/step-00000040" "$folder/split.bin" 128)" \
  near "$whole" "$(evaluated loss "$folder/long/step-00000040" "$folder/split.bin" 128)" 2e-6
bits=$(evaluated 'bits per byte' "$folder/long/step-00000040" "$folder/split.bin" 128)
check so_are_its_bits_per_byte "$(value bits_per_byte val whole), --eval $bits" \
  near "$(value bits_per_byte val whole)" "$bits" 2e-6

# ---- Batches that are not whole
small=13 # windows
token_slice "$folder/unlike/train-00000.bin" $((32 * small + 20)) 400000 >"$folder/small.bin"
token_slice "$folder/small.bin" $((32 * small + 1)) >"$folder/even.bin"
for precision in bf16 fp8; do
  must "$TRAIN" "$config" "output.dir=$folder/$precision" train.save_interval=40 "data.val=$folder/small.bin" \
    backend.precision=$precision
  again $precision one-$precision train.batch_size=1 train.eval_batches=0 "data.val=$folder/small.bin"
  one=$(value loss val one-$precision)
  for batch in 2 3 8 13 40; do
    again $precision $precision-$batch train.batch_size=$batch train.eval_batches=0 "data.val=$folder/small.bin"
    loss=$(value loss val $precision-$batch)
    check "a_split_of_${small}_is_read_to_its_end_in_batches_of_${batch}_in_$precision" "$loss, one by one $one" near "$loss" "$one" 2e-6
    check "its_tokens_are_all_counted_in_batches_of_${batch}_in_$precision" "$(value tokens val $precision-$batch)" \
      test "$(value tokens val $precision-$batch)" = $((32 * small))
  done
done
one=$(value loss val one-bf16) evaluated=$(evaluated loss "$folder/bf16/step-00000040" "$folder/even.bin" 32)
check and_it_is_what_eval_finds "$one, --eval $evaluated" near "$one" "$evaluated" 2e-6
again bf16 all-in-two train.batch_size=8 train.eval_batches=2 "data.val=$folder/small.bin"
check more_than_the_split_is_the_split "$(cat "$folder/said")" test "$(value loss val all-in-two)" = "$(value loss val bf16-8)"
token_slice "$folder/small.bin" 33 >"$folder/single.bin"
again bf16 single train.batch_size=8 "data.val=$folder/single.bin"
check a_single_window_is_enough "$(cat "$folder/said")" near "$(value loss val single)" \
  "$(evaluated loss "$folder/bf16/step-00000040" "$folder/single.bin" 32)" 2e-6
token_slice "$folder/small.bin" 32 >"$folder/short.bin"
refuses less_is_refused "has 32 tokens, which make 0 of the 1 sequences of 32 that a batch needs, at least 33 tokens in one file" \
  "$config" "data.val=$folder/short.bin"
again bf16 batch train.batch_size=8 train.eval_batches=1 "data.val=$folder/small.bin"
check one_batch_says_nothing_of_its_error "$(cat "$folder/said")" test "$(value stderr val batch)" = null
check and_prints_none "$(cat "$folder/said")" grep -qE 'validation loss [0-9.]+, [0-9.]+ bits per byte, over 256 tokens( |$)' "$folder/said"
must "$TRAIN" "$config" "output.dir=$folder/ids" model.vocab_size=300 data.tokenizer= "data.train=$folder/split.bin" \
  "data.val=$folder/small.bin"
check without_a_tokenizer_there_are_no_bits "$(value bits_per_byte val ids)" test "$(value bits_per_byte val ids)" = null

# ---- A resume by another measure: losses of one are not compared with those of the other
best() { grep -q '(best so far)$' "$folder/said"; }
must "$TRAIN" "$config" "output.dir=$folder/a" "data.val=$folder/split.bin" train.save_interval=40 train.eval_interval=40
must "$TRAIN" "$config" "output.dir=$folder/b" "data.val=$folder/split.bin" train.save_interval=40 train.eval_interval=40 \
  train.eval_batches=1
again a a-by-a "data.val=$folder/split.bin"
check the_same_loss_again_is_not_the_best_so_far "$(cat "$folder/said")" grep -qv 'best so far' "$folder/said"
again a a-in-fewer "data.val=$folder/split.bin" train.batch_size=1 train.eval_batches=8
check other_batches_of_them_are_the_same_measure "$(grep ^resumed "$folder/a-in-fewer.said")" \
  test "$(grep -c '^resumed .*validation' "$folder/a-in-fewer.said")" = 0
again a a-by-b "data.val=$folder/split.bin" train.eval_batches=1
check by_other_windows_it_is "$(cat "$folder/said")" best
check and_a_line_says_so "$(grep ^resumed "$folder/a-by-b.said")" grep -q '^resumed .*validation' "$folder/a-by-b.said"
again b b-by-a "data.val=$folder/split.bin"
check whichever_is_lower "$(cat "$folder/said")" best
again a a-elsewhere "data.val=$folder/data/val-*.bin"
check so_is_it_on_other_data "$(cat "$folder/said")" best
exit "$failed"
