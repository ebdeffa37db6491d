#!/usr/bin/env bash
# Runs that are resumed for longer, or with another learning rate: what is printed, that the learning rate is that of a
# whole run with these keys, and that further resumes keep to it, bit for bit.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
sed -i 's/"steps": 20/"steps": 40/; s/"save_interval": 0/"save_interval": 20/' "$config"

said() { echo "it said: $(grep -E '^(resumed|warm)' "$folder/said") $(tail -n 2 "$folder/said") $(cat "$folder/said.err")"; }
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
  'resumed    at step 20 of 80: train.steps 40 -> 80; the learning rate is 0.0027'
train_into fresh train.steps=80 train.save_interval=-1
for step in 21 50 80; do
  check "the_learning_rate_of_step_${step}_is_that_of_a_run_of_80" "$(rate longer $step), $(rate fresh $step)" \
    test "$(rate longer $step)" = "$(rate fresh $step)"
done
check it_comes_down_to_its_minimum_at_the_new_end "$(rate longer 80)" below "$(rate longer 80)" 2e-6
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

# ---- Longer, after the end
train_into whole train.steps=80 train.resume=auto
check a_finished_run_goes_on_for_longer "status $?, $(said)" grep_said 'of 80: train.steps 40 -> 80; the learning rate is 0.00'
check its_learning_rate_is_that_of_a_run_of_80 "$(rate whole 41)" test "$(rate whole 41)" = "$(rate fresh 41)"

# ---- Another learning rate
train_into other train.resume=auto optimizer.learning_rate=0.001
check another_learning_rate_needs_no_permission "status $?, $(said)" grep_said \
  'of 40: optimizer.learning_rate 0.003 -> 0.001; the learning rate is 0.00061'
check it_scales_the_curve_from_there_on "$(rate other 21) for $(rate half 21)" \
  awk -v a="$(rate other 21)" -v b="$(rate half 21)" 'BEGIN { exit !(a / b > 0.3333 && a / b < 0.3334) }'

# ---- A new run that was asked to resume says so
train_into fresh_auto train.resume=auto
check a_new_run_in_place_of_a_resumed_one_is_said "status $?, $(said)" \
  grep_said "output.dir '$folder/fresh_auto' has no checkpoint to resume: a new run begins"

# ---- Back to an older checkpoint: what it will replace is said before, and goes only as the run passes it
back=(train.save_interval=10 train.keep_checkpoints=9 train.keep_best=true train.eval_interval=10
  data.val="$folder/data/val-*.bin")
train_into back "${back[@]}"
train_into back "${back[@]}" train.resume="$folder/back/step-00000020" train.steps=30
check a_run_that_goes_back_says_what_it_will_replace "status $?, $(said)" grep_said \
  "output.dir has 2 checkpoints of later steps, up to step 40, 'best' among them: each is replaced or removed when the run passes"
check those_that_it_has_not_passed_are_kept "$(ls "$folder/back")" test -d "$folder/back/step-00000040"
train_into back "${back[@]}" train.resume=auto train.steps=30
check a_run_that_went_back_is_where_it_ended "$(said)" grep_said 'nothing to do: the run is done, at step 30 of 30'
train_into back "${back[@]}" train.resume=auto train.steps=45 train.save_interval=15 train.eval_interval=45
check those_that_it_has_passed_are_gone "$(ls "$folder/back")" test ! -e "$folder/back/step-00000040"
check no_link_leads_to_one_of_them "$(ls -l "$folder/back")" test -e "$folder/back/best" -o ! -L "$folder/back/best"

# ---- A file system without symbolic links
must test -e build/release/tests/symlink_stub.so
links() { # ARGUMENTS...
  env "LD_PRELOAD=$PWD/build/release/tests/symlink_stub.so" "$TRAIN" "$config" "output.dir=$folder/links" "$@" \
    >"$folder/said" 2>"$folder/said.err" </dev/null
}
links train.save_interval=5 train.keep_checkpoints=2 train.steps=20
check a_run_needs_no_links "status $?, $(said)" grep_said 'done; the model'
check it_says_once_that_it_has_none "$(said)" \
  test "$(grep -c 'takes no symbolic links' "$folder/said.err") $(wc -l <"$folder/said.err")" = '1 1'
check it_writes_no_more_copies "$(ls "$folder/links"*)" \
  test "$(cd "$folder/links" && echo *)" = 'log.jsonl run.json step-00000015 step-00000020'
"$TRAIN" --eval "$folder/links" --data "$folder/data" >"$folder/said" 2>"$folder/said.err"
check readers_find_the_newest "status $?, $(said)" grep_said 'perplexity'
links train.resume=auto
check a_run_without_links_resumes_from_the_newest "status $?, $(said)" grep_said 'resumed    at step 20 of 40'
refuses a_run_without_links_does_not_go_back_where_nobody_would_see_it "no link 'latest'" "$config" "output.dir=$folder/links" \
  train.resume="$folder/links/step-00000020"

# ---- A schedule that is longer than the run
train_into trial train.steps=20 optimizer.warmup_steps=60
check a_warm_up_longer_than_the_run_is_shortened "status $?, $(said)" test "$(rate trial 3)" = 0.003
exit $failed
