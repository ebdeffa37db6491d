#!/usr/bin/env bash
# Token files that change under a run, pipes where files should be, and the threads that a run takes.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 2000
cp -r "$folder/data" "$folder/kept"
wide=(train.steps=1000000 train.batch_size=8)

# starts NAME OVERRIDES...: a run in the background, into $folder/NAME, after its tenth step.
starts() {
  rm -rf "$folder/data" && cp -r "$folder/kept" "$folder/data"
  "$TRAIN" "$config" "output.dir=$folder/$1" "${wide[@]}" "${@:2}" >"$folder/said" 2>"$folder/said.err" </dev/null &
  job=$!
  wait_for '"step":10,' "$folder/$1/log.jsonl" $job
}

# ends NAME WORDS: the run ends with status 1 and one sentence that has the words, and the steps that it did are saved and
# good to resume from.
ends() {
  local name=$1 words=$2 status said step why='' waited=0
  while kill -0 $job 2>/dev/null && [ $((waited += 1)) -lt 300 ]; do sleep 0.1; done
  kill -KILL $job 2>/dev/null
  wait $job
  status=$?
  said=$(cat "$folder/said.err")
  step=$(sed -n 's/.*; step \([0-9]*\) is saved$/\1/p' <<<"$said")
  if [ $status != 1 ]; then why="status $status, it said: $said"
  elif [ "$(wc -l <<<"$said")" != 1 ]; then why="more than one line: $said"
  elif [[ $said != *"$words"* ]]; then why="'$words' is not in: $said"
  elif [ "$(readlink "$folder/$name/latest")" != "$(printf 'step-%08d' "$step")" ]; then why="the last checkpoint is not of step '$step'"
  elif ! grep -q '"kind":"stop"' "$folder/$name/log.jsonl"; then why='the log has no end'
  fi
  rm -rf "$folder/data" && cp -r "$folder/kept" "$folder/data"
  [ -n "$why" ] || "$TRAIN" "$config" "output.dir=$folder/$name" "${wide[@]}" train.resume=auto "train.steps=$((step + 3))" \
    train.resume_allow_changes=true >"$folder/said" 2>&1 || why="resuming: $(cat "$folder/said")"
  if [ -z "$why" ]; then passes "$name"; else fails "$name" "$why"; fi
}

# ---- Data that change under a run
train=$folder/data/train-00000.bin val=$folder/data/val-00000.bin
starts a_training_file_that_is_cut_ends_the_run_with_a_checkpoint
truncate -s 3000 "$train"
ends a_training_file_that_is_cut_ends_the_run_with_a_checkpoint "$train"
starts a_validation_file_that_is_cut_does_so_too train.eval_interval=20
truncate -s 1030 "$val"
ends a_validation_file_that_is_cut_does_so_too "'$val' became shorter while it was in use"
starts ids_beyond_the_vocabulary_do_so_too
head -c 20000 /dev/zero | tr '\0' '\377' | dd of="$train" bs=1 seek=1024 conv=notrunc status=none
ends ids_beyond_the_vocabulary_do_so_too "'$train' was changed while it was in use, or is damaged"
starts other_tokens_in_place_do_so_too
printf 'x\0y\0' | dd of="$train" bs=1 seek=40000 conv=notrunc status=none
ends other_tokens_in_place_do_so_too "'$train' was changed while it was in use, or is damaged"
starts another_file_copied_over_it_does_so_too
cp "$val" "$train"
ends another_file_copied_over_it_does_so_too "$train"

name=a_dataset_made_anew_leaves_the_run_what_it_opened
"$TRAIN" "$config" "output.dir=$folder/alone" train.steps=3000 train.save_interval=500 >"$folder/said" 2>&1
starts $name train.steps=3000 train.save_interval=500 train.batch_size=2
write_text 300 >"$folder/text.txt"
must "$PREPARE" --force --out "$folder/data" "$folder/text.txt"
wait $job
check $name "it said: $(cat "$folder/said.err")" same_bits "$folder/alone" "$folder/$name"
rm -rf "$folder/data" && cp -r "$folder/kept" "$folder/data"

# ---- Data that were damaged before
printf 'x\0y\0' | dd of="$train" bs=1 seek=40000 conv=notrunc status=none
refuses a_run_does_not_train_on_damaged_data "'$train' was changed while it was in use, or is damaged" \
  --eval "$folder/alone" --data "$folder/data/train-*.bin"
rm -rf "$folder/data" && cp -r "$folder/kept" "$folder/data"
mkdir "$folder/older" && cp "$train" "$folder/older"
printf 'x\0y\0' | dd of="$folder/older/train-00000.bin" bs=1 seek=40000 conv=notrunc status=none
refuses files_without_block_sums_are_compared_at_the_start "is damaged: it does not match its checksum" \
  "$config" "data.train=$folder/older"

# ---- Files of others, without any checksum, by which a resumed run knows them all the same
mkdir "$folder/bare"
token_slice "$train" 108000 >"$folder/bare/train.bin"
bare=("$config" "data.train=$folder/bare/*.bin" "output.dir=$folder/bare_run")
must "$TRAIN" "${bare[@]}"
printf 'x\0' | dd of="$folder/bare/train.bin" bs=1 seek=71024 conv=notrunc status=none # in none of the fingerprint's samples
refuses one_other_token_in_them_is_noticed 'holds other tokens than it was trained on' "${bare[@]}" train.resume=auto train.steps=21
token_slice "$train" 108000 >"$folder/bare/train.bin"
must "$TRAIN" "${bare[@]}" train.resume=auto train.steps=21

# ---- A resume knows its data and its backend
resume=("$config" "output.dir=$folder/alone" train.resume=auto train.save_interval=500)
step=3000
resumes() { # NAME DATA: the same tokens by this path
  step=$((step + 1))
  "$TRAIN" "${resume[@]}" "train.steps=$step" "data.train=$2" "data.val=$(ls -d "$folder"/{data,moved}/val-*.bin 2>/dev/null)" >"$folder/said" 2>&1
  check "$1" "status $?, it said: $(cat "$folder/said")" grep -q "^resumed .* $((step - 1)) of $step" "$folder/said"
}
mv "$folder/data" "$folder/moved"
resumes data_that_were_moved_are_the_same "$folder/moved/train-*.bin"
mv "$folder/moved" "$folder/data"
resumes a_folder_is_the_same_as_its_files "$folder/data"
resumes a_slash_at_its_end_changes_nothing "$folder/data/"
resumes neither_does_a_list_of_one "[\"$folder/data/train-00000.bin\"]"
resume+=("data.train=$folder/data/train-*.bin")
write_text 1999 >"$folder/text.txt"
must "$PREPARE" --out "$folder/others" "$folder/text.txt"
rm -rf "$folder/kept"
mv "$folder/data" "$folder/kept" && mv "$folder/others" "$folder/data"
refuses a_resume_on_other_tokens_is_refused 'holds other tokens than it was trained on' "${resume[@]}" train.steps=3005
must "$TRAIN" "${resume[@]}" train.steps=3005 train.resume_allow_changes=true
mv "$folder/data" "$folder/others" && mv "$folder/kept" "$folder/data"
refuses the_checkpoint_knows_the_new_ones 'holds other tokens than' "${resume[@]}" train.steps=3006
must "$TRAIN" "${resume[@]}" train.steps=3006 train.resume_allow_changes=true
said=$(ONEDNN_MAX_CPU_ISA=SSE41 DNNL_MAX_CPU_ISA=SSE41 "$TRAIN" "${resume[@]}" train.steps=3007 2>&1)
check other_instructions_are_told "it said: $said" grep -q 'the checkpoint was made on cpu: 1 thread, oneDNN' <<<"$said"
said=$(ONEDNN_MAX_CPU_ISA=SSE41 DNNL_MAX_CPU_ISA=SSE41 "$TRAIN" "${resume[@]}" train.steps=3008 2>&1)
check the_same_is_not "it said: $said" test "$(grep -c 'resumed  \|the backend was' <<<"$said")" = 1

# ---- Pipes by name, which nobody writes to
mkfifo "$folder/pipe"
program=$TRAIN
TRAIN=$folder/patient # a program that waits for a pipe is ended, with another status than 1
printf '#!/bin/sh\nexec timeout 5 "%s" "$@"\n' "$program" >"$TRAIN" && chmod +x "$TRAIN"
mkdir "$folder/model" "$folder/half"
cp "$folder/alone/latest/"{config,tokenizer,tokenizer_config}.json "$folder/model"
cp "$folder/alone/latest/"{config.json,model.safetensors} "$folder/half"
mkfifo "$folder/model/model.safetensors" "$folder/half/tokenizer.json"
refuses a_pipe_as_config_is_refused "'$folder/pipe': it is not a regular file" "$folder/pipe"
refuses a_pipe_as_data_is_refused "'$folder/pipe': it is not a regular file" "$config" "data.train=$folder/pipe"
refuses a_pipe_as_tokenizer_is_refused "'$folder/pipe': it is not a regular file" "$config" "data.tokenizer=$folder/pipe"
refuses a_pipe_as_weights_is_refused "model.safetensors': it is not a regular file" "$config" "train.init_from=$folder/model"
refuses a_pipe_beside_weights_is_refused "tokenizer.json': it is not a regular file" --generate "$folder/half" --prompt a
refuses a_pipe_to_evaluate_is_refused "'$folder/pipe': it is not a regular file" --eval "$folder/alone" --data "$folder/pipe"
TRAIN=$program

# ---- What is no token file, and where it was looked for
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >"$folder/pointer.bin"
gzip -c "$train" >"$folder/packed.bin"
refuses a_git_lfs_pointer_is_no_token_file "'$folder/pointer.bin' is a git-lfs pointer" "$config" "data.train=$folder/pointer.bin"
refuses a_compressed_token_file_names_what_unpacks_it \
  "'$folder/packed.bin' is compressed by gzip, which is not read here: unpack it first (gunzip)" "$config" "data.train=$folder/packed.bin"
refuses a_relative_path_says_where_it_was_looked_for "no file matches 'none/x-*.bin' in the current folder, '$PWD'" \
  "$config" 'data.train=none/x-*.bin'

# ---- Validation on what is trained on
said=$("$TRAIN" "$config" "output.dir=$folder/common" "data.val=$folder/data/train-*.bin" 2>&1)
check validation_on_training_files_is_told "it said: $said" grep -qF "warning    data.val: '$train' is a training file, too" <<<"$said"
said=$("$TRAIN" "$config" "output.dir=$folder/apart" 2>&1)
check apart_nothing_is_told "it said: $said" grep -qv 'is a training file' <<<"$said"

# ---- Ids beyond the model's vocabulary
write_text 500 >"$folder/text.txt"
must "$PREPARE" --train-tokenizer 300 --out "$folder/tokenizer" "$folder/text.txt"
said=$("$PREPARE" --tokenizer "$folder/tokenizer" --out "$folder/wide" "$folder/text.txt")
ids=$(sed -n 's/^tokenizer .*, \([0-9]*\) ids$/\1/p' <<<"$said")
largest=$(od -An -tu4 -j36 -N4 "$folder/wide/train-00000.docs" | tr -d ' ')
wide=("$config" "data.train=$folder/wide" "data.val=$folder/wide" "output.dir=$folder/beyond")
refuses ids_beyond_the_vocabulary_say_what_works \
  "train-00000.bin' has the token id $largest, but the model knows only 0 to 99: set model.vocab_size to $ids or more" "${wide[@]}" model.vocab_size=100
said=$("$TRAIN" "${wide[@]}" "model.vocab_size=$ids" 2>&1)
check that_works "it said: $said" grep -q '^done; ' <<<"$said"
refuses weights_fix_the_vocabulary "has the token id $largest, but the model knows only 0 to 257: make token files with the tokenizer of the model in " \
  "${wide[@]}" "output.dir=$folder/beyond-2" "train.init_from=$folder/alone"
python3 - "$folder/tokenizer/tokenizer.json" "$folder/padded.json" "$ids" <<'END'
import json, sys
tokenizer = json.load(open(sys.argv[1]))
tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][-1], id=int(sys.argv[3]), content="[PAD]"))
json.dump(tokenizer, open(sys.argv[2], "w"))
END
must "$PREPARE" --tokenizer "$folder/padded.json" --out "$folder/padded" "$folder/text.txt"
said=$("$TRAIN" "$config" "data.train=$folder/padded" "data.val=$folder/padded" "output.dir=$folder/pad" "model.vocab_size=$ids" 2>&1)
check a_token_that_no_file_has_may_be_beyond "it said: $said" \
  grep -q "^tokenizer .*, $((ids + 1)) tokens; the model knows the first $ids alone, and the token files have no others" <<<"$said"
check and_the_run_is_done "it said: $said" grep -q '^done; ' <<<"$said"

# ---- Threads
threads() { # NAME WORDS OVERRIDES...
  local said
  said=$(OMP_NUM_THREADS=3 "$TRAIN" "$config" "output.dir=$folder/$1" train.steps=1 optimizer.warmup_steps=0 "${@:3}" 2>&1)
  check "$1" "it said: $said" grep -q "^backend .* $2, oneDNN [0-9.]* (" <<<"$said"
}
threads threads_are_as_many_as_omp_num_threads_says '3 threads' backend.threads=0
threads threads_are_as_many_as_backend_threads_says '2 threads' backend.threads=2
exit "$failed"
