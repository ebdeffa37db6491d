#!/usr/bin/env bash
# Compares fused and unfused kernels at three widths on this machine's GPU: ./train --bench of each.
# usage: scripts/compare.sh [1b|7b|70b ...] [section.key=value ...]      all three by default
# Each is configs/WIDTH-width.json with few layers (1b: 8, 7b: 4, 70b: 2), so that it starts fast
# and fits one GPU. More layers change no operation and no layer; in the step, the output layer and
# its loss weigh more than they would. The tables go into OUT (runs/compare), too.
set -euo pipefail
root=$(dirname "$0")/..
train=${TRAIN:-$root/train} out=${OUT:-runs/compare}

die() {
  echo "compare.sh: $1" >&2
  exit 1
}

widths=() overrides=()
for argument in "$@"; do
  case $argument in
  -h | --help)
    sed -n '2,6s/^# //p' "$0"
    exit 0
    ;;
  1b | 7b | 70b) widths+=("$argument") ;;
  *.*=*) overrides+=("$argument") ;;
  *) die "unknown argument '$argument'; there are the widths 1b, 7b and 70b, and overrides section.key=value" ;;
  esac
done
[ ${#widths[@]} -gt 0 ] || widths=(1b 7b 70b)
[ -x "$train" ] || die "there is no program '$train'; build it: make all"
mkdir -p "$out" 2>/dev/null || die "cannot create the folder '$out' for the results; OUT=... names another one"

export OMP_WAIT_POLICY=passive # train would start itself over to set it
began=$SECONDS
for width in "${widths[@]}"; do
  case $width in
  1b) layers=8 ;;
  7b) layers=4 ;;
  70b) layers=2 ;;
  esac
  echo "== $width: $layers layers"
  "$train" --bench "$root/configs/$width-width.json" "model.num_hidden_layers=$layers" backend.device=cuda \
    "${overrides[@]}" |
    tee "$out/$width.txt"
done
echo "== $((SECONDS - began)) s in all; tables: $out"
