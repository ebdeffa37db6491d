#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test that needs no GPU. The last line
# says "N passed, N failed".
# usage: scripts/test.sh
# FUZZ_SECONDS=N: how long each fuzzer runs (60). JOBS=N: how many tests run at a time.
set -u
cd "$(dirname "$0")/.." || exit 1
start=$SECONDS

case ${1:-} in
'') ;;
-h | --help)
  sed -n '2,5s/^# //p' "$0"
  exit 0
  ;;
*)
  echo "test.sh: unknown argument '$1'; it takes none" >&2
  exit 1
  ;;
esac

scripts/install_packages.sh test || exit 1
jobs=$(nproc)
# Everything is built first: some tests watch the clock and want the machine for themselves.
if ! make -s -j"$jobs" all test-programs fuzz-programs; then
  echo "test.sh: the build failed as shown above" >&2
  exit 1
fi
echo "built in $((SECONDS - start)) s"
exec make -s test
