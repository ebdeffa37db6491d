#!/usr/bin/env bash
# Times the saves of a 1B model in training on this machine's GPU, 18 GB each: made while training
# waits, and beside it. Prints, of each save, the seconds until it was in place, the time that
# training stood still for it, and the step after it beside the median of all steps.
# usage: scripts/save_times.sh [section.key=value ...]
# EVERY (60): steps between saves, of which there are two and the last. BACKGROUND=true: only beside
# training. FOLDER: where two such checkpoints have room, in a folder that goes (the temporary one).
set -euo pipefail
case ${1:-} in -h | --help)
  sed -n '2,7s/^# //p' "$0"
  exit 0
  ;;
esac
cd "$(dirname "$0")/.."
# shellcheck source=scripts/own_text.sh
. scripts/own_text.sh
every=${EVERY:-60}

echo "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1), $(./train --version), $(nproc) processors"
echo
echo '| saves | step | in place after | training waited | the step after it | median step |'
echo '|---|---|---|---|---|---|'
for background in ${BACKGROUND:-false true}; do
  ./train configs/llama-3.2-1b.json "data.train=$folder/tokens/train-*.bin" data.val= data.tokenizer=bytes \
    backend.device=cuda train.batch_size=8 train.sequence_length=4096 train.loss_chunks=0 train.sample_interval=-1 \
    optimizer.warmup_steps=0 model.tie_word_embeddings=false "train.steps=$((2 * every + 10))" \
    "train.save_interval=$every" train.keep_checkpoints=1 "output.background_save=$background" \
    "output.dir=$folder/run" "$@" >"$folder/said" 2>&1 || { tail -n 5 "$folder/said" >&2 && exit 1; }
  grep 'training waits for saves' "$folder/said" >&2 || true
  sed -nE 's/.*"kind":"train","step":([0-9]+),.*"ms":([^,]*),.*/step \1 \2/p
    s/.*"kind":"save","step":([0-9]+),.*"ms":([^,]*),"waited_ms":([^,}]*).*/save \1 \2 \3/p' "$folder/run/log.jsonl" |
    sort -k 1,1 -k 3,3n | awk -v how="$([ "$background" = true ] && echo beside training || echo training waits)" '
      $1 == "step" { ms[$2] = $3; order[++n] = $3 }
      $1 == "save" { at[$2] = sprintf("%.1f s | %.0f ms", $3 / 1000, $4) }
      END { for (s in at)
              printf "| %s | %d | %s | %s | %.1f ms |\n", how, s, at[s],
                (s + 1 in ms) ? sprintf("%.1f ms", ms[s + 1]) : "", order[int((n + 1) / 2)] }' | sort -t '|' -k 3,3n
  rm -rf "$folder/run"
done
