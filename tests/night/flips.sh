#!/usr/bin/env bash
# Damage in every file of a checkpoint: flipped bits, cut or longer files, zeroed pages, files that are missing, or those
# of another step or another run. Whoever reads the file notices: a run that resumes, --eval, --generate, model, init_from,
# data.tokenizer and ./prepare --tokenizer. A checkpoint that is named is refused with one sentence; of a run's folder the
# checkpoint before is taken, which is said, with what an undamaged one gives.
# usage: tests/night/flips.sh SECONDS
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
prepare_data 400
config=$folder/config.json
write_config "$config"
common=(train.steps=12 train.save_interval=4 train.keep_checkpoints=9)
variants=('' 'output.save_dtype=bf16 backend.precision=fp8')
short=(train.steps=1 optimizer.warmup_steps=0 train.save_interval=-1 train.eval_batches=1)
echo 'line 7 is a line of a small text' >"$folder/prompt"

# Three checkpoints of one run, and of one with another seed, whose steps and shapes are the same.
for ((i = 0; i < ${#variants[@]}; i++)); do
  read -ra options <<<"${common[*]} ${variants[i]}"
  must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole-$i"
  must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/other-$i" train.seed=7
done

flip() { # FILE: one bit of it
  local at=$((((RANDOM << 15) + RANDOM) % $(stat -c %s "$1"))) byte
  [ "$(pick head any)" = any ] || at=$((at % 2000 % $(stat -c %s "$1")))
  byte=$(od -An -tu1 -j $at -N 1 "$1")
  # shellcheck disable=SC2059 # the byte is the format
  printf "\\x$(printf %x $((byte ^ (1 << RANDOM % 8))))" | dd of="$1" bs=1 seek=$at conv=notrunc status=none
}

# damage FILE RELATIVE WHAT: false where that changes nothing.
damage() {
  local file=$1 size kept=$folder/kept
  size=$(stat -c %s "$file")
  cp "$file" "$kept"
  case $3 in
  flip) flip "$file" ;;
  flips) for _ in 1 2 3 4 5; do flip "$file"; done ;;
  cut) truncate -s $((RANDOM % size)) "$file" ;;
  longer) head -c $((1 + RANDOM % 64)) /dev/urandom >>"$file" ;;
  page) dd if=/dev/zero of="$file" bs=1 seek=$((RANDOM % size)) count=$((size < 512 ? size : 512)) conv=notrunc status=none ;;
  missing) rm "$file" ;;
  'of another step') cp "$folder/whole-$number/step-00000004/${2#*/}" "$file" ;;
  'of another run') cp "$folder/other-$number/$2" "$file" ;;
  esac
  ! cmp -s "$file" "$kept"
}

# read_by READER FOLDER: what it says is in said and said.err. Sets status. Nothing of it may depend on the folder's name.
read_by() {
  local line
  rm -rf "$folder/out"
  case $1 in
  eval) line=("$TRAIN" --eval "$2" --data "$folder/prompt") ;;
  generate) line=("$TRAIN" --generate "$2" --prompt line --tokens 8) ;;
  model) line=("$TRAIN" --plan "$config" train.sequence_length=32 "model=$2" train.init_from= data.tokenizer=) ;;
  init_from) line=("$TRAIN" "$config" "${short[@]}" "train.init_from=$2" "output.dir=$folder/out") ;;
  tokenizer) line=("$TRAIN" "$config" "${short[@]}" "data.tokenizer=$2" "output.dir=$folder/out") ;;
  prepare) line=("$PREPARE" --out "$folder/out" --tokenizer "$2" "$folder/text.txt") ;;
  resume) line=("$TRAIN" "$config" "${options[@]}" "output.dir=$run" "train.resume=$2") ;;
  esac
  timeout 120 "${line[@]}" >"$folder/said" 2>"$folder/said.err" </dev/null
  status=$?
}
# What a reader's result is: the losses of a run, the text that was written, and so on.
result() {
  case $1 in
  init_from) losses val "$folder/out/log.jsonl" ;;
  tokenizer) grep -o '"vocab_size": [0-9]*' "$folder/out/run.json" ;;
  model) grep -vE ' free: |^ *at most train' "$folder/said" ;; # the machine's memory
  prepare) cksum <"$folder/out/train-00000.bin" ;;
  *) cat "$folder/said" ;;
  esac
}

# as_expected READER: prints how its result differs from what the checkpoint before gives undamaged.
as_expected() {
  local kept=$folder/$1-$number
  result "$1" >"$folder/result"
  if [ ! -e "$kept" ]; then
    read_by "$1" "$whole/step-00000008"
    result "$1" >"$kept"
  fi
  diff "$folder/result" "$kept"
}

small=(config.json generation_config.json tokenizer.json tokenizer_config.json checksums.json)
tried=0
while time_left; do
  number=$((tried++ % ${#variants[@]}))
  read -ra options <<<"${common[*]} ${variants[number]}"
  run=$folder/run whole=$folder/whole-$number newest=step-00000012
  rm -rf "$run" && cp -a "$whole" "$run"
  reader=$(pick resume resume eval generate model init_from tokenizer prepare)
  case $reader in
  resume) mapfile -t files < <(cd "$run/$newest" && find . -type f -printf '%P\n' | LC_ALL=C sort) ;;
  eval | generate | init_from) files=("${small[@]}" model.safetensors) ;;
  *) files=("${small[@]}") ;;
  esac
  file=$newest/$(pick "${files[@]}")
  what=$(pick flip flip flip flip flips cut longer page missing 'of another step' 'of another run')
  named=$(pick yes no)
  # Older versions wrote no checksums: a checkpoint without them that is named is taken as it is.
  [ "${file#*/} $what $named" != 'checksums.json missing yes' ] || continue
  # Small files are the same in all steps and both runs: for those who read no others, so is what is said of them.
  [[ ! "$reader $file $what" =~ ^(model|tokenizer|prepare)\ .*checksums.json\ of ]] || continue
  damage "$run/$file" "$file" "$what" || continue
  name="$what in ${file#*/}, $reader"
  [[ $what != of* && $what != missing ]] || name="${file#*/} $what, $reader"
  if [ "$named" = yes ]; then
    read_by "$reader" "$run/$newest"
    [ $status = 1 ] || fault "$name: a checkpoint that is named was taken (status $status)" "$run"
    [ $status != 1 ] || [ "$(wc -l <"$folder/said.err")" = 1 ] || fault "$name: more than one sentence" "$run"
  else # what is taken has to be the checkpoint before
    read_by "$reader" "$([ "$reader" = resume ] && echo auto || echo "$run")"
    [ $status = 0 ] || fault "$name: the checkpoint before was not taken (status $status)" "$run"
    [ -s "$folder/said.err" ] || fault "$name: nothing was said" "$run"
    if [ "$reader" = resume ]; then # and the run ends as the whole one did
      [ -n "$problem" ] || differs=$(same_bits "$whole" "$run" 2>&1) || fault "$name: it ended with other bits: $differs" "$run"
    else
      [ -n "$problem" ] || differs=$(as_expected "$reader") || fault "$name: another result: $differs" "$run"
    fi
  fi
  count "$(sed -E 's/^(flips?|cut|longer|page)$/\1 of bits or bytes/' <<<"$what")"
  count "in ${file#*/}"
  count "read by $reader"
done
finish damage_in_a_checkpoint_is_never_taken_without_a_word
check something_was_damaged 'nothing was' test ${#counted[@]} -gt 0
exit $failed
