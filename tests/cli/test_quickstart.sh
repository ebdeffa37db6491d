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

# ---- --minutes: ./train --fit chooses the config, and a run that is cut short resumes with it
program make 'exit 0'
program train "echo \"\$*\" >>'$folder/asked'
case \$1 in --fit) touch \"\$4\" ;; *.json) touch \"\${4#output.dir=}/log.jsonl\" && exit 1 ;; esac"
write_text 50 >"$folder/text.txt"
copy=$folder/tree
mkdir -p "$copy/scripts" "$copy/data" "$copy/runs/short"
cp scripts/quickstart.sh "$copy/scripts/"
printf '#!/bin/sh\nexit 0\n' >"$copy/scripts/install_packages.sh" && chmod +x "$copy/scripts/install_packages.sh"
ln -s "$folder/bin/train" "$copy/train"
ln -s "$PREPARE" "$copy/prepare"
again() { (cd "$copy" && PATH=$folder/bin:$PATH scripts/quickstart.sh --text "$folder/text.txt" --out runs/short "$@" 2>&1); }
rm -f "$folder/asked"
said=$(again --minutes 3)
check minutes_ask_for_a_config "$(cat "$folder/asked"); $said" grep -qx -- '--fit data/short/tokens minutes=3 data/short/fit.json' "$folder/asked"
check the_config_is_trained "$(cat "$folder/asked"); $said" grep -q '^data/short/fit.json data.train=.*output.dir=runs/short' "$folder/asked"
rm -f "$folder/asked"
said=$(again)
check the_run_resumes_with_its_config "$(cat "$folder/asked"); $said" \
  test "$(cut -d ' ' -f 1 "$folder/asked")" = data/short/fit.json
exit "$failed"
