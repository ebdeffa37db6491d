#!/usr/bin/env bash
# Saves beside training on the GPU: a model whose state takes some 20 ms to copy, and a step a tenth of that, so that an
# update that waits for no copy shows. Its checkpoints are those of a run that waits for each save, and going on from one
# leads to the same bits.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_data 4000
cat >"$config" <<END
{
  "model": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2, "num_attention_heads": 8,
            "vocab_size": 32000, "max_position_embeddings": 64},
  "data": {"train": "$folder/data/train-*.bin", "tokenizer": "bytes"},
  "train": {"steps": 4, "batch_size": 1, "sequence_length": 64, "eval_interval": 0, "save_interval": 1,
            "keep_checkpoints": 9, "sample_interval": 2, "sample_tokens": 8},
  "backend": {"device": "cuda", "deterministic": true},
  "output": {"dir": "$folder/run"}
}
END
ask_doctor
waits() { grep '"kind":"save"' "$folder/$1/log.jsonl" | sed -E 's/.*"waited_ms":([^,}]*).*/\1/' | tr '\n' ' '; }
differing() { # RUN OTHER STEP...: files of these checkpoints; run.json, which checksums.json sums up, says how a run saves
  local a=$folder/$1 b=$folder/$2 step
  shift 2
  for step; do
    diff -rq --exclude run.json --exclude checksums.json "$a/step-0000000$step" "$b/step-0000000$step" 2>&1
  done
}

# What a save copies changes with these. Steps are recorded from the second on, beside the first save's copy.
saves_alike() { # NAME OVERRIDES...
  local name=$1 why
  shift
  run "$name-beside" "$@"
  run "$name-waiting" output.background_save=false "$@"
  echo "# $name: ms that training waited for saves: $(waits "$name-beside")beside, $(waits "$name-waiting")waiting"
  why=$(differing "$name-beside" "$name-waiting" 1 2 3 4)
  check "${name}_saves_beside_training_have_the_same_bits" "$why" test -z "$why"
  rm -rf "${folder:?}/$name-waiting"
}
for kernels in $all_kernels; do saves_alike "$kernels" backend.kernels="$kernels"; done
saves_alike launched backend.graphs=false
saves_alike bf16_moments backend.moments=bf16
saves_alike bf16_masters backend.masters=bf16
saves_alike accumulated train.gradient_accumulation=2
if [ -n "$(fp8_kernels "$config")" ]; then saves_alike fp8 backend.precision=fp8; fi
rm -rf "$folder"/launched* "$folder"/bf16* "$folder"/accumulated* "$folder"/fp8*

# Killed somewhere behind the first save, and gone on with.
for kernels in $all_kernels; do
  "$TRAIN" "$config" backend.kernels="$kernels" "output.dir=$folder/cut" >"$folder/said" 2>&1 &
  process=$!
  wait_for '"kind":"save","step":1,' "$folder/cut/log.jsonl" $process
  kill -KILL $process
  wait $process 2>/dev/null
  check "${kernels}_was_killed_before_its_end" "$(tail -n 2 "$folder/said")" test ! -e "$folder/cut/step-00000004"
  run cut backend.kernels="$kernels" train.resume=auto
  check "${kernels}_goes_on_from_such_a_save_with_the_same_bits" 'they differ' \
    same_bits "$folder/cut" "$folder/$kernels-beside"
  rm -rf "$folder/cut"
done
exit "$failed"
