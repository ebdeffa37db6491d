#!/usr/bin/env bash
# Installs what is missing from the distribution's packages, and only that.
# usage: scripts/install_packages.sh build|test|all     test: what the build needs, and the tests; all: and test.sh --all
# It tries whether a compiler or library works, so one that was installed another way counts, too.
set -u

say() { echo "packages: $*"; }
fail() {
  echo "install_packages.sh: $*" >&2
  exit 1
}

cc=${CC:-gcc} fuzz_cc=${FUZZ_CC:-clang}

compiles() { # COMPILER FLAGS...: a program that includes what ours do
  printf '%s\n' '#include <omp.h>' '#include <stdio.h>' \
    'int LLVMFuzzerTestOneInput(const char *d, long n);' \
    'int LLVMFuzzerTestOneInput(const char *d, long n)' \
    '{ return d == (const char *)n + omp_get_max_threads(); }' \
    "${main_line:-}" | "$@" -x c - -lm -o /dev/null >/dev/null 2>&1
}

module() { pkg-config --exists "$1" 2>/dev/null; }

# What is missing: in the distribution's names, and in words for systems of another kind.
find_missing() {
  packages=() words=() optional=()
  main_line='int main(void) { return 0; }' compiles "$cc" -fopenmp ||
    { packages+=(gcc libc6-dev) && words+=('a C compiler with OpenMP'); }
  # Kernels are compiled by nvcc, which needs a C++ compiler.
  if command -v nvcc || compgen -G '/usr/local/cuda*/bin/nvcc' || [ -x /opt/cuda/bin/nvcc ]; then
    command -v "${CXX:-g++}" || { packages+=(g++) && words+=('a C++ compiler'); }
  fi >/dev/null
  command -v make >/dev/null || { packages+=(make) && words+=('GNU make'); }
  command -v pkg-config >/dev/null || { packages+=(pkg-config) && words+=('pkg-config'); }
  module libcjson || { packages+=(libcjson-dev) && words+=('cJSON'); }
  "$cc" -E -include oneapi/dnnl/dnnl.h -x c /dev/null >/dev/null 2>&1 ||
    { packages+=(libdnnl-dev) && words+=('oneDNN, built with OpenMP'); }
  module libpcre2-8 || { packages+=(libpcre2-dev) && words+=('PCRE2'); }
  module libutf8proc || { packages+=(libutf8proc-dev) && words+=('utf8proc'); }
  module zlib || { packages+=(zlib1g-dev) && words+=('zlib'); }
  module libzstd || { packages+=(libzstd-dev) && words+=('zstd'); }
  module libxxhash || { packages+=(libxxhash-dev) && words+=('xxHash'); }
  [ "$1" != build ] || return 0
  command -v python3 >/dev/null || { packages+=(python3) && words+=('Python'); }
  module cmocka || { packages+=(libcmocka-dev) && words+=('cmocka'); }
  # Some releases have libFuzzer's run-time library in a package of its own.
  compiles "$fuzz_cc" -fopenmp -fsanitize=fuzzer,address,undefined ||
    { packages+=(clang libomp-dev libclang-rt-dev) && words+=('clang with libFuzzer and OpenMP'); }
  [ "$1" = all ] || return 0
  # What tests of pages, of bare systems and of Arm call; they skip what is not there.
  for package in groff-base:groff zstd:zstd xz-utils:xz debootstrap:debootstrap \
    gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc qemu-user-static:qemu-aarch64-static; do
    command -v "${package#*:}" >/dev/null || optional+=("${package%:*}")
  done
}

missing_words() {
  local text
  text=$(printf '%s, ' "${words[@]}")
  echo "${text%, }"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt() {
  as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l \
    apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null >>"$log" 2>&1
}

apt_failed() {
  echo "   ..." >&2
  tail -n 12 "$log" | sed 's/^/   /' >&2
  rm -f "$log"
  fail "apt-get $1 failed as shown above; when that is put right, run this again"
}

install_missing() {
  log=$(mktemp)
  say "installing ${packages[*]}"
  apt update || apt_failed update
  local available=() package
  for package in "${packages[@]}"; do
    [ "$package" = libclang-rt-dev ] && ! apt-cache show "$package" >/dev/null 2>&1 && continue
    available+=("$package")
  done
  apt install -y --no-install-recommends "${available[@]}" || apt_failed install
  rm -f "$log"
}

# What this system does not have, or does not give, is done without.
install_optional() {
  if ! command -v apt-get >/dev/null || { [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; }; then
    say "going without ${optional[*]}, which this user cannot install"
    return 0
  fi
  log=$(mktemp)
  say "installing ${optional[*]}"
  [ ${#packages[@]} != 0 ] || apt update || true # apt install says what came of it
  apt install -y --no-install-recommends "${optional[@]}" ||
    say "going without ${optional[*]}: apt-get says '$(tail -n 1 "$log")'"
  rm -f "$log"
}

what=${1:-}
[[ $what =~ ^(build|test|all)$ ]] || fail "say what for: build, test or all"
find_missing "$what"
if [ ${#packages[@]} = 0 ] && [ ${#optional[@]} != 0 ]; then
  install_optional
  exit 0
elif [ ${#packages[@]} = 0 ]; then
  say "nothing is missing"
  exit 0
fi
command -v apt-get >/dev/null ||
  fail "this system has no apt-get; install with its own package manager, headers included:" \
    "$(missing_words)"
if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
  fail "packages are missing, and installing them needs root or sudo; as root run:" \
    "apt-get install ${packages[*]}"
fi
install_missing
[ ${#optional[@]} = 0 ] || install_optional
find_missing "$what"
[ ${#packages[@]} = 0 ] || fail "installed, but still not usable: $(missing_words)"
