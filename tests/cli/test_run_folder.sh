#!/usr/bin/env bash
# A run's folder and its checkpoints, as the commands see them: one process trains in it, others read beside it.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_data 400
config=$folder/config.json
write_config "$config"
run=$folder/run
said() { echo "it said: $(tail -n 3 "$folder/said" | tr -d '\0') $(cat "$folder/said.err")"; }
begin() { # ARGUMENTS...: trains in the background, past its first save; $process is its id
  rm -f "$run/log.jsonl"
  "$TRAIN" "$config" train.steps=1000000 train.save_interval=5 train.keep_checkpoints=1 "$@" >"$folder/said.one" 2>&1 &
  process=$!
  wait_for '"kind":"save"' "$run/log.jsonl" $process || cat "$folder/said.one"
}

# ---- One process a folder
begin
kill -STOP $process # so that what is written meanwhile is not its own
refuses a_second_process_is_refused_with_the_first_ones_id "process $process on " \
  "$config" train.steps=50 train.resume=auto
refuses a_second_process_is_refused_without_resume_too 'trains there' "$config" train.steps=50
kill -CONT $process
check the_first_process_goes_on "$(cat "$folder/said.one")" kill -0 $process
"$TRAIN" --generate "$run" --prompt x --tokens 4 >"$folder/said" 2>"$folder/said.err"
check generate_reads_beside_a_run "$(said)" test $? = 0
"$TRAIN" --eval "$run" --data "$folder/data" >"$folder/said" 2>"$folder/said.err"
check eval_reads_beside_a_run "$(said)" test $? = 0
kill -KILL $process
wait $process 2>/dev/null
check a_killed_run_leaves_its_file 'there is none' test -e "$run/lock"
begin train.resume=auto
check a_killed_run_locks_nothing "$(cat "$folder/said.one")" kill -TERM $process
wait $process
check a_run_that_ends_takes_its_lock_along 'it is there' test ! -e "$run/lock"

# Both begin before the folder is there: one of them trains.
rm -rf "$run"
for i in 1 2; do
  "$TRAIN" "$config" train.steps=400 >"$folder/said.$i" 2>&1 &
  processes[i]=$!
done
lost=0
for i in 1 2; do wait "${processes[i]}" || lost=$((lost + 1)); done
check of_two_that_begin_at_once_one_trains "$(tail -n 1 "$folder"/said.[12])" test $lost = 1
exit $failed
