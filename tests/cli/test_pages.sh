#!/usr/bin/env bash
# What the pages list is what there is: keys, configs, options, targets of make, files, the tree.
# usage: tests/cli/test_pages.sh [--update]   writes the keys, as ./train --help-config has them, into the page
# shellcheck disable=SC2016 # the backticks are Markdown's
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
keys=configs/README.md # the page with the keys
mapfile -t pages < <(tree | grep '\.md$')

"$TRAIN" --help-config | sed '/^$/,$d' >"$folder/keys" || exit
if [ "${1:-}" = --update ]; then
  sed -e '/^## Keys/,/^## / { /^```/,/^```/ { /^```/!d; } }' "$keys" |
    awk -v keys="$folder/keys" '{ print } /^## Keys/ { at = 1 }
      at && /^```/ { at = 0; while ((getline line <keys) > 0) print line }' >"$folder/page" && cp "$folder/page" "$keys"
  exit
fi
sed -n '/^## Keys/,/^## /p' "$keys" | sed -n '/^```/,/^```/p' | grep -v '^```' >"$folder/listed"
why="$(diff "$folder/keys" "$folder/listed" | head -4); $0 --update mends it"
check the_keys_of_the_page_are_those_of_help_config "$why" cmp -s "$folder/keys" "$folder/listed"

unlisted=$(for config in configs/*.json; do
  grep -qF "\`$(basename "$config")\`" "$keys" || echo "$config"
done)
check every_config_is_listed "not in $keys: $unlisted" test -z "$unlisted"

# A program that is built is there if its source is; tests/emulated builds some of tests/gpu. In its page
# the rooms of kernels/ go by their own names.
rooms='base|configs|scripts|tests|kernels|model' name='/[A-Za-z0-9_./-]+[A-Za-z0-9]'
missing=$({ grep -ohE "\b($rooms)$name" "${pages[@]}" && grep -oE "\b(cpu|cuda|fused|unfused)$name" kernels/README.md
} | sort -u | grep -v NAME | while read -r path; do
  [ -e "$path" ] || [ -e "kernels/$path" ] || [ -e "${path/#tests\/emulated/tests\/gpu}.c" ] || echo "$path"
done)
check every_path_they_name_is_there "not there: $missing" test -z "$missing"

missing=$(for page in "${pages[@]}"; do
  grep -oE '\]\([^)#]+' "$page" | cut -c 3- | while read -r link; do
    [[ $link == http* ]] || [ -e "$(dirname "$page")/$link" ] || echo "$page: $link"
  done
done)
check every_link_leads_somewhere "not there: $missing" test -z "$missing"

# The README's drawing of the tree: a line that begins with a folder is about it, and so are the
# indented lines below.
missing=$(sed -n '/^## The tree/,/^## /p' README.md | sed -n '/^```/,/^```/p' | tr -d ':;,' | {
  top=''
  while IFS= read -r line; do
    [[ $line == ' '* ]] || top=${line%% *}
    for word in $line; do
      [[ $word =~ ^[a-z].*(/|\.[ch])$ ]] || continue
      [ -e "$word" ] || [ -e "$top$word" ] || echo "$top$word"
    done
  done
})
check the_tree_is_as_it_is_drawn "not there: $missing" test -z "$missing"

# unknown_options PROGRAM HELP...: options that the pages give to the program, and that its help, or
# a script's text, does not have.
unknown_options() {
  local program=$1 option
  shift
  grep -ohE "$program [^|\`]*" "${pages[@]}" | sed 's/   .*//; s/ #.*//' | grep -oE -- ' --[a-z-]+' |
    sort -u | while read -r option; do "$@" | grep -qF -- "$option" || echo "$program $option"; done
}
unknown=$(unknown_options '\./train' "$TRAIN" --help
  unknown_options '\./prepare' "$PREPARE" --help
  grep -ohE 'scripts/[A-Za-z_/]+\.(sh|py)' "${pages[@]}" | sort -u |
    while read -r script; do unknown_options "$script" cat "$script"; done)
check every_option_is_known "not in --help, or not in the script: $unknown" test -z "$unknown"

targets=" $(sed -n '/^\.PHONY:/,/[^\\]$/p' Makefile | tr '\\\n' '  ') "
unknown=$(grep -ohE '(^|`)make [a-z-]+([ `]|$)' "${pages[@]}" | tr -d '`' | cut -c 6- | sort -u |
  while read -r target; do [[ $targets == *" $target "* ]] || echo "$target"; done)
check every_target_of_make_is_known "not in the Makefile: $unknown" test -z "$unknown"

# Each block of code in these pages stands, line by line, in a program that the tests compile and run.
awk -v to="$folder/block" '/^```cpp$/ { file = to sprintf("%d", ++count); next } /^```$/ { file = ""; next } file { print > file }' kernels/README.md README.md
foreign=$(for block in "$folder"/block*; do
  for program in kernels/fused/programs/*.cu kernels/fused/*.cuh tests/gpu/programs/*.cu; do
    [[ $'\n'$(<"$program")$'\n' == *$'\n'"$(<"$block")"$'\n'* ]] && continue 2
  done
  head -1 "$block"
done)
check every_example_is_a_programs_own_text "in no program: $foreign" test -z "$foreign"
check there_are_examples "no block of code in kernels/README.md" test -e "$folder/block4"

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
