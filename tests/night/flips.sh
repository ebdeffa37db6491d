#!/usr/bin/env bash
# Damage in every file of a checkpoint: flipped bits, cut or longer files, zeroed pages, files that are missing, or those
# of another step or another run. It is refused, or said and an older checkpoint taken, which ends in the same bits; never
# does a run go on from it without a word.
# usage: tests/night/flips.sh SECONDS
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
prepare_data 400
config=$folder/config.json
write_config "$config"
common=(train.steps=12 train.save_interval=4 train.keep_checkpoints=9)
variants=('' 'output.save_dtype=bf16 backend.precision=fp8')

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

# What a damaged run says when it goes on. Sets status.
go_on() {
  timeout 120 "$TRAIN" "$config" "${options[@]}" "output.dir=$run" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null
  status=$?
}

tried=0
while time_left; do
  number=$((tried++ % ${#variants[@]}))
  read -ra options <<<"${common[*]} ${variants[number]}"
  run=$folder/run whole=$folder/whole-$number
  rm -rf "$run" && cp -a "$whole" "$run"
  newest=step-00000012
  mapfile -t files < <(cd "$run" && find "$newest" -type f | LC_ALL=C sort)
  file=$(pick "${files[@]}")
  what=$(pick flip flip flip flip flips cut longer page missing 'of another step' 'of another run')
  # Older versions wrote no checksums: without that file the others are taken as they are.
  [ "${file#*/} $what" != 'checksums.json missing' ] || continue
  damage "$run/$file" "$file" "$what" || continue
  name="$what in ${file#*/}"
  [[ $what != of* && $what != missing ]] || name="${file#*/} $what"
  if [ "$(pick auto named)" = named ]; then
    go_on "train.resume=$run/$newest"
    [ $status = 1 ] || fault "$name: a checkpoint that is named was taken (status $status)" "$run"
    [ $status != 1 ] || [ "$(wc -l <"$folder/said.err")" = 1 ] || fault "$name: more than one sentence" "$run"
  else # the last step was saved: what is taken has to be the one before, and the run ends as the whole one did
    go_on train.resume=auto
    [ $status = 0 ] || fault "$name: it did not go on from the checkpoint before (status $status)" "$run"
    [ -s "$folder/said.err" ] || fault "$name: nothing was said" "$run"
    [ -n "$problem" ] || differs=$(same_bits "$whole" "$run" 2>&1) || fault "$name: it ended with other bits: $differs" "$run"
  fi
  count "$(sed -E 's/^(flips?|cut|longer|page)$/\1 of bits or bytes/' <<<"$what")"
  count "in ${file#*/}"
done
finish damage_in_a_checkpoint_is_never_taken_without_a_word
check something_was_damaged 'nothing was' test ${#counted[@]} -gt 0
exit $failed
