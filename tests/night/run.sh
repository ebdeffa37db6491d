#!/usr/bin/env bash
# A night of attacks, for NIGHT_MINUTES (480): signals, power cuts, faults at system calls, and every fuzz target in turn.
# Ends with a table of what was done and what failed, also in build/night/report.md. What failed is kept in
# build/night/evidence, and the inputs that fuzzing found in build/night/corpus, for the next night.
# usage: make night [NIGHT_MINUTES=480] [NIGHT_SEED=N]; FUZZERS: the targets' programs
set -u
cd "$(dirname "$0")/../.." || exit 1
export OMP_WAIT_POLICY=passive CMOCKA_MESSAGE_OUTPUT=TAP
export NIGHT_SEED=${NIGHT_SEED:-$(date +%s)}
minutes=${NIGHT_MINUTES:-480} night=build/night
total=$((minutes * 60)) said=$night/said
rm -rf "$said" && mkdir -p "$said" "$night/evidence" "$night/corpus"
read -ra fuzzers <<<"${FUZZERS:-}"

# part NAME SECONDS: for its share, with another seed each time, since a fault ends it.
part() {
  local name=$1 ends=$((SECONDS + $2)) turn
  for ((turn = 0; turn < 20 && SECONDS < ends; turn++)); do
    NIGHT_SEED=$((NIGHT_SEED + turn)) bash "tests/night/$name.sh" $((ends - SECONDS)) >"$said/$name.$turn" 2>&1
    if grep -q '# SKIP' "$said/$name.$turn"; then break; fi
  done
}

attacks() {
  local program
  # What is written to memory is written a hundred times faster than to a disk, and a kill loses neither.
  [ ! -w /dev/shm ] || export TMPDIR=/dev/shm
  for program in build/release/tests/unit/test_{folder,checkpoint,prepare}_faults; do
    "$program" >"$said/$(basename "$program").0" 2>&1
  done
  part kills $((total * 80 / 100))
  unset TMPDIR
  part power $((total - SECONDS > 10 ? total - SECONDS : 10))
}

fuzz() {
  local program name each=$((total / ${#fuzzers[@]}))
  for program in "${fuzzers[@]}"; do
    name=$(basename "$program")
    mkdir -p "$night/corpus/$name"
    "$program" -max_total_time="$each" -verbosity=0 -print_final_stats=1 -artifact_prefix="$night/evidence/$name-" \
      "$night/corpus/$name" "tests/fuzz/corpus/$name" >"$said/$name.0" 2>&1 ||
      echo "not ok - $name found a failing input, in $night/evidence" >>"$said/$name.0"
  done
}

echo "a night of $minutes minutes with seed $NIGHT_SEED, $(date)"
attacks &
[ ${#fuzzers[@]} = 0 ] || fuzz
wait

# How often WHAT was counted in all turns of a part.
sum_of() { # PART WHAT
  cat "$said/$1."* 2>/dev/null | sed -nE "s/^# counted $2: ([0-9]+)$/\1/p" | awk '{ n += $1 } END { print n + 0 }'
}
faults_of() { sed -nE 's/^# .*: ([0-9]+) faults$/\1/p' "$said/$1.0" | awk '{ n += $1 } END { print n + 0 }'; }
failures() { cat "$said/$1."* 2>/dev/null | grep -c '^not ok'; }
row() { # WHAT NUMBER PART
  local skipped
  skipped=$(cat "$said/$3."* 2>/dev/null | sed -nE 's/^ok.*# SKIP (.*)/left out: \1/p' | head -n 1)
  printf '| %s | %s | %s |\n' "$1" "$2" "${skipped:-$(failures "$3")}"
}
{
  echo "| what, at $(git describe --always --dirty 2>/dev/null || echo unknown), $minutes minutes | how many | failed |"
  echo '|---|---|---|'
  row 'kills (SIGKILL)' "$(sum_of kills SIGKILL)" kills
  row 'SIGTERM, and twice' "$(($(sum_of kills SIGTERM) + $(sum_of kills 'SIGTERM twice')))" kills
  for moment in start evaluation sample save training; do
    row "of these in: $moment" "$(sum_of kills "in $moment")" kills
  done
  row 'power cuts' "$(sum_of power 'power cuts')" power
  for program in test_folder_faults test_checkpoint_faults test_prepare_faults; do
    row "faults at system calls, $program" "$(faults_of "$program")" "$program"
  done
  for program in "${fuzzers[@]}"; do
    name=$(basename "$program")
    row "inputs, $name" "$(sed -nE 's/^stat::number_of_executed_units: *//p' "$said/$name.0")" "$name"
  done
} | tee "$night/report.md"
failed=$(cat "$said"/* | grep -c '^not ok')
grep -h '^not ok' "$said"/*
echo "$failed failed"
[ "$failed" = 0 ]
