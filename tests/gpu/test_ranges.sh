#!/usr/bin/env bash
# What a profiler sees of steps on the GPU: operations in their layers, by the kernels that run them, in every step of a run
# with a window, and only where steps are recorded in one without; and that the numbers stay the same.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
if [ ! -e "$RECORDER" ]; then
  echo "ok - ranges on the GPU # SKIP no $RECORDER: NVTX's headers were not found (make gpu-programs builds it)"
  exit 0
fi
prepare_data 4000
cat >"$folder/config.json" <<END_OF_CONFIG
{
  "model": {"hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 16,
            "num_key_value_heads": 4, "vocab_size": 258, "max_position_embeddings": 512},
  "data": {"train": "$folder/data/train-*.bin"},
  "train": {"steps": 12, "batch_size": 8, "sequence_length": 512, "save_interval": 0, "sample_interval": -1},
  "optimizer": {"learning_rate": 0.001},
  "backend": {"device": "cuda", "deterministic": true},
  "output": {"dir": "$folder/run"}
}
END_OF_CONFIG
window=(output.profile_steps=2)

ask_doctor

times() { grep -c "^step > forward > layer 1 > gate_up ($1)\$" "$paths"; } # KIND
for kernels in $all_kernels; do
  paths=$folder/$kernels.paths
  recorded "$kernels-window" "backend.kernels=$kernels" "${window[@]}"
  range_paths "$folder/$kernels-window.ranges" >"$paths"
  check "every_range_of_a_run_with_${kernels}_kernels_is_closed" 'pushes and pops do not match' test $? = 0
  check "${kernels}_kernels_are_named_in_every_step_of_a_run_with_a_window" "$(times "$kernels") of 12" \
    test "$(times "$kernels")" = 12
  check "no_operation_of_a_run_with_${kernels}_kernels_is_the_cpus" "$(grep -m 1 '(cpu)' "$paths")" \
    test "$(grep -c '(cpu)' "$paths")" = 0

  recorded "$kernels-plain" "backend.kernels=$kernels"
  range_paths "$folder/$kernels-plain.ranges" >"$paths"
  check "a_run_with_${kernels}_kernels_without_a_window_records_its_steps" "$(times "$kernels") steps were launched" \
    test "$(times "$kernels")" -lt 12
  check "a_window_run_with_${kernels}_kernels_has_the_same_bits" \
    "$(same_bits "$folder/$kernels-plain" "$folder/$kernels-window" 2>&1)" \
    same_bits "$folder/$kernels-plain" "$folder/$kernels-window"
done
exit "$failed"
