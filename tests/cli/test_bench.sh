#!/usr/bin/env bash
# ./train --bench and scripts/compare.sh as a user meets them on a machine without a GPU.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
export CUDA_VISIBLE_DEVICES= # on a machine with one, too
config=$folder/config.json
write_config "$config"

# ---- ./train --bench
refuses a_bench_without_a_config_is_refused 'no config given' --bench
refuses a_missing_config_of_a_bench_is_named "$folder/absent.json" --bench "$folder/absent.json"
refuses a_wrong_override_of_a_bench_is_refused 'train.batch_size is 0' --bench "$config" train.batch_size=0
refuses an_unknown_option_of_bench_names_the_nearest_one 'did you mean --seconds' --bench "$config" --second x
refuses an_option_like_no_other_lists_those_there_are 'there are --op, --seconds' --bench "$config" --no-such-option y
refuses an_unknown_operation_lists_those_there_are "embed qkv attention" --bench "$config" --op gate
refuses an_option_without_an_operation_lists_those_there_are 'an operation of embed' --bench "$config" --op
refuses an_operation_that_no_step_has_is_refused "'validation_loss' is none" --bench "$config" --op validation_loss
refuses no_time_to_measure_is_refused '--seconds needs a number from 0.1' --bench "$config" --seconds 0
refuses without_a_gpu_bench_says_so 'NVIDIA' --bench "$config"
refuses without_a_gpu_one_operation_is_not_benched_either 'NVIDIA' --bench "$config" --op gate_up
check it_gives_no_advice_that_does_not_help "$(cat "$folder/said.err")" test "$(grep -c 'device.cpu' "$folder/said.err")" = 0

# ---- scripts/compare.sh
export TRAIN OUT=$folder/compare
said=$(scripts/compare.sh --help)
check compare_says_how_to_call_it "$said" grep -q '^usage: scripts/compare.sh' <<<"$said"

# compare_refuses NAME WORDS ARGUMENTS...: fails, and says the words.
compare_refuses() {
  local name=$1 words=$2 status
  shift 2
  said=$(scripts/compare.sh "$@" 2>&1)
  status=$?
  if [ $status = 0 ]; then fails "$name" "exit status 0, and it said: $said"
  elif [[ $said != *"$words"* ]]; then fails "$name" "'$words' is not in what it said: $said"
  else passes "$name"; fi
}
compare_refuses an_unknown_width_lists_those_there_are '1b, 7b and 70b' 8b
compare_refuses without_a_gpu_compare_says_so 'NVIDIA' 1b
check without_a_gpu_compare_leaves_no_result "$(ls "$OUT")" test ! -s "$OUT/1b.txt"
TRAIN=$folder/absent compare_refuses a_program_that_is_not_built_is_named 'make all'
OUT=$config/x compare_refuses a_folder_that_cannot_be_made_is_named 'OUT='
exit "$failed"
