#!/usr/bin/env bash
# Runs test programs and scripts that speak TAP (as cmocka does), shows what they say, and ends with
# "N passed, N failed".
# usage: scripts/run_tests.sh [--together PROGRAM...] [--alone PROGRAM...]
# Programs after --together run JOBS at a time (one a processor, but no more than 4). Those after
# --alone follow one by one: tests that watch the clock, or need the GPU for themselves.
# A program named fuzz_* runs for FUZZ_SECONDS (60). Any other is ended, and fails, after TEST_SECONDS
# (900): one that hangs would hold up the rest. A script may name a longer time, in a line
# "# TEST_SECONDS=1800".
set -u
export CMOCKA_MESSAGE_OUTPUT=TAP
export OMP_WAIT_POLICY=passive # threads that spin would slow everything else on the machine
jobs=${JOBS:-$(nproc)}
[ -n "${JOBS:-}" ] || [ "$jobs" -le 4 ] || jobs=4
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# fuzz PROGRAM NAME: says in TAP how it went.
fuzz() {
  local program=$1 name=$2 said=$logs/said-$2 status runs
  mkdir -p "$logs/corpus-$name"
  cp tests/fuzz/corpus/"$name"/* "$logs/corpus-$name/" 2>/dev/null
  "$program" -max_total_time="${FUZZ_SECONDS:-60}" -verbosity=0 -print_final_stats=1 \
    -artifact_prefix="$PWD/build/$name-" "$logs/corpus-$name" >"$said" 2>&1
  status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$said")
  if [ $status = 0 ]; then
    echo "ok - $name: ${runs:-?} inputs in ${FUZZ_SECONDS:-60} s"
  else
    cat "$said"
    echo "not ok - $name found a failing input"
  fi
}

# run PROGRAM: shows in one piece how it went, and adds "PASSED FAILED SKIPPED NAME" to $logs/counts.
# It has a cache of its own: runs have equal bits where they take the algorithms of an earlier one.
run() {
  local program=$1 name log status start seconds ok not_ok skip limit=${TEST_SECONDS:-900}
  name=$(basename "$program")
  case $program in build/asan/*) name="$name (asan)" ;; esac
  log=$logs/$name
  case $program in *.sh) limit=$(sed -n 's/^# TEST_SECONDS=//p' "$program" | grep . || echo "$limit") ;; esac
  start=$(date +%s.%N)
  case $name in
  fuzz_*) limit=$((limit + ${FUZZ_SECONDS:-60})) && fuzz "$program" "$name" ;;
  *) XDG_CACHE_HOME=$log.cache timeout -k 10 "$limit" "$program" ;;
  esac >"$log" 2>&1 </dev/null
  status=$?
  seconds=$(LC_ALL=C awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  sed -i -E 's/^not ok ([0-9]+ # SKIP\b)/ok \1/' "$log" # cmocka 1.1.5 calls a skipped test so
  ok=$(grep -cE '^ok\b' "$log")
  not_ok=$(grep -cE '^not ok\b' "$log")
  skip=$(grep -ciE '^ok\b.*# skip' "$log")
  if [ "${seconds%.*}" -ge "$limit" ]; then
    echo "not ok - $name did not end in $limit s, and was ended" >>"$log"
    not_ok=$((not_ok + 1))
  elif [ $status != 0 ] && [ "$not_ok" = 0 ]; then # it crashed or was stopped
    echo "not ok - $name ended with status $status" >>"$log"
    not_ok=1
  fi
  if [ "$ok" = 0 ] && [ "$not_ok" = 0 ]; then
    echo "not ok - $name reported no test" >>"$log"
    not_ok=1
  fi
  {
    echo "== $name: $((ok - skip)) passed, $not_ok failed, $skip skipped, $seconds s"
    if [ "$not_ok" != 0 ]; then
      grep -E '^not ok' "$log" | sed 's/^/   /' # they may stand far above the end
      tail -n 100 "$log" | sed 's/^/   /'
    else
      grep -E '^#|# skip' -i "$log" | sed 's/^/   /'
    fi
  } >"$log.shown"
  cat "$log.shown"
  echo "$((ok - skip)) $not_ok $skip $name" >>"$logs/counts"
}

together=() alone=() list=alone
for argument in "$@"; do
  case $argument in
  --together) list=together ;;
  --alone) list=alone ;;
  *) declare -n programs=$list && programs+=("$argument") ;;
  esac
done

touch "$logs/counts"
export logs
export -f run fuzz
# shellcheck disable=SC2016 # bash -c expands it
[ ${#together[@]} = 0 ] ||
  printf '%s\0' "${together[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'run "$1"' run_tests.sh
for program in ${alone[@]+"${alone[@]}"}; do run "$program"; done

awk -v started=$((${#together[@]} + ${#alone[@]})) '
  { passed += $1; failed += $2; skipped += $3 }
  $2 { sub(/^[0-9]+ [0-9]+ [0-9]+ /, ""); names = names ", " $0 }
  END {
    lost = started - NR
    if (lost) names = names ", and " lost " ended with no result"
    if (names != "") print "failed in: " substr(names, 3)
    if (skipped) print "(" skipped " skipped, each with its reason above)"
    print passed + 0 " passed, " failed + lost " failed"
    exit failed + lost > 0 || !passed
  }' "$logs/counts"
