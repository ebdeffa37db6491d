#!/usr/bin/env bash
# Shows what the assembler made of one program's kernels, as a table.
# usage: scripts/show_ptxas.sh NAME LOG     LOG: the .ptxas file that is left beside the object
# `make program NAME=residual` calls it.
set -euo pipefail
name=${1:-} log=${2:-}
if [ -z "$log" ]; then
  echo "make: there is no fused program '$name'; NAME may be one of:" \
    "$(basename -s .cu -a kernels/fused/programs/*.cu | paste -sd ' ')" >&2
  exit 1
fi
# A kernel's name has its tile in it, as TileILi128ELi256E...; the mma.sync mainloop has one shape.
# Kernels for wgmma are empty but on Hopper.
awk -v name="$name" '
  BEGIN {
    format = "%-20s %-5s %-8s %10s %12s %13s %12s\n"
    printf format, "program", "GPU", "tile", "registers", "stack frame", "spill stores", "spill loads"
  }
  match($0, /Compiling entry function .*TileILi[0-9]+ELi[0-9]+E/) {
    split(substr($0, RSTART, RLENGTH), part, "TileILi")
    split(part[2], size, /[A-Za-z]+/)
    tile = /sm_90a/ ? size[1] "x" size[2] : ""
  }
  /Compiling entry function .*sync_kernel/ { tile = "64x64" }
  match($0, /sm_[0-9]+a?/) { gpu = substr($0, RSTART + 3, RLENGTH - 3) }
  / bytes stack frame,/ { stack = $1 " B"; stores = $5 " B"; loads = $9 " B" }
  tile && match($0, /Used [0-9]+ registers/) {
    split(substr($0, RSTART, RLENGTH), used, " ")
    printf format, name, gpu, tile, used[2], stack, stores, loads
  }' "$log"
