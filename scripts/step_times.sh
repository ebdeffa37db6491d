#!/usr/bin/env bash
# Times whole training steps on this machine and prints a table: of steps 11 to STEPS (40) the
# median, the least to the most, and the median over that of the first row of its model.
# usage: scripts/step_times.sh [MODEL...]      15m 110m 350m 1b 1b-8k, which are the default;
# quickstart, the default on a CPU
# Each model runs in each of PRECISION (bf16; also fp8) with each of KERNELS ('auto unfused'): auto
# are the fused kernels, where they pay, mma_sync all on the mainloop of every GPU. With PEERS,
# such as 'compile compile+amp' (scripts/torch_llama.py --help lists them), our steps are timed
# before and after those of PyTorch; PYTHON (python3) has torch. A run that fails is said, and the
# next one follows.
# OPTIMIZER is adamw, or muon. Embeddings are untied, nothing is validated, the tokens are this
# repository's sources, and all files are below a temporary folder. DEVICE=cpu times on the CPU, in
# PRECISION fp32; also bf16, of products alone.
set -euo pipefail
export LC_ALL=C # awk and sort read 1.5, not 1,5
case ${1:-} in -h | --help)
  sed -n '2,14s/^# //p' "$0"
  exit 0
  ;;
esac
cd "$(dirname "$0")/.."
for program in ./train ./prepare; do
  [ -x $program ] || { echo "step_times.sh: there is no program '$program'; build it: make all" >&2 && exit 1; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
find base data model kernels -type f -name '*.[ch]' -print0 | xargs -0 cat >"$folder/sources.txt"
for _ in $(seq 8); do cat "$folder/sources.txt"; done >"$folder/text.txt"
./prepare --out "$folder/tokens" "$folder/text.txt" >/dev/null
steps=${STEPS:-40} all_kernels=${KERNELS:-auto unfused} device=${DEVICE:-cuda} python=${PYTHON:-python3} status=0
[ -z "${PEERS:-}" ] || all_kernels="auto $PEERS auto"
precision_key=precision all_precisions=${PRECISION:-bf16} models='15m 110m 350m 1b 1b-8k'
[ "$device" != cpu ] || precision_key=cpu_products all_precisions=${PRECISION:-fp32} models=quickstart

# run_model NAME COMMAND...: its log is in $folder/NAME, what it said in $folder/said; sets `first`,
# microseconds to the first step's line, and `memory`, as the driver counted it if the log has that.
run_model() {
  local name=$1 began line taken
  shift
  first='' memory='' began=${EPOCHREALTIME/[.,]/}
  while IFS= read -r line; do
    case $line in
    "step "*1/*"| loss"*) [ -n "$first" ] || first=$((${EPOCHREALTIME/[.,]/} - began)) ;;
    "memory  "*) memory=$(sed -E 's/^[a-z ]+([0-9.]+ [A-Za-z]+).*/\1/' <<<"$line") ;;
    "train: "*) echo "$name: $line" >&2 ;;
    esac
  done < <("$@" 2>&1 | tee "$folder/said")
  wait $! || return
  taken=$(sed -nE 's/.*"memory_taken":([1-9][0-9]*).*/\1/p' "$folder/$name/log.jsonl" 2>/dev/null) || true
  [ -z "$taken" ] || memory=$(awk -v b="$taken" 'BEGIN { printf "%.1f GiB", b / 2 ^ 30 }')
}

# row NAME PRECISION KERNELS SHAPE: the table's, from the log. The first of a model leaves its time,
# ours what MFU times ms is: a peer's MFU follows from that.
row() {
  grep '"kind":"train"' "$folder/$1/log.jsonl" | tail -n +11 |
    sed -E 's/.*"ms":([^,]*),"tokens_per_s":([^,]*),"mfu":([^,}]*).*/\1 \2 \3/' | sort -n |
    awk -v base="$folder/$1.$2.base" -v work="$folder/$1.$2.work" -v names="| $1 | $2 | $3 | $4" \
      -v memory="$memory" -v first="$first" '
      { ms[NR] = $1; tokens[NR] = $2; mfu[NR] = $3 }
      END { m = int((NR + 1) / 2)
            if ((getline ours <base) <= 0) { ours = ms[m]; printf "%.1f\n", ours >base }
            if (mfu[m] != "null") print (share = mfu[m]) * ms[m] >work
            else if ((getline share <work) > 0) share /= ms[m]
            printf "%s | %.1f (%.1f to %.1f) | %.*fk | %s | %s | %.1f s | %.2f |\n", names, ms[m], ms[1],
              ms[NR], tokens[m] < 1e5, tokens[m] / 1000, share ? sprintf("%.1f %%", 100 * share) : "",
              memory, first / 1e6, ms[m] / ours }'
}

# MODEL CONFIG BATCH LENGTH OVERRIDES...
time_model() {
  local name=$1 config=$2 batch=$3 length=$4 program=(./train) choice=()
  shift 4
  case $kernels in
  auto | fused | unfused) choice=("backend.kernels=$kernels") ;;
  mma_sync) choice=(backend.kernels=fused backend.mainloop=mma_sync) ;;
  *) program=("$python" scripts/torch_llama.py "$kernels") ;;
  esac
  # Bytes in a larger vocabulary: that has to be said.
  local command=("${program[@]}" "configs/$config.json" "data.train=$folder/tokens/train-*.bin"
    data.val= data.tokenizer=bytes "backend.device=$device" "train.batch_size=$batch"
    "train.sequence_length=$length" train.first_context=0 train.save_interval=-1 train.sample_interval=-1
    optimizer.warmup_steps=0 "optimizer.kind=${OPTIMIZER:-adamw}" model.tie_word_embeddings=false
    "backend.$precision_key=$precision" "output.dir=$folder/$name" "$@" ${choice[@]+"${choice[@]}"})
  # The first start ever also times the algorithms, and remembers them.
  [ ${#choice[@]} = 0 ] || "${command[@]}" train.steps=1 >/dev/null 2>&1 || true
  rm -rf "${folder:?}/$name"
  if run_model "$name" "${command[@]}" "train.steps=$steps"; then
    row "$name" "$precision" "$kernels" "$batch x $length"
  else
    echo "step_times.sh: $name in $precision with $kernels did not run to its end: $(tail -n 1 "$folder/said")" >&2
    status=1
  fi
  rm -rf "${folder:?}/$name"
}

card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || card=''
[ "$device" != cpu ] || card="$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo "${card:-an unknown GPU}, $(./train --version), steps 11 to $steps:"
[ -z "${PEERS:-}" ] || "$python" -c 'import torch; print(f"torch {torch.__version__}")' 2>/dev/null || true
echo
echo '| model | precision | kernels | batch | ms a step | tokens/s | MFU | memory | command to first step | times the first |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for model in "${@:-$models}"; do
  for one in $model; do for precision in $all_precisions; do for kernels in $all_kernels; do
    case $one in
    quickstart) time_model quickstart quickstart 6 128 ;;
    15m) time_model 15m llama-15m 128 256 ;;
    110m) time_model 110m llama-110m 32 1024 ;;
    350m) time_model 350m llama-350m 16 2048 ;;
    1b) time_model 1b llama-3.2-1b 8 4096 train.loss_chunks=0 ;;
    1b-8k) time_model 1b-8k llama-3.2-1b 4 8192 train.loss_chunks=0 ;;
    *) echo "step_times.sh: unknown model '$one'; there are 15m 110m 350m 1b 1b-8k quickstart" >&2 && exit 1 ;;
    esac
  done; done; done
done
exit $status
