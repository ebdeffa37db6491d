#!/usr/bin/env bash
# Real text from the distribution's packages, for a first run: see scripts/README.md.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/fetch_text.sh DIR [--packages FOLDER] [--kernel-mb N] [PACKAGE ...]

Downloads packages of Debian or Ubuntu with apt-get (no root needed, nothing is installed), takes the
text out of them and writes DIR/text.jsonl.zst, which ./prepare takes. Needs groff, python3 and zstd.

  --packages FOLDER  keep the .deb files in FOLDER, and use those that are there already
  --kernel-mb N      text of the Linux kernel, at most, in MB (222)
  PACKAGE ...        more packages, such as dict-gcide or perl-doc
END
}

fail() {
  echo "fetch_text.sh: $*" >&2
  exit 1
}

# A package whose name carries a version goes by the one that depends on it.
packages=(apache2-doc debian-faq debian-handbook debian-history debian-kernel-handbook debian-policy
  debian-reference-en developers-reference dict-wn doc-debian git-doc harden-doc
  libreoffice-help-en-us manpages manpages-dev sqlite3-doc sword-comm-mhcc sword-text-kjv
  sword-text-web)
by_dependency=(libpython3-stdlib linux-source postgresql-doc python3-doc)

out='' keep='' kernel_mb=222
while [ $# -gt 0 ]; do
  case $1 in
  -h | --help) usage && exit 0 ;;
  --packages | --kernel-mb)
    if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 needs a value; --help says more"; fi
    if [ "$1" = --packages ]; then keep=$2; else kernel_mb=$2; fi
    shift
    ;;
  -*) fail "unknown option '$1'; --help lists them" ;;
  *) if [ -z "$out" ]; then out=$1; else packages+=("$1"); fi ;;
  esac
  shift
done
[ -n "$out" ] || fail "where to? usage: scripts/fetch_text.sh DIR"
[[ $kernel_mb =~ ^[0-9]{1,5}$ ]] || fail "--kernel-mb $kernel_mb is not a number of megabytes"
for tool in apt-get dpkg-deb groff python3 zstd; do
  command -v "$tool" >/dev/null || fail "$tool is missing; Debian's package of that name has it
  (groff-base has groff)"
done
[ ! -e "$out/text.jsonl.zst" ] || fail "$out/text.jsonl.zst is there already; remove it first"

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out" ${keep:+"$keep"}
work=$(mktemp -d "$out/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/text"
[ -n "$keep" ] || { keep=$work/debs && mkdir "$keep"; }

for name in "${by_dependency[@]}"; do
  real=$(apt-cache depends "$name" 2>/dev/null | sed -n 's/^  Depends: //p' | head -n 1)
  packages+=("${real:-$name}")
done

# Prints the package's file in $keep; fails if there is none.
deb_of() {
  local found
  found=$(find -L "$keep" -maxdepth 1 -name "$1_*.deb" | sort | tail -n 1)
  [ -n "$found" ] && printf '%s\n' "$found"
}

passed_over=()
for name in "${packages[@]}"; do
  if ! deb=$(deb_of "$name"); then
    (cd "$keep" && apt-get download -q=2 "$name") >/dev/null 2>"$work/why" || true
    deb=$(deb_of "$name") || { passed_over+=("$name") && continue; }
  fi
  echo "unpacking $name"
  dpkg-deb -x "$deb" "$work/text/$name"
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
"$here/collect_text.py" "$work/text" --kernel-mb "$kernel_mb" |
  zstd -q -6 --long=27 -T0 -o "$work/text.jsonl.zst"
mv "$work/text.jsonl.zst" "$out/text.jsonl.zst"
echo "$out/text.jsonl.zst is ready: ./prepare --train-tokenizer 32000 --out data/tok $out/text.jsonl.zst"
