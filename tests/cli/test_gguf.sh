#!/usr/bin/env bash
# What scripts/to_gguf.py takes, and that llama.cpp then writes what ./train writes. The second needs
# LLAMA_CPP, a checkout of llama.cpp, and a python3 (PYTHON) with llama-cpp-python and what the converter imports.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo 'ok - gguf # SKIP there is no python3'
  exit 0
fi
prepare_run 400
must "$TRAIN" "$config" train.steps=2 optimizer.warmup_steps=0

# ---- Refusals, before anything of llama.cpp is imported
mkdir "$folder/empty" "$folder/checkout"
touch "$folder/checkout/convert_hf_to_gguf.py"
# declines NAME WORDS ARGUMENTS...: one line on standard error with the words, and status 1
declines() {
  local name=$1 words=$2 status
  shift 2
  "$python" scripts/to_gguf.py "$@" >"$folder/said" 2>"$folder/said.err"
  status=$?
  check "$name" "status $status, $(cat "$folder/said.err")" \
    test "$status $(wc -l <"$folder/said.err") $(grep -cF -- "$words" "$folder/said.err")" = '1 1 1'
}
declines a_call_without_a_folder_says_how_to_call 'usage: scripts/to_gguf.py LLAMA_CPP FOLDER' "$folder/checkout"
declines a_folder_without_the_converter_is_named "there is no $folder/empty/convert_hf_to_gguf.py" "$folder/empty" "$folder/run/latest"
declines a_folder_without_a_tokenizer_is_named "there is no $folder/empty/tokenizer.json" "$folder/checkout" "$folder/empty"
declines a_model_of_bytes_says_what_to_do 'train one with ./prepare --train-tokenizer' "$folder/checkout" "$folder/run/latest"

# ---- The same text
if [ ! -f "${LLAMA_CPP:-}/convert_hf_to_gguf.py" ]; then
  echo 'ok - llama_cpp_writes_the_same_text # SKIP LLAMA_CPP names no checkout of llama.cpp'
  exit "$failed"
elif ! "$python" -c 'import llama_cpp, torch, transformers, gguf' 2>/dev/null; then
  echo "ok - llama_cpp_writes_the_same_text # SKIP $python has no llama_cpp, or not what the converter imports"
  exit "$failed"
fi
must "$PREPARE" --train-tokenizer 400 --out "$folder/tok" base
must "$PREPARE" --tokenizer "$folder/tok" --out "$folder/bpe" base
must "$TRAIN" "$config" "data.train=$folder/bpe/train-*.bin" "data.val=$folder/bpe/val-*.bin" model.vocab_size=400 \
  model.max_position_embeddings=64 model.hidden_size=64 train.steps=300 train.batch_size=8 "output.dir=$folder/written"
must "$python" scripts/to_gguf.py "$LLAMA_CPP" "$folder/written/latest" --outfile "$folder/written.gguf" --outtype f32
cat >"$folder/write.py" <<'END'
import sys
import llama_cpp
F32 = 0
model = llama_cpp.Llama(sys.argv[1], n_ctx=64, n_gpu_layers=0, type_k=F32, type_v=F32, verbose=False)
ids, prompt = [], model.tokenize(sys.argv[2].encode(), add_bos=True, special=True)
for id in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
    if len(ids) == 50 or id == model.token_eos():
        break
    ids.append(id)
sys.stdout.buffer.write(sys.argv[2].encode() + model.detokenize(ids, prev_tokens=prompt) + b"\n")
END
for prompt in 'static int' '// Reads' 'if (status == 0) '; do
  ours=$("$TRAIN" --generate "$folder/written" --temperature 0 --tokens 50 --prompt "$prompt")
  theirs=$("$python" "$folder/write.py" "$folder/written.gguf" "$prompt" 2>"$folder/said.err")
  check "llama_cpp_writes_the_same_text_after_${prompt//[^a-z0-9]/_}" "ours: $ours; theirs: $theirs $(tail -n 2 "$folder/said.err")" \
    test "$ours" = "$theirs"
done
exit "$failed"
