#!/usr/bin/env bash
# Trains one model in each precision from the same seeds, and compares validation losses in pairs.
# usage: scripts/compare_precision.sh OUT CONFIG.json [section.key=value ...]
# SEEDS ('1 2 3') and PRECISIONS ('bf16 fp8') say which; a run whose log has a last validation is
# not run again, so that parts of the work can be done on several GPUs (CUDA_VISIBLE_DEVICES) into
# one OUT. The last lines give, for each precision but the first, the mean gap to the first with its
# standard error, in % of the loss, and how long the same loss took.
set -euo pipefail
case ${1:-} in -h | --help)
  sed -n '2,7s/^# //p' "$0"
  exit 0
  ;;
esac
[ $# -ge 2 ] || { echo "compare_precision.sh: where to, and which config? compare_precision.sh OUT CONFIG.json" >&2 && exit 1; }
out=$1 config=$2
shift 2
seeds=${SEEDS:-1 2 3} precisions=${PRECISIONS:-bf16 fp8}
mkdir -p "$out"

# LOG: the last validation's loss; in bf16, where the run has that.
last_loss() {
  { grep -E '"kind":"val(_bf16)?"' "$1" || true; } | tail -n 1 | sed -E 's/.*"(val_)?loss(_bf16)?":([0-9.e+-]+).*/\3/'
}

for seed in $seeds; do for precision in $precisions; do
  run=$out/$precision-$seed
  [ ! -e "$run/done" ] || continue
  rm -rf "$run"
  ./train "$config" "output.dir=$run" "train.seed=$seed" "backend.precision=$precision" \
    train.save_interval=-1 train.sample_interval=-1 "$@" >"$out/$precision-$seed.txt" 2>&1 ||
    { tail -n 3 "$out/$precision-$seed.txt" >&2 && exit 1; }
  touch "$run/done"
done; done

echo "seed precision loss ms_a_step" >"$out/table.txt"
for run in "$out"/*-*/; do
  run=${run%/} name=${run##*/}
  [ -e "$run/done" ] || continue
  ms=$(grep '"kind":"train"' "$run/log.jsonl" | sed -E 's/.*"ms":([0-9.]+).*/\1/' | sort -n |
    awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
  echo "${name##*-} ${name%-*} $(last_loss "$run/log.jsonl") $ms" >>"$out/table.txt"
done
sort -k1,1n -k2,2 "$out/table.txt" | awk -v first="${precisions%% *}" '
  $1 == "seed" { next }
  { print; loss[$2, $1] = $3; ms[$2] += $4; n[$2]++; seeds[$1]; kinds[$2] }
  END {
    for (k in kinds) {
      if (k == first) continue
      count = sum = squares = base = 0
      for (s in seeds) if ((k, s) in loss && (first, s) in loss) {
        gap = loss[k, s] - loss[first, s]
        count++; sum += gap; squares += gap * gap; base += loss[first, s]
      }
      if (!count) continue
      mean = sum / count
      error = count > 1 ? sqrt((squares - count * mean * mean) / (count - 1) / count) : 0
      printf "%s - %s over %d seeds: %+.5f +- %.5f, %+.3f %% +- %.3f %%; %.3f of the time a step\n", k, first, count,
        mean, error, 100 * mean / (base / count), 100 * error / (base / count), ms[k] / n[k] / (ms[first] / n[first])
    }
  }'
