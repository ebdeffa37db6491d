#!/usr/bin/env bash
# The checkpoints that we write load in Hugging Face transformers with no edit: the tokenizer, the same logits, the same
# text; and what transformers saves is a folder that we start from. scripts/check_transformers.py compares.
# tests/unit/test_transformers.c writes a checkpoint of each fixture's model, trained a little.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
fixtures=(tests/fixtures/*/config.json)
text=$'Two words, \u00e9\u4e2d\U1f600\n and\tmore'

python=${PYTHON:-}
for candidate in .venv/bin/python python3; do
  [ -n "$python" ] || ! command -v "$candidate" >/dev/null || python=$candidate
done
has() { # MODULE NAME: else the test of this name is skipped
  [ -n "$python" ] && "$python" -c "import $1" 2>/dev/null && return
  echo "ok - $2 # SKIP $1 is not installed (pip install -r scripts/requirements.txt)"
  return 1
}
# agrees NAME ARGUMENTS...: check_transformers.py finds nothing wrong; its last line is shown.
agrees() {
  local name=$1 said
  if said=$("$python" scripts/check_transformers.py "${@:2}" 2>&1); then
    [ -z "$said" ] || echo "# ${said##*"$folder/"}"
    passes "$name"
  else
    fails "$name" "$said"
  fi
}

# ---- The tokenizer and the configuration, for which torch is not needed
has transformers our_tokenizer_loads_in_transformers || exit 0
prepare_data 400
write_config "$folder/config.json"
must "$TRAIN" "$folder/config.json"
must "$TRAIN" "$folder/config.json" output.save_dtype=bf16 "output.dir=$folder/bf16"
agrees our_tokenizer_loads_in_transformers "$folder/run/latest" --tokenizer "$text"

# ---- The model
has torch our_checkpoints_load_in_transformers || exit "$failed"
writer=$(dirname "$TRAIN")/tests/unit/test_transformers
must env "COMPARE_DIR=$folder" "$writer"
for fixture in "${fixtures[@]}"; do
  name=$(basename "$(dirname "$fixture")")
  agrees "transformers_loads_our_checkpoint_of_$name" "$folder/$name/latest" --logits "$folder/$name/logits.safetensors"
done
agrees transformers_loads_our_weights_in_bf16 "$folder/bf16/latest" --rounded "$folder/run/latest"

pipeline_agrees() { # NAME FOLDER: always the likeliest token, in fp32
  local theirs ours
  theirs=$("$python" scripts/check_transformers.py "$2" --pipeline 'line 1' 2>"$folder/said")
  ours=$("$TRAIN" --generate "$2" --prompt 'line 1' --temperature 0 --tokens 24 2>>"$folder/said")
  check "$1" "'$theirs' is not '$ours': $(tail -1 "$folder/said")" test "$theirs" = "$ours"
}
pipeline_agrees the_pipeline_writes_what_we_write "$folder/run/latest"
for kind in llama2 llama3; do # SentencePiece's spaces; a begin token before bytes
  said=$("$PREPARE" --tokenizer "tests/fixtures/tokenizers/$kind" --out "$folder/$kind" "$folder/text.txt")
  size=$(sed -n 's/^tokenizer .*, \([0-9]*\) ids$/\1/p' <<<"$said")
  must "$TRAIN" "$folder/config.json" "data.train=$folder/$kind/train-*.bin" data.val= train.steps=300 \
    "model.vocab_size=$size" "output.dir=$folder/$kind-run"
  pipeline_agrees "the_pipeline_writes_what_we_write_with_the_tokenizer_of_$kind" "$folder/$kind-run/latest"
done

# ---- And back: what transformers saves, in three dtypes and in shards
loss() { losses val "$1/log.jsonl" | sed -n "$2s/.*\"loss\":\([^,]*\),.*/\1/p"; }
last=$(loss "$folder/run" \$)
for dtype in float32 bfloat16 float16; do
  agrees "transformers_saves_it_in_$dtype" "$folder/run/latest" --rewrite "$folder/$dtype" --dtype "$dtype"
  must "$TRAIN" "$folder/config.json" "model=$folder/$dtype" "output.dir=$folder/from_$dtype" train.steps=5
  start=$(loss "$folder/from_$dtype" 1)
  # Observed: equal in float32, 1.6e-4 apart in bfloat16, 1.1e-5 in float16.
  check "a_run_starts_from_what_transformers_saved_in_$dtype" "the loss is $start, it was $last" \
    awk -v a="$start" -v b="$last" -v most="$([ $dtype = float32 ] && echo 0 || echo 1e-3)" \
    'BEGIN { d = (a - b) / b; exit !(a > 0 && d <= most && -d <= most) }'
  check "the_tokenizer_of_${dtype}_is_the_same" "$(ls "$folder/from_$dtype/latest")" \
    cmp -s <(grep '"tokenizer"' "$folder/run/latest/state.json") <(grep '"tokenizer"' "$folder/from_$dtype/latest/state.json")
done
exit "$failed"
