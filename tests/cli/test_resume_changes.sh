#!/usr/bin/env bash
# Runs that go on longer, or with another learning rate: what is printed, what the learning rate does, and that
# further resumes go on with it, bit for bit.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_data 400
config=$folder/config.json
write_config "$config"
sed -i 's/"steps": 20/"steps": 40/; s/"save_interval": 0/"save_interval": 20/' "$config"

train_into() { # RUN ARGUMENTS...
  local run=$1
  shift
  "$TRAIN" "$config" "output.dir=$folder/$run" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null
}
said() { echo "it said: $(grep -E '^(resumed|warm)' "$folder/said") $(tail -n 2 "$folder/said") $(cat "$folder/said.err")"; }
grep_said() { grep -qF -- "$1" "$folder/said" "$folder/said.err"; }
rate() { # RUN STEP
  grep "\"kind\":\"train\",\"step\":$2," "$folder/$1/log.jsonl" | tail -n 1 | grep -oE '"lr":[^,]*' | cut -d: -f2
}
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }'; }

# ---- Longer, from the middle: stopped at 20 of 40, on to 80
must train_into half
cp -r "$folder/half" "$folder/whole"
for run in longer twice other; do
  mkdir "$folder/$run" && cp -r "$folder/half/step-00000020" "$folder/$run"
done
train_into longer train.steps=80 train.resume=auto
check a_run_goes_on_for_longer_without_being_allowed_to "status $?, $(said)" grep_said 'step 80/80'
check one_line_says_what_has_changed "$(said)" grep_said \
  'resumed    at step 20 of 80: train.steps 40 -> 80; the learning rate goes on from 0.00183'
check the_learning_rate_goes_on_from_where_it_was "$(rate longer 21) after $(rate half 20)" \
  test "$(rate longer 21)" = "$(rate half 21)"
check it_falls_more_slowly_than_before "$(rate half 35), $(rate longer 35)" below "$(rate half 35)" "$(rate longer 35)"
check it_comes_down_to_its_minimum_at_the_new_end "$(rate longer 80)" below "$(rate longer 80)" 2e-6
check the_last_step_still_trains "$(rate longer 80)" below 1e-7 "$(rate longer 80)"
check the_log_has_what_has_changed "$(grep '"start"' "$folder/longer/log.jsonl" | tail -n 1)" \
  grep -qF '"changes":"train.steps 40 -> 80"' "$folder/longer/log.jsonl"

# The same with two more resumes in between.
for steps in 30 50; do
  "$TRAIN" "$config" "output.dir=$folder/twice" train.steps=80 train.resume=auto \
    >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for "\"kind\":\"train\",\"step\":$steps," "$folder/twice/log.jsonl" $process
  kill -TERM $process 2>/dev/null
  wait $process
done
train_into twice train.steps=80 train.resume=auto
check further_resumes_keep_the_new_schedule "$(same_bits "$folder/longer" "$folder/twice" 2>&1)" \
  same_bits "$folder/longer" "$folder/twice"

# ---- Longer, after the end: the rate was next to nothing, so it rises again
train_into whole train.steps=80 train.resume=auto
check a_finished_run_goes_on_for_longer "status $?, $(said)" grep_said \
  'of 80: train.steps 40 -> 80; the learning rate goes from 6.04e-06 to 0.003 in 5 steps'
check its_learning_rate_rises_again "$(rate whole 45)" test "$(rate whole 45)" = 0.003

# ---- Another learning rate
train_into other train.resume=auto optimizer.learning_rate=0.001
check another_learning_rate_needs_no_permission "status $?, $(said)" grep_said \
  'of 40: optimizer.learning_rate 0.003 -> 0.001; the learning rate goes on from 0.001'
check it_is_the_rate_from_there_on "$(rate other 21)" test "$(rate other 21)" = 0.001

# ---- A schedule that is longer than the run
train_into trial train.steps=20 optimizer.warmup_steps=60
check a_warm_up_longer_than_the_run_is_shortened "status $?, $(said)" test "$(rate trial 3)" = 0.003
exit $failed
