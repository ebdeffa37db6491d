#!/usr/bin/env bash
# What make compiles again where flags, compilers or the toolkit are others than last time: a small
# tree with our makefiles, and compilers that only leave empty files and write down what they made.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
unset MAKEFLAGS MAKELEVEL

mkdir "$folder/bin"
cp --parents Makefile kernels/kernels.mk tests/tests.mk scripts/compile_fused.sh "$folder"
cd "$folder" || exit 1
cat >bin/gcc <<'END'
#!/usr/bin/env bash
words=" $* "
[[ $words == *' -o '* ]] || exit 0
made=${words##* -o } && made=${made%% *}
echo "${made#build/}" >>made && echo "$words" >command-"${made//\//-}"
: >"$made"
[[ $words != *' -MMD '* ]] || echo "$made:" >"${made%.o}.d"
END
chmod +x bin/gcc && cp bin/gcc bin/nvcc && cp bin/gcc bin/other
mkdir -p base data/prepare kernels/{cuda,fused/programs} tests/support
touch train.c base/a.c data/prepare/prepare.c kernels/{no_cuda,fused/backend}.c \
  kernels/{cuda/loss,fused/programs/rope,fused/programs/residual}.cu
for file in $(make -np NVCC= help | sed -n 's/^CUDA_FREE := //p'); do touch "$file"; done

run() { # ARGUMENTS...: make, with a toolkit and for one kind of GPU unless they say otherwise
  make FUZZ_CC=false CFLAGS=-O3 CC=bin/gcc NVCC=bin/nvcc CUBLASLT_H=/x/cublasLt.h \
    CUDART=/x/libcudart_static.a CUDA_HOME=/x CUDA_ARCHS=90a REVISION=1 "$@"
}
makes() { # NAME FILES ARGUMENTS...
  local name=$1 files=$2
  shift 2
  rm -f made && must run -s "$@"
  made=$(sort made 2>/dev/null | paste -sd ' ')
  check "$name" "it made '$made'" test "$made" = "$files"
}
links() { # NAME ARCHIVE
  check "$1" "$(cat command-build-release-train)" grep -q " build/release/$2 " command-build-release-train
}
with_train() { echo "$@" release/train | tr ' ' '\n' | sort | paste -sd ' '; }

loss=release/kernels/cuda/loss.o rope=release/kernels/fused/programs/rope.o
residual=release/kernels/fused/programs/residual.o none=release/kernels/no_cuda.o
host="release/base/a.o release/train.o release/kernels/fused/backend.o"
for file in $(make -np NVCC= help | sed -n 's/^CUDA_FREE := //p'); do host+=" release/${file%.c}.o"; done

makes all_is_made_at_first "$(with_train "$host" $loss $residual $rope)" train
links with_a_toolkit_train_has_gpu_backends gpu.a
makes the_same_command_makes_nothing '' train
check and_says_that_nothing_is_to_do "$(run -n train)" run -q train

# ---- GPUs and their compiler
makes other_gpus_need_their_code "$(with_train $loss $residual $rope)" train CUDA_ARCHS=80
makes they_need_it_once '' train CUDA_ARCHS=80
makes what_is_only_printed_changes_nothing '' -n train
makes so_nothing_is_made_after_it '' train CUDA_ARCHS=80
makes a_program_alone_leaves_the_others $rope build/$rope
makes and_they_leave_it "$(with_train $loss $residual)" train
makes a_gpu_more_needs_all "$(with_train $loss $residual $rope)" train 'CUDA_ARCHS=80 90'
makes another_nvcc_makes_what_is_its "$(with_train $loss $residual $rope)" train 'CUDA_ARCHS=80 90' NVCC=bin/other
makes and_so_does_the_first "$(with_train $loss $residual $rope)" train

# ---- The host's
makes other_flags_make_host_code "$(with_train "$host")" train CFLAGS=-O1
makes another_compiler_does "$(with_train "$host")" train CFLAGS=-O1 CC=bin/other
makes flags_with_quotes_do "$(with_train "$host")" train "CFLAGS=-DA='\"a b\"'"
makes they_do_it_once '' train "CFLAGS=-DA='\"a b\"'"
makes and_the_first_ones_again "$(with_train "$host")" train
makes another_commit_is_only_trains "$(with_train release/train.o)" train REVISION=2
makes and_the_first_one_again "$(with_train release/train.o)" train

# ---- Without a toolkit
makes without_a_toolkit_train_is_another "$(with_train $none)" train NVCC=
links it_has_no_gpu_backends coda.a
makes it_is_linked_once '' train NVCC=
makes with_a_toolkit_it_is_linked_again "$(with_train)" train
links and_has_gpu_backends_again gpu.a
makes and_is_linked_once '' train
exit "$failed"
