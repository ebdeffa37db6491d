#!/usr/bin/env bash
# What quickstart.sh builds. A make in its place writes down what it is asked for, and fails.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
mkdir "$folder/bin"
program() { # NAME LINE: a program that does so
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1" && chmod +x "$folder/bin/$1"
}
program make "echo \"\$*\" >'$folder/asked'; exit 1"

builds() { # NAME PATTERN
  rm -f "$folder/asked"
  said=$(PATH=$folder/bin:$PATH scripts/quickstart.sh --out "$folder/run" 2>&1)
  check "$1" "it asked for: $(cat "$folder/asked"); it said: $said" grep -qxE -e "$2" "$folder/asked"
}
program ldconfig 'echo "libcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13"'
program nvidia-smi 'echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver"; exit 9'
builds without_a_driver_only_what_the_cpu_needs_is_built '-s -j[0-9]+ NVCC= all'
program nvidia-smi 'echo "GPU 0: NVIDIA GeForce RTX 4090"'
builds where_nvidia_smi_finds_a_gpu_all_is_built '-s -j[0-9]+ all'
rm "$folder/bin/nvidia-smi"
program ldconfig 'echo "libcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1"'
builds where_there_is_the_driver_library_all_is_built '-s -j[0-9]+ all'
check a_build_that_fails_ends_it "it said: $said" grep -q '^quickstart.sh: the build failed as shown above$' <<<"$said"
exit "$failed"
