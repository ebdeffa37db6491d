#!/usr/bin/env bash
# Compares our kernels with torch.compile, Liger and FlashInfer (where installed), in one process
# and by turns: times, and errors against fp64 on the same data; and steps of 1B with torch.compile.
# usage: scripts/peers/kernels.sh OUT [WHAT...]
#   WHAT  1b 7b 70b: the patterns at hidden sizes 2048, 4096, 8192, with 16384 tokens
#         bf16 fp8: steps of 1B, 4 x 8192 tokens, and what takes their time; FP8 needs torchao
#         report: only the tables of what is in OUT
#         Default: 1b 7b 70b bf16 fp8. A width takes two minutes, a precision two to three.
# OUT gets results.json, the tables in report.md, and the picture shares.svg. PYTHON (python3) has
# torch. Cuts off what takes longer than LIMIT (300) seconds.
set -euo pipefail
case ${1:-} in
'' | -h | --help)
  sed -n '2,11s/^# //p' "$0"
  exit 0
  ;;
esac
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} limit=${LIMIT:-300} status=0
[ $# -gt 0 ] || set -- 1b 7b 70b bf16 fp8
if ! [ -x train ] || ! [ -e build/shared/peers.so ]; then make -s -j"$(nproc)" train build/shared/peers.so; fi
mkdir -p "$out"
export PYTHONUNBUFFERED=1
# ./train finds the cuDNN that PyTorch has, if the system has none.
cudnn=$("$python" -c 'import nvidia.cudnn; print(nvidia.cudnn.__path__[0] + "/lib")' 2>/dev/null) || cudnn=''
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+:}$cudnn

# A run that fails is said, and the next one follows.
run() {
  timeout "$limit" "$python" scripts/peers/kernels.py "$@" "$out" 2>>"$out/errors.txt" ||
    { status=1 && echo "kernels.sh: $* did not end: $(tail -n 1 "$out/errors.txt")" >&2; }
}

for what; do
  case $what in
  1b | 7b | 70b | tiny) run width "$what" ;;
  bf16 | fp8)
    run model ours "$what" 1b
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True run model torch "$what" 1b
    ;;
  report) ;;
  *) echo "kernels.sh: unknown '$what'; there are 1b 7b 70b bf16 fp8 report" >&2 && exit 1 ;;
  esac
done
echo
"$python" scripts/peers/kernels.py report "$out" | tee "$out/report.md"
exit $status
