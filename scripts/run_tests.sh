#!/usr/bin/env bash
# Runs test programs and scripts that speak TAP (cmocka does, too), shows them, and ends with "N passed, N failed".
# usage: scripts/run_tests.sh PROGRAM...    A program named fuzz_* runs for FUZZ_SECONDS (60).
set -u
export CMOCKA_MESSAGE_OUTPUT=TAP
export OMP_WAIT_POLICY=passive # threads that spin would slow everything else on the machine
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0 failed=0 skipped=0 failures=()

for program in "$@"; do
  name=$(basename "$program")
  case $program in build/asan/*) name="$name (asan)" ;; esac
  start=$(date +%s.%N)
  case $name in
  fuzz_*)
    mkdir -p "$logs/corpus-$name"
    cp tests/fuzz/corpus/"$name"/* "$logs/corpus-$name/" 2>/dev/null
    "$program" -max_total_time="${FUZZ_SECONDS:-60}" -verbosity=0 -print_final_stats=1 \
      -artifact_prefix="$PWD/build/$name-" "$logs/corpus-$name" >"$logs/$name" 2>&1
    status=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$name")
    if [ $status = 0 ]; then echo "ok - $name: ${runs:-?} inputs in ${FUZZ_SECONDS:-60} s" >"$logs/$name"
    else echo "not ok - $name found a failing input" >>"$logs/$name"; fi
    ;;
  *)
    "$program" >"$logs/$name" 2>&1
    status=$?
    ;;
  esac
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  sed -i -E 's/^not ok ([0-9]+ # SKIP\b)/ok \1/' "$logs/$name" # cmocka 1.1.5 calls a skipped test so
  ok=$(grep -cE '^ok\b' "$logs/$name")
  not_ok=$(grep -cE '^not ok\b' "$logs/$name")
  skip=$(grep -ciE '^ok\b.*# skip' "$logs/$name")
  if [ $status != 0 ] && [ "$not_ok" = 0 ]; then # it crashed or was stopped
    echo "not ok - $name ended with status $status" >>"$logs/$name"
    not_ok=1
  fi
  if [ "$ok" = 0 ] && [ "$not_ok" = 0 ]; then
    echo "not ok - $name reported no test" >>"$logs/$name"
    not_ok=1
  fi
  echo "== $name: $((ok - skip)) passed, $not_ok failed, $skip skipped, $seconds s"
  if [ "$not_ok" != 0 ]; then
    tail -n 100 "$logs/$name" | sed 's/^/   /'
    failures+=("$name")
  else
    grep -E '^#|# skip' -i "$logs/$name" | sed 's/^/   /'
  fi
  passed=$((passed + ok - skip)) failed=$((failed + not_ok)) skipped=$((skipped + skip))
done
[ ${#failures[@]} = 0 ] || echo "failed in: ${failures[*]}"
[ $skipped = 0 ] || echo "($skipped skipped, each with its reason above)"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
