#!/usr/bin/env bash
# ./train --bench on a CPU.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
export CUDA_VISIBLE_DEVICES= # on a machine with one, too
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
refuses an_operation_that_the_run_has_not_says_which_has 'optimizer.kind=muon' --bench "$config" --seconds 0.1 --op muon
refuses without_a_gpu_a_gpu_is_not_benched 'backend.device is "cuda"' --bench "$config" backend.device=cuda

# benched NAME ARGUMENTS...: measures; $said is what it prints.
benched() {
  said=$("$TRAIN" --bench "$config" --seconds 0.1 "${@:2}" 2>&1)
  check "$1" "$said" test $? = 0
}
# rows: the operations of the table.
rows() { awk '/^Operations/ { on = 1; next } /^$/ { on = 0 } on && $2 == "CPU" && NF > 9 { print $1 }' <<<"$said" | tr '\n' ' '; }
benched a_cpu_is_benched
check it_lists_the_operations_of_a_step "$(rows)" test "$(rows)" = "embed qkv attention out gate_up down head_loss \
lm_head_wgrad lm_head_dgrad down_wgrad down_dgrad gate_up_wgrad gate_up_dgrad out_wgrad out_dgrad attention_backward \
rope_backward qkv_wgrad qkv_dgrad embed_backward grads_finish adamw "
for row in 'layer, forward' 'layer, backward' 'layer, both' 'step  ' '  floor' '  CPU: operations add up to'; do
  check "it_has_a_row_${row//[ ,:]/_}" "$said" grep -q "^$row" <<<"$said"
done
benched one_operation_of_a_cpu_is_benched --op gate_up
check it_alone_is_listed "$(rows)" test "$(rows)" = 'gate_up '
check an_operation_alone_has_no_step "$said" test "$(grep -c '^step  *[0-9]*\.' <<<"$said")" = 0
benched fp8_muon_and_recompute_are_benched optimizer.kind=muon backend.precision=fp8 train.recompute=layer \
  model.hidden_size=128 model.intermediate_size=256
check they_have_operations_of_their_own "$(rows)" grep -q 'requantize grads_finish muon adamw' <<<"$(rows)"
exit "$failed"
