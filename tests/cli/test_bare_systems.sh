#!/usr/bin/env bash
# The archive of `make dist`, and then the README's two commands, in bare systems of Debian 12 and 13, which
# debootstrap makes. Nothing that this machine happens to have is there, CUDA's and cuDNN's headers above all. Where no
# such system can be made, the two commands run here with the folders of CUDA hidden. All of it needs root.
# TEST_SECONDS=3600
# usage: tests/cli/test_bare_systems.sh [bookworm|trixie|hidden ...]
# shellcheck disable=SC2317 # functions are called in another shell
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

try() { # COMMAND
  local began=$SECONDS
  # shellcheck disable=SC2086 # a command and its options
  if "${enter[@]}" $1 >"$root.log" 2>&1 </dev/null; then
    passes "$place: $1" && echo "# $((SECONDS - began)) s, the end: $(tail -n 1 "$root.log")"
  else
    grep -E '^ *not ok' "$root.log" || tail -n 40 "$root.log" | sed 's/^/   /'
    fails "$place: $1" "after $((SECONDS - began)) s: $(tail -n 1 "$root.log")"
  fi
}
# In a system to which nothing was added.
try_archive() { # ROOT
  local root=$1 place="$place, an archive" enter=(chroot "$1" env -i -C /archive HOME=/root PATH=/usr/bin:/bin)
  mkdir "$root/archive" && tar -xzf "$archive" -C "$root/archive" --strip-components=1 || exit
  try './scripts/quickstart.sh --steps 20'
  try './train --generate runs/quickstart --tokens 20 --prompt static'
  try './train --doctor'
  rm -rf "$root/archive"
}
no_place() { echo "ok - $place # SKIP $1" && exit 77; }

# Runs in namespaces of its own, which take its mounts and processes with them when they end.
inside() { # PLACE ROOT
  local place=$1 root=$2 enter folders mirror header
  mkdir "$root"
  if [ "$place" = hidden ]; then
    for folders in /usr/local/cuda* /opt/cuda; do
      [ ! -d "$folders" ] || mount -t tmpfs none "$folders" || no_place "nothing can be mounted on $folders"
    done
    for header in cudnn_graph.h cublasLt.h nvtx3/nvToolsExt.h; do
      ! gcc -E -include "$header" -x c /dev/null >/dev/null 2>&1 || no_place "$header is in a folder that is not hidden"
    done
    mkdir "$root/tmp"
    enter=(env -C "$root/coda" "TMPDIR=$root/tmp")
  else
    # shellcheck disable=SC2016 # words of apt-get and awk
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' |
      awk '$2 == "Debian" && $1 ~ /^http.*\/debian\/$/ { print $1; exit }')
    eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    [ -z "${http_proxy:-}" ] || export http_proxy
    debootstrap --variant=minbase "$place" "$root" "${mirror:-http://deb.debian.org/debian}" >"$root.log" 2>&1 ||
      no_place "debootstrap: $(tail -n 1 "$root.log")"
    apt-config dump | grep -E '^Acquire::https?::' >"$root/etc/apt/apt.conf.d/90host"
    mount -t proc proc "$root/proc" || no_place '/proc cannot be mounted'
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts" || no_place '/dev/pts cannot be mounted'
    try_archive "$root"
    enter=(chroot "$root" env -i -C /coda HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin)
  fi
  mkdir "$root/coda" && tree | tar -cf - -T - | tar -xf - -C "$root/coda" || exit
  # In one of them a user with sudo, whose numbers have a comma.
  if [ "$place" = trixie ]; then
    "${enter[@]}" sh -c 'apt-get install -y --no-install-recommends sudo locales &&
      localedef -i de_DE -f UTF-8 de_DE.UTF-8 && useradd -m user && chown -R user /coda &&
      echo "user ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/user' >"$root.log" 2>&1 ||
      no_place "no user: $(tail -n 1 "$root.log")"
    enter=(chroot --userspec user "${enter[@]:1}" HOME=/home/user LANG=de_DE.UTF-8)
  fi
  try './scripts/quickstart.sh --steps 50'
  try ./scripts/test.sh
  exit "$failed"
}
export failed archive
export -f inside try try_archive no_place passes fails tree

# What is removed is a folder that this script made; nothing is mounted there where it runs.
end() {
  [ -z "$child" ] || kill -KILL -- "-$child" 2>/dev/null
  for _ in {1..50}; do rm -rf --one-file-system "$folder" 2>/dev/null && return; sleep 0.1; done
  echo "# $folder could not be removed"
}
child=''
trap end EXIT
trap 'exit 130' INT TERM HUP
run() { # PLACE
  set -m # a process group of its own, which signals reach
  # shellcheck disable=SC2016 # bash -c expands it
  unshare --mount --pid --fork --kill-child --mount-proc bash -c 'inside "$@"' inside "$1" "$folder/$1" </dev/null &
  child=$! && set +m
  wait "$child" 2>/dev/null
  local status=$?
  child=''
  rm -rf --one-file-system "${folder:?}/$1"
  [ $status = 0 ] || [ $status = 77 ] || failed=1
  return $status
}

why=''
if [[ $TRAIN = */asan/* ]]; then why='they build programs of their own'
elif ! unshare --mount --pid --fork true 2>/dev/null; then why='they need root, and namespaces'; fi
if [ -n "$why" ]; then
  echo "ok - bare systems # SKIP $why"
  exit 0
fi
archive=$folder/coda-c.tar.gz
must scripts/dist.sh "$archive"
places=("$@") made=$#
[ $# -gt 0 ] || places=(bookworm trixie)
for place in "${places[@]}"; do
  run "$place"
  [ $? = 77 ] || made=1
done
[ "$made" != 0 ] || run hidden
exit "$failed"
