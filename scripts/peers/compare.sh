#!/usr/bin/env bash
# Times ./train's steps and those of its peers on this machine, in turn, and prints one table; the last
# column says how many times as long as ours a step takes. Ours are timed before and after the peers.
# usage: scripts/peers/compare.sh [MODEL...]         models as in scripts/step_times.sh; 15m 110m 350m 1b
# PEERS ('compile compile+amp'; torch_llama.py --help says what there is), PRECISION (bf16; fp8 needs
# torchao), STEPS (40), PYTHON (python3, with torch), DEVICE=cpu. What is not installed is said and left out.
set -euo pipefail
export LC_ALL=C # awk and sort read 1.5, not 1,5
case ${1:-} in -h | --help)
  sed -n '2,6s/^# //p' "$0"
  exit 0
  ;;
esac
cd "$(dirname "$0")/../.."
if [ $# = 0 ] && [ "${DEVICE:-}" = cpu ]; then set -- quickstart; fi
[ $# -gt 0 ] || set -- 15m 110m 350m 1b
export PYTHON=${PYTHON:-python3}
for module in torch numpy; do
  "$PYTHON" -c "import $module" 2>/dev/null ||
    { echo "compare.sh: '$PYTHON' has no $module; install it with: $PYTHON -m pip install torch numpy; or name another PYTHON" >&2 && exit 1; }
done
echo "torch $("$PYTHON" -c 'import torch; print(torch.__version__)')"
# Row by row: an awk may keep rows back until its input ends.
declare -A ours
KERNELS="auto ${PEERS:-compile compile+amp} auto" scripts/step_times.sh "$@" | while IFS= read -r line; do
  case $line in
  '| model |'*) echo "${line/ kernels / what } times ours |" ;;
  '|-'*) echo "$line---|" ;;
  '| '*)
    IFS='|' read -r _ model precision kernels shape times rest <<<"$line"
    read -r kernels <<<"$kernels"
    read -r ms _ <<<"$times"
    name="torch, $kernels" key=$model$precision
    if [ "$kernels" = auto ]; then name=ours ours[$key]=${ours[$key]:-$ms}; fi
    ratio=''
    [ -z "${ours[$key]:-}" ] || ratio=$(awk -v a="$ms" -v b="${ours[$key]}" 'BEGIN { printf "%.2f ", a / b }')
    echo "|$model|$precision| $name |$shape|$times|$rest $ratio|"
    ;;
  *) echo "$line" ;;
  esac
done
