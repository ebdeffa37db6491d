#!/usr/bin/env bash
# A run's folder and its checkpoints, as the commands see them: one process trains in it, others read beside it.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
run=$folder/run
begin() { # ARGUMENTS...: trains in the background, past its first save; $process is its id
  rm -f "$run/log.jsonl"
  "$TRAIN" "$config" train.steps=1000000 train.save_interval=5 train.keep_checkpoints=1 "$@" >"$folder/said.one" 2>&1 &
  process=$!
  wait_for '"kind":"save"' "$run/log.jsonl" $process || cat "$folder/said.one"
}

# ---- One process a folder
begin
stop $process # so that what is written meanwhile is not its own
refuses a_second_process_is_refused_with_the_first_ones_id "process $process on " \
  "$config" train.steps=50 train.resume=auto
refuses a_second_process_is_refused_without_resume_too 'trains there' "$config" train.steps=50
kill -CONT $process
check the_first_process_goes_on "$(cat "$folder/said.one")" kill -0 $process
works generate_reads_beside_a_run "$TRAIN" --generate "$run" --prompt x --tokens 4
works eval_reads_beside_a_run "$TRAIN" --eval "$run" --data "$folder/data"
kill -KILL $process
wait $process 2>/dev/null
check a_killed_run_leaves_its_file 'there is none' test -e "$run/lock"
begin train.resume=auto
check a_killed_run_locks_nothing "$(cat "$folder/said.one")" kill -TERM $process
wait $process
check a_run_that_ends_takes_its_lock_along 'it is there' test ! -e "$run/lock"

# Both begin before the folder is there: one of them trains.
rm -rf "$run"
for i in 1 2; do
  "$TRAIN" "$config" train.steps=400 >"$folder/said.$i" 2>&1 &
  processes[i]=$!
done
lost=0
for i in 1 2; do wait "${processes[i]}" || lost=$((lost + 1)); done
check of_two_that_begin_at_once_one_trains "$(tail -n 1 "$folder"/said.[12])" test $lost = 1

# ---- Damage in the newest of two checkpoints (unit/test_checkpoint_damage has every kind): the one before is taken, with a
# reason, and the run ends with the same bits
twice=(train.steps=20 train.save_interval=10)
must "$TRAIN" "$config" "${twice[@]}" "output.dir=$folder/whole"
cp -a "$folder/whole" "$folder/damaged"
newest=$folder/damaged/step-00000020
cp "$folder/damaged/step-00000010/model.safetensors" "$newest"
refuses a_named_checkpoint_with_the_weights_of_another_is_refused 'is of step 10' "$config" "${twice[@]}" \
  "output.dir=$folder/damaged" "train.resume=$newest"
check eval_takes_the_one_before "$(said)" \
  test "$("$TRAIN" --eval "$folder/damaged" --data "$folder/data" 2>&1 | grep -c 'passed over\|^loss')" = 2
"$TRAIN" "$config" "${twice[@]}" "output.dir=$folder/damaged" train.resume=auto >"$folder/said" 2>"$folder/said.err"
check so_does_a_run_that_resumes "status $?, $(said)" grep -q '^resumed    at step 10 of 20' "$folder/said"
check it_says_why "$(said)" grep -q "step-00000020' is passed over: .*is of step 10" "$folder/said.err"
check it_makes_the_damaged_one_again "$(same_bits "$folder/whole" "$folder/damaged" 2>&1)" \
  same_bits "$folder/whole" "$folder/damaged"

# ---- What is kept
keep=(train.eval_interval=5 train.keep_best=true train.keep_checkpoints=1
  train.save_interval=10 "output.dir=$folder/kept" optimizer.schedule=constant)
must "$TRAIN" "$config" "${keep[@]}"
must "$TRAIN" "$config" "${keep[@]}" train.steps=40 train.resume=auto optimizer.learning_rate=30 # ruins it
best=$(sed -n 's/.*"best_val_step": \([0-9]*\).*/\1/p' "$folder/kept/latest/state.json")
lowest=$(losses val "$folder/kept/log.jsonl" | grep -v '"step":0,' |
  sed 's/.*"step":\([0-9]*\),"loss":\([0-9.e+]*\).*/\2 \1/' | sort -g | head -n 1 | cut -d ' ' -f 2)
check the_best_validation_is_saved_and_kept "best is step $best, the log's $lowest, kept are $(ls "$folder/kept")" \
  test "$(readlink "$folder/kept/best")$lowest" = "step-$(printf '%08d' "$best")$best"
check what_is_best_was_not_the_last "it was step $best" test "$best" != 40
check only_it_the_newest_and_the_last_good_one_are_kept "$(ls "$folder/kept")" \
  test "$(cd "$folder/kept" && echo step-????????)" = "step-$(printf '%08d' "$best") step-00000030 step-00000040"

# The last update that is applied ruins the weights, which no loss has shown when they are saved.
stuck=(train.steps=14 train.save_interval=1 train.keep_checkpoints=1 optimizer.warmup_steps=0 optimizer.learning_rate=100
  optimizer.weight_decay=100)
"$TRAIN" "$config" "${stuck[@]}" "output.dir=$folder/stuck" >"$folder/said" 2>"$folder/said.err"
last=$(sed -n 's/.*"kind":"train","step":\([0-9]*\),.*"applied":true.*/\1/p' "$folder/stuck/log.jsonl" | tail -n 1)
check a_run_that_diverges_skips_updates "$(said)" test "${last:-0}" -gt 1 -a "${last:-99}" -lt 10
good=step-$(printf '%08d' $((last - 1)))
check a_run_that_diverged_keeps_weights_that_a_finite_step_followed "$(ls "$folder/stuck"), its last update was $last" \
  test -d "$folder/stuck/$good"
"$TRAIN" "$config" train.steps="$last" "output.dir=$folder/freed" "train.resume=$folder/stuck/$good" \
  train.resume_allow_changes=true optimizer.learning_rate=0.001 >"$folder/said" 2>"$folder/said.err"
check a_run_goes_on_from_them "$(said)" grep -q '"applied":true' "$folder/freed/log.jsonl"

# ---- A folder that is taken from under its run: one sentence, an error, nothing more written, and the last checkpoint stands
options=(train.steps=400 train.save_interval=5 train.keep_checkpoints=1)
must "$TRAIN" "$config" "${options[@]}" train.save_interval=0 "output.dir=$folder/unharmed"
running() { # WORDS ARGUMENTS...: trains in the background, and stands still once its log has the words; $process is its id
  local words=$1
  shift
  "$TRAIN" "$config" "${options[@]}" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null &
  process=$!
  wait_for "$words" "$run/log.jsonl" $process && stop $process
}
ended() { # NAME WORDS: the run continues until it ends, with one line that has the words
  kill -CONT $process
  wait $process
  status=$?
  check "a_run_whose_folder_$1_ends_with_one_sentence" "status $status, $(said)" \
    test "$status $(wc -l <"$folder/said.err") $(grep -c "^train: .*$2" "$folder/said.err")" = '1 1 1'
}
resumes() { # NAME FOLDER: the last checkpoint there resumes, to the same bits and losses
  local step
  step=$(sed -n 's/.*; its last checkpoint is of step \([0-9]*\)$/\1/p' "$folder/said.err")
  check "a_run_whose_folder_$1_says_its_last_checkpoint" "$(said), $(ls "$2")" test -d "$2/$(printf 'step-%08d' "${step:-0}")"
  "$TRAIN" "$config" "${options[@]}" train.save_interval=0 train.resume=auto "output.dir=$2" >"$folder/said" 2>"$folder/said.err"
  check "a_run_whose_folder_$1_resumes_to_the_same_bits" "from $2: $(said)" same_bits "$folder/unharmed" "$2"
  check "a_run_whose_folder_$1_has_its_whole_log" "in $2" \
    test "$(losses train "$folder/unharmed/log.jsonl")" = "$(losses train "$2/log.jsonl")"
  rm -rf "$run" "$folder/moved"
}
sums() { (cd "$1" && find . -type f -exec cksum {} + | LC_ALL=C sort); }
lost='was moved, removed or replaced while the run trained there; the run ends at step [0-9]*; its last checkpoint is of step'

rm -rf "$run"
running '"kind":"save"'
rm -rf "$run"
ended is_removed "$lost"
check it_is_not_created_again "$(ls "$run" "$run".* 2>&1)" test ! -e "$run" -a -z "$(compgen -G "$run.*")"

running '"kind":"save"'
mv "$run" "$folder/moved"
ended is_moved "$lost"
resumes is_moved "$folder/moved"

# Another run has the name, and a third one wants it: the second one's lock and files stay.
running '"kind":"save"'
first=$process
mv "$run" "$folder/moved"
mv "$folder/said" "$folder/said.one" && mv "$folder/said.err" "$folder/said.one.err"
running '"kind":"save"'
second=$process
before=$(sums "$run")
kill -CONT $first
wait $first
status=$?
check a_run_whose_name_another_has_ends_with_one_sentence "status $status, $(cat "$folder/said.one.err")" \
  test "$status $(wc -l <"$folder/said.one.err") $(grep -c "$lost" "$folder/said.one.err")" = '1 1 1'
check it_touches_nothing_of_the_other "$(diff <(echo "$before") <(sums "$run"))" test "$before" = "$(sums "$run")"
refuses a_third_one_is_refused_with_the_seconds_id "process $second on " "$config" "${options[@]}" train.resume=auto
kill -CONT $second
wait $second
status=$?
check the_second_one_ends_as_if_nothing_had_been "status $status, $(said)" same_bits "$folder/unharmed" "$run"
cp "$folder/said.one.err" "$folder/said.err"
resumes is_named_as_another "$folder/moved"

# Without saves to come, a look a second sees it.
options=(train.steps=400 train.save_interval=0)
running '"kind":"train"'
rm "$run/lock"
before=$(ls "$run")
sleep 1.1
ended loses_its_lock 'while the run trained there; the run ends at step [0-9]*; it has saved no checkpoint'
check nothing_more_is_written_there "$(ls "$run")" test "$(ls "$run")" = "$before"
rm -rf "$run"

# ---- Disks that take nothing more, where file systems can be mounted
mount=$folder/mount disk=$folder/disk
mounted() { # NAME COMMAND...: the command mounts $mount, or the test is left out
  local name=$1
  shift
  mkdir -p "$mount"
  if "$@" 2>/dev/null; then
    trap 'umount "$mount" 2>/dev/null; rm -rf "$folder"' EXIT
  else
    echo "ok - $name # SKIP no file system can be mounted here"
    return 1
  fi
}
unsaved() { # NAME WORDS: the run continues to its last step, which cannot be saved; the checkpoint before resumes
  kill -CONT $process
  wait $process
  status=$?
  check "a_run_whose_$1_ends_with_an_error" "status $status, $(said)" \
    test "$status $(tail -n 1 "$folder/said.err" | grep -c "^train: .*$2.*; the checkpoint '$run/step-[0-9]*' is intact")" = '1 1'
  cp -a "$run" "$folder/copied"
  umount "$mount"
  "$TRAIN" "$config" "${options[@]}" train.resume=auto "output.dir=$folder/copied" >"$folder/said" 2>"$folder/said.err"
  check "a_run_whose_$1_resumes_to_the_same_bits" "$(said)" same_bits "$folder/unharmed" "$folder/copied"
  rm -rf "$folder/copied"
}
run=$mount/run
options=(train.steps=400 train.save_interval=100)
if mounted a_run_whose_disk_is_full_ends_with_an_error mount -t tmpfs -o size=4m tmpfs "$mount"; then
  running '"kind":"save"' "output.dir=$run"
  head -c 8M /dev/zero >"$mount/full" 2>/dev/null
  unsaved disk_is_full 'free space'
fi
# shellcheck disable=SC2317 # it is called through mounted
loop() { truncate -s 16M "$disk" && mkfs.ext4 -q -F "$disk" && mount -o loop,errors=remount-ro "$disk" "$mount"; }
if mounted a_run_whose_disk_becomes_read_only_ends_with_an_error loop; then
  running '"kind":"save"' "output.dir=$run"
  if echo test >"/sys/fs/ext4/$(basename "$(findmnt -no SOURCE "$mount")")/trigger_fs_error"; then
    unsaved disk_becomes_read_only 'Read-only file system'
  fi
fi
exit $failed
