#!/usr/bin/env bash
# Times ./train's steps and those of its peers on this machine, in turn, and prints one table; the last
# column says how many times as long as ours a step takes. Ours are timed before and after the peers.
# usage: scripts/peers/compare.sh [MODEL...]         models as in scripts/step_times.sh; 15m 110m 350m 1b
# PEERS ('compile compile+amp'; torch_llama.py --help says what there is), PRECISION (bf16; fp8 needs
# torchao), STEPS (40), PYTHON (python3, with torch), DEVICE=cpu. What is not installed is said and left out.
set -euo pipefail
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
KERNELS="auto ${PEERS:-compile compile+amp} auto" scripts/step_times.sh "$@" | awk -F ' [|] ' -v OFS=' | ' '
  function end() { sub(/ \|$/, "") } # the last column, before one more
  NF == 9 && $3 == "kernels" { end(); sub("kernels", "what"); print $0, "times ours |"; next }
  /^\|-/ { print $0 "---|"; next }
  NF == 9 {
    split($5, ms, " ")
    if ($3 == "auto" && !($1 $2 in ours)) ours[$1 $2] = ms[1]
    end()
    name = $3 == "auto" ? "ours" : "torch, " $3
    $3 = name
    print $0, ($1 $2 in ours ? sprintf("%.2f |", ms[1] / ours[$1 $2]) : "|")
    fflush()
    next
  }
  { print; fflush() }'
