#!/usr/bin/env bash
# The ranges that a run shows a profiler: what they are called, how they nest, and that nothing else changes.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
if [ ! -e "$RECORDER" ]; then
  echo "ok - ranges # SKIP no $RECORDER: NVTX's headers, which come with CUDA, were not found (make test-programs builds it)"
  exit 0
fi
prepare_data 400
write_config "$folder/config.json"
three_steps=(train.steps=3 optimizer.warmup_steps=0 train.eval_batches=2)

recorded plain "${three_steps[@]}"
paths=$folder/paths
range_paths "$folder/plain.ranges" >"$paths"
check every_range_is_closed 'pushes and pops do not match' test $? = 0
printf 'push a\npush b\npop\n' >"$folder/open"
range_paths "$folder/open" >/dev/null
check a_range_left_open_would_be_noticed 'it was not' test $? = 1
printf 'push a\npop\npop\n' >"$folder/twice"
range_paths "$folder/twice" >/dev/null
check a_range_closed_twice_would_be_noticed 'it was not' test $? = 1

outermost=$(grep -v ' > ' "$paths" | tr '\n' ' ')
check a_run_validates_steps_and_saves "the outermost ranges are $outermost" \
  test "$outermost" = 'evaluation step step step evaluation save '

# within RANGE: what is inside each of these outermost ranges, without its name.
within() { sed -n "s/^$1 > //p" "$paths"; }

forward_layer() {
  local operation
  echo "forward > layer $1"
  for operation in qkv attention out gate_up down; do echo "forward > layer $1 > $operation (cpu)"; done
}
backward_layer() {
  local operation
  echo "backward > layer $1"
  for operation in down_wgrad down_dgrad gate_up_wgrad gate_up_dgrad out_wgrad out_dgrad attention_backward rope_backward \
    qkv_wgrad qkv_dgrad; do echo "backward > layer $1 > $operation (cpu)"; done
}
forward() {
  printf 'forward\nforward > embed (cpu)\n'
  forward_layer 0
  forward_layer 1
}
{
  forward
  printf 'backward\nbackward > %s\n' 'head_loss (cpu)'
  printf 'backward > %s\n' 'lm_head_wgrad (cpu)' 'lm_head_dgrad (cpu)'
  backward_layer 1
  backward_layer 0
  echo 'backward > embed_backward (cpu)'
  printf '%s\n' optimizer 'optimizer > grads_finish (cpu)' 'optimizer > adamw (cpu)'
} >"$folder/step"
cat "$folder/step" "$folder/step" "$folder/step" >"$folder/steps"
check a_step_shows_every_operation_in_its_layer "$(diff "$folder/steps" <(within step) | head -n 6)" \
  cmp -s "$folder/steps" <(within step)

for _ in 1 2 3 4; do # two validations of two batches
  forward
  echo 'validation_loss (cpu)'
done >"$folder/evaluations"
check a_validation_shows_its_forwards "$(diff "$folder/evaluations" <(within evaluation) | head -n 6)" \
  cmp -s "$folder/evaluations" <(within evaluation)

# ---- Other steps
recorded recomputed train.steps=1 optimizer.warmup_steps=0 train.recompute=layer train.gradient_accumulation=2 \
  train.sample_interval=0 train.sample_tokens=3
range_paths "$folder/recomputed.ranges" >"$paths"
check every_range_of_a_run_that_recomputes_is_closed 'they are not' test $? = 0
recompute='backward > layer 0 > recompute'
check what_the_backward_makes_again_is_shown_there "$(grep recompute "$paths")" test "$(within step | grep recompute)" = "$(
  for _ in 1 2; do
    echo "$recompute"
    for operation in requantize qkv attention out gate_up; do echo "$recompute > $operation (cpu)"; done
  done
)"
check every_micro_batch_is_shown "$(within step | grep -c '^forward$')" test "$(within step | grep -cx 'forward\|backward')" = 4
check a_sample_is_shown "$(grep -v ' > ' "$paths")" grep -qx sample "$paths"

# ---- The numbers
must "$TRAIN" "$folder/config.json" "output.dir=$folder/unseen" "${three_steps[@]}"
check a_run_that_nobody_watches_has_the_same_bits "$(same_bits "$folder/plain" "$folder/unseen" 2>&1)" \
  same_bits "$folder/plain" "$folder/unseen"
twelve_steps=(train.steps=12 optimizer.warmup_steps=0 train.eval_batches=2)
recorded twelve "${twelve_steps[@]}"
recorded window "${twelve_steps[@]}" output.profile_steps=2
check a_window_for_profilers_changes_no_bit "$(same_bits "$folder/twelve" "$folder/window" 2>&1)" \
  same_bits "$folder/twelve" "$folder/window"
check a_window_for_profilers_changes_no_range "$(diff "$folder/twelve.ranges" "$folder/window.ranges" | head -n 4)" \
  cmp -s "$folder/twelve.ranges" "$folder/window.ranges"
exit "$failed"
