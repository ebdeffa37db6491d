#!/usr/bin/env bash
# Compiles fused kernels, and refuses one that uses local memory: a stack frame, or spilled
# registers.
# usage: scripts/compile_fused.sh LOG NVCC ARGUMENTS... -o OBJECT
#        scripts/compile_fused.sh --show LOG...     a table: registers, stack and spills of each kernel
# LOG gets what the assembler says of each kernel (-Xptxas -v). The kernels were written with CUDA
# 13. Another compiler may allocate registers less well: there the use of local memory is only
# reported.
set -uo pipefail

# A kernel's name has its tile and its program in it, as TileILi128ELi256E...16program_residualL5...;
# the mma.sync mainloop has one shape. Kernels for wgmma are empty but on Hopper.
show() {
  awk '
    BEGIN {
      format = "%-38s %-5s %-8s %10s %12s %13s %12s\n"
      printf format, "program", "GPU", "tile", "registers", "stack frame", "spill stores", "spill loads"
    }
    /Compiling entry function/ {
      tile = ""
      match($0, /program_[a-z0-9_]+/)
      name = substr($0, RSTART + 8, RLENGTH - 8)
      if (match($0, /TileILi[0-9]+ELi[0-9]+E/)) {
        split(substr($0, RSTART + 7), size, /[A-Za-z]+/)
        if (/sm_90a/) tile = size[1] "x" size[2]
      }
      if (/sync_kernel/) tile = "64x64"
    }
    match($0, /sm_[0-9]+[af]?/) { gpu = substr($0, RSTART + 3, RLENGTH - 3) }
    / bytes stack frame,/ { stack = $1 " B"; stores = $5 " B"; loads = $9 " B" }
    tile && match($0, /Used [0-9]+ registers/) {
      split(substr($0, RSTART, RLENGTH), used, " ")
      printf format, name, gpu, tile, used[2], stack, stores, loads
    }' "$@"
}

if [ "$1" = --show ]; then
  show "${@:2}"
  exit
fi
log=$1 nvcc=$2 object=${*: -1}
shift
if ! "$@" 2>"$log"; then
  cat "$log" >&2
  exit 1
fi
# Hopper makes mma.sync in FP8 of other instructions. It is there for tests alone, and may spill.
awk '/Compiling entry function/ { exempt = /sync_kernel/ && /_fp8/ && /sm_90a/ } ! exempt' "$log" |
  grep -qE '[1-9][0-9]* bytes (stack frame|spill)' || exit 0
show "$log" >&2
echo "$object: a kernel uses local memory, as shown above" >&2
"$nvcc" --version | grep -q 'release 13\.' || exit 0
rm -f "$object"
exit 1
