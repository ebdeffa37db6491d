#!/usr/bin/env bash
# Where a config is far from configs/RECIPE.md, --plan and the start of a run say so, in a line for each key.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
small=(configs/llama-1m.json data.train=absent.bin) # 1.05M parameters, 128 wide, 300 steps of 512 tokens

warnings() { "$TRAIN" --plan "$@" 2>&1 | sed -n 's/^warning    //p'; }
# warns NAME EXPECTED ARGUMENTS...: this line, and no other.
warns() {
  local name=$1 expected=$2 said
  shift 2
  said=$(warnings "$@")
  check "$name" "it said '$said'" test "$said" = "$expected"
}
silent() { # NAME ARGUMENTS...
  local name=$1
  shift
  must "$TRAIN" --plan "$@"
  warns "$name" '' "$@"
}

# ---- Each bound, on both sides: the usual rate of 128 is 0.002
high='is far above the usual 0.002 of a width of 128: the loss may jump or diverge'
low='is far below the usual 0.002 of a width of 128: the loss falls slowly'
warns a_rate_that_is_far_too_high "optimizer.learning_rate 0.011 $high" "${small[@]}" optimizer.learning_rate=0.011
silent a_high_rate_is_not_far_too_high "${small[@]}" optimizer.learning_rate=0.009
small+=(optimizer.min_learning_rate=0)
warns a_rate_that_is_far_too_low "optimizer.learning_rate 0.00019 $low" "${small[@]}" optimizer.learning_rate=0.00019
silent a_low_rate_is_not_far_too_low "${small[@]}" optimizer.learning_rate=0.00021
warns the_usual_rate_follows_from_the_width \
  'optimizer.learning_rate 0.008 is far above the usual 0.0015 of a width of 512: the loss may jump or diverge' \
  "${small[@]}" model.hidden_size=512 train.steps=3000 optimizer.learning_rate=0.008
warns a_warmup_of_most_of_the_run 'optimizer.warmup_steps 151 is more than half of the 300 steps; try 15' \
  "${small[@]}" optimizer.warmup_steps=151
silent a_warmup_of_half_of_the_run "${small[@]}" optimizer.warmup_steps=150

# ---- Warm-up and decay that do not fit into the run: those that hold are said, and no warning is about those that do not
plans() { # NAME EXPECTED ARGUMENTS...: this line of --plan on the schedule, and no warning
  local name=$1 expected=$2
  shift 2
  "$TRAIN" --plan "$@" >"$folder/said" 2>&1
  check "$name" "it said: $(grep -E '^(schedule|warning) ' "$folder/said")" \
    test "$(sed -nE 's/^(schedule   |warning    )//p' "$folder/said")" = "$expected"
}
wsd=(optimizer.schedule=wsd optimizer.min_learning_rate=0 train.steps=300 optimizer.warmup_steps=75)
plans what_holds_of_wsd_is_said 'optimizer.warmup_steps 75 and decay_steps 226 are more than the 300 steps: warm-up takes 31, decay 61' \
  "${small[@]}" "${wsd[@]}" optimizer.decay_steps=226
plans lengths_that_just_fit_hold '' "${small[@]}" "${wsd[@]}" optimizer.decay_steps=225
plans what_holds_of_a_long_warmup_is_said 'optimizer.warmup_steps 301 is more than the 300 steps: warm-up takes 31' \
  "${small[@]}" optimizer.warmup_steps=301

parameters=$(./train --plan "${small[@]}" | sed -nE 's/^([0-9.]+)M parameters.*/\1/p')
check the_model_is_what_the_bounds_are_for "it has $parameters M parameters" test "$parameters" = 1.06
warns few_tokens_for_the_parameters '102.4k tokens are 0.097 for each parameter, but 20 are usual: try train.steps=41405, or a smaller model' \
  "${small[@]}" train.steps=200
silent a_tenth_of_a_token_for_each_parameter "${small[@]}" train.steps=210
silent a_trial_of_a_few_steps "${small[@]}" train.steps=99 optimizer.warmup_steps=0
silent many_tokens "${small[@]}" train.steps=4000000
warns too_many_tokens '2.15B tokens are 2029 for each parameter, but 20 are usual: try a model of 107.52M parameters' \
  "${small[@]}" train.steps=4200000
check three_lines_for_three_keys "$(warnings "${small[@]}" train.steps=100 optimizer.warmup_steps=60 optimizer.learning_rate=1)" \
  test "$(warnings "${small[@]}" train.steps=100 optimizer.warmup_steps=60 optimizer.learning_rate=1 | wc -l)" = 3

# ---- Threads
warns threads_beyond_the_processors "$(said=$(warnings "${small[@]}" backend.device=cpu backend.threads=4000)
  [[ $said =~ ^4000\ threads,\ as\ backend.threads\ asks,\ share\ ([0-9]+)\ processors?: ]]
  echo "${BASH_REMATCH[0]} try backend.threads=${BASH_REMATCH[1]}")" \
  "${small[@]}" backend.device=cpu backend.threads=4000
silent one_thread "${small[@]}" backend.device=cpu backend.threads=1
check threads_of_the_environment_count "$(OMP_NUM_THREADS=3000 warnings "${small[@]}" backend.device=cpu)" \
  grep -q '^3000 threads, as OMP_NUM_THREADS asks, share ' <<<"$(OMP_NUM_THREADS=3000 warnings "${small[@]}" backend.device=cpu)"

# ---- Trained weights take lower rates and fewer tokens
silent trained_weights_take_low_rates "${small[@]}" model=tests/fixtures/mha_tied train.sequence_length=8 train.steps=100 \
  optimizer.learning_rate=2e-5 optimizer.min_learning_rate=0

# ---- Shipped configs are the page's
for config in configs/*.json; do
  of_folder=()
  ! grep -q '"model": "' "$config" || of_folder=(model=tests/fixtures/mha_tied train.sequence_length=8)
  silent "$(basename "$config" .json)_is_as_the_page_says" "$config" ${of_folder[@]+"${of_folder[@]}"} backend.device=cpu
done

# ---- A recipe for CPUs runs there, and so do its peers, which read the same words
read -ra words <<<"$(sed -n 's/^all //p' scripts/recipes/small.txt)"
check small_is_for_two_cores "${words[*]}" grep -q '"device": "cpu"' <<<"$("$TRAIN" --plan "${words[@]}")"

# ---- The start of a run
prepare_data 400
write_config "$folder/config.json"
starts() { "$TRAIN" "$folder/config.json" optimizer.warmup_steps=15 "$@" 2>&1 | grep -c '^warning    optimizer.warmup_steps 15 is more'; }
check a_run_begins_with_the_warning 'it does not' test "$(starts)" = 1
check a_resumed_run_has_said_it 'it says it again' test "$(starts train.resume=auto train.steps=22)" = 0
lengths='schedule   optimizer.warmup_steps 15 and decay_steps 20 are more than the 24 steps: warm-up takes 3, decay 5'
"$TRAIN" "$folder/config.json" optimizer.warmup_steps=15 train.resume=auto train.steps=24 optimizer.schedule=wsd optimizer.decay_steps=20 \
  >"$folder/said" 2>&1
check a_resumed_run_says_which_lengths_hold "$(cat "$folder/said")" grep -qxF "$lengths" "$folder/said"
exit "$failed"
