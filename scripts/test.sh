#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests that need no GPU. The last line says
# "N passed, N failed".
# usage: scripts/test.sh [--all]     --all: sanitizers, fuzzers, slow scripts, every fault too
# FUZZ_SECONDS=N: how long each fuzzer runs (10). JOBS=N: how many tests run at a time.
set -u
cd "$(dirname "$0")/.." || exit 1
start=$SECONDS

case "$*" in
'') packages=test programs=quick-programs tests=test ;;
--all) packages=all programs='test-programs fuzz-programs' tests=test-all ;;
-h | --help)
  sed -n '2,5s/^# //p' "$0"
  exit 0
  ;;
*)
  echo "test.sh: unknown argument '$*'; it takes --all" >&2
  exit 1
  ;;
esac

scripts/install_packages.sh $packages || exit 1
# Everything is built first: some tests watch the clock and want the machine for themselves.
# shellcheck disable=SC2086 # one word a target
if ! make -s -j"$(nproc)" $programs; then
  echo "test.sh: the build failed as shown above" >&2
  exit 1
fi
echo "built in $((SECONDS - start)) s"
exec make -s $tests
