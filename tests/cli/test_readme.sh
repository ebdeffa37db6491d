#!/usr/bin/env bash
# What the README lists is what there is: the table of keys, the configs, the programs' options.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

"$TRAIN" --help-config | grep '^|' >"$folder/keys"
sed -n '/^| key | default/,/^$/p' README.md | grep '^|' >"$folder/listed"
check the_table_of_keys_is_that_of_help_config "$(diff "$folder/keys" "$folder/listed" | head -4)" \
  cmp -s "$folder/keys" "$folder/listed"

unlisted=$(for config in configs/*.json; do
  name=$(basename "$config" .json)
  grep -qE -- "(configs/$name\.json|\`-?${name#llama}(-width)?\`|\`$name\`)" README.md || echo "$name"
done)
check every_config_is_listed "not in the README: $unlisted" test -z "$unlisted"

absent=$(grep -oE '(configs|scripts|tests|kernels|model)/[a-z0-9_./-]+[a-z0-9]' README.md | sort -u | while read -r path; do
  [ -e "$path" ] || echo "$path"
done)
check every_path_it_names_is_there "not there: $absent" test -z "$absent"
exit "$failed"
