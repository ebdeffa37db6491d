#!/usr/bin/env bash
# What the pages list is what there is: keys, configs, options, targets of make, files, the tree.
# usage: tests/cli/test_readme.sh [--update]   writes the keys, as ./train --help-config has them, into the page
# shellcheck disable=SC2016 # the backticks are Markdown's
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
keys=configs/README.md # the page with the keys
pages=(README.md configs/README.md configs/RECIPE.md configs/REAL_TEXT.md data/README.md tests/README.md
  scripts/README.md scripts/ELSEWHERE.md scripts/CONTAINERS.md
  kernels/PERFORMANCE.md kernels/HISTORY.md kernels/ATTEMPTS.md)

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

# A program that is built is there if its source is.
rooms='base|configs|scripts|tests|kernels|model'
missing=$(grep -ohE "\b($rooms)/[A-Za-z0-9_./-]+[A-Za-z0-9]" "${pages[@]}" | sort -u |
  while read -r path; do [ -e "$path" ] || [ -e "$path.c" ] || echo "$path"; done)
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

# unknown_options PROGRAM HELP...: options that the pages give to the program, and that its help
# does not list.
unknown_options() {
  local program=$1 option
  shift
  grep -ohE "$program [^|\`]*" "${pages[@]}" | sed 's/   .*//' | grep -oE -- ' --[a-z-]+' |
    sort -u | while read -r option; do "$@" | grep -qF -- "$option" || echo "$program $option"; done
}
unknown=$(unknown_options '\./train' "$TRAIN" --help
  unknown_options '\./prepare' "$PREPARE" --help
  unknown_options 'scripts/quickstart.sh' scripts/quickstart.sh --help
  unknown_options 'scripts/profile.sh' scripts/profile.sh --help)
check every_option_is_known "not in --help: $unknown" test -z "$unknown"

make -s help >"$folder/targets"
unknown=$(grep -ohE '(^|`)make [a-z-]+([ `]|$)' "${pages[@]}" | tr -d '`' | cut -c 6- | sort -u |
  while read -r target; do grep -qE "^ *make $target\b" "$folder/targets" || echo "$target"; done)
check every_target_of_make_is_known "not in make help: $unknown" test -z "$unknown"
exit "$failed"
