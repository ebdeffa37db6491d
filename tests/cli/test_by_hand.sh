#!/usr/bin/env bash
# The README's lines under "By hand" work as they stand there, one after the other, on a CPU. They run in a folder of
# links to the sources, where data/ and runs/ are their own.
# shellcheck disable=SC2016,SC2317 # the backticks are Markdown's; `make` is called by the lines
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
root=$PWD

sed -n '/^## By hand$/,/^## /p' README.md | sed -n '/^```$/,/^```$/p' | grep -v '^```$' >"$folder/lines"
check the_page_has_lines "$(cat "$folder/lines")" test "$(wc -l <"$folder/lines")" -ge 6
for program in make ./prepare ./train; do
  check "they_call_${program#./}" "$(cat "$folder/lines")" grep -q "^$program " "$folder/lines"
done

place=$folder/place
mkdir -p "$place/data"
ln -s "$root"/{base,configs,kernels,model,scripts,tests} "$place"
ln -s "$TRAIN" "$place/train"
ln -s "$PREPARE" "$place/prepare"
make() { command make -C "$root" "$@"; } # the programs are built there
export -f make
export root CUDA_VISIBLE_DEVICES='' # a CPU, whatever is here
cd "$place" || exit 1
while IFS= read -r line; do
  name=$(sed -E 's/ *#.*//; s/[^a-zA-Z0-9-]+/_/g; s/^_//' <<<"$line")
  timeout 600 bash -c "$line" >"$folder/said" 2>&1 </dev/null
  status=$?
  check "$name" "status $status: $(tail -n 3 "$folder/said")" test $status = 0
done <"$folder/lines"
exit "$failed"
