#!/usr/bin/env bash
# From text to a model that answers questions: tokenizer, pretraining, conversations, fine-tuning.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/finetune_example.sh TEXT OUT [--tiny]

TEXT is the text.jsonl.zst of scripts/fetch_text.sh. Trains a tokenizer with ChatML's markers and
configs/llama-110m.json on TEXT, makes questions and answers of the manual pages in it
(scripts/make_turns.py), fine-tunes on them, and prints the loss on held-out pages before and after,
and three answers about them. --tiny: a model of 1.9M, minutes on two cores. All goes into OUT:

  tok/ data/ base/        tokenizer with markers, token files, the pretrained model
  turns/ chat/ held_out/  conversations, their token files, those of held-out pages
  tuned/  report.txt      the fine-tuned model; what each part said

A part that is done is not done again. STEPS and TUNE_STEPS are steps of the two trainings; more
settings for the first are in BASE, for the second in TUNE: TUNE='optimizer.learning_rate=5e-5'.
END
}

fail() {
  echo "finetune_example.sh: $*" >&2
  exit 1
}

case ${1:-} in -h | --help) usage && exit 0 ;; esac
[ $# -ge 2 ] || fail "what text, and where to? usage: scripts/finetune_example.sh TEXT OUT"
text=$1 out=$2
[ -e "$text" ] || fail "there is no $text"
for program in ./train ./prepare; do [ -x "$program" ] || fail "there is no $program: make all"; done

if [ "${3:-}" = --tiny ]; then
  config=configs/llama-1m.json vocabulary=2000 steps=${STEPS:-500} tune_steps=${TUNE_STEPS:-300}
  base=(model.hidden_size=192 model.intermediate_size=512 model.num_attention_heads=6
    model.max_position_embeddings=256 train.sequence_length=128 train.batch_size=16)
  tune=(train.sequence_length=256 train.batch_size=8 optimizer.learning_rate=1e-3
    optimizer.min_learning_rate=1e-4)
elif [ $# = 2 ]; then
  config=configs/llama-110m.json vocabulary=32000 steps=${STEPS:-7600} tune_steps=${TUNE_STEPS:-300}
  base=()
  tune=(train.batch_size=16 optimizer.learning_rate=1e-4 optimizer.min_learning_rate=1e-5)
else
  fail "unknown option '$3'; --help says more"
fi
read -ra more_base <<<"${BASE:-}"
read -ra more_tune <<<"${TUNE:-}"

mkdir -p "$out/turns"
report=$out/report.txt
part() {
  printf '\n$ %s\n' "${*@Q}" | tee -a "$report"
  "$@" 2>&1 | tee -a "$report"
}
unpack() { if [[ $text == *.zst ]]; then zstd -dc "$text"; else cat "$text"; fi; }

[ -e "$out/tok/tokenizer.json" ] ||
  part ./prepare --train-tokenizer "$vocabulary" --template chatml --out "$out/tok" "$text"
[ -e "$out/data/train-00000.bin" ] ||
  part ./prepare --tokenizer "$out/tok" --val-fraction 0.02 --out "$out/data" "$text"
part ./train "$config" "model.vocab_size=$vocabulary" "data.train=$out/data/train-*.bin" \
  "data.val=$out/data/val-*.bin" "output.dir=$out/base" "train.steps=$steps" train.resume=auto \
  "${base[@]}" "${more_base[@]}"

unpack | part scripts/make_turns.py "$out/turns"
for set in turns:chat held_out:held_out; do
  [ -e "$out/${set#*:}/train-00000.bin" ] ||
    part ./prepare --chat --tokenizer "$out/tok" --out "$out/${set#*:}" "$out/turns/${set%:*}.jsonl"
done
part ./prepare --show 1 "$out/chat"
part ./train --eval "$out/base" --data "$out/held_out/*.bin"
part ./train configs/finetune.json "model=$out/base" "data.train=$out/chat/train-*.bin" \
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
