#!/usr/bin/env bash
# The power fails while a run trains, validates or saves: its file system, ext4 on a loop device, is told to stop there and
# then (FS_IOC_SHUTDOWN without writing the journal out), and mounted anew, which is what a disk has after a power cut. The
# run must go on and end with the bits of one that was never interrupted, and its log has all up to the last save.
# Needs root, loop devices, ext4 and python3.
# usage: tests/night/power.sh SECONDS
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/share.sh"
test=a_run_whose_power_fails_goes_on_and_ends_with_the_same_bits
skip() {
  echo "ok - $test # SKIP $1"
  exit 0
}
[ "$(id -u)" = 0 ] || skip 'it needs root'
for tool in mkfs.ext4 mount python3; do command -v $tool >/dev/null || skip "it needs $tool"; done
disk=$folder/disk mount=$folder/mount
mkdir "$mount"
truncate -s 48M "$disk" && mkfs.ext4 -q -F "$disk" || skip 'no file system can be made'
mount -o loop "$disk" "$mount" 2>/dev/null || skip 'no loop device can be mounted here'
trap 'umount "$mount" 2>/dev/null; rm -rf "$folder"' EXIT
cut_power() { # FS_IOC_SHUTDOWN, FS_SHUTDOWN_FLAGS_NOLOGFLUSH
  python3 -c 'import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack("I", 2))' "$mount" 2>/dev/null
}
cut_power || skip 'the file system cannot be shut down'
again() { umount "$mount" && mount -o loop "$disk" "$mount"; }
must again

prepare_run 400
options=(train.steps=60 train.save_interval=3 train.keep_checkpoints=2 train.eval_interval=20)
must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole"
run=$mount/run

start() { # with a place for the steps that the disk does not take any more
  TMPDIR=$folder "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
}
saved_step() { grep -oE '"step": [0-9]+' "$run/latest/state.json" 2>/dev/null | grep -oE '[0-9]+' || echo 0; }

# The log's steps up to the last checkpoint: saves sync it. What was not synced may be a line's beginning, or zeros.
log_is_whole() {
  local saved
  saved=$(saved_step)
  [ -e "$run/log.jsonl" ] || return "$saved"
  tr -d '\0' <"$run/log.jsonl" >"$folder/log"
  [ "$(losses train "$folder/log" | head -n "$saved")" = "$(losses train "$folder/whole/log.jsonl" | head -n "$saved")" ]
}

while time_left; do
  rm -rf "$run"
  for _ in 1 2 3 4 5 6; do
    start
    sleep "$(milliseconds 400)"
    sync_point=$(compgen -G "$run/step-*.tmp")
    must cut_power
    kill -KILL $process 2>/dev/null
    wait $process 2>/dev/null
    must again
    count 'power cuts'
    [ -z "$sync_point" ] || count 'in save'
    latest_is_whole "$run" || fault "latest is no whole checkpoint: $(ls -l "$run")" "$run"
    log_is_whole || fault "the log lacks steps before the last save, $(saved_step)" "$run"
    time_left || break
  done 2>/dev/null
  [ -z "$problem" ] || break
  start
  wait $process || fault "it did not go on: $(cat "$folder/said.err")" "$run"
  [ -n "$problem" ] || differs=$(same_bits "$folder/whole" "$run" 2>&1) || fault "it ended with other bits: $differs" "$run"
  count runs
done
finish $test
exit $failed
