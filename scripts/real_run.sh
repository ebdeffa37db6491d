#!/usr/bin/env bash
# From real text to a model that writes: tokenizer, token files, training, samples, loss curve.
# usage: scripts/real_run.sh TEXT OUT [CONFIG.json] [section.key=value ...]
# TEXT is what ./prepare takes, such as the text.jsonl.zst of scripts/fetch_text.sh. The config
# (configs/llama-110m.json) gets a vocabulary of VOCABULARY (32000) tokens; TEMPLATE=chatml adds the
# markers of conversations. Into OUT go
#   tok/  data/  run/    tokenizer, token files (2 % of the documents for validation), checkpoints
#   report.txt           what each part said, and how long it took
#   samples.txt          the same prompts at each checkpoint that is kept, and at the end
#   page.html            the losses, the rate, the samples: for a browser
# A part that is done is not done again: the same command resumes what was interrupted.
set -euo pipefail

fail() {
  echo "real_run.sh: $*" >&2
  exit 1
}

case ${1:-} in -h | --help) sed -n '2,11s/^# //p' "$0" && exit 0 ;; esac
[ $# -ge 2 ] || fail "what text, and where to? usage: scripts/real_run.sh TEXT OUT"
text=$1 out=$2 report=$2/report.txt config=configs/llama-110m.json vocabulary=${VOCABULARY:-32000}
shift 2
if [[ ${1:-} == *.json ]]; then config=$1 && shift; fi
[ -e "$text" ] || fail "there is no $text"
for program in ./train ./prepare; do
  [ -x "$program" ] || fail "there is no $program here: make all"
done
mkdir -p "$out"

# part NAME COMMAND...: runs it, with what it says and its seconds in the report.
part() {
  local name=$1 began=${EPOCHREALTIME/[.,]/}
  shift
  printf '\n== %s\n$ %s\n' "$name" "${*@Q}" | tee -a "$report"
  "$@" 2>&1 | tee -a "$report"
  local us=$((${EPOCHREALTIME/[.,]/} - began))
  printf '== %s took %d.%d s\n' "$name" $((us / 1000000)) $((us / 100000 % 10)) | tee -a "$report"
}

write_samples() {
  local checkpoint prompt
  for checkpoint in "$out"/run/step-*; do
    for prompt in 'The meaning of' 'static int ' 'def __init__(self' 'In the beginning' '#include <' \
      'A process that' '/* The lock is held'; do
      printf '\n---- %s: "%s"\n' "${checkpoint##*/}" "$prompt"
      ./train --generate "$checkpoint" --prompt "$prompt" --tokens 120 --temperature 0.7 --top-k 50 --seed 1 2>&1
    done
  done | tee "$out/samples.txt"
}

{ ls -l "$text" && ./train --version; } >>"$report"
[ -e "$out/tok/tokenizer.json" ] ||
  part tokenizer ./prepare --train-tokenizer "$vocabulary" ${TEMPLATE:+--template "$TEMPLATE"} --out "$out/tok" "$text"
[ -e "$out/data/train-00000.bin" ] ||
  part prepare ./prepare --tokenizer "$out/tok" --val-fraction 0.02 --out "$out/data" "$text"
part train ./train "$config" "model.vocab_size=$vocabulary" "data.train=$out/data/train-*.bin" \
  "data.val=$out/data/val-*.bin" "output.dir=$out/run" train.resume=auto "$@"
write_samples
part evaluation ./train --eval "$out/run" --data "$out/data/val-*.bin"
part page ./train --page "$out/run" --out "$out/page.html"
echo "done: $report, $out/samples.txt, $out/run/log.jsonl"
