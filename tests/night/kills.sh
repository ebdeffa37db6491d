#!/usr/bin/env bash
# Runs are interrupted at random moments, by SIGKILL, SIGTERM, or SIGTERM twice: while they start, train, validate, sample
# or save. Each time they must go on, and in the end they must have the bits of a run that was never interrupted.
# usage: tests/night/kills.sh SECONDS
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
prepare_run 400
common=(train.steps=150 train.eval_interval=25 train.keep_checkpoints=2)
variants=('train.save_interval=2'
  'train.save_interval=7 train.eval_interval=10 train.eval_batches=40 train.sample_interval=20 train.sample_tokens=200'
  'train.save_interval=3 train.keep_checkpoints=1 output.save_dtype=bf16 model.tie_word_embeddings=true
   train.gradient_accumulation=2'
  'train.save_interval=5 backend.precision=fp8 backend.moments=bf16 backend.masters=bf16 output.save_dtype=bf16')

# What this start is saving, not what an earlier one left.
saving() { # RUN; without a process of its own, which would take longer than a save
  local folder_of_step
  for folder_of_step in "$1"/step-*.tmp; do [ ! "$folder_of_step" -nt "$folder/began" ] || return 0; done
  return 1
}

# Where the run was when it ended, by what it left.
moment() { # RUN STARTS EVAL_INTERVAL
  local last step
  last=$(tail -n 1 "$1/log.jsonl" 2>/dev/null)
  step=$(grep -oE '"step":[0-9]+' <<<"$last" | grep -oE '[0-9]+')
  if saving "$1"; then echo save
  elif [ "$(grep -c '"kind":"start"' "$1/log.jsonl" 2>/dev/null || true)" != "$2" ]; then echo start
  else
    case $last in
    *'"kind":"start"'*) echo evaluation ;;
    *'"kind":"train"'*) if [ $((step % $3)) = 0 ]; then echo evaluation; else echo training; fi ;;
    *'"kind":"val"'*) if [ "$3" = 10 ] && [ $((step % 20)) = 0 ]; then echo sample; else echo training; fi ;;
    *) echo training ;;
    esac
  fi
}

# The moment comes at any time after the start of the process or of training, in a save, or where a validation or a sample
# is due.
wait_for_moment() { # RUN STARTS PROCESS
  local when
  when=$(pick start training training save due due)
  if [ "$when" = start ]; then
    sleep "$(milliseconds 30)"
    return
  fi
  until [ "$(grep -c '"kind":"start"' "$1/log.jsonl" 2>/dev/null)" = "$2" ]; do kill -0 "$3" 2>/dev/null || return; done
  [ "$when" = save ] || sleep "$(milliseconds 150)"
  while kill -0 "$3" 2>/dev/null; do
    case $when in
    training) return ;;
    save) ! saving "$1" || return ;;
    due) tail -n 1 "$1/log.jsonl" | grep -qE '"kind":"(train|val)","step":[0-9]*[05],' && return ;;
    esac
  done
}

# The process is gone, or it hangs.
gone() {
  local i
  for ((i = 0; i < 1200; i++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
  return 1
}

# interrupt RUN STARTS OPTIONS...: one start of the run, with one signal.
interrupt() {
  local run=$1 starts=$2 process status signal validates=25
  shift 2
  touch "$folder/began"
  "$TRAIN" "$config" "$@" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for_moment "$run" "$starts" $process
  [[ "$*" != *eval_interval=10* ]] || validates=10
  signal=$(pick KILL KILL KILL KILL KILL KILL KILL TERM TERM twice)
  kill -"${signal/twice/TERM}" $process 2>/dev/null || signal=none
  if [ "$signal" = twice ]; then
    sleep "$(milliseconds 30)"
    kill -TERM $process 2>/dev/null || signal=TERM
  fi
  if ! gone $process; then
    kill -ABRT $process
    fault "it hangs after $signal" "$run"
  fi
  wait $process 2>/dev/null
  status=$?
  case $signal-$status in # before it listens a first SIGTERM ends it, too, and a second one may come too late
  KILL-137 | TERM-143 | twice-143) ;;
  *-0) ;;
  *) fault "status $status after $signal: $(cat "$folder/said.err")" "$run" ;;
  esac
  [ "$signal" = none ] || count "SIG${signal/twice/TERM twice}"
  [ "$signal" = none ] || count "in $(moment "$run" "$starts" "$validates")"
  latest_is_whole "$run" || fault "after $signal latest is no whole checkpoint: $(ls -l "$run")" "$run"
}

round=0
while time_left; do
  number=$((round++ % ${#variants[@]}))
  read -ra options <<<"${common[*]} ${variants[number]//$'\n'/ }"
  whole=$folder/whole-$number run=$folder/run
  [ -d "$whole" ] || must "$TRAIN" "$config" "${options[@]}" "output.dir=$whole"
  rm -rf "$run"
  for ((starts = 1; starts <= 12; starts++)); do
    interrupt "$run" $starts "${options[@]}" 2>/dev/null # bash tells of each death
    [ -z "$problem" ] || break 2
    starts=$(grep -c '"kind":"start"' "$run/log.jsonl" 2>/dev/null)
    [ "$((RANDOM % 8))" != 0 ] || break
  done
  timeout 300 "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" \
    </dev/null || fault "it did not go on (status $?): $(cat "$folder/said.err")" "$run"
  [ -n "$problem" ] || differs=$(same_end "$whole" "$run") || fault "it ended with other bits: $differs" "$run"
  interval=$(grep -oE 'save_interval=[0-9]+' <<<"${options[*]}" | grep -oE '[0-9]+')
  lost=$(for step in $(seq "$interval" "$interval" 150); do
    grep -q "\"kind\":\"save\",\"step\":$step," "$run/log.jsonl" || echo "$step"
  done)
  [ -n "$problem" ] || [ -z "$lost" ] || fault "its log lacks the saves of the steps $lost" "$run"
  # A start that finds the run finished saves nothing, and so clears nothing away.
  left=$(compgen -G "$run/step-*.tmp"; compgen -G "$run/step-*.old")
  [ -n "$problem" ] || [ -z "$left" ] || grep -q 'at step 150 of 150' "$folder/said" || fault "it left $left" "$run"
  count runs
done
finish a_run_interrupted_at_random_moments_always_goes_on_and_ends_with_the_same_bits
check some_signals_fell_into_a_save "none did, so this shows less than it should" test "${counted[in save]:-0}" -gt 0
exit $failed
