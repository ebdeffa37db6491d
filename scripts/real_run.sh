#!/usr/bin/env bash
# From real text to a model that writes: tokenizer, token files, training, samples, loss curve.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/real_run.sh TEXT OUT [CONFIG.json] [section.key=value ...]

Trains a tokenizer of 32000 tokens on TEXT (what ./prepare takes, such as the text.jsonl.zst of
scripts/fetch_text.sh), makes token files with it, trains configs/llama-110m.json on them, writes
samples and draws the loss. All of it goes into OUT:

  tok/  data/  run/    tokenizer, token files (2 % of the documents for validation), checkpoints
  report.txt           what each part said, and how long it took
  samples.txt          the same prompts at each checkpoint that is kept, and at the end
  log.jsonl  loss.png  the loss of every step (the picture needs matplotlib)

A part that is done is not done again: the same command goes on where it was ended.
END
}

fail() {
  echo "real_run.sh: $*" >&2
  exit 1
}

case ${1:-} in -h | --help) usage && exit 0 ;; esac
[ $# -ge 2 ] || fail "what text, and where to? usage: scripts/real_run.sh TEXT OUT"
text=$1 out=$2 config=configs/llama-110m.json
shift 2
if [[ ${1:-} == *.json ]]; then config=$1 && shift; fi
vocabulary=${VOCABULARY:-32000}
prompts=('The meaning of' 'static int ' 'def __init__(self' 'In the beginning' '#include <'
  'A process that' '/* The lock is held')

[ -e "$text" ] || fail "there is no $text"
for program in ./train ./prepare; do
  [ -x "$program" ] || fail "there is no $program here: make all"
done
mkdir -p "$out"
report=$out/report.txt

# part NAME COMMAND...: runs it, with what it says and its seconds in the report.
part() {
  local name=$1 began=${EPOCHREALTIME/[.,]/}
  shift
  printf '\n== %s\n$ %s\n' "$name" "${*@Q}" | tee -a "$report"
  "$@" 2>&1 | tee -a "$report"
  local us=$((${EPOCHREALTIME/[.,]/} - began))
  printf '== %s took %d.%d s\n' "$name" $((us / 1000000)) $((us / 100000 % 10)) | tee -a "$report"
}

write_samples() { # FOLDER
  local prompt
  for prompt in "${prompts[@]}"; do
    printf '\n---- %s: "%s"\n' "${1##*/}" "$prompt"
    ./train --generate "$1" --prompt "$prompt" --tokens 120 --temperature 0.7 --top-k 50 --seed 1 2>&1 ||
      echo "(no sample)"
  done >>"$out/samples.txt"
}

ls -l "$text" >>"$report"
./train --version >>"$report"
[ -e "$out/tok/tokenizer.json" ] ||
  part tokenizer ./prepare --train-tokenizer "$vocabulary" --out "$out/tok" "$text"
[ -e "$out/data/train-00000.bin" ] ||
  part prepare ./prepare --tokenizer "$out/tok" --val-fraction 0.02 --out "$out/data" "$text"
part train ./train "$config" "data.train=$out/data/train-*.bin" "data.val=$out/data/val-*.bin" \
  "output.dir=$out/run" train.resume=auto "$@"
cp "$out/run/log.jsonl" "$out/log.jsonl"

rm -f "$out/samples.txt"
echo '== samples' && for checkpoint in "$out"/run/step-*/; do write_samples "${checkpoint%/}"; done
cat "$out/samples.txt"
part evaluation ./train --eval "$out/run" --data "$out/data/val-*.bin"
if python3 -c 'import matplotlib' 2>/dev/null; then
  part picture scripts/plot.py "$out/run" -o "$out/loss.png"
else
  echo "no picture: matplotlib is missing; later: scripts/plot.py $out/run -o $out/loss.png"
fi
echo "done: $report, $out/samples.txt, $out/log.jsonl"
