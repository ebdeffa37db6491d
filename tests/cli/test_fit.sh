#!/usr/bin/env bash
# --fit writes a config for this machine, a text and a time, and the run that it describes takes that time.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
prepare_data 4000 # 230k tokens
out=$folder/mine.json

fit() { # ARGUMENTS...: on $folder/data, into $out; what it says is in $folder/said
  rm -rf "$out" "$folder/run"
  "$TRAIN" --fit "$folder/data" "$@" "$out" "output.dir=$folder/run" >"$folder/said" 2>"$folder/said.err" </dev/null
}
of() { grep -oE "\"$1\": *[^,}]*" "$out" | head -n 1 | sed 's/.*: *//'; } # KEY: its value in the config

# ---- A run of six seconds
fit minutes=0.1
check a_config_is_written "$(cat "$folder/said" "$folder/said.err")" test -s "$out"
check it_has_the_tokenizers_vocabulary "$(cat "$out")" test "$(of vocab_size)" = 258
check it_has_both_splits "$(cat "$out")" test "$(of train | tr -d '"').$(of val | tr -d '"')" = "$folder/data.$folder/data"
check each_choice_has_its_reason "$(cat "$folder/said")" grep -qE '^  optimizer.learning_rate=0.002 +1e-3 x 768 / width' "$folder/said"
check it_says_what_it_measured "$(cat "$folder/said")" grep -qE '^measured   width [0-9]+: [0-9.]+ ms a step' "$folder/said"
check an_override_is_in_it "$(cat "$out")" grep -q "\"dir\": \"$folder/run\"" "$out"
check only_keys_that_are_set_are_in_it "$(cat "$out")" \
  test "$(grep -c '"eps"\|"documents"\|rope_scaling' "$out")" = 0
check short_pieces_come_first "$(cat "$out")" \
  test "$(of first_context).$(of context_warmup)" = "32.$(($(of steps) / 4 * 3))"
check norms_have_a_rate_of_their_own "$(cat "$out")" \
  test "$(of norm_rate).$(grep -c weight_decay "$out")" = 3.0.0
check a_run_of_seconds_saves_at_its_end "$(cat "$out")" test "$(of save_interval)" = "$(of steps)"
said=$(sed -nE 's/^time       about ([0-9.]+) s$/\1/p' "$folder/said")
check the_time_is_the_one_that_was_asked_for "about $said s" awk "BEGIN { exit !($said > 5.5 && $said <= 6.1) }"
began=${EPOCHREALTIME/[.,]/}
must "$TRAIN" "$out"
took=$(((${EPOCHREALTIME/[.,]/} - began) / 1000))
# On two cores with nothing else to do the run took 0.96 to 1.05 of it; tests run side by side, so this is wide.
check the_run_takes_about_that_time "$took ms, about $said s" awk "BEGIN { exit !($took > 500 * $said && $took < 2000 * $said) }"
check it_learns "$(tail -n 3 "$folder/run/log.jsonl")" awk -F'"loss":' '
  /"kind":"val"/ { split($2, a, ","); if (first == "") first = a[1]; last = a[1] } END { exit !(last < first - 1) }' "$folder/run/log.jsonl"
"$TRAIN" --plan "$out" >"$folder/said" 2>&1
check it_is_not_far_from_the_recipe "$(grep '^warning' "$folder/said")" test "$(grep -c '^warning' "$folder/said")" = 0

# ---- The size is the user's, or the time's
fit minutes=0.05 params=1M
check a_number_of_parameters_is_kept "$(grep '^run' "$folder/said")" \
  awk '/^run/ { n = $2; exit !(n ~ /k$/ && n + 0 > 600 || n ~ /M$/ && n + 0 < 1.6) }' "$folder/said"
fit minutes=600
check a_short_text_is_read_four_times "$(tail -n 3 "$folder/said")" grep -q '4 times the text$' "$folder/said"
check and_that_is_less_than_the_time "$(tail -n 3 "$folder/said")" grep -q 'more text would use the rest of the 10 h 00 min$' "$folder/said"
fit minutes=600 params=5M
each=$(of save_interval) steps=$(of steps) ms=$(sed -nE 's/^measured .* ([0-9.]+) ms a step.*/\1/p' "$folder/said" | tail -n 1)
check a_longer_one_saves_each_minute "every $each of $steps steps of $ms ms" \
  awk "BEGIN { minute = 60e3 / $ms; if (minute > $steps) minute = $steps # a fast processor
    exit !($each > 0.98 * minute && $each < 1.02 * minute + 1) }"

# ---- What follows from a key follows from the user's
fit minutes=0.05 optimizer.learning_rate=0.0008 optimizer.kind=muon
check a_rate_is_said_once "$(cat "$folder/said")" \
  test "$(grep -c '^  optimizer.learning_rate' "$folder/said")" = 1
check its_lowest_is_a_tenth "$(cat "$out")" test "$(of min_learning_rate)" = 8e-05
check and_its_decay_goes_with_it "$(cat "$out")" \
  awk -v d="$(of weight_decay)" -v n="$(of steps)" 'BEGIN {
    want = 2.2 / (8e-4 * (n > 600 ? n : 600)); exit !(d > 0.94 * want && d < 1.06 * want) }'
fit minutes=0.05 data.documents=mask train.steps=10
check documents_apart_have_no_pieces "$(cat "$out")" \
  test "$(grep -c first_context "$out").$(of steps)" = 0.10
for key in first_context context_warmup; do
  fit minutes=0.05 train.$key=0
  check pieces_can_be_left_out_by_$key "$(cat "$folder/said.err")" \
    test "$(grep -c 'first_context\|context_warmup' "$out")" = 0
done
fit minutes=0.05 optimizer.schedule=wsd
check a_wsd_has_its_decay_steps "$(cat "$out")" \
  awk -v d="$(of decay_steps)" -v n="$(of steps)" 'BEGIN { exit !(d == int(n * 2 / 5)) }'
fit minutes=0.05 train.steps=200
check steps_bring_their_warm_up_and_validations "$(cat "$out")" \
  test "$(of warmup_steps).$(of eval_interval)" = 10.20

# ---- A text of 60 bytes has small steps, and too few tokens to validate on
head -c 60 "$folder/text.txt" >"$folder/short.txt"
must "$PREPARE" --out "$folder/short" "$folder/short.txt"
"$TRAIN" --fit "$folder/short" minutes=0.05 "$folder/v1.2 b.json" >"$folder/said" 2>&1
check the_run_is_called_as_the_file "$(grep output.dir "$folder/said")" grep -q '"dir": "runs/v1.2 b"' "$folder/v1.2 b.json"
check the_command_can_be_copied "$(tail -n 1 "$folder/said")" grep -qxF "./train '$folder/v1.2 b.json'" "$folder/said"
"$TRAIN" "$folder/v1.2 b.json" "output.dir=$folder/run-short" >"$folder/said" 2>&1
check a_short_text_trains "$(tail -n 1 "$folder/said")" grep -q '^done' "$folder/said"

# ---- What cannot be
refuses nothing_is_overwritten "'$out' is there already" --fit "$folder/data" minutes=1 "$out"
rm "$out"
refuses a_time_is_needed 'minutes=N is missing' --fit "$folder/data" "$out"
refuses data_are_needed 'the token files are missing' --fit minutes=1
refuses no_time_is_none "'minutes=0' is no time" --fit "$folder/data" minutes=0 "$out"
refuses a_time_is_a_number "'minutes=soon' is no time" --fit "$folder/data" minutes=soon "$out"
refuses parameters_are_a_number "'params=1X' is no number of parameters" --fit "$folder/data" minutes=1 params=1X "$out"
refuses other_words_are_refused "'more' is one word too many" --fit "$folder/data" minutes=1 "$out" more
refuses a_model_is_chosen_and_not_named "--fit chooses the model, so 'model=a' has no place here" --fit "$folder/data" minutes=1 "$out" model=a
refuses files_are_needed "no file matches" --fit "$folder/absent" minutes=1 "$out"
refuses a_folder_is_needed_first "there is no folder '$folder/absent' for" --fit "$folder/data" minutes=1 "$folder/absent/x.json"
refuses a_name_is_needed "'$folder/.json' is one word too many" --fit "$folder/data" minutes=1 "$folder/.json"
may_print=1
refuses a_key_that_is_none_is_refused 'did you mean train.steps?' --fit "$folder/data" minutes=1 "$out" train.step=5
refuses a_moment_is_too_short 'is too short: one step takes' --fit "$folder/data" minutes=1e-7 "$out"
refuses a_text_is_too_short_for_a_step 'is too short: a step has 8192 tokens, and the text ' --fit "$folder/short" minutes=1 \
  "$out" train.batch_size=512
began=${EPOCHREALTIME/[.,]/}
refuses a_large_model_is_too_slow 'is too short: one step takes' --fit "$folder/data" minutes=0.001 params=10M "$out"
took=$(((${EPOCHREALTIME/[.,]/} - began) / 1000))
ms=$(sed -nE 's/^measured .*: (.*) ms a step.*/\1/p' "$folder/said")
check that_is_known_after_less_than_six_steps "$ms ms a step, $took ms" awk "BEGIN { exit !($took < 5 * $ms) }"
exit "$failed"
