#!/usr/bin/env bash
# A run that is interrupted and gone on with equals one that was not, bit for bit; and what a run does about signals,
# changed configs and numbers that are not finite.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 4000
# Validations of hundreds of sequences and samples of thousands of tokens, so that a signal can fall into them; the
# likeliest token is never the end of the document, which would end a sample.
sampling=(train.steps=60 train.batch_size=8 train.eval_batches=0 train.eval_interval=20
  train.sample_interval=30 train.sample_tokens=4000)

sample_chars() { grep '"kind":"sample"' "$folder/$1/log.jsonl" | head -n 1 | wc -c; }
at_step() { grep -q "\"step\": $2\\b" "$folder/$1/latest/state.json"; }

# ---- The same seed
must train_into first "${sampling[@]}"
must train_into second "${sampling[@]}"
check the_same_seed_twice_gives_equal_bits "$(same_bits "$folder/first" "$folder/second" 2>&1)" \
  same_bits "$folder/first" "$folder/second"
must train_into other "${sampling[@]}" train.seed=7
cmp -s "$folder/first/latest/model.safetensors" "$folder/other/latest/model.safetensors"
check another_seed_gives_other_weights 'the weights are equal' test $? = 1

# ---- Interrupted and gone on with
# goes_on NAME LOG_WORDS STEP SIGNAL ARGUMENTS...: the signal is sent when the log has the words; the run must end
# with 0 at STEP and say how to go on, and going on must lead to what `first` has.
goes_on() {
  local name=$1 words=$2 step=$3 signal=$4 run=$1 process status
  shift 4
  "$TRAIN" "$config" "output.dir=$folder/$run" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for "$words" "$folder/$run/log.jsonl" $process
  [ "$step" != 0 ] || sleep 0.02 # that record is written before signals are caught
  kill -"$signal" $process 2>/dev/null
  wait $process
  status=$?
  check "a_signal_${name}_ends_the_run_with_status_0" "status $status, $(said)" test $status = 0
  check "a_signal_${name}_is_answered_with_how_to_go_on" "$(said)" grep_said 'train.resume=auto'
  [ "$step" = any ] ||
    check "a_signal_${name}_ends_it_there" "$(cat "$folder/$run/latest/state.json")" at_step "$run" "$step"
  case $name in
  *last_validation) check "a_signal_${name}_says_what_was_left_out" "$(said)" \
    grep_said 'the stop skipped the last validation or sample; resume with: ' ;;
  *validation) check "a_signal_${name}_cuts_it_short" 'it was finished' \
    test -z "$(grep "\"kind\":\"val\",\"step\":$step," "$folder/$run/log.jsonl")" ;;
  *sample) check "a_signal_${name}_cuts_it_short" "it has $(sample_chars "$run") characters" \
    test "$(sample_chars "$run")" -lt "$(sample_chars first)" ;;
  esac
  train_into "$run" "$@" train.resume=auto
  check "a_run_interrupted_${name}_goes_on_from_its_step" "$(said)" grep -q '^resumed ' "$folder/said"
  check "a_run_interrupted_${name}_ends_with_the_same_bits" "$(same_bits "$folder/first" "$folder/$run" 2>&1)" \
    same_bits "$folder/first" "$folder/$run"
  check "a_run_interrupted_${name}_has_the_same_losses" \
    "$(diff <(losses train "$folder/first/log.jsonl") <(losses train "$folder/$run/log.jsonl") | head -n 4)" \
    test "$(losses train "$folder/first/log.jsonl")" = "$(losses train "$folder/$run/log.jsonl")"
  check "a_run_interrupted_${name}_has_the_same_last_validation" "$(losses val "$folder/$run/log.jsonl")" \
    test "$(losses val "$folder/first/log.jsonl" | tail -n 1)" = "$(losses val "$folder/$run/log.jsonl" | tail -n 1)"
}
goes_on between_steps '"kind":"train","step":7,' any TERM "${sampling[@]}"
goes_on by_the_keyboard '"kind":"train","step":41,' any INT "${sampling[@]}"
goes_on in_a_validation '"kind":"train","step":20,' 20 TERM "${sampling[@]}"
goes_on in_the_first_validation '"kind":"start"' 0 TERM "${sampling[@]}"
goes_on in_the_last_validation '"kind":"train","step":60,' 60 TERM "${sampling[@]}"
goes_on in_a_sample '"kind":"train","step":30,' 30 TERM "${sampling[@]}"

# ---- A finished run
sum() { (cd "$folder/first/latest/" && cksum ./*); }
files=$(sum)
train_into first "${sampling[@]}" train.resume=auto
check a_finished_run_that_is_resumed_says_so "$(said)" grep_said 'at step 60 of 60'
check a_finished_run_that_is_resumed_keeps_its_files 'they changed' test "$files" = "$(sum)"

files=$(sum)
train_into first "${sampling[@]}" train.resume=auto train.steps=10
check a_run_that_is_beyond_its_end_has_nothing_to_train "status $?, $(said)" \
  grep_said 'nothing to train: the run is at step 60 already, beyond train.steps=10'
check a_run_that_is_beyond_its_end_keeps_its_files 'they changed' test "$files" = "$(sum)"

# ---- Changes
cp -r "$folder/first" "$folder/run"
refuses resuming_with_another_batch_names_the_key 'train.gradient_accumulation' "$config" "${sampling[@]}" \
  train.resume=auto train.gradient_accumulation=2
check it_names_both_values "$(said)" grep -q 'gradient_accumulation 1 -> 2' "$folder/said.err"
train_into run "${sampling[@]}" train.resume=auto train.gradient_accumulation=2 train.resume_allow_changes=true
check a_change_is_allowed_when_asked_for "$(said)" grep_said 'at step 60 of 60'
train_into run "${sampling[@]}" train.resume=auto output.background_save=false train.keep_checkpoints=1
check a_key_that_changes_no_number_may_change "$(said)" grep_said 'at step 60 of 60'

# ---- Weights and moments in bf16, from the middle
narrow=(backend.masters=bf16 backend.moments=bf16 output.save_dtype=bf16 train.save_interval=10 train.keep_checkpoints=2)
must train_into narrow "${narrow[@]}"
mkdir "$folder/narrow_cut" && cp -r "$folder/narrow/step-00000010" "$folder/narrow_cut"
must train_into narrow_cut "${narrow[@]}" train.resume=auto
check a_run_with_bf16_masters_goes_on_with_the_same_bits "$(same_bits "$folder/narrow" "$folder/narrow_cut" 2>&1)" \
  same_bits "$folder/narrow" "$folder/narrow_cut"
rm -r "$folder/narrow/step-00000020"
refuses a_resume_with_fp32_masters_names_the_key 'backend.masters' "$config" "${narrow[@]}" output.dir="$folder/narrow" \
  train.resume=auto backend.masters=fp32
train_into narrow "${narrow[@]}" train.resume=auto backend.masters=fp32 train.resume_allow_changes=true
check it_is_allowed_when_asked_for "$(said)" grep_said 'at step 10 of 20'

# ---- Checkpoints of the model alone
train_into alone output.save_optimizer=false output.save_dtype=bf16
check the_model_alone_is_saved "$(ls "$folder/alone/latest/")" test ! -e "$folder/alone/latest/optimizer.safetensors"
check it_is_a_folder_to_evaluate "$(said)" "$TRAIN" --eval "$folder/alone" --data "$folder/data"
refuses a_resume_from_it_says_what_it_lacks "without the optimizer's moments" "$config" train.steps=30 train.resume=auto \
  output.dir="$folder/alone"
train_into from_alone train.init_from="$folder/alone"
check a_run_starts_from_it "$(said)" grep_said 'done; '
"$TRAIN" "$config" "output.dir=$folder/alone_cut" output.save_optimizer=false train.steps=99999 >"$folder/said" \
  2>"$folder/said.err" </dev/null &
process=$!
wait_for '"kind":"train","step":7,' "$folder/alone_cut/log.jsonl" $process
kill -TERM $process
wait $process
check a_signal_says_that_no_run_resumes_from_it "$(said)" grep_said 'no run resumes from it'

# ---- Two signals
big=(model.hidden_size=512 model.intermediate_size=2048 model.num_hidden_layers=4 train.batch_size=48 data.val=)
"$TRAIN" "$config" "output.dir=$folder/twice" "${big[@]}" >"$folder/said" 2>"$folder/said.err" </dev/null &
process=$!
wait_for '"kind":"train","step":1,' "$folder/twice/log.jsonl" $process
check the_process_has_the_programs_name "$(cat "/proc/$process/comm")" \
  test "$(cat "/proc/$process/comm")" = "$(basename "$TRAIN")"
kill -TERM $process
sleep 0.05
kill -TERM $process 2>/dev/null
wait $process
status=$?
check a_second_signal_ends_the_run_at_once "status $status instead of 143, $(said)" test $status = 143
check a_second_signal_saves_nothing "$(ls "$folder/twice")" test ! -e "$folder/twice/latest"

# ---- Numbers that are not finite: weights grow 3500 times a step. Activations, about their third power, overflow in
# step 5, whatever the order of sums: it is the same step for rates from 20 to 60.
train_into overflow train.steps=40 train.save_interval=1 train.keep_checkpoints=99 train.max_nonfinite=3 \
  optimizer.learning_rate=35 optimizer.weight_decay=100 optimizer.warmup_steps=0 optimizer.schedule=constant
status=$?
log=$folder/overflow/log.jsonl
refused=$(grep '"applied":false' "$log" | grep -oE '"step":[0-9]+' | grep -oE '[0-9]+' | tr '\n' ' ')
last=$(grep -c '"kind":"train"' "$log")
echo "# skipped updates: steps $refused"
check updates_that_are_not_finite_stop_the_run_with_status_1 "status $status, $(said)" test $status = 1
check it_says_why_it_stopped "$(cat "$folder/said.err")" grep -q 'not finite' "$folder/said.err"
check it_stops_after_max_nonfinite_skipped_updates_in_a_row "skipped: $refused, steps: $last" \
  test "$refused $last" = '5 6 7  7'
check a_skipped_update_is_seen_on_the_progress_line "$(tail -n 4 "$folder/said")" grep -q SKIPPED "$folder/said"
check it_says_how_far_the_data_were_read "$(said)" grep_said "the data up to sequence $((2 * last))"
check a_skipped_update_is_logged_with_its_loss_and_norm "$(grep '"applied":false' "$log")" \
  test "$(grep '"applied":false' "$log" | grep '"loss":' | grep -c '"grad_norm":')" = 3
good=$(printf '%s/overflow/step-%08d' "$folder" $((last - 3))) later=$(printf '%s/overflow/step-%08d' "$folder" $((last - 1)))
tensors() { sed '1s/"step":"[0-9]*"//' "$1"; } # the file without its step
for file in model.safetensors optimizer.safetensors; do
  check "a_refused_update_leaves_${file}_intact" 'they differ' \
    cmp -s <(tensors "$good/$file") <(tensors "$later/$file")
done
check refused_updates_are_counted "$(cat "$later/state.json") after $refused" \
  grep -q "\"nonfinite\": $(($(wc -w <<<"$refused") - 1))," "$later/state.json"
# Of the last save before the row no loss was seen: it was the first that is not finite.
good=$(printf '%s/overflow/step-%08d' "$folder" $((last - 4)))
works the_last_good_checkpoint_loads "$TRAIN" --generate "$good" --prompt a --tokens 3
# With another learning rate the row begins anew: the run's weights are lost, but not its first checkpoint's.
overflow=(train.steps=40 train.save_interval=1 train.keep_checkpoints=99 train.max_nonfinite=3)
train_into overflow "${overflow[@]}" train.resume=auto optimizer.learning_rate=0.001
check a_row_begins_anew_with_another_learning_rate "$(said)" grep_said 'stopped at step 9: 3 updates in a row'
train_into overflow "${overflow[@]}" "train.resume=$folder/overflow/step-00000001" optimizer.learning_rate=0.0001
check a_run_goes_on_from_a_checkpoint_before_the_row "status $?, $(said)" grep_said 'done; the model'
exit $failed
