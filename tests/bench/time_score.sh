#!/usr/bin/env bash
# The time of ./train --score on as many questions as HellaSwag has, invented, of its lengths, by a
# 110M model that was trained for a step. Other arguments are overrides of configs/llama-110m.json.
#   usage: tests/bench/time_score.sh [section.key=value ...]     QUESTIONS (10042)
set -e
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/text"
git ls-files '*.md' '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' | xargs cat >"$folder/text/all.txt"
./prepare --train-tokenizer 16000 --out "$folder/tok" "$folder/text" >/dev/null
./prepare --tokenizer "$folder/tok" --out "$folder/data" "$folder/text" >/dev/null
./train configs/llama-110m.json "data.train=$folder/data" "data.val=$folder/data" \
  model.vocab_size=16000 "output.dir=$folder/run" train.steps=1 train.eval_batches=1 \
  train.batch_size=8 train.sample_interval=-1 "$@" >"$folder/said"
git ls-files '*.md' | xargs cat | grep -oE '\b[a-z]{2,}\b' |
  awk -v questions="${QUESTIONS:-10042}" '
    function text(least, most,   s, n) {
      s = words[int(rand() * NR) + 1]
      for (n = least + int(rand() * (most - least)); n > 1; n--)
        s = s " " words[int(rand() * NR) + 1]
      return s
    }
    { words[NR] = $0 }
    END {
      srand(1)
      for (i = 0; i < questions; i++) {
        printf "{\"activity_label\":\"%s\",\"ctx_a\":\"%s.\",\"ctx_b\":\"%s\",\"label\":%d,", \
          text(1, 3), text(10, 75), text(1, 4), i % 4
        printf "\"endings\":[\"%s.\",\"%s.\",\"%s.\",\"%s.\"]}\n", \
          text(8, 32), text(8, 32), text(8, 32), text(8, 32)
      }
    }' >"$folder/hellaswag.jsonl"
time ./train --score "$folder/run" "hellaswag=$folder/hellaswag.jsonl"
