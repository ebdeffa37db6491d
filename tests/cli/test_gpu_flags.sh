#!/usr/bin/env bash
# Which GPUs kernels are compiled for: those that are here, all, or those that CUDA_ARCHS names. No
# toolkit is needed: what make would run is only printed.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
mkdir "$folder/bin"
unset CUDA_ARCHS MAKEFLAGS MAKELEVEL

here() { # LINES: what nvidia-smi says
  printf '#!/bin/sh\nprintf "%s"\n' "$1" >"$folder/bin/nvidia-smi" && chmod +x "$folder/bin/nvidia-smi"
}

compiles() { # NAME SOURCE FLAGS ARGUMENTS...: with $target, or the source's object
  local name=$1 source=kernels/$2.cu flags=$3 said
  shift 3
  said=$(PATH=$folder/bin:$PATH make -n -B NVCC=nvcc CUBLASLT_H=/x/cublasLt.h \
    CUDART=/x/libcudart_static.a "${target:-build/release/${source%.cu}.o}" "$@" 2>&1 |
    grep -v ' := ' | grep -F " $source " | grep -oE 'arch=compute_[^ ]*' | sed -E 's/arch=compute_//; s/,code=/:/' | paste -sd ' ')
  check "$name" "it compiles $said" test "$said" = "$flags"
}

here ''
all='80:sm_80 80:sm_86 89:sm_89 90a:sm_90a 120f:sm_120f 89:compute_89'
compiles without_a_gpu_all_have_code_and_later_ones_ptx cuda/loss "$all"
compiles an_empty_choice_is_none cuda/loss "$all" CUDA_ARCHS=
compiles programs_have_the_same fused/programs/rope "$all"
here '8.9\n8.9\n'
compiles the_gpu_that_is_here_has_its_own cuda/loss '89:sm_89 89:compute_89'
target=dist compiles an_archive_has_code_for_all cuda/loss "$all"
target=dist compiles a_container_may_choose cuda/loss '89:sm_89 89:compute_89' ALL_ARCHS=89
here '9.0\n'
compiles hopper_has_wgmma cuda/loss 90a:sm_90a
here '12.0\n8.6\n7.5\n'
compiles of_several_each_that_can_train cuda/loss '86:sm_86 120f:sm_120f 86:compute_86'
compiles a_choice_wins cuda/loss '80:sm_80 80:compute_80' CUDA_ARCHS=80
compiles a_choice_of_90_has_wgmma cuda/loss '80:sm_80 90a:sm_90a 80:compute_80' 'CUDA_ARCHS=80 90'
exit "$failed"
