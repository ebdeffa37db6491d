#!/usr/bin/env bash
# A table of the fused kernels, each program in each tile shape: what it was built with, and what the assembler made of it.
# usage: scripts/list_kernels.sh LIST LOGS      LIST: the built tests/gpu/list_kernels; LOGS: the folder of the programs'
# .ptxas files, which the build leaves beside its objects. `make kernels` calls it so.
set -euo pipefail
list=${1:?usage: scripts/list_kernels.sh LIST LOGS} logs=${2:?usage: scripts/list_kernels.sh LIST LOGS}
kernels=$("$list")

# Of each kernel: program, rows, columns, registers, bytes of spill stores and loads. A kernel's name has its program and its
# tile in it, as TileILi128ELi256E...16program_residualL5...
assembled=$(sed -nE -e "s/.*entry function '.*sync_kernel.*program_([a-z0-9_]+).*/kernel \1 64 64/p" \
  -e "s/.*entry function '.*TileILi([0-9]+)ELi([0-9]+)E.*program_([a-z0-9_]+).*/kernel \3 \1 \2/p" \
  -e 's/.* ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads.*/spills \1 \2/p' \
  -e 's/.*Used ([0-9]+) registers.*/registers \1/p' "$logs"/*.ptxas |
  awk '
    $1 == "kernel" { kernel = $2 " " $3 " " $4 }
    $1 == "spills" { spills = $2 " " $3 }
    $1 == "registers" { print kernel, $2, spills }')

awk '
  BEGIN {
    format = "%-38s %-8s %6s %6s %14s %15s %13s %12s\n"
    printf format, "program", "tile", "stages", "slots", "shared memory", "registers", "spill stores", "spill loads"
  }
  FNR == NR { made[$1, $2, $3] = $4 " " $5 " " $6; next }
  {
    if (!(($1, $2, $3) in made)) {
      print "list_kernels.sh: no log of " $1 " in tiles of " $2 " x " $3 "; make clean, and build again" > "/dev/stderr"
      missing = 1
      exit
    }
    split(made[$1, $2, $3], of, " ")
    registers = of[1] ": " $7 ", " $8
    printf format, $1, $2 "x" $3, $4, $5, $6 " B", registers, of[2] " B", of[3] " B"
    count++
  }
  END {
    if (missing) exit 1
    printf "%d kernels. stages: operand tiles under way; slots: epilogue chunks under way, of each warpgroup; registers: of a\n", count
    print "thread at the launch, then of the threads that move data, and of those that multiply."
  }' <(echo "$assembled") <(echo "$kernels")
