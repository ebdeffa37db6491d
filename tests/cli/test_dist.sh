#!/usr/bin/env bash
# The archive of `make dist`: what is in it, which libraries it takes from the system, and that it
# trains and writes where there is no compiler. test_bare_systems.sh starts it in other systems.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
if [[ $TRAIN = */asan/* ]]; then
  echo 'ok - dist # SKIP an archive has programs of its own'
  exit 0
fi

made=$(scripts/dist.sh "$folder/coda-c-1.tar.gz" 2>&1) || fails it_is_made "$made"
echo "# $made"
must tar -xzf "$folder/coda-c-1.tar.gz" -C "$folder"
root=$folder/coda-c-1

if [ -e .git ]; then git ls-files; else tree; fi | LC_ALL=C sort >"$folder/here"
(cd "$root" && find . -type f ! -path './lib/*' ! -path ./train ! -path ./prepare | cut -c 3-) | LC_ALL=C sort >"$folder/there"
check it_has_the_tree "$(diff "$folder/here" "$folder/there")" cmp -s "$folder/here" "$folder/there"

of_system='/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.[0-9]+$'
found=$(env -u LD_LIBRARY_PATH ldd "$root"/{train,prepare} | awk '$2 == "=>" { print $3 }' | sort -u)
elsewhere=$(grep -vE "^$root/(\./)?lib/|$of_system" <<<"$found")
check its_libraries_are_beside_it "these are not: $elsewhere" test -z "$elsewhere"
check cuda_is_loaded_only_where_a_gpu_is_used "$found" test -z "$(grep -E 'cuda|cublas|cudnn|nvidia' <<<"$found")"
check each_library_has_its_licence "$(ls "$root/lib" "$root/lib/licences")" \
  test "$(find "$root/lib" -name '*.so*' | wc -l)" = "$(find "$root/lib/licences" -type f | wc -l)"

mkdir "$folder/bin"
for program in make gcc cc git apt-get; do
  printf '#!/bin/sh\necho "%s was called" >&2\nexit 1\n' $program >"$folder/bin/$program" && chmod +x "$folder/bin/$program"
done
said=$(env -i HOME="$folder" "PATH=$folder/bin:/usr/bin:/bin" "$root/scripts/quickstart.sh" --steps 20 2>&1)
check quickstart_builds_nothing "it said: $said" test "$(grep -c '^step 20/20\|^none: \|was called' <<<"$said")" = 2
said=$(cd / && env -i "$root/train" --generate "$root/runs/quickstart" --prompt 'static ' --tokens 20 --temperature 0 2>&1)
check it_writes "it said: $said" grep -q '^static ' <<<"$said"
exit "$failed"
