#!/usr/bin/env bash
# Builds and runs the quick tests of one file: the unit tests that call a function of it, directly or
# through tests/support. For a file of fused programs those are their tests on the CPU.
# usage: make check FILE=data/loader.c
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-}
[ -e "$file" ] || { echo "check: no file '$file'; for example make check FILE=data/loader.c" >&2; exit 1; }

# users NAMES FILE...: the files that have one of these words.
users() { grep -lwE "$@" || true; }

case $file in
tests/unit/test_*.c | tests/cli/test_*.sh) tests=$file ;;
*/programs/*.cu)
  sed -nE 's/^DEFINE_PROGRAM.*, (\w+).*/\1/p' "$file" | while read -r name; do
    make -s test-program "NAME=$name" </dev/null
  done
  exit
  ;;
*.c)
  make -s "build/release/${file%.c}.o"
  names=$(nm --defined-only -g "build/release/${file%.c}.o" | awk 'NF == 3 { print $3 }' | paste -sd '|')
  ;;
*.h) names="\"$file\"" ;;
*) echo "check: '$file' is no .c or .h file, unit test, script test or fused program" >&2; exit 1 ;;
esac

if [ -n "${names:-}" ]; then
  tests=$(users "$names" tests/unit/*.c)
  for helper in $(users "$names" tests/support/*.c); do
    tests+=" $(users "${helper%.c}.h" tests/unit/*.c)"
  done
fi
programs=$(tr ' ' '\n' <<<"${tests:-}" | sed -nE -e 's|^(tests/unit/test_.*)\.c$|build/release/\1|p' \
  -e 's|^(tests/unit/grad.*)\.c$|build/double/\1|p' | sort -u)
scripts=$(tr ' ' '\n' <<<"${tests:-}" | grep '\.sh$' || true)
[ -n "$programs$scripts" ] || { echo "check: no unit test calls a function of $file: make test" >&2; exit 1; }
# shellcheck disable=SC2086 # lists of names without spaces
[ -z "$programs" ] || make -s -j"$(nproc)" all $programs
[ -z "$scripts" ] || make -s all
# shellcheck disable=SC2086
exec scripts/run_tests.sh --together $programs $scripts
