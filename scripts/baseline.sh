#!/usr/bin/env bash
# What a change of the code's structure must not change: bits of short runs, plans, machine code.
# usage: scripts/baseline.sh FOLDER runs|plans|kernels...
#   runs     SHA-256 of the losses of 24 short runs on the CPU, and of every file that they save (20 s),
#            without checksums.json, which has paths in it
#   plans    --plan of every config for AdamW and Muon, bf16 and FP8, without the lines about this
#            machine's memory
#   kernels  SHA-256 of each kernel's SASS in build/, without addresses; needs cuobjdump
# Writes FOLDER/runs.txt and so on. Call it in two trees on one machine, and compare the folders
# with diff.
# shellcheck disable=SC2119,SC2317 # sort is a function of lib.sh; parts are called by name
# shellcheck source=tests/support/lib.sh
[ $# -ge 2 ] || { echo 'baseline.sh: usage: scripts/baseline.sh FOLDER runs|plans|kernels...' >&2; exit 1; }
out=$(mkdir -p "$1" && realpath "$1") || exit
shift
. "$(dirname "$0")/../tests/support/lib.sh"
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=

# saves NAME OVERRIDES...: trains, and hashes what was saved.
saves() {
  local name=$1 file
  shift
  must "$TRAIN" "$folder/config.json" train.save_interval=7 "output.dir=$folder/$name" "$@"
  (
    cd "$folder/$name" || exit
    find . -path '*step-*' -type f ! -name checksums.json | LC_ALL=C sort | while IFS= read -r file; do
      echo "$name $file $(sed "s|$folder||g" "$file" | sha256sum | cut -c 1-24)"
    done
    echo "$name $( (losses train log.jsonl; losses val log.jsonl) | sha256sum | cut -c 1-24) losses"
  )
}

runs() {
  local fp8='model.hidden_size=128 model.intermediate_size=256 backend.precision=fp8' run
  write_config "$folder/config.json"
  prepare_data 400
  write_documents >"$folder/documents.jsonl"
  must "$PREPARE" --out "$folder/documents" "$folder/documents.jsonl"
  local masked="data.documents=mask data.train=$folder/documents data.val=$folder/documents"
  local mixture="data.train=[{\"path\":\"$folder/data\",\"weight\":3},{\"path\":\"$folder/documents\",\"weight\":1}]"
  local names=(
    "fp32" "fp8 $fp8" "muon optimizer.kind=muon" "muon_fp8 optimizer.kind=muon $fp8"
    "bf16_products backend.cpu_products=bf16" "moments_bf16 backend.moments=bf16"
    "masters_bf16 backend.masters=bf16" "masters_moments_muon backend.masters=bf16 backend.moments=bf16 optimizer.kind=muon"
    "tied model.tie_word_embeddings=true" "tied_fp8 model.tie_word_embeddings=true $fp8"
    "chunks train.loss_chunks=4" "chunks_fp8 train.loss_chunks=2 train.batch_size=8 $fp8"
    "mlp train.recompute=mlp" "layer train.recompute=layer" "layer_fp8 train.recompute=layer $fp8"
    "one_layer train.recompute=layer train.recompute_layers=1"
    "accumulation train.gradient_accumulation=3" "accumulation_fp8 train.gradient_accumulation=2 train.loss_chunks=2 $fp8"
    "zeros train.zero_init=true optimizer.schedule=wsd optimizer.decay_steps=5"
    "masked $masked" "masked_fp8 $masked $fp8" "mixture $mixture" "saved_bf16 output.save_dtype=bf16"
  )
  for run in "${names[@]}"; do
    # shellcheck disable=SC2086 # a row's words are arguments
    saves $run
  done
  must "$TRAIN" "$folder/config.json" train.steps=20 train.save_interval=7 "output.dir=$folder/resumed" optimizer.kind=muon
  rm -rf "$folder"/resumed/step-*20 "$folder"/resumed/latest
  saves resumed optimizer.kind=muon train.resume=auto
}

plans() {
  local config kind precision
  for config in configs/*.json; do
    for kind in adamw muon; do
      for precision in bf16 fp8; do
        echo "== $config $kind $precision"
        "$TRAIN" --plan "$config" "optimizer.kind=$kind" "backend.precision=$precision" 2>&1 |
          grep -vE ' free|at most train|is enough|fits|GPU, because|does not fit'
      done
    done
  done
}

kernels() {
  local object
  find build/release -name '*.o' -path '*kernels*' | while IFS= read -r object; do
    cuobjdump -sass "$object" 2>/dev/null | awk '
      /^\tcode for / { gpu = $3 }
      /Function :/ { if (sum) close(sum); name = gpu " " $3; sum = "sha256sum | cut -c 1-24 | sed \"s|^|" name " |\"" }
      name && /\/\*[0-9a-f]+\*\// { gsub(/\/\*[0-9a-fx]+\*\//, ""); print | sum }'
  done | sort
}

for part in "$@"; do
  case $part in
  runs | plans | kernels) "$part" >"$out/$part.txt" ;;
  *) echo "baseline.sh: '$part' is none of runs, plans and kernels" >&2; exit 1 ;;
  esac
  if grep -q '^not ok' "$out/$part.txt"; then cat "$out/$part.txt"; failed=1; fi
done
exit "$failed"
