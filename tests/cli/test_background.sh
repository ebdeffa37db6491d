#!/usr/bin/env bash
# Saves on a slow disk: training goes on beside them, a signal waits for them, and a second one does not.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
must test -e build/release/tests/slow_sync.so # else the first checks pass on the fast disk
prepare_run 400
options=(train.steps=8 train.save_interval=2 train.keep_checkpoints=9)
must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole"

place() { grep -n -- "$1" "$folder/$2/log.jsonl" | head -n 1 | cut -d: -f 1; } # of a record in a log
saves_are_told() { for step in 2 4 6 8; do grep -q "\"kind\":\"save\",\"step\":$step,.*\"waited_ms\":" "$1" || return 1; done; }

# slowly RUN: starts the run; its saves stand still until $folder/go is there.
slowly() {
  rm -f "$folder/go"
  # ASan wants to be the first library, but can do without.
  env "LD_PRELOAD=$PWD/build/release/tests/slow_sync.so" "SLOW_SYNC_UNTIL=$folder/go" \
    "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0" \
    "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/$1" >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
}

slowly beside
wait_for '"kind":"train","step":4,' "$folder/beside/log.jsonl" $process
check two_steps_are_done_beside_a_save "$(said)" test -z "$(place '"kind":"save"' beside)" -a ! -e "$folder/beside/latest"
touch "$folder/go"
wait $process
status=$?
check a_run_on_a_slow_disk_ends "status $status, $(said)" test $status = 0
check it_has_the_bits_of_one_on_a_fast_disk 'they differ' same_bits "$folder/whole" "$folder/beside"
check all_saves_are_told "$(grep save "$folder/beside/log.jsonl")" saves_are_told "$folder/beside/log.jsonl"

# The save of step 2 stands still, and the run at step 4, whose own save waits for it.
slowly once
wait_for '"kind":"train","step":4,' "$folder/once/log.jsonl" $process
kill -TERM $process
touch "$folder/go"
wait $process
status=$?
check a_signal_beside_a_save_ends_the_run_with_status_0 "status $status, $(said)" test $status = 0
check it_has_waited_for_both_saves "$(said)" test -f "$folder/once/latest/state.json" -a -d "$folder/once/step-00000002" \
  -a "$(basename "$(readlink "$folder/once/latest")")" = step-00000004

# The first save is done, and the second stands still for good: only a run that does not wait for it ends. A signal may
# be sent before the one before it was seen, so there are some.
mkdir "$folder/twice" && cp -r "$folder/whole/step-00000002" "$folder/twice" && ln -s step-00000002 "$folder/twice/latest"
options+=(train.resume=auto)
slowly twice
wait_for '"kind":"train","step":6,' "$folder/twice/log.jsonl" $process
for ((i = 0; i < 400; i++)); do
  kill -TERM $process 2>/dev/null || break
  sleep 0.05
done
kill -KILL $process 2>/dev/null
wait $process
status=$?
check a_second_signal_ends_it_at_once "status $status, $(said)" test $status = 143
check the_checkpoint_before_is_intact "$(ls "$folder/twice")" \
  test "$(basename "$(readlink "$folder/twice/latest")")" = step-00000002
for run in once twice; do
  must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/$run"
  check "a_run_stopped_${run}_goes_on_with_the_same_bits" 'they differ' same_bits "$folder/whole" "$folder/$run"
done

"$TRAIN" "$config" "${options[@]}" "output.dir=$folder/waiting" output.background_save=false >"$folder/said" 2>&1
check saves_that_training_waits_for_have_the_same_bits "$(said)" same_bits "$folder/whole" "$folder/waiting"
check they_take_no_memory_beside "$(said)" test -z "$(grep 'on the host' "$folder/said")"
exit $failed
