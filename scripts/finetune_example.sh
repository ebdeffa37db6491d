#!/usr/bin/env bash
# From text to a model that answers questions: tokenizer, pretraining, conversations, fine-tuning.
# usage: scripts/finetune_example.sh TEXT OUT [--tiny]
# TEXT is the text.jsonl.zst of scripts/fetch_text.sh. scripts/real_run.sh trains a tokenizer with
# ChatML's markers and configs/llama-110m.json on it; then this makes questions and answers of the
# manual pages in TEXT (scripts/make_turns.py), fine-tunes on them, and prints the loss on held-out
# pages before and after, and three answers about them. --tiny: a model of 1.9M, minutes on two
# cores. OUT gets what real_run.sh writes, and
#   turns/ chat/ held_out/  conversations, their token files, those of held-out pages
#   tuned/                  the fine-tuned model
# A part that is done is not done again. STEPS and TUNE_STEPS are steps of the two trainings; more
# settings for the first are in BASE, for the second in TUNE: TUNE='optimizer.learning_rate=5e-5'.
set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,12s/^# //p' "$0" && exit 0 ;; esac
text=${1:-} out=${2:-} report=${2:-}/report.txt tune_steps=${TUNE_STEPS:-300}
case $#${3:-} in
2)
  base=("train.steps=${STEPS:-7600}")
  tune=(train.batch_size=16 optimizer.learning_rate=1e-4 optimizer.min_learning_rate=1e-5)
  ;;
3--tiny)
  export VOCABULARY=2000
  base=(configs/llama-1m.json "train.steps=${STEPS:-500}" model.hidden_size=192
    model.intermediate_size=512 model.num_attention_heads=6 model.max_position_embeddings=256
    train.sequence_length=128 train.batch_size=16)
  tune=(train.sequence_length=256 train.batch_size=8 optimizer.learning_rate=1e-3
    optimizer.min_learning_rate=1e-4)
  ;;
*) echo "finetune_example.sh: usage: scripts/finetune_example.sh TEXT OUT [--tiny]" >&2 && exit 1 ;;
esac
read -ra more_base <<<"${BASE:-}"
read -ra more_tune <<<"${TUNE:-}"
TEMPLATE=chatml scripts/real_run.sh "$text" "$out" "${base[@]}" "${more_base[@]}"

part() {
  printf '\n$ %s\n' "${*@Q}" | tee -a "$report"
  "$@" 2>&1 | tee -a "$report"
}
unpack() { if [[ $text == *.zst ]]; then zstd -dc "$text"; else cat "$text"; fi; }

mkdir -p "$out/turns"
unpack | part scripts/make_turns.py "$out/turns"
for set in turns:chat held_out:held_out; do
  [ -e "$out/${set#*:}/train-00000.bin" ] ||
    part ./prepare --chat --tokenizer "$out/tok" --out "$out/${set#*:}" "$out/turns/${set%:*}.jsonl"
done
part ./prepare --show 1 "$out/chat"
part ./train --eval "$out/run" --data "$out/held_out/*.bin"
part ./train configs/finetune.json "model=$out/run" "data.train=$out/chat/train-*.bin" \
  "data.val=$out/chat/val-*.bin" "output.dir=$out/tuned" "train.steps=$tune_steps" \
  train.resume=auto "${tune[@]}" "${more_tune[@]}"
part ./train --eval "$out/tuned" --data "$out/held_out/*.bin"

# The first question of three held-out conversations, with the answer that its page gives.
questions=$(awk 'NR % 50 == 7' "$out/turns/held_out.jsonl" | head -n 3 |
  sed -E 's/^\{"messages": \[\{"role": "user", "content": "([^"]*)"\}, \{"role": "assistant", "content": "([^"]*)".*/\1\t\2/')
while IFS=$'\t' read -r question expected; do
  part ./train --generate "$out/tuned" --user "$question" --temperature 0 --tokens 60 </dev/null
  echo "(the page says: $expected)" | tee -a "$report"
done <<<"$questions"
