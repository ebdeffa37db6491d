#!/usr/bin/env bash
# ./train --bench on a GPU: the operations of steps add up to steps, of both kinds of kernels, in bf16 and FP8, and the unfused
# kind's GEMMs are parts of its operations.
# shellcheck disable=SC2317 # between is called by name
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_data 400
cat >"$folder/config.json" <<END_OF_CONFIG
{
  "model": {"hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 16,
            "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 512},
  "data": {"train": "$folder/data/train-*.bin"},
  "train": {"steps": 12, "batch_size": 16, "sequence_length": 512},
  "backend": {"device": "cuda"},
  "output": {"dir": "$folder/run"}
}
END_OF_CONFIG
ask_doctor

# between LEAST VALUE MOST
between() { awk -v a="$1" -v x="$2" -v b="$3" 'BEGIN { exit !(x != "" && x >= a && x <= b) }'; }

benched() { # NAME OVERRIDES...
  local name=$1 said kind sum gemms
  shift
  said=$("$TRAIN" --bench "$folder/config.json" --seconds 2 "$@" 2>&1)
  check "${name}_is_measured" "$said" test $? = 0
  for kind in fused unfused; do
    sum=$(sed -n "s/^  $kind: operations add up.* ms: \([0-9.]*\) of it.*/\1/p" <<<"$said")
    check "the_operations_of_${name}_add_up_to_a_step_of_${kind}_kernels" "$said" between 0.8 "$sum" 1.3
  done
  gemms=$(awk '/^Operations/ { on = 1; next } /^$/ { on = 0 } on && $2 ~ /fused/ && $4 == "x" && $6 == "x" { print }' <<<"$said" |
    sed 's/ FP8 / /' | awk '$11 == "-" || $11 > $10 * 1.1 { print $1 }')
  check "the_gemms_of_${name}_are_parts_of_their_operations" "$gemms: $said" test -z "$gemms"
}
benched bf16 train.gradient_accumulation=2 train.loss_chunks=2
[ -z "$(fp8_kernels "$folder/config.json")" ] || benched fp8 backend.precision=fp8 optimizer.kind=muon
exit "$failed"
