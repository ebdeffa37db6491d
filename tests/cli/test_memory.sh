#!/usr/bin/env bash
# Memory that the system refuses: a save that cannot have it fails alone, and training outlives it; where a program cannot
# have its own, it ends with one sentence.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400

# ---- A run whose limit comes when it has all that steps need. A save reads a matrix of 32 MiB.
model=(model.hidden_size=512 model.intermediate_size=8192 model.num_hidden_layers=1)
failed_saves() { grep -c 'could not be saved: out of memory: .*; training goes on$' "$folder/said.err"; }
saves() { grep -c '"kind":"save"' "$run/log.jsonl"; }
until_more() { # COUNT WHAT: until there are more than COUNT of `WHAT`
  until [ "$($2)" -gt "$1" ]; do
    kill -0 $process 2>/dev/null || return
    sleep 0.02
  done
}

saves_fail_alone() { # BACKGROUND
  local saved name status steps
  name=$([ "$1" = true ] && echo beside_training || echo while_training_waits)
  run=$folder/run-$1
  "$TRAIN" "$config" "${model[@]}" train.steps=100000 train.save_interval=4 "output.background_save=$1" \
    "output.dir=$run" >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for '"kind":"train","step":2,' "$run/log.jsonl" $process
  prlimit --pid $process --as=$((($(awk '/^VmSize/ { print $2 }' "/proc/$process/status") + (8 << 10)) << 10)):
  until_more 1 failed_saves
  saved=$(saves)
  prlimit --pid $process --as=unlimited:
  until_more "$saved" saves
  kill -TERM $process
  wait $process
  status=$?
  check "training_outlives_saves_without_memory_$name" "status $status, $saved and $(saves) saves: $(head -c 1000 "$folder/said.err")" \
    test $status = 0 -a "$(failed_saves)" -gt 1 -a "$(grep -vc 'training goes on$' "$folder/said.err")" = 0 -a "$(saves)" -gt "$saved"
  steps=$(grep -oE 'after step [0-9]+' "$folder/said" | grep -oE '[0-9]+')
  "$TRAIN" "$config" "${model[@]}" "train.steps=$((steps + 1))" "output.dir=$run" train.resume=auto >"$folder/said" 2>&1
  check "and_resumes_$name" "$(tail -n 1 "$folder/said")" grep -q "^resumed    at step $steps " "$folder/said"
}

# ASan reserves terabytes of addresses.
if grep -q __asan_init "$TRAIN"; then
  echo 'ok - memory_that_is_refused # SKIP ASan needs more addresses than a limit allows'
  exit 0
fi
if command -v prlimit >/dev/null; then
  saves_fail_alone true
  saves_fail_alone false
else
  echo 'ok - saves_fail_alone # SKIP there is no prlimit'
fi

# ---- Limits of the address space, from where the libraries alone fit to ample, under each command: it ends in time, well or
# with one message, and a run that failed resumes from its last checkpoint to the same bits.
write_text 60000 >"$folder/long.txt"
must "$PREPARE" --train-tokenizer 300 --out "$folder/tokenizer" "$folder/text.txt"
options=(model.hidden_size=256 model.intermediate_size=1024 train.steps=12 train.save_interval=3 train.eval_interval=6
  train.keep_checkpoints=4 backend.threads=2)
must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole"
run=$folder/run out=$folder/out
line_of() { # WHAT: its command, which writes what it writes anew, in `line`
  rm -rf "$run" "$out" "$out.tmp"
  case $1 in
  train) line=("$TRAIN" "$config" "${options[@]}" "output.dir=$run") ;;
  train_waiting) line=("$TRAIN" "$config" "${options[@]}" "output.dir=$run" output.background_save=false) ;;
  eval) line=("$TRAIN" --eval "$folder/whole" --data "$folder/data") ;;
  generate) line=("$TRAIN" --generate "$folder/whole" --prompt line --tokens 40) ;;
  prepare) line=("$PREPARE" --out "$out" "$folder/long.txt") ;;
  encode) line=("$PREPARE" --out "$out" --tokenizer "$folder/tokenizer" "$folder/long.txt") ;;
  train_tokenizer) line=("$PREPARE" --train-tokenizer 300 --out "$out" "$folder/long.txt") ;;
  esac
}
wrong_end() { # what is wrong with how it ended; failed saves that training outlives are told, too
  case $1-$(grep -vcE '^(train|prepare): .*; training goes on$' "$folder/said.err") in
  0-0) ;;
  1-1) tail -n 1 "$folder/said.err" | grep -qE '^(train|prepare): .*(memory|threads)' || echo 'not a message of ours' ;;
  *) echo "status $1" ;;
  esac
}
smallest_of() { # PROGRAM: a limit in KiB that is hardly enough for its libraries and stack
  local low=0 high=$((64 << 20)) middle
  while [ $((high - low)) -gt 256 ]; do
    middle=$(((low + high) / 2))
    if (ulimit -v $middle && exec "$1" --help) >/dev/null 2>&1; then high=$middle; else low=$middle; fi
  done
  echo $((high + 512))
}
smallest_train=$(smallest_of "$TRAIN") smallest_prepare=$(smallest_of "$PREPARE")
for what in train train_waiting eval generate prepare encode train_tokenizer; do
  wrong='' small=0 resumed=0 status=''
  line_of $what
  kib=$([ "${line[0]}" = "$TRAIN" ] && echo "$smallest_train" || echo "$smallest_prepare")
  for ((more = 1024; more < 64 << 20 && ${#wrong} == 0; kib += more, more += more / 12)); do
    line_of $what
    (ulimit -v $kib && exec timeout -k 5 60 "${line[@]}") >"$folder/said" 2>"$folder/said.err" </dev/null
    status=$?
    sed -i '/ s left$/d' "$folder/said.err" # progress, on a slow machine
    wrong=$(wrong_end $status)
    [ -z "$wrong" ] || wrong+=" under $kib KiB: $(cat "$folder/said.err")"
    [ $status != 0 ] || [ -s "$folder/said.err" ] || break # ample
    [ $status != 1 ] || small=$((small + 1))
    case $what-$status in train-1 | train_waiting-1) ;; *) continue ;; esac
    "${line[@]}" train.resume=auto >"$folder/said" 2>&1 && same_bits "$folder/whole" "$run" >/dev/null 2>&1 ||
      wrong="under $kib KiB it did not resume to the same bits: $(tail -n 1 "$folder/said")"
    resumed=$((resumed + 1))
  done
  check "under_any_limit_it_ends_well_or_with_one_message_$what" "$wrong" test -z "$wrong"
  check "some_limits_were_too_small_and_one_was_ample_$what" "$small were, $resumed resumed; the last status is $status" \
    test $small -gt 0 -a "$status" = 0
done
exit $failed
