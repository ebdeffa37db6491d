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
train=${TRAIN:-$root/train} out=${OUT:-runs/profile}

die() {
  echo "profile.sh: $1" >&2
  exit 1
}

# Of a run that does not validate.
operations() { sed -nE 's/^OP\(([a-z_]+),.*/\1/p' "$root/kernels/ops.def" | grep -vx validation_loss; }

operation='' tool=nsys package=nsight-systems steps=3 kinds='auto unfused'
case ${1:-} in
-h | --help) sed -n '2,8s/^# //p' "$0" && exit 0 ;;
--ncu)
  operation=${2:-} tool=ncu package=nsight-compute steps=1
  operations | grep -qxF -- "$operation" || die "--ncu needs an operation, and '$operation' is none; there are $(operations | paste -sd ' ')"
  shift 2
  ;;
-*) die "unknown option '$1'; there are --ncu and --help" ;;
esac
config=${1:-}
[ -f "$config" ] || die "there is no config '$config'; usage: scripts/profile.sh CONFIG.json [KERNELS] [section.key=value ...]"
shift
case ${1:-} in
auto | fused | unfused) kinds=$1 && shift ;;
both) shift ;;
esac
for override in "$@"; do
  case $override in
  output.profile_steps=*) steps=${override#*=} ;;
  *.*=*) ;;
  *) die "'$override' is none of auto, fused, unfused and both, and no override section.key=value" ;;
  esac
done
[[ $steps =~ ^[1-9][0-9]{0,5}$ ]] || die "output.profile_steps is a whole number from 1 to 999999, not '$steps'"
[ -x "$train" ] || die "there is no program '$train'; build it: make all"
command -v $tool >/dev/null || die "$tool is not on the PATH; add its folder, often /usr/local/cuda/bin, or install it (NVIDIA's \
packages: apt-get install cuda-$package-13-0, with the CUDA toolkit's version; or https://developer.nvidia.com/$package)"
mkdir -p "$out" 2>/dev/null || die "cannot create the folder '$out' for the reports; OUT=... names another one"

export OMP_WAIT_POLICY=passive # train would start itself over to set it
for kind in $kinds; do
  echo "== $kind kernels"
  # A short run for its own sake: no validation, sample or checkpoint, and a learning rate that a run of a few steps can have.
  command=("$train" "$config" backend.device=cuda "backend.kernels=$kind" "train.steps=$((9 + steps))" data.val=
    train.save_interval=-1 train.sample_interval=-1 optimizer.schedule=constant optimizer.warmup_steps=0
    "output.profile_steps=$steps" "output.dir=$out/$kind" "$@")
  report=$out/$kind${operation:+-$operation}.$tool-rep
  rm -f "$report"
  if [ $tool = ncu ]; then
    ncu --target-processes all --profile-from-start off --nvtx --nvtx-include "$operation (fused)/" \
      --nvtx-include "$operation (unfused)/" --set full --clock-control none --launch-count "${LAUNCHES:-12}" \
      --force-overwrite --export "${report%.*}" "${command[@]}" || die "the run under ncu failed as shown above"
    show=(ncu --import "$report" --page details)
  else
    nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop --trace=cuda,nvtx,cublas --cuda-graph-trace=node \
      --sample=none --cpuctxsw=none --force-overwrite=true --output="${report%.*}" "${command[@]}" ||
      die "the run under nsys failed as shown above"
    show=(nsys stats --force-export=true --timeunit=usec
      "--report=cuda_gpu_kern_sum,nvtx_gpu_proj_sum,nvtx_kern_sum" "$report")
  fi
  [ -s "$report" ] || die "$tool wrote no $report: look at what it says above"
  "${show[@]}" || die "$tool could not print $report; open it in $tool-ui"
done
echo "open the reports in $out with $tool-ui"
