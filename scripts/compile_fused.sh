#!/usr/bin/env bash
# Compiles fused kernels, and refuses one that uses local memory: a stack frame, or spilled
# registers.
# usage: scripts/compile_fused.sh LOG NVCC ARGUMENTS... -o OBJECT
# LOG gets what the assembler says of each kernel (-Xptxas -v). The kernels were written with CUDA
# 13. Another compiler may deal registers out worse: there the use of local memory is only reported.
set -uo pipefail
log=$1 nvcc=$2 object=${*: -1}
shift

if ! "$@" 2>"$log"; then
  cat "$log" >&2
  exit 1
fi
grep -qE '[1-9][0-9]* bytes (stack frame|spill)' "$log" || exit 0
scripts/show_ptxas.sh "$object" "$log" >&2
echo "$object: a kernel uses local memory, as shown above" >&2
"$nvcc" --version | grep -q 'release 13\.' || exit 0
rm -f "$object"
exit 1
