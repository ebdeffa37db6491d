#!/usr/bin/env bash
# What scripts/collect_text.py takes and leaves out.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

if ! command -v python3 >/dev/null; then
  echo "ok - text_is_collected # SKIP python3 is not installed"
  exit "$failed"
fi
# documents FILE SOURCE: the texts whose source ends so, one after the other
documents() {
  python3 -c 'import json, sys
for line in open(sys.argv[1]):
    document = json.loads(line)
    if document["source"].endswith(sys.argv[2]):
        sys.stdout.write(document["text"])' "$@"
}
plant() { mkdir -p "$(dirname "$folder/packages/$1")" && cat >"$folder/packages/$1"; }
prose() { seq -f "$1 %g is a sentence of some words that stand in a row." "${2:-12}"; }
defines() { for i in $(seq 400); do printf '#define REGISTER_NAME_%s_MASK 0xff\n' "$i"; done; }
prose core | plant kernel/linux-1/mm/core.c
prose driver | plant kernel/linux-1/drivers/a/driver.c
defines | plant kernel/linux-1/mm/registers.h
prose second | plant doc/usr/share/doc/doc/b.txt
prose second | plant doc/usr/share/doc/doc/copy.txt
prose deutsch | plant doc/usr/share/doc/doc/a.de.txt
prose long 9000 | plant doc/usr/share/doc/doc/long.txt
{ echo '<html><head><title>no</title></head><body><script>no()</script><nav>no</nav>' &&
  echo '<h1>Title &amp; more</h1><p>' && prose web && echo '</p><pre>  kept   space</pre></body>'; } |
  plant doc/usr/share/doc/doc/page.html
prose index | plant doc/usr/share/doc/doc/genindex.html
printf 'latin \351 %s\n' "$(prose latin)" | plant doc/usr/share/doc/doc/latin.txt
must scripts/collect_text.py "$folder/packages"
scripts/collect_text.py "$folder/packages" >"$folder/all.jsonl" 2>/dev/null
sources=$(cut -d '"' -f 4 "$folder/all.jsonl" | uniq -c | awk '{print $2 "x" $1}' | tr '\n' ' ')
base=doc/usr/share/doc/doc
expected="$base/b.txtx1 $base/long.txtx2 $base/page.htmlx1 linux/drivers/a/driver.cx1 "
expected+="linux/mm/core.cx1 "
check it_takes_text_in_order_and_nothing_else "it took $sources" test "$sources" = "$expected"
page=$(documents "$folder/all.jsonl" page.html)
check html_becomes_its_text "$page" test "$(head -n 1 <<<"$page")" = 'Title & more'
check pre_keeps_its_spaces "$page" grep -q '^  kept   space$' <<<"$page"
check what_is_not_text_is_left_out "$page" test "${page/no/}" = "$page"
check a_long_text_is_cut_without_loss 'the pieces are not the text' cmp -s \
  <(documents "$folder/all.jsonl" long.txt | tr -d '\n') \
  <(prose long 9000 | tr -d '\n')
before=$(listing)
scripts/fetch_text.sh "$folder/text" --kernel-mb 0 >"$folder/said" 2>"$folder/said.err"
why=$(why_no_clear_error $? "'--kernel-mb' is no name of a package")
check fetch_text_takes_no_options "$why" test -z "$why"
scripts/collect_text.py "$folder/packages" --kernel-mb 0 2>/dev/null >"$folder/none.jsonl"
check the_kernel_is_limited 'there is text of the kernel' \
  test "$(grep -c '"linux/' "$folder/none.jsonl")" = 0
exit "$failed"
