#!/usr/bin/env bash
# The examples of kernels/README.md are what the tests compile and run: each block of code stands, line by line, in a
# program's file, and every path that the page names is there.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

page=kernels/README.md
programs=(kernels/fused/programs/*.cu kernels/fused/*.cuh tests/gpu/programs/*.cu)

# The blocks, one a file.
awk -v to="$folder/block" '/^```cpp$/ { file = to sprintf("%d", ++count); next } /^```$/ { file = ""; next } file { print > file }' "$page"
foreign=$(for block in "$folder"/block*; do
  for program in "${programs[@]}"; do
    [[ $'\n'$(<"$program")$'\n' == *$'\n'"$(<"$block")"$'\n'* ]] && continue 2
  done
  head -1 "$block"
done)
check every_example_is_a_programs_own_text "in no program: $foreign" test -z "$foreign"
check there_are_examples "no block of code in $page" test -e "$folder/block4"

absent=$(grep -oE '`(cuda|fused|tests|cpu|unfused)/[A-Za-z0-9_./-]*`' "$page" | tr -d '`' | sort -u | while read -r path; do
  [[ $path == *NAME* || $path == *test_programs || -e $path || -e kernels/$path ]] || echo "$path"
done)
check every_path_it_names_is_there "not there: $absent" test -z "$absent"

# One program is tested by one command. This make is not a part of the one that runs this test.
commands=$(env -u MAKEFLAGS -u MFLAGS make -n test-program NAME=residual 2>&1)
if [[ $commands == *'no CUDA toolkit'* ]]; then
  echo 'ok - make_test_program_calls_one_program # SKIP there is no CUDA toolkit'
else
  called=$(grep -E '^build/.* residual' <<<"$commands" | xargs -n 1 | paste -sd ' ')
  check make_test_program_calls_one_program "$called" \
    test "$called" = 'build/release/tests/emulated/test_programs residual'
fi
exit "$failed"
