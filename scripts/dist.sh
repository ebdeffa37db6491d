#!/usr/bin/env bash
# What `make dist` calls: packs the programs of build/dist, the shared libraries that they need, and
# this tree, into one archive that runs without any package.
# usage: scripts/dist.sh ARCHIVE.tar.gz     its folder inside has the archive's name
# The libraries are this machine's, of releases that other distributions do not have: oneDNN is
# libdnnl.so.2 in Debian 12 and Ubuntu 22.04, and libdnnl.so.3 after them. Every system has its own C
# and C++ libraries, and these must be as new as this machine's symbols ask. CUDA's are NVIDIA's.
set -euo pipefail
archive=$(realpath -m "${1:?usage: scripts/dist.sh ARCHIVE.tar.gz}") parts=$PWD/build/dist
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../tests/support/lib.sh"
of_every_system='^(linux-vdso|ld-linux-|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so)'

fail() {
  echo "dist.sh: $*" >&2
  exit 1
}

# Those of both programs, and of their libraries: a name and a path a line.
libraries() { ldd "$parts/train" "$parts/prepare" | awk '$2 == "=>" { print $1, $3 }' | sort -u | grep -vE "$of_every_system"; }

# copy_library NAME PATH: with its licence.
copy_library() {
  local package text path folders
  [ -f "$2" ] || fail "$1, which the programs need, is not on this machine"
  path=$(realpath "$2") && folders=${path%/*}
  package=$(dpkg -S "*/${folders##*/}/${path##*/}" 2>/dev/null | head -n 1 | cut -d : -f 1)
  text=/usr/share/doc/$package/copyright
  [ -n "$package" ] && [ -f "$text" ] ||
    fail "no Debian package with its licence has $2: make the archive on Debian or Ubuntu, with their packages"
  cp -L "$2" "$root/lib/$1"
  cp "$text" "$root/lib/licences/$package"
}

# newest PREFIX: the highest version of these symbols that is needed.
newest() { objdump -T "$root"/{train,prepare} "$root"/lib/*.so* | grep -oE "\($1_[0-9.]+\)" | tr -d '()' | sort -uV | tail -n 1; }

for program in train prepare; do
  [ -x "$parts/$program" ] || fail "there is no program $parts/$program: make dist builds it, and calls this"
done
root=$folder/$(basename "$archive" .tar.gz)
mkdir -p "$root/lib/licences" "$(dirname "$archive")"
if [ -e .git ]; then git ls-files; else tree; fi | tar -cf - -T - | tar -xf - -C "$root"
for program in train prepare; do strip -o "$root/$program" "$parts/$program"; done
libraries >"$folder/libraries"
while read -r name path; do copy_library "$name" "$path"; done <"$folder/libraries"
when=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$when" -cf - "$(basename "$root")" |
  gzip -9n >"$archive.part"
mv "$archive.part" "$archive"
glibc=$(newest GLIBC)
echo "${archive#"$PWD"/}: $(($(stat -c %s "$archive") / 1000000)) MB; needs glibc ${glibc#GLIBC_} and libstdc++ with $(newest GLIBCXX)"
[ "$(printf '%s\n' GLIBC_2.35 "$glibc" | sort -V | tail -n 1)" = GLIBC_2.35 ] ||
  echo 'dist.sh: it does not start on Ubuntu 22.04 (glibc 2.35); for that, make it on Ubuntu 22.04 or Debian 12' >&2
