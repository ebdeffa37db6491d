#!/usr/bin/env bash
# Real text from the distribution's packages, for a first run: see scripts/README.md.
# usage: scripts/fetch_text.sh DIR [PACKAGE ...]
# Downloads packages of Debian or Ubuntu with apt-get (no root needed, nothing is installed), takes
# the text out of them and writes DIR/text.jsonl.zst, which ./prepare takes. PACKAGE ... are more
# packages, such as dict-gcide or perl-doc. Needs groff, python3 and zstd.
set -euo pipefail

fail() {
  echo "fetch_text.sh: $*" >&2
  exit 1
}

case ${1:-} in
-h | --help) sed -n '2,6s/^# //p' "$0" && exit 0 ;;
'' | -*) fail "where to? usage: scripts/fetch_text.sh DIR [PACKAGE ...]" ;;
esac
out=$1
shift
for name in "$@"; do
  [[ $name =~ ^[a-z0-9][a-z0-9+.-]+$ ]] || fail "'$name' is no name of a package; --help says more"
done
for tool in apt-get dpkg-deb groff python3 zstd; do
  command -v "$tool" >/dev/null || fail "$tool is missing; Debian's package of that name has it
  (groff-base has groff)"
done
[ ! -e "$out/text.jsonl.zst" ] || fail "$out/text.jsonl.zst is there already; remove it first"
packages=(apache2-doc debian-faq debian-handbook debian-history debian-kernel-handbook debian-policy
  debian-reference-en developers-reference dict-wn doc-debian git-doc harden-doc
  libreoffice-help-en-us manpages manpages-dev sqlite3-doc sword-comm-mhcc sword-text-kjv
  sword-text-web "$@")
# A package whose name carries a version goes by the one that depends on it.
for name in libpython3-stdlib linux-source postgresql-doc python3-doc; do
  real=$(apt-cache depends "$name" 2>/dev/null | sed -n 's/^  Depends: //p' | head -n 1)
  packages+=("${real:-$name}")
done

mkdir -p "$out"
work=$(mktemp -d "$out/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/text"
passed_over=()
for name in "${packages[@]}"; do
  (cd "$work/debs" && apt-get download -q=2 "$name") >/dev/null 2>"$work/why" || true
  deb=$(compgen -G "$work/debs/${name}_*.deb") || { passed_over+=("$name") && continue; }
  echo "unpacking $name"
  dpkg-deb -x "$deb" "$work/text/$name"
  rm "$deb"
  # The kernel's sources are a tarball in the package.
  for tarball in "$work/text/$name"/usr/src/linux-source*.tar.*; do
    [ -f "$tarball" ] || continue
    mkdir "$work/text/kernel"
    tar -xf "$tarball" -C "$work/text/kernel" --wildcards '*.[chS]' '*.rst' '*.txt' '*.py' '*.sh'
    rm "$tarball"
  done
done
[ ${#passed_over[@]} -eq 0 ] ||
  echo "not to be had, passed over: ${passed_over[*]} ($(tail -n 1 "$work/why"))" >&2
[ ${#passed_over[@]} -lt ${#packages[@]} ] || fail "no package could be downloaded"

echo "taking the text out of them"
"$(dirname "$0")/collect_text.py" "$work/text" | zstd -q -6 --long=27 -T0 -o "$work/text.jsonl.zst"
mv "$work/text.jsonl.zst" "$out/text.jsonl.zst"
echo "$out/text.jsonl.zst is ready: ./prepare --train-tokenizer 32000 --out data/tok $out/text.jsonl.zst"
