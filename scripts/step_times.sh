#!/usr/bin/env bash
# Times whole training steps on this machine's GPU and prints a table: of steps 11 to STEPS (40) the
# median, and the least to the most.
# usage: scripts/step_times.sh [MODEL...]      15m 110m 350m 1b 1b-8k; all of them by default
# Each model runs in each of PRECISION (bf16; also fp8, fp8_head), of whose peak MFU is a part, and
# with each of KERNELS ('auto unfused') in turn; auto are the fused kernels, where they pay.
# Embeddings are untied, nothing is validated, the tokens are this repository's sources. Everything
# is written below a temporary folder.
set -euo pipefail
case ${1:-} in -h | --help)
  sed -n '2,8s/^# //p' "$0"
  exit 0
  ;;
esac
cd "$(dirname "$0")/.."
# shellcheck source=scripts/own_text.sh
. scripts/own_text.sh
steps=${STEPS:-40} all_kernels=${KERNELS:-auto unfused} all_precisions=${PRECISION:-bf16}

# MODEL CONFIG BATCH LENGTH OVERRIDES...
time_model() {
  local name=$1 config=$2 batch=$3 length=$4 began first='' line
  shift 4
  # Bytes in a larger vocabulary: that has to be said.
  local command=(./train "configs/$config.json" "data.train=$folder/tokens/train-*.bin" data.val= data.tokenizer=bytes backend.device=cuda
    "train.batch_size=$batch" "train.sequence_length=$length" train.save_interval=-1 train.sample_interval=-1
    optimizer.warmup_steps=0 model.tie_word_embeddings=false "backend.kernels=$kernels" "backend.precision=$precision"
    "output.dir=$folder/$name" "$@")
  "${command[@]}" train.steps=1 >/dev/null # the first start ever also times the algorithms, and remembers them
  rm -rf "${folder:?}/$name" "$folder/memory"
  began=${EPOCHREALTIME/[.,]/}
  while IFS= read -r line; do
    case $line in
    "step "*1/*"| loss"*) [ -n "$first" ] || first=$((${EPOCHREALTIME/[.,]/} - began)) ;;
    "memory  "*) echo "$line" | sed -E 's/memory +([0-9.]+ [A-Za-z]+).*/\1/' >"$folder/memory" ;;
    "train: "*) echo "$name: $line" >&2 ;;
    esac
  done < <("${command[@]}" "train.steps=$steps" 2>&1)
  wait $! || { echo "step_times.sh: $name in $precision with $kernels kernels did not run to its end" >&2 && exit 1; }
  grep '"kind":"train"' "$folder/$name/log.jsonl" | tail -n +11 | sed -E 's/.*"ms":([^,]*),"tokens_per_s":([^,]*),"mfu":([^,]*),.*/\1 \2 \3/' |
    sort -n | awk -v name="$name" -v precision="$precision" -v kernels="$kernels" -v shape="$batch x $length" \
    -v memory="$(cat "$folder/memory")" -v first="$first" '
      { ms[NR] = $1; tokens[NR] = $2; mfu[NR] = $3 }
      END { m = int((NR + 1) / 2)
            printf "| %s | %s | %s | %s | ", name, precision, kernels, shape
            printf "%.1f (%.1f to %.1f) | %.0fk | %.1f %% | %s | %.1f s |\n", ms[m], ms[1], ms[NR],
              tokens[m] / 1000, 100 * mfu[m], memory, first / 1e6 }'
  rm -rf "${folder:?}/$name"
}

card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || card=''
echo "${card:-an unknown GPU}, $(./train --version), steps 11 to $steps:"
echo
echo '| model | precision | kernels | batch | ms a step | tokens/s | MFU | memory | command to first step |'
echo '|---|---|---|---|---|---|---|---|---|'
for model in "${@:-15m 110m 350m 1b 1b-8k}"; do
  for one in $model; do for precision in $all_precisions; do for kernels in $all_kernels; do
    case $one in
    15m) time_model 15m llama-15m 128 256 ;;
    110m) time_model 110m llama-110m 32 1024 ;;
    350m) time_model 350m llama-350m 16 2048 ;;
    1b) time_model 1b llama-3.2-1b 8 4096 train.loss_chunks=0 ;;
    1b-8k) time_model 1b-8k llama-3.2-1b 4 8192 train.loss_chunks=0 ;;
    *) echo "step_times.sh: unknown model '$one'; there are 15m 110m 350m 1b 1b-8k" >&2 && exit 1 ;;
    esac
  done; done; done
done
