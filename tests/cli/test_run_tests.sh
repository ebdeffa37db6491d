#!/usr/bin/env bash
# scripts/run_tests.sh: what it makes of programs that pass, fail, crash, hang or say nothing.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

program() { # NAME BODY
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$folder/$1"
  chmod +x "$folder/$1"
}
program passes 'echo "ok 1 - a"; echo "ok 2 - b # skip there is no b"'
program fails 'echo "ok 1 - a"; echo "not ok 2 - b"; exit 1'
program crashes 'echo "ok 1 - a"; kill -SEGV $$'
program says_nothing 'true'
program hangs 'echo "ok 1 - a"; sleep 60 & wait'
program takes_longer.sh $'# TEST_SECONDS=30\nsleep 2; echo "ok 1 - a"'
run() { # PROGRAM...: says "STATUS LAST LINE", and all of it in $folder/said
  TEST_SECONDS=1 scripts/run_tests.sh --together "${@/#/$folder/}" >"$folder/said" 2>&1
  echo "$? $(tail -n 1 "$folder/said")"
}
is() { # NAME EXPECTED PROGRAM...
  local said
  said=$(run "${@:3}")
  check "$1" "$said instead of $2: $(cat "$folder/said")" test "$said" = "$2"
}
is all_well '0 1 passed, 0 failed' passes
is one_fails '1 2 passed, 1 failed' passes fails
is a_crash_is_a_failure '1 1 passed, 1 failed' crashes
is silence_is_a_failure '1 0 passed, 1 failed' says_nothing
is a_program_that_hangs_is_ended '1 2 passed, 1 failed' hangs passes
check it_is_named "$(cat "$folder/said")" grep -q '^ *not ok - hangs did not end in 1 s' "$folder/said"
is a_script_may_take_longer '0 1 passed, 0 failed' takes_longer.sh
exit "$failed"
