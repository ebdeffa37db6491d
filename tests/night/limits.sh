#!/usr/bin/env bash
# Limits of the address space (ulimit -v) from too small to ample, under training, --eval, --generate and ./prepare: each
# ends in time, well or with one sentence, and by no signal. A run that fails loses nothing: it resumes from its last
# checkpoint and ends with the same bits.
# usage: tests/night/limits.sh SECONDS
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
prepare_data 400
config=$folder/config.json
write_config "$config"
write_text 60000 >"$folder/long.txt"
must "$PREPARE" --train-tokenizer 300 --out "$folder/tokenizer" "$folder/text.txt"
options=(model.hidden_size=256 model.intermediate_size=1024 train.steps=12 train.save_interval=3 train.eval_interval=6
  train.keep_checkpoints=4 backend.threads=2)
must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole"
must cp -a "$folder/whole" "$folder/half" # as if it had been killed behind step 6
must rm -r "$folder/half/step-00000009" "$folder/half/step-00000012"
must ln -sfn step-00000006 "$folder/half/latest"
run=$folder/run out=$folder/out

# under KIB WHAT: one command, which writes what it writes anew. Sets status, and what was said.
under() {
  local line
  case $2 in
  train) line=("$TRAIN" "$config" "${options[@]}" "output.dir=$run" "output.background_save=$saves") ;;
  resume) line=("$TRAIN" "$config" "${options[@]}" "output.dir=$run" "output.background_save=$saves" train.resume=auto) ;;
  eval) line=("$TRAIN" --eval "$folder/whole" --data "$folder/data") ;;
  generate) line=("$TRAIN" --generate "$folder/whole" --prompt line --tokens 40) ;;
  prepare) line=("$PREPARE" --out "$out" "$folder/long.txt") ;;
  encode) line=("$PREPARE" --out "$out" --tokenizer "$folder/tokenizer" "$folder/long.txt") ;;
  train-tokenizer) line=("$PREPARE" --train-tokenizer 300 --out "$out" "$folder/long.txt") ;;
  esac
  rm -rf "$run" "$out" "$out.tmp"
  [ "$2" != resume ] || cp -a "$folder/half" "$run"
  (ulimit -v "$1" && exec timeout -k 5 60 "${line[@]}") >"$folder/said" 2>"$folder/said.err" </dev/null
  status=$?
}

# What is wrong with how it ended; nothing if all is well. Failed saves that training outlives are said, too.
wrong_end() {
  local last
  last=$(grep -vcE '^(train|prepare): .*; training goes on$' "$folder/said.err")
  # The system's loader, where not even the libraries fit.
  [ "$status" != 127 ] || ! grep -qE 'loading shared libraries|cannot allocate TLS' "$folder/said.err" || status=loader
  case $status-$last in
  0-0 | loader-1) ;;
  1-1) tail -n 1 "$folder/said.err" | grep -qE '^(train|prepare): ' || echo 'not a sentence of ours' ;;
  124-* | 137-*) echo 'it hangs' ;;
  0-* | 1-*) echo "status $status with $last sentences" ;;
  *) echo "it ended with status $status" ;;
  esac
}

try() { # KIB WHAT
  local wrong
  under "$1" "$2"
  wrong=$(wrong_end)
  [ "$status" != 127 ] || status=loader
  [ -z "$wrong" ] || fault "$2 under $1 KiB, background_save=$saves: $wrong: $(cat "$folder/said.err")" "$folder"
  count "limits of $2"
  case $status in
  0) count 'that were ample' ;;
  1) count "that $2 found too small" ;;
  *) count "that the system's loader found too small" ;;
  esac
  ! grep -q 'training goes on$' "$folder/said.err" || count 'failed saves that training outlived'
}

# The least of a row of growing limits that is ample for it.
ample() { # WHAT
  local kib=$((24 << 10))
  while under $kib "$1" && [ $status != 0 ] && [ $kib -lt $((64 << 20)) ]; do kib=$((kib * 5 / 4)); done
  echo $kib
}

resumes() { # the failed run
  timeout 60 "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" \
    </dev/null || fault "it did not resume: $(cat "$folder/said.err")" "$run"
  [ -n "$problem" ] || differs=$(same_bits "$folder/whole" "$run" 2>&1) || fault "it ended with other bits: $differs" "$run"
  count 'failed runs that resumed'
}

commands=(train resume eval generate prepare encode train-tokenizer)
declare -A enough
saves=true
for what in "${commands[@]}"; do enough[$what]=$(ample "$what"); done
while time_left; do
  for what in "${commands[@]}"; do
    saves=$(pick true false)
    percent=$(pick $((50 + RANDOM % 60)) $((90 + RANDOM % 12)))
    try $((enough[$what] * percent / 100 + RANDOM % 1024)) "$what"
    case $problem-$what-$status in -train-[1l]* | -resume-[1l]*) resumes ;; esac
    [ -z "$problem" ] || break 2
  done
done
finish under_any_limit_of_memory_each_command_ends_well_or_with_one_sentence
check some_limits_were_too_small_and_some_ample 'they were not' \
  test "${counted[that train found too small]:-0}" -gt 0 -a "${counted[that were ample]:-0}" -gt 0
exit $failed
