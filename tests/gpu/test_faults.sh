#!/usr/bin/env bash
# What goes wrong on a GPU: runs killed by SIGKILL go on and end with equal bits, an allocation that fails and a GPU that is
# lost end in one sentence, and the last checkpoint is whole. Set KILLS (20) for more.
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/../night/share.sh"
faulty=$PWD/build/release/tests/gpu/train_faults
prepare_run 400
options=(backend.device=cuda backend.deterministic=true model.hidden_size=64 model.intermediate_size=128 train.steps=60
  train.save_interval=5 train.keep_checkpoints=2 train.eval_interval=20)
must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole"

# ---- SIGKILL
run=$folder/killed
for ((kill = 0; kill < ${KILLS:-20}; kill++)); do
  "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  starts=$(grep -c '"kind":"start"' "$run/log.jsonl" 2>/dev/null)
  until [ "$(grep -c '"kind":"start"' "$run/log.jsonl" 2>/dev/null)" != "$starts" ]; do
    kill -0 $process 2>/dev/null || break
  done
  sleep "$(milliseconds 300)"
  kill -KILL $process 2>/dev/null && count SIGKILL
  wait $process
  latest_is_whole "$run" || fault "after kill $kill latest is no whole checkpoint" "$run"
  [ ! -s "$run/latest/state.json" ] || ! grep -q '"step": 60\b' "$run/latest/state.json" || break
done 2>/dev/null
must "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto
[ -n "$problem" ] || differs=$(same_end "$folder/whole" "$run") || fault "it ended with other bits: $differs" "$run"
finish a_run_on_the_gpu_that_is_killed_goes_on_and_ends_with_the_same_bits

# ---- Faults of the GPU
ends_clearly() { # NAME WORDS STATUS: one sentence and status 1, and no crash
  check "${1}_ends_with_status_1" "status $3: $(cat "$folder/said.err")" test "$3" = 1
  check "${1}_says_so_in_one_sentence" "$(cat "$folder/said.err")" \
    test "$(grep -c "$2" "$folder/said.err")/$(wc -l <"$folder/said.err")" = 1/1
}
# One that fails may cost nothing but speed, such as that which times products are tried in: then the run ends well.
# The check of programs is remembered first: where it finds no memory, the programs count as right.
must "$faulty" "$config" "${options[@]}" train.steps=2 optimizer.warmup_steps=1 train.resume= "output.dir=$folder/checked"
refused=0 wrong=''
for ((at = 1; at <= 25; at++)); do
  FAIL_ALLOCATION=$at "$faulty" "$config" "${options[@]}" train.steps=2 optimizer.warmup_steps=1 train.resume= \
    "output.dir=$folder/none-$at" >"$folder/said" 2>"$folder/said.err"
  status=$?
  [ $status = 0 ] && continue
  refused=$((refused + 1))
  [ "$status $(wc -l <"$folder/said.err")" = '1 1' ] && [ ! -e "$folder/none-$at" ] ||
    wrong+="allocation $at, status $status: $(cat "$folder/said.err"); "
done
echo "# $refused of 25 allocations were needed"
# The blocks of parameters, gradients and activations, at least.
check an_allocation_that_fails_ends_in_one_sentence_and_writes_nothing "$refused refused; $wrong" \
  test -z "$wrong" -a $refused -ge 3

run=$folder/lost
LOSE_GPU=200 "$faulty" "$config" "${options[@]}" "output.dir=$run" >"$folder/said" 2>"$folder/said.err"
ends_clearly a_lost_gpu 'cudaErrorIllegalAddress' $?
check the_last_checkpoint_is_whole "$(ls "$run" "$run/latest/")" latest_is_whole "$run"
check it_was_lost_in_training "$(ls "$run")" test -e "$run/latest"
must "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto
check the_run_goes_on_and_ends_with_the_same_bits "$(same_end "$folder/whole" "$run")" same_bits "$folder/whole" "$run"
exit $failed
