#!/usr/bin/env bash
# A console that goes away ends no run, a hangup and train.max_minutes save and end it, and a limit on the size of
# files is an error of a save.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
endless=(train.steps=1000000)

log_is_whole() { # RUN STEPS: every line is a record, and it has every step
  [ "$(grep -cvE '^\{"kind":"[a-z]+","step":[0-9]+.*\}$' "$folder/$1/log.jsonl")" = 0 ] &&
    [ "$(grep -c '"kind":"train"' "$folder/$1/log.jsonl")" = "$2" ]
}
stopped_by() { tail -n 1 "$folder/$1/log.jsonl" | grep -q "\"reason\":\"$2\""; }
said() { echo "status $status, it said: $(tail -n 2 "$folder/said") $(cat "$folder/said.err")"; }

# ---- A console that is closed or broken
"$TRAIN" "$config" "output.dir=$folder/closed" >&- 2>/dev/null
status=$?
check a_run_without_standard_output_trains_to_its_end "status $status" test $status = 0
check its_log_has_nothing_else_in_it "$(head -n 3 "$folder/closed/log.jsonl")" log_is_whole closed 20
"$TRAIN" "$config" "output.dir=$folder/head" 2>"$folder/said.err" | head -n 1 >"$folder/said"
status=${PIPESTATUS[0]}
check a_broken_pipe_does_not_end_a_run "$(said)" test "$status" = 0
check its_log_goes_on "$(tail -n 2 "$folder/head/log.jsonl")" log_is_whole head 20
check a_command_whose_prints_are_its_result_still_fails "$("$TRAIN" --help 2>&1 >&-)" \
  test "$("$TRAIN" --help 2>&1 >&-)" = 'train: cannot write to standard output: Bad file descriptor'

# ---- Hangups
# noticed RUN SIGNAL PREFIX...: the signal three times after step 100. A terminal that is closed sends SIGHUP twice.
noticed() {
  local run=$1 signal=$2
  shift 2
  "$@" "$TRAIN" "$config" "${endless[@]}" "output.dir=$folder/$run" >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for '"kind":"train","step":100,' "$folder/$run/log.jsonl" $process
  for _ in 1 2 3; do kill -"$signal" $process 2>/dev/null; done
}
noticed hangup HUP env --default-signal=HUP # as if the tests did not run under nohup
wait $process
status=$?
check a_hangup_saves_and_ends_a_run "$(said)" test "$status $(readlink "$folder/hangup/latest" | cut -c 1-5)" = '0 step-'
noticed nohup HUP nohup
wait_for '"kind":"train","step":1000,' "$folder/nohup/log.jsonl" $process
check nohup_keeps_hangups_away "$(said)" kill -TERM $process
wait $process

# ---- Notices: signals that batch systems send some time before the end. SIGTERM follows, and is the first that counts.
for signal in USR1 USR2 XCPU ALRM; do
  noticed "$signal" $signal env --default-signal=$signal
  kill -TERM $process 2>/dev/null
  wait $process
  status=$?
  check "SIG${signal}_and_then_SIGTERM_save_and_end_a_run" "$(said)" \
    test "$status $(readlink "$folder/$signal/latest" | cut -c 1-5)" = '0 step-'
  check "the_log_has_SIG${signal}_as_a_signal" "$(tail -n 1 "$folder/$signal/log.jsonl")" stopped_by "$signal" signal
  check "SIG${signal}_is_not_taken_for_max_minutes" "$(said)" test -z "$(grep max_minutes "$folder/said")"
done
noticed ignored USR1 env --ignore-signal=USR1
wait_for '"kind":"train","step":1000,' "$folder/ignored/log.jsonl" $process
check an_ignored_notice_stays_so "$(said)" kill -TERM $process
wait $process

# ---- A limit on the size of files
(ulimit -f 100 && exec "$TRAIN" "$config" "output.dir=$folder/limit") >"$folder/said" 2>"$folder/said.err"
status=$?
check a_file_that_may_not_grow_is_the_error_of_a_save "$(said)" \
  test "$status $(grep -c 'could not be saved: .*File too large' "$folder/said.err")" = '1 1'

# ---- train.max_minutes
begin=$(date +%s%N)
"$TRAIN" "$config" "${endless[@]}" "output.dir=$folder/timed" train.max_minutes=0.05 >"$folder/said" 2>"$folder/said.err"
status=$? took=$((($(date +%s%N) - begin) / 1000000))
check a_run_ends_before_its_minutes_are_over "after $took ms, $(said)" test $status = 0 -a $took -gt 500 -a $took -lt 3000
check it_says_why_and_how_to_go_on "$(said)" \
  grep -q 'as train.max_minutes=0.05 asks; resume with: .*train.resume=auto' "$folder/said"
check the_log_says_why "$(tail -n 1 "$folder/timed/log.jsonl")" stopped_by timed max_minutes
check what_it_did_is_saved "$(ls "$folder/timed")" test -e "$folder/timed/latest/state.json"
endless+=(train.max_minutes=5)
noticed early ALRM env --default-signal=ALRM
wait $process
check an_alarm_of_others_is_not_that_of_max_minutes "$(said)" stopped_by early signal
exit $failed
