#!/usr/bin/env bash
# The folder of a run is removed, emptied, moved, replaced, swapped with another run's, or loses its lock at a random
# moment, while the run starts, trains or saves, and a second and a third process begin under its name. Each process ends
# with success or with one sentence. The last checkpoint in what is left of the folder resumes, to the bits of a run that
# nobody disturbed, and nobody writes into what is another's.
# usage: tests/night/folders.sh SECONDS [RUNS]
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
prepare_data 400
config=$folder/config.json
write_config "$config"
common=(train.steps=200 train.gradient_accumulation=3 train.keep_checkpoints=2)
variants=('train.save_interval=5'
  'train.save_interval=0'
  'train.save_interval=9 output.background_save=false output.save_dtype=bf16'
  'train.save_interval=25 train.eval_interval=20 train.keep_best=true')
home=$folder/home run=$folder/home/run away=$folder/home/away
lost='was moved, removed or replaced while the run trained'
declare -A pids

begin() { # NAME FOLDER ARGUMENTS...
  local name=$1 into=$2
  shift 2
  "$TRAIN" "$config" "${options[@]}" "output.dir=$into" "$@" >"$folder/said.$name" 2>"$folder/said.$name.err" </dev/null &
  pids[$name]=$!
}

wait_for_moment() { # PROCESS
  local when
  when=$(pick start training training save)
  case $when in
  start) sleep "$(milliseconds 40)" ;;
  training) wait_for '"kind":"train"' "$run/log.jsonl" "$1" && sleep "$(milliseconds 200)" ;;
  save) until compgen -G "$run/step-*.tmp" >/dev/null || ! kill -0 "$1" 2>/dev/null; do :; done ;;
  esac
  kill -0 "$1" 2>/dev/null && count "struck in: $when"
}

strike() { # ATTACK
  case $1 in
  removed) while [ -e "$run" ]; do rm -rf "$run"; done ;; # a save may be writing there
  emptied) while [ -n "$(ls -A "$run")" ]; do rm -rf "${run:?}"/*; done ;;
  moved) mv "$run" "$away" ;;
  'moved with its parent') mv "$home" "$folder/home.away" ;;
  replaced) mv "$run" "$away" && mkdir "$run" ;;
  swapped) mv "$run" "$away" && mv "$home/other" "$run" && mv "$away" "$home/other" ;;
  'its lock removed') rm "$run/lock" ;;
  'its lock a link') ln -sfn "$folder/precious" "$run/lock" ;;
  'moved, with a link left') mv "$run" "$away" && ln -s away "$run" ;;
  esac
}

# judge NAME: how the process ended.
judge() {
  local err=$folder/said.$1.err rest status last
  wait "${pids[$1]}"
  status=$?
  last=$(tail -n 1 "$err")
  cp "$folder/said.$1" "$folder/said"
  cp "$err" "$folder/said.err"
  count processes
  [ $status -le 1 ] || fault "$attack: process $1 ended with status $status: $last" "$home"
  [ $status = 1 ] || return
  rest=$(head -n -1 "$err" | grep -vE ' goes on$|, and keeps its lines to try again$| is passed over: ')
  [[ $last == 'train: '* && -z $rest ]] || fault "$attack: process $1 ends with more than a sentence: $(cat "$err")" "$home"
  if grep -qE '^step +[0-9]+/' "$folder/said.$1"; then
    grep -qE "$lost" <<<"$last" || fault "$attack: process $1 ended for no reason: $last" "$home"
    count 'ended, as its folder was taken'
  elif [[ $last == *' is in use: '* ]]; then count 'refused: in use'
  else count 'ended while they began'; fi
}

# ends_well NAME FOLDER: a process that resumes there ends as a run that nobody disturbed, with nothing left over.
ends_well() {
  local differs left
  timeout 120 "$TRAIN" "$config" "${options[@]}" train.save_interval=0 "output.dir=$2" train.resume=auto \
    >"$folder/said" 2>"$folder/said.err" </dev/null ||
    fault "$attack: $1 cannot be resumed: $(cat "$folder/said.err")" "$2"
  [ -z "$problem" ] || return
  differs=$(same_bits "$whole" "$2" 2>&1) || fault "$attack: $1 ended with other bits: $differs" "$2"
  left=$(compgen -G "$2/*.tmp"; compgen -G "$2/lock")
  [ -z "$left" ] || fault "$attack: $1 left $left" "$2"
}

echo precious >"$folder/precious"
for ((round = 0; round < ${2:-1000000}; round++)); do
  time_left || break
  number=$((round % ${#variants[@]}))
  read -ra options <<<"${common[*]} ${variants[number]}"
  whole=$folder/whole-$number
  [ -d "$whole" ] || must "$TRAIN" "$config" "${options[@]}" train.save_interval=0 "output.dir=$whole"
  rm -rf "$home" "$folder/home.away" "$folder"/said.*
  mkdir "$home"
  attack=$(pick removed emptied moved 'moved with its parent' replaced swapped swapped 'its lock removed' 'its lock a link' \
    'moved, with a link left')
  pids=()
  [ "$attack" != swapped ] || begin other "$home/other"
  begin first "$run"
  wait_for_moment "${pids[first]}"
  strike "$attack"
  begin second "$run" train.resume=auto
  sleep "$(milliseconds 100)"
  begin third "$run" train.resume=auto
  for name in "${!pids[@]}"; do judge "$name"; done
  [ -z "$problem" ] || break
  [ ! -L "$run/lock" ] || rm "$run/lock"
  for place in "$run" "$away" "$home/other" "$folder/home.away/run"; do
    [ ! -d "$place" ] || [ -n "$problem" ] || ends_well "what is left in $(basename "$place")" "$place"
  done
  left=$(cat "$folder/precious"; compgen -G "$home/*" | grep -vxE "$home/(run|away|other)")
  [ -n "$problem" ] || [ "$left" = precious ] || fault "$attack: this is left: $left" "$home"
  count "$attack"
  count runs
done 2>"$folder/noise"
finish a_run_whose_folder_is_taken_keeps_its_checkpoints_and_touches_nothing_of_others
[ "${counted[runs]:-0}" -lt 10 ] || check some_runs_lost_their_folder 'none did, so this shows less than it should' \
  test "${counted[ended, as its folder was taken]:-0}" -gt 0
exit $failed
