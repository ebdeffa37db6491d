#!/usr/bin/env bash
# Runs in FP8 as a user meets them, on the CPU: their scales survive interruptions, kills and other precisions, validations
# and samples leave them alone, and what is clipped is told.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 2000
options=(train.steps=40 train.batch_size=4 train.eval_interval=10 train.save_interval=4 train.keep_checkpoints=20
  optimizer.schedule=constant)

train() { train_into "$1" "${options[@]}" "${@:2}"; } # RUN ARGUMENTS...
same_weights() { # A B
  local file
  for file in model.safetensors optimizer.safetensors; do cmp "$1/$file" "$2/$file" || return 1; done
}
count_of() { grep -c -- "$1" "$folder/$2/log.jsonl"; }

# ---- Whole runs
must train bf16
must train fp8 backend.precision=fp8
cp "$folder/said" "$folder/said.fp8"
check the_start_names_the_precision "$(said)" grep -q '^precision  fp8: .*finds the scales' "$folder/said.fp8"
check steps_count_what_is_saturated "$(head -n 3 "$folder/fp8/log.jsonl")" test "$(count_of '"saturated":' fp8)" = 40
check steps_in_bf16_do_not "$(head -n 3 "$folder/bf16/log.jsonl")" test "$(count_of saturated bf16)" = 0
echo "# validation in fp8 $(last_loss val fp8), all in bf16 $(last_loss val bf16)"
check fp8_computes_something_else 'the losses are equal' test "$(last_loss val fp8)" != "$(last_loss val bf16)"
"$TRAIN" --plan "$config" "${options[@]}" backend.precision=fp8 >"$folder/said" 2>"$folder/said.err"
check the_plan_lists_the_copies "$(said)" grep -q 'FP8 copies' "$folder/said"
works its_model_writes "$TRAIN" --generate "$folder/fp8" --prompt line --tokens 3
works its_model_is_evaluated "$TRAIN" --eval "$folder/fp8" --data "$folder/data"

# ---- The same numbers by other ways
# as_whole NAME RUN OTHER: the last checkpoints of both have the same weights, moments and scales.
as_whole() {
  check "$1" "$(same_weights "$folder/$2/latest" "$folder/$3/latest" 2>&1)" \
    same_weights "$folder/$2/latest" "$folder/$3/latest"
}
must train often backend.precision=fp8 train.eval_interval=1 train.sample_interval=3 train.sample_tokens=5
as_whole validations_and_samples_leave_scales_alone fp8 often
must train never backend.precision=fp8 data.val=
as_whole none_changes_nothing fp8 never
for recompute in mlp layer; do
  must train "$recompute" backend.precision=fp8 "train.recompute=$recompute"
  as_whole "recompute_${recompute}_gives_the_same_bits" fp8 "$recompute"
done
for step in 4 20; do
  from=$(printf '%s/fp8/step-%08d' "$folder" $step)
  must train "fp8-$step" backend.precision=fp8 "train.resume=$from" train.eval_interval=7
  check "fp8_resumes_at_step_${step}_with_its_scales" "$(said)" grep -q "has the checkpoint's scales" "$folder/said"
  as_whole "fp8_resumed_at_step_${step}_ends_with_the_same_bits" fp8 "fp8-$step"
done
# Gradients that add up, chunks of the loss, and an embedding that is lm_head, too.
others=(backend.precision=fp8 train.gradient_accumulation=2 train.loss_chunks=2 model.tie_word_embeddings=true)
must train tied "${others[@]}"
must train tied-8 "${others[@]}" "train.resume=$folder/tied/step-00000008"
as_whole a_tied_model_in_pieces_goes_on_with_the_same_bits tied tied-8

# ---- Killed
run=killed
for words in '"kind":"train","step":1,' '"kind":"val","step":10,' '"kind":"save","step":16,' '"kind":"train","step":23,'; do
  "$TRAIN" "$config" "output.dir=$folder/$run" "${options[@]}" backend.precision=fp8 train.resume=auto \
    >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for "$words" "$folder/$run/log.jsonl" $process
  kill -KILL $process 2>/dev/null
  wait $process 2>/dev/null
done
must train $run backend.precision=fp8 train.resume=auto
as_whole a_killed_run_ends_with_the_same_bits fp8 $run

# ---- Another precision
# goes_on RUN FROM STEP PRECISION WAS
goes_on() {
  train "$1" "train.resume=$(printf '%s/%s/step-%08d' "$folder" "$2" "$3")" "backend.precision=$4"
  local status=$?
  check "$5_goes_on_in_$4" "$(said)" test $status = 0
  check "$5_that_resumes_in_$4_says_so" "$(said)" grep -qE "^resumed .* backend.precision \"$5\" -> \"$4\"" "$folder/said"
  echo "# $5, then $4: validation $(last_loss val "$1")"
  check "$5_that_goes_on_in_$4_goes_on_learning" "$(last_loss val "$1"), in bf16 $(last_loss val bf16)" \
    near "$(last_loss val "$1")" "$(last_loss val bf16)" 0.039 # observed: 0.013
}
goes_on bf16-fp8 bf16 12 fp8 bf16
check it_finds_its_scales_anew "$(said)" grep -q 'finds the scales' "$folder/said"
goes_on bf16-fp8-bf16 bf16-fp8 20 bf16 fp8

# ---- Saturation. Of many tensors one or another is beyond its scale in most steps: that is normal.
train many backend.precision=fp8 model.num_hidden_layers=16 train.steps=100 train.zero_init=true \
  optimizer.learning_rate=0.003 optimizer.warmup_steps=5 train.save_interval=-1
counted=$(grep -c '"saturated":[1-9]' "$folder/many/log.jsonl")
check tensors_that_saturate_by_turns_are_counted "in $counted of 100 steps" \
  test "$counted" -ge 20 # observed: 73
check and_not_told "$(cat "$folder/said.err")" test "$(grep -c 'in a row' "$folder/said.err")" = 0
# Weights that grow fivefold with every step are beyond every delayed scale.
train grows backend.precision=fp8 train.steps=9 optimizer.learning_rate=60 optimizer.weight_decay=0.1 \
  optimizer.warmup_steps=0 train.max_nonfinite=99 train.save_interval=-1
check saturation_is_counted "$(said)" grep -q '| [1-9][0-9]* saturated' "$folder/said"
check saturation_that_goes_on_is_told_once "$(cat "$folder/said.err")" \
  test "$(grep -c 'in a row .* values beyond the reach of its FP8 scale' "$folder/said.err")" = 1
check it_names_a_tensor "$(cat "$folder/said.err")" \
  grep -q "in a row '.* of layer [01]' had" "$folder/said.err"
exit $failed
