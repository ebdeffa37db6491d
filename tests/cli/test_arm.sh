#!/usr/bin/env bash
# A 64-bit Arm host: the programs and some unit tests, cross-compiled and run by qemu. Token files are
# the same as here, losses the same within rounding, and a run that began there continues here. Arm's
# libraries are unpacked into a folder of this test, and not installed.
# TEST_SECONDS=1800
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
skip() { echo "ok - arm # SKIP $*" && exit 0; }
[[ $TRAIN != */asan/* ]] || skip 'it builds programs of its own'
[ "$(uname -m)" = x86_64 ] || skip "this host is no x86-64 one to compare with ($(uname -m))"
compiler=aarch64-linux-gnu-gcc
command -v $compiler >/dev/null || skip "there is no $compiler (apt-get install gcc-aarch64-linux-gnu)"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
  skip 'there is no qemu-aarch64-static (apt-get install qemu-user-static)'
command -v apt-get >/dev/null || skip "this system has no apt-get to fetch Arm's libraries with"

# What scripts/install_packages.sh installs, for Arm, with all that these need. apt's state and cache
# are in the folder, as if nothing was installed.
sysroot=$folder/arm libraries=$folder/arm/usr/lib/aarch64-linux-gnu
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$sysroot/usr/lib"
apt=(apt-get -q -o "Dir::State=$folder/apt" -o "Dir::Cache=$folder/apt" -o "Dir::State::status=$folder/apt/status"
  -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root -o Acquire::Retries=3)
: >"$folder/apt/status"
"${apt[@]}" update >"$folder/apt.log" 2>&1 &&
  "${apt[@]}" install -y --download-only --no-install-recommends libgomp1 libdnnl-dev libcjson-dev libpcre2-dev \
    libutf8proc-dev zlib1g-dev libzstd-dev libxxhash-dev libcmocka-dev >>"$folder/apt.log" 2>&1 ||
  skip "Arm's packages cannot be fetched: $(tail -n 1 "$folder/apt.log")"
ln -s usr/lib "$sysroot/lib"
for package in "$folder"/apt/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar --keep-directory-symlink -xf - -C "$sysroot" --wildcards './lib*' './usr/lib*' './usr/include*' 2>/dev/null
done
# Links to a system's root would leave the folder.
find "$sysroot" -type l -lname '/*' | while IFS= read -r link; do ln -sfn "$sysroot$(readlink "$link")" "$link"; done

unit=$(printf 'build/release/tests/unit/test_%s ' base choices config fp8 loader moments muon operations pack \
  reference regex safetensors tokens train_tokenizer)
mkdir "$folder/tree" && tree | tar -cf - -T - | tar -xf - -C "$folder/tree"
# shellcheck disable=SC2086 # one word a program
must env -u MAKEFLAGS -u MAKELEVEL "PKG_CONFIG_LIBDIR=$libraries/pkgconfig" "PKG_CONFIG_SYSROOT_DIR=$sysroot" \
  make -s -C "$folder/tree" -j"$(nproc)" "CC=$compiler --sysroot=$sysroot" CUDA_HOME=/none FUZZ_CC=false all $unit
passes it_compiles

on_arm() { "$qemu" -L "$sysroot" "$@"; }
cd "$folder/tree" || exit
for program in $unit; do
  said=$(OMP_NUM_THREADS=1 on_arm "$program" 2>&1)
  status=$?
  check "$(basename "$program")" "$(tail -n 5 <<<"$said")" test "$status" = 0
done

write_words 400 >"$folder/text.txt"
must "$PREPARE" --train-tokenizer 300 --out "$folder/tok" "$folder/text.txt"
must "$PREPARE" --tokenizer "$folder/tok" --out "$folder/data" "$folder/text.txt"
must on_arm ./prepare --train-tokenizer 300 --out "$folder/arm-tok" "$folder/text.txt"
must on_arm ./prepare --tokenizer "$folder/arm-tok" --out "$folder/arm-data" "$folder/text.txt"
for file in tok/tokenizer.json data/train-00000.bin data/val-00000.bin; do
  check "its_${file##*/}_is_the_same" "$(cmp "$folder/$file" "$folder/arm-$file" 2>&1)" cmp -s "$folder/$file" "$folder/arm-$file"
done

# apart A B STEPS: the largest relative difference of the losses and norms of two logs.
apart() {
  paste <(losses train "$1") <(losses train "$2") | sed -E 's/"(loss|grad_norm)":/\n\1 /g' | awk '
    /^(loss|grad_norm) / { split($2, v, ","); seen[++n] = v[1] }
    END {
      for (i = 1; i + 3 <= n; i += 4) for (k = 0; k < 2; k++) {
        difference = seen[i + k] / seen[i + k + 2] - 1
        if (difference < 0) difference = -difference
        if (difference > most) most = difference
        values++
      }
      if (values == 2 * '"$3"') printf "%.1e\n", most; else print values + 0 " values"
    }'
}
write_config "$folder/config.json"
sed -i "s/\"vocab_size\": 258/\"vocab_size\": 300/" "$folder/config.json"
compare() { # NAME STEPS BOUND OVERRIDES...
  local name=$1 steps=$2 bound=$3 most
  shift 3
  must "$TRAIN" "$folder/config.json" "output.dir=$folder/$name" "train.steps=$steps" "$@"
  must on_arm ./train "$folder/config.json" "output.dir=$folder/arm-$name" "train.steps=$steps" "$@"
  most=$(apart "$folder/$name/log.jsonl" "$folder/arm-$name/log.jsonl" "$steps")
  echo "# $name: losses and norms of $steps steps are up to $most apart, relative (bound $bound)"
  check "${name}_has_the_same_losses" "they are $most apart" \
    awk -v most="$most" -v bound="$bound" 'BEGIN { exit !(most ~ /^[0-9.]+e/ && most + 0 <= bound + 0) }'
}
compare fp32 20 1e-5
# One number that rounds to another e4m3 value sets runs apart: these did so after 11 steps.
compare fp8 10 1e-5 backend.precision=fp8
compare muon 20 1e-5 optimizer.kind=muon
must "$TRAIN" "$folder/config.json" "output.dir=$folder/arm-fp32" train.resume=auto train.steps=21
check a_run_of_arm_resumes_here "$(tail -n 3 "$folder/arm-fp32/log.jsonl")" grep -q '"kind":"train","step":21,' "$folder/arm-fp32/log.jsonl"
said=$(on_arm ./train --doctor)
check no_instructions_are_named_that_arm_lacks "$said" grep -q 'oneDNN [0-9.]* (reference), fp32$' <<<"$said"
exit "$failed"
