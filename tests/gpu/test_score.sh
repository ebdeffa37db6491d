#!/usr/bin/env bash
# ./train --score on the GPU: sums against the CPU's, which are lm-evaluation-harness'; and
# train.score in runs with documents and without, recorded, in bf16 and FP8.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
tasks=tests/fixtures/scores
mkdir "$folder/model"
cp "$tasks"/model/* "$tasks"/llama3/* "$folder/model"

sums() { # every sum of every question, one a line
  "$TRAIN" --score "$folder/model" "$tasks" --json 2>"$folder/said.err" |
    grep -oE '"sums":\[[^]]*\]' | grep -oE '[-][0-9.e+-]+'
}
# In bf16 a token's loss is off by some hundredths, up or down. A choice that saw another's tokens,
# or stood at another's place, would be off by far more.
near() { # NAME FILE: the sums in the file, against those in cpu
  local found
  found=$(paste -d ' ' "$folder/cpu" "$2" | awk '
    NF != 2 { bad++ }
    { d = $1 - $2; if (d < 0) d = -d; all += d; sum -= $1; if (d > 0.5 - 0.05 * $1) bad++ }
    END { printf "%d sums, off by %.4f of their total, %d too far", NR, all / sum, bad
          exit !(NR > 100 && bad == 0 && all < 0.01 * sum) }')
  check "$1" "$found" test $? = 0
  echo "# $1: $found"
}
CUDA_VISIBLE_DEVICES='' sums >"$folder/cpu"
sums >"$folder/gpu"
near sums_on_the_gpu_are_the_cpus "$folder/gpu"
CODA_DOCUMENT_ATTENTION=none sums >"$folder/gpu"
near and_without_documents "$folder/gpu"

# In a run: the steps are recorded, and scoring between them changes no bit of them.
write_documents >"$folder/text.jsonl"
must "$PREPARE" --out "$folder/data" "$folder/text.jsonl"
write_config "$config"
scored() { # NAME OVERRIDES...: a run with scores, and the same without
  local name=$1 with without
  shift
  for score in "" "piqa=$tasks/piqa.jsonl lambada_openai=$tasks/lambada_openai.jsonl"; do
    must "$TRAIN" "$config" backend.device=cuda backend.deterministic=true model.hidden_size=64 \
      "output.dir=$folder/$name${score:+-scored}" train.steps=12 train.eval_interval=4 \
      model.max_position_embeddings=256 train.sequence_length=256 "train.score=$score" "$@"
  done
  check "$name" "$(grep '"score"' "$folder/$name-scored/log.jsonl")" \
    test "$(grep -c '"kind":"score".*"acc":[01]' "$folder/$name-scored/log.jsonl")" = 8
  with=$(sed -n 's/.*"kind":"train".*"loss":\([^,]*\),.*/\1/p' "$folder/$name-scored/log.jsonl")
  without=$(sed -n 's/.*"kind":"train".*"loss":\([^,]*\),.*/\1/p' "$folder/$name/log.jsonl")
  check "${name}_trains_to_the_same_bits" "$with against $without" test "$with" = "$without"
}
scored a_run_with_documents
scored a_run_of_joined_windows data.documents=join
scored a_run_in_fp8 backend.precision=fp8
exit "$failed"
