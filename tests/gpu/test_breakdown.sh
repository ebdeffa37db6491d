#!/usr/bin/env bash
# Traced steps on the GPU: every kernel of a recorded step is seen and known, with both kinds of kernels, and the numbers
# stay the same.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
# shellcheck disable=SC2046 # kernels_are gives several overrides
prepare_data 4000
cat >"$folder/config.json" <<END_OF_CONFIG
{
  "model": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
            "num_key_value_heads": 4, "vocab_size": 258, "max_position_embeddings": 256},
  "data": {"train": "$folder/data/train-*.bin"},
  "train": {"steps": 9, "batch_size": 8, "sequence_length": 256, "save_interval": 0, "sample_interval": -1},
  "optimizer": {"learning_rate": 0.001},
  "backend": {"device": "cuda", "deterministic": true},
  "output": {"dir": "$folder/run"}
}
END_OF_CONFIG

ask_doctor
[ "$all_kernels" = unfused ] || all_kernels="$all_kernels mma_sync"

run() { # NAME OVERRIDES...
  local name=$1
  shift
  must "$TRAIN" "$folder/config.json" "output.dir=$folder/$name" "$@"
}
breakdowns() { grep '"kind":"breakdown"' "$folder/$1/log.jsonl"; } # RUN
steps() { breakdowns "$1" | sed -E 's/.*"step":([0-9]+).*/\1/' | paste -sd ' '; } # RUN

for kernels in $all_kernels; do
  run "$kernels-plain" $(kernels_are "$kernels")
  run "$kernels-traced" $(kernels_are "$kernels") output.breakdown=true output.breakdown_interval=4
  run "$kernels-launched" $(kernels_are "$kernels") output.breakdown=true output.breakdown_interval=4 backend.graphs=false
  check "a_run_without_it_traces_no_step_with_${kernels}_kernels" "$(steps "$kernels-plain")" test -z "$(steps "$kernels-plain")"
  for run in traced launched; do
    name=$kernels-$run
    check "every_fourth_step_and_the_last_are_told_of_a_${run}_run_with_${kernels}_kernels" "steps $(steps "$name")" \
      test "$(steps "$name")" = '4 8 9'
    check "nothing_is_lost_of_a_${run}_run_with_${kernels}_kernels" "$(breakdowns "$name" | cut -c 1-200)" \
      test "$(breakdowns "$name" | grep -c '"lost":0,')" = 3
    check "every_kernel_of_a_${run}_run_with_${kernels}_kernels_is_known" \
      "$(breakdowns "$name" | grep -oE '[^{]*"group":"other"' | sort -u | head -n 4)" \
      test "$(breakdowns "$name" | grep -c '"other":{"count":0,')" = 3
    for group in products attention rows loss update copies_memsets; do
      check "a_${run}_run_with_${kernels}_kernels_has_${group}" "$(breakdowns "$name" | cut -c 1-600)" \
        test "$(breakdowns "$name" | grep -cE "\"$group\":\{\"count\":[1-9]")" = 3
    done
    check "a_${run}_run_with_${kernels}_kernels_has_the_same_bits" \
      "$(same_bits "$folder/$kernels-plain" "$folder/$name" 2>&1)" same_bits "$folder/$kernels-plain" "$folder/$name"
  done
  # By kernel and count, since times differ: the graph holds what would be launched.
  kernels_of() { breakdowns "$1" | sed -n 2p | grep -oE '"count":[0-9]+,"ms":[^,]*,"name":"[^"]*"' | sed -E 's/"ms":[^,]*,//' | LC_ALL=C sort; }
  check "a_recorded_step_shows_the_launched_ones_${kernels}_kernels" \
    "$(diff <(kernels_of "$kernels-traced") <(kernels_of "$kernels-launched") | head -n 4)" \
    cmp -s <(kernels_of "$kernels-traced" | grep -vE '(copy|memset)') <(kernels_of "$kernels-launched" | grep -vE '(copy|memset)')
done

NSYS_PROFILING_SESSION_ID=1 "$TRAIN" "$folder/config.json" output.breakdown=true "output.dir=$folder/beside" >"$folder/said" 2>"$folder/said.err"
status=$?
check beside_another_profiler_it_ends_before_training "status $status: $(cat "$folder/said.err")" \
  test "$status,$(grep -c 'another profiler' "$folder/said.err"),$([ -e "$folder/beside" ] || echo none)" = 1,1,none
exit "$failed"
