#!/usr/bin/env bash
# Profiles a few training steps with Nsight Systems, or the kernels of one operation with Nsight Compute; on a GPU.
# usage: scripts/profile.sh CONFIG.json [KERNELS] [section.key=value ...]
#        scripts/profile.sh --ncu OPERATION CONFIG.json [KERNELS] [section.key=value ...]
# KERNELS: auto, fused or unfused, as backend.kernels; or both (the default): auto, then unfused.
# Without --ncu: steps 10 to 12 on a time line (output.profile_steps=3), and
# Nsight Systems' own tables of kernels and NVTX ranges. With it: LAUNCHES (12) kernels of the
# operation in step 10, each run many times for its counters. Reports go to OUT (runs/profile).
set -euo pipefail
root=$(dirname "$0")/..
train=${TRAIN:-$root/train} out=${OUT:-runs/profile} launches=${LAUNCHES:-12}

die() {
  echo "profile.sh: $1" >&2
  exit 1
}

# Of a run that does not validate.
operations() { sed -nE 's/^OP\(([a-z_]+),.*/\1/p' "$root/kernels/ops.def" | grep -vx validation_loss; }

# need PROGRAM NAME PACKAGE
need() {
  command -v "$1" >/dev/null || die "$1 ($2) is not on the PATH; install it (from NVIDIA's package repository: apt-get install \
cuda-$3-13-0, where 13-0 is the CUDA toolkit's version; from Debian 13's non-free: apt-get install $3; or from \
https://developer.nvidia.com/$3), or add its folder, often \
/usr/local/cuda/bin, to PATH"
}

# ---- The command line
operation=
case ${1:-} in
-h | --help)
  sed -n '2,8s/^# //p' "$0"
  exit 0
  ;;
--ncu)
  operation=${2:-}
  operations | grep -qxF -- "$operation" || die "--ncu needs an operation, and '$operation' is none; there are $(operations | paste -sd ' ')"
  shift 2
  ;;
-*) die "unknown option '$1'; there are --ncu and --help" ;;
esac
[ $# -gt 0 ] || die 'no config given; usage: scripts/profile.sh CONFIG.json [KERNELS] [section.key=value ...]'
config=$1
shift
kinds='auto unfused'
case ${1:-} in
auto | fused | unfused) kinds=$1 && shift ;;
both) shift ;;
esac

steps=3
[ -z "$operation" ] || steps=1
for override in "$@"; do
  case $override in
  output.profile_steps=*) steps=${override#*=} ;;
  *.*=*) ;;
  *) die "'$override' is none of auto, fused, unfused and both, and no override section.key=value" ;;
  esac
done
for number in "$steps" "$launches"; do
  [[ $number =~ ^[1-9][0-9]{0,5}$ ]] ||
    die "output.profile_steps and LAUNCHES must be whole numbers from 1 to 999999, not '$number'"
done

[ -f "$config" ] || die "there is no config '$config'; those that come with coda.c are in configs/"
[ -x "$train" ] || die "there is no program '$train'; build it: make all"
if [ -n "$operation" ]; then need ncu 'Nsight Compute' nsight-compute; else need nsys 'Nsight Systems' nsight-systems; fi
mkdir -p "$out" 2>/dev/null || die "cannot create the folder '$out' for the reports; OUT=... names another one"

# ---- Runs
export OMP_WAIT_POLICY=passive # train would start itself over to set it

# A short run for its own sake: no validation, sample or checkpoint, and a learning rate that a run of a few steps can have.
train_command() { # KIND OVERRIDES...
  local kind=$1
  shift
  command=("$train" "$config" backend.device=cuda "backend.kernels=$kind" "train.steps=$((9 + steps))" data.val=
    train.save_interval=-1 train.sample_interval=-1 optimizer.schedule=constant optimizer.warmup_steps=0
    "output.profile_steps=$steps" "output.dir=$out/$kind" "$@")
}

# written REPORT TOOL: the report is there, and of this run.
written() {
  [ -s "$1" ] || die "$2 wrote no $1: look at what it says above"
  echo "report: $1"
}

time_line() { # KIND
  local report=$out/$1
  rm -f "$report.nsys-rep"
  nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop --trace=cuda,nvtx,cublas --cuda-graph-trace=node \
    --sample=none --cpuctxsw=none --force-overwrite=true --output="$report" "${command[@]}" ||
    die "the run under nsys failed as shown above"
  written "$report.nsys-rep" nsys
  nsys stats --force-export=true --timeunit=usec --report=cuda_gpu_kern_sum,nvtx_gpu_proj_sum,nvtx_kern_sum "$report.nsys-rep" ||
    die "nsys could not print its tables of $report.nsys-rep; open it in nsys-ui"
}

counters() { # KIND
  local report=$out/$1-$operation
  rm -f "$report.ncu-rep"
  ncu --target-processes all --profile-from-start off --nvtx --nvtx-include "$operation (fused)/" \
    --nvtx-include "$operation (unfused)/" --set full --clock-control none --launch-count "$launches" --force-overwrite \
    --export "$report" "${command[@]}" || die "the run under ncu failed as shown above"
  written "$report.ncu-rep" ncu
  ncu --import "$report.ncu-rep" --page details || die "ncu could not print $report.ncu-rep; open it in ncu-ui"
}

for kind in $kinds; do
  echo "== $kind kernels"
  train_command "$kind" "$@"
  if [ -n "$operation" ]; then counters "$kind"; else time_line "$kind"; fi
done
if [ -n "$operation" ]; then echo "open the reports in ncu-ui"; else echo "open the reports in nsys-ui"; fi
