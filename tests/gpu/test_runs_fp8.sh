#!/usr/bin/env bash
# Whole runs in FP8 on the GPU: beside the CPU's in FP8 and the GPU's in bf16, interrupted and resumed, recorded and not, with
# validations and samples in between, and with memory saved.
# shellcheck disable=SC2046 # kernels_are gives several overrides
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_data 8000
cat >"$config" <<END
{
  "model": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 258, "max_position_embeddings": 128},
  "data": {"train": "$folder/data/train-*.bin", "val": "$folder/data/val-*.bin"},
  "train": {"steps": 60, "batch_size": 8, "sequence_length": 128, "eval_interval": 20, "eval_batches": 4,
            "save_interval": 20, "keep_checkpoints": 9, "sample_interval": -1},
  "optimizer": {"learning_rate": 0.0005, "warmup_steps": 10},
  "backend": {"device": "cuda", "deterministic": true},
  "output": {"dir": "$folder/run"}
}
END
loss() { # KIND RUN: the last
  grep "\"kind\":\"$1\"" "$folder/$2/log.jsonl" | tail -n 1 | sed -E 's/.*"loss":([^,]*),.*/\1/'
}
relative() { awk -v a="$1" -v b="$2" 'BEGIN { d = (b - a) / a; print d < 0 ? -d : d }'; }
close_to() { # NAME A B BOUND
  local apart
  apart=$(relative "$2" "$3")
  echo "# $1: $2 and $3, apart by $apart, bound $4"
  check "$1" "$2 and $3" awk -v d="$apart" -v b="$4" 'BEGIN { exit !(d <= b) }'
}
weights_are() { # NAME RUN OTHER
  local file why=''
  for file in model.safetensors optimizer.safetensors; do
    why+=$(cmp "$folder/$2/latest/$file" "$folder/$3/latest/$file" 2>&1)
  done
  check "$1" "$why" test -z "$why"
}
# same WHAT OVERRIDES...: such a run has the bits of the run $name.
same() {
  local what=$1 other=$name-${1//_/-}
  shift
  run "$other" $(kernels_are "$kernels") backend.precision="$precision" "$@"
  weights_are "${name}_${what}_has_equal_bits" "$name" "$other"
}
ask_doctor
[ "$all_kernels" = unfused ] || all_kernels="$all_kernels mma_sync"
all_kernels=$(fp8_kernels "$config")
[ -n "$all_kernels" ] || { echo 'ok - runs_in_fp8 # SKIP this GPU, or this build for it, has no FP8' && exit "$failed"; }

precision=fp8
run "cpu-$precision" backend.device=cpu backend.precision=$precision
for kernels in $all_kernels; do
  name=$kernels-$precision
  [ -d "$folder/$kernels" ] || run "$kernels" $(kernels_are "$kernels")
  "$TRAIN" "$config" "output.dir=$folder/$name" $(kernels_are "$kernels") backend.precision=$precision >"$folder/said" 2>&1
  status=$?
  check "${name}_trains" "$(tail -n 3 "$folder/said")" test $status = 0
  check "${name}_is_told" "$(head -n 60 "$folder/said")" grep -q "^precision  $precision: " "$folder/said"
  check "${name}_names_its_peak" "$(tail -n 5 "$folder/said")" grep -q "of FP8's peak" "$folder/said"
  # On the CPU these runs are apart from fp32 by 7e-4.
  close_to "${name}_learns_as_bf16_does" "$(loss val "$kernels")" "$(loss val "$name")" 0.01
  close_to "${name}_agrees_with_the_cpu" "$(loss val "cpu-$precision")" "$(loss val "$name")" 0.01
  same again
  same launched backend.graphs=false
  same watched train.eval_interval=1 train.sample_interval=5 train.sample_tokens=9
  same recompute_mlp train.recompute=mlp
  same recompute_layer train.recompute=layer
  same recompute_layer_2 train.recompute=layer train.recompute_layers=2
  same recompute_mlp_3 train.recompute=mlp train.recompute_layers=3
  same resumed_at_20 "train.resume=$folder/$name/step-00000020"
  "$TRAIN" "$config" $(kernels_are "$kernels") backend.precision=$precision "output.dir=$folder/$name-cut" \
    >"$folder/said" 2>&1 &
  process=$!
  wait_for '"kind":"train","step":23,' "$folder/$name-cut/log.jsonl" $process
  kill -KILL $process
  wait $process 2>/dev/null
  same cut train.resume=auto
  run "$name-pieces" $(kernels_are "$kernels") backend.precision=$precision train.gradient_accumulation=2 \
    train.batch_size=4 train.loss_chunks=2 model.tie_word_embeddings=true
  check "${name}_in_pieces_says_no_nonsense" "$(loss train "$name-pieces")" \
    awk -v l="$(loss train "$name-pieces")" 'BEGIN { exit !(l > 0 && l < 5) }'
done
exit "$failed"
