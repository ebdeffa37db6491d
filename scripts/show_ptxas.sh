#!/usr/bin/env bash
# Shows what the assembler made of the kernels of one program's file, as a table.
# usage: scripts/show_ptxas.sh NAME LOG     LOG: the .ptxas file that is left beside the object
# `make program NAME=residual` calls it, also where a kernel uses local memory and there is no object.
set -euo pipefail
name=${1:-} log=${2:-}
if [ -z "$log" ]; then
  echo "make: there is no file of fused programs '$name'; NAME may be one of:" \
    "$(basename -s .cu -a kernels/fused/programs/*.cu tests/*/programs/*.cu | paste -sd ' ')" >&2
  exit 1
fi
# A kernel's name has its tile and its program in it, as TileILi128ELi256E...16program_residualL5...;
# the mma.sync mainloop has one shape. Kernels for wgmma are empty but on Hopper.
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
  match($0, /sm_[0-9]+a?/) { gpu = substr($0, RSTART + 3, RLENGTH - 3) }
  / bytes stack frame,/ { stack = $1 " B"; stores = $5 " B"; loads = $9 " B" }
  tile && match($0, /Used [0-9]+ registers/) {
    split(substr($0, RSTART, RLENGTH), used, " ")
    printf format, name, gpu, tile, used[2], stack, stores, loads
  }' "$log"
