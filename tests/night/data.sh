#!/usr/bin/env bash
# Token files are overwritten while runs and --eval read them, or before: at any moment, also in the last second, with their
# time put back, through mmap, by another file. None may end with other bits or another loss than an undisturbed one; it may
# end with an error that names the file. Then the run is resumed over the restored file, and has the bits of the undisturbed.
# usage: tests/night/data.sh SECONDS [TRIALS]; TRIALS: so many, and no time limit
# shellcheck disable=SC2317 # disturb_run and disturb_eval are called by a name that is put together
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
trials=${2:-0}
[ "$trials" = 0 ] || ends=$((SECONDS + 36000))
prepare_run 3000
common=(train.steps=600 train.eval_interval=100 train.save_interval=150 train.batch_size=8 data.shuffle=true
  train.keep_checkpoints=2)

# ---- Datasets: with checksums of blocks; with a mask, too; without NAME.docs; files of others
mkdir "$folder/kept"
awk 'BEGIN { for (i = 0; i < 900; i++)
  printf "{\"messages\": [{\"role\": \"user\", \"content\": \"what is %d\"}, {\"role\": \"assistant\", \"content\": \"%d is %d and a number\"}]}\n", i, i, i * 7 }' \
  >"$folder/talks.jsonl"
must "$PREPARE" --train-tokenizer 300 --template chatml --out "$folder/tokenizer" "$folder/text.txt"
must "$PREPARE" --out "$folder/kept/blocks" --shard-tokens 70000 "$folder/text.txt"
must "$PREPARE" --out "$folder/kept/chat" --tokenizer "$folder/tokenizer" --chat "$folder/talks.jsonl"
cp -r "$folder/kept/blocks" "$folder/kept/alone" && rm "$folder/kept/alone/"*.docs
mkdir "$folder/kept/bare"
for file in "$folder/kept/blocks/"*.bin; do
  token_slice "$file" $((($(stat -c %s "$file") - 1024) / 2)) >"$folder/kept/bare/$(basename "$file")"
done
cp "$folder/kept/blocks/val-00000.bin" "$folder/kept/other"
kinds=(blocks chat alone bare)

options_of() { # KIND
  options=("${common[@]}" "data.train=$folder/data" "data.val=$folder/data")
  [ "$1" != chat ] || options+=(data.documents=mask model.vocab_size=320)
}
now() { date +%s%3N; }
declare -A took
for kind in "${kinds[@]}"; do
  rm -rf "$folder/data" && cp -r "$folder/kept/$kind" "$folder/data"
  options_of "$kind"
  began=$(now)
  must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole-$kind"
  took[$kind]=$(($(now) - began))
  began=$(now)
  "$TRAIN" --eval "$folder/whole-$kind" --data "$folder/data/train-*.bin" >"$folder/loss-$kind" 2>"$folder/said.err" ||
    fault "--eval: $(cat "$folder/said.err")" "$folder/data"
  took[eval-$kind]=$(($(now) - began))
done

# overwrite FILE HOW: some bytes behind its header, by zeros or ones, which are ids of the vocabulary.
overwrite() {
  local header=1024 size at count
  [[ $1 != *.docs ]] || header=48
  size=$(($(stat -c %s "$1") - header))
  at=$((((RANDOM << 15) + RANDOM) % size))
  count=$(pick 2 2000 40000 "$size")
  [ $((at + count)) -le "$size" ] || count=$((size - at))
  at=$((at + header))
  touch -r "$1" "$folder/time"
  case $2 in
  write*) head -c "$count" /dev/zero | dd of="$1" bs=64K seek="$at" oflag=seek_bytes conv=notrunc status=none ;;
  mmap)
    python3 -c '
import mmap, sys
path, at, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "r+b") as file:
    mmap.mmap(file.fileno(), 0)[at:at + count] = (b"\0\1" if at % 2 else b"\1\0") * (count // 2) + b"\0" * (count % 2)' \
      "$1" "$at" "$count"
    ;;
  copy) cp "$folder/kept/other" "$1" ;;
  cut) truncate -s "$at" "$1" ;;
  esac
  [[ $2 != *'put back' ]] || touch -r "$folder/time" "$1"
}

# Sleeps until the moment in the time that an undisturbed one takes.
wait_until() { # MOMENT MILLISECONDS
  local ms
  case $1 in
  'last part') ms=$(($2 * 7 / 10 + RANDOM % ($2 * 35 / 100 + 1))) ;;
  *) ms=$((RANDOM % ($2 + 1))) ;;
  esac
  sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
}

# What was run ended with `status`: whether this is an error that names the file.
names_file() { # FILE FOLDER
  [ "$status" = 1 ] || fault "status $status: $(cat "$folder/said.err")" "$2"
  [ "$(grep -cv ' tokens/s' "$folder/said.err")" = 1 ] || fault "more than one line: $(cat "$folder/said.err")" "$2"
  grep -qF "${1%.*}" "$folder/said.err" || fault "'$1' is not named: $(cat "$folder/said.err")" "$2"
}

# Whether nobody can tell what the file was before it was read: one without any checksum, and a whole other file that is put
# in the place of one that nothing stands beside.
unknown() { # KIND HOW
  [ "$1" = bare ] || [ "$1 $2" = 'alone copy' ]
}

disturb_run() { # KIND MOMENT HOW FILE
  local run=$folder/run whole=$folder/whole-$1 process status differs
  rm -rf "$run"
  [ "$2" != before ] || overwrite "$4" "$3"
  "$TRAIN" "$config" "${options[@]}" "output.dir=$run" >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  if [ "$2" != before ]; then
    ! unknown "$1" "$3" || wait_for '"kind":"start"' "$run/log.jsonl" "$process"
    wait_until "$2" "${took[$1]}"
    overwrite "$4" "$3"
  fi
  wait "$process"
  status=$?
  outcome='ended with an error'
  if [ "$status" != 0 ]; then
    names_file "$4" "$run"
    cp "$folder/kept/$1/"* "$folder/data"
    "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" </dev/null ||
      fault "it did not resume (status $?): $(cat "$folder/said.err")" "$run"
  else outcome='done, equal bits'; fi
  [ -n "$problem" ] || differs=$(same_end "$whole" "$run") || fault "$outcome, other bits: $differs" "$run"
}

disturb_eval() { # KIND MOMENT HOW FILE
  local process status
  [ "$2" != before ] || overwrite "$4" "$3"
  "$TRAIN" --eval "$folder/whole-$1" --data "$folder/data/train-*.bin" >"$folder/said" 2>"$folder/said.err" &
  process=$!
  if [ "$2" != before ]; then
    wait_until "$2" "${took[eval-$1]}"
    overwrite "$4" "$3"
  fi
  wait "$process"
  status=$?
  outcome='ended with an error'
  if [ "$status" != 0 ]; then names_file "$4" "$folder/data"
  else
    outcome='done, equal loss'
    cmp -s "$folder/said" "$folder/loss-$1" || fault "--eval: another loss: $(cat "$folder/said")" "$folder/data"
  fi
}

done=0
while time_left && { [ "$trials" = 0 ] || [ $done -lt "$trials" ]; }; do
  kind=$(pick "${kinds[@]}") what=$(pick run run run eval)
  moment=$(pick before 'any moment' 'any moment' 'last part' 'last part')
  how=$(pick write 'write, time put back' 'write, time put back' mmap mmap copy cut)
  ! unknown "$kind" "$how" || { [ "$what" = run ] && [ "$moment" != before ]; } || continue
  rm -rf "$folder/data" && cp -r "$folder/kept/$kind" "$folder/data"
  mapfile -t files < <(cd "$folder/data" && ls train-* val-*.bin)
  [ "$what" = run ] || mapfile -t files < <(cd "$folder/data" && ls train-*)
  file=$folder/data/$(pick "${files[@]}")
  options_of "$kind"
  "disturb_$what" "$kind" "$moment" "$how" "$file"
  [ -z "$problem" ] || problem="$what, $kind, $moment, $how, $(basename "$file"): $problem"
  count "$what, $moment, $how: $outcome"
  count "of $kind: $outcome"
  count trials
  done=$((done + 1))
done
finish what_is_trained_on_is_what_was_checked
check some_changes_were_noticed 'none was, so this shows less than it should' \
  test "$((${counted[of blocks: ended with an error]:-0} + ${counted[of chat: ended with an error]:-0}))" -gt 0
exit $failed
