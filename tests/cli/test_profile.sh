#!/usr/bin/env bash
# scripts/profile.sh with stand-ins for nsys and ncu, which note how they were called and run what they were given, and
# without them.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
calls=$folder/calls
mkdir "$folder/bin" "$folder/without"
export TRAIN calls OUT=$folder/out
here=(backend.device=cpu) # what a test on a machine without a GPU adds

for tool in bash dirname sed grep paste mkdir rm; do ln -s "$(command -v "$tool")" "$folder/without/$tool"; done
cat >"$folder/bin/nsys" <<'END_OF_NSYS'
#!/usr/bin/env bash
echo "nsys $*" >>"$calls"
[ "$1" = profile ] || exit 0
while [ "$1" != "$TRAIN" ]; do
  case $1 in --output=*) report=${1#*=} ;; esac
  shift
done
"$@" >"$report.said" 2>&1 || exit
[ -n "${writes_nothing:-}" ] || echo report >"$report.nsys-rep"
END_OF_NSYS
cat >"$folder/bin/ncu" <<'END_OF_NCU'
#!/usr/bin/env bash
echo "ncu $*" >>"$calls"
[ "$1" != --import ] || exit 0
while [ "$1" != "$TRAIN" ]; do
  [ "$1" != --export ] || report=$2
  shift
done
"$@" >"$report.said" 2>&1 || exit
[ -n "${writes_nothing:-}" ] || echo report >"$report.ncu-rep"
END_OF_NCU
chmod +x "$folder/bin/nsys" "$folder/bin/ncu"
PATH=$folder/bin:$PATH

# profile ARGUMENTS...: its exit status; what it said is in said and said.err, and the calls in $calls.
profile() {
  rm -f "$calls"
  PATH=${search:-$PATH} scripts/profile.sh "$@" >"$folder/said" 2>"$folder/said.err" </dev/null
}
said() { echo "it said: $(tail -n 3 "$folder/said") $(cat "$folder/said.err")"; }

# declines NAME WORDS ARGUMENTS...: exit status 1, one line with the words, nothing run or written.
declines() {
  local name=$1 words=$2 why
  shift 2
  before=$(listing)
  profile "$@"
  why=$(why_no_clear_error $? "$words")
  if [ -z "$why" ]; then passes "$name"; else fails "$name" "$why"; fi
}

# ---- What it needs
declines no_config_is_refused 'usage: scripts/profile.sh CONFIG.json'
declines a_missing_config_is_named "$folder/absent.json" "$folder/absent.json"
declines an_unknown_option_is_named "'--nuc'" --nuc gate_up "$config"
declines an_unknown_kind_of_kernels_is_refused "'fast' is none of auto, fused, unfused and both" "$config" fast
declines a_window_of_no_steps_is_refused "not '0'" "$config" output.profile_steps=0
declines ncu_without_an_operation_is_refused "'' is none; there are embed qkv attention" --ncu
declines an_unknown_operation_lists_those_there_are 'qkv_dgrad embed_backward requantize grads_finish muon adamw' --ncu gate "$config"
TRAIN=$folder/absent declines a_program_that_is_not_built_is_named 'make all' "$config"
search=$folder/without declines without_nsys_it_says_what_to_install 'apt-get install cuda-nsight-systems-13-0' "$config" "${here[@]}"
search=$folder/without declines without_ncu_it_says_what_to_install 'apt-get install cuda-nsight-compute-13-0' --ncu gate_up "$config"
touch "$folder/file"
OUT=$folder/file/out declines a_folder_that_cannot_be_made_is_named "'$folder/file/out' for the reports" "$config" "${here[@]}"

# ---- nsys
# called WORDS...: a call with all of them.
called() {
  local line word
  while IFS= read -r line; do
    for word in "$@"; do [[ " $line " == *" $word "* ]] || continue 2; done
    return 0
  done <"$calls"
  return 1
}
runs() { grep -oE 'backend\.kernels=[a-z]+' "$calls" | tr '\n' ' '; }
logged() { grep -c '"kind":"train"' "$folder/out/$1/log.jsonl"; }

profile "$config" both "${here[@]}"
status=$?
check it_profiles "status $status, $(said) $(cat "$folder"/out/*.said)" test $status = 0
check it_runs_both_kinds_of_kernels "$(runs)" test "$(runs)" = 'backend.kernels=auto backend.kernels=unfused '
for kind in auto unfused; do
  check "the_${kind}_run_is_recorded_between_start_and_stop" "$(cat "$calls")" called "nsys profile" \
    --capture-range=cudaProfilerApi --capture-range-end=stop "backend.kernels=$kind"
  check "the_${kind}_run_is_recorded_with_ranges_and_kernels" "$(cat "$calls")" called "backend.kernels=$kind" \
    --trace=cuda,nvtx,cublas --cuda-graph-trace=node
  check "train_gets_the_window_for_the_${kind}_run" "$(cat "$calls")" called "$TRAIN $config" "backend.kernels=$kind" \
    train.steps=12 output.profile_steps=3
  check "the_${kind}_run_trains_to_the_end_of_the_window" "$(logged $kind) steps" test "$(logged $kind)" = 12
  check "train_is_told_the_window_of_the_${kind}_run" "$(cat "$folder/out/$kind.said")" \
    grep -q '^profile    steps 10 to 12$' "$folder/out/$kind.said"
  check "it_prints_the_tables_of_the_${kind}_run" "$(cat "$calls")" called "nsys stats" \
    --report=cuda_gpu_kern_sum,nvtx_gpu_proj_sum,nvtx_kern_sum "$folder/out/$kind.nsys-rep"
done
check it_leaves_no_checkpoint "$(listing)" test -z "$(find "$folder/out" -name 'step-*')"

profile "$config" "${here[@]}"
check both_kinds_are_the_default "$(runs)" test "$(runs)" = 'backend.kernels=auto backend.kernels=unfused '
profile "$config" unfused "${here[@]}" output.profile_steps=5
check one_kind_alone_is_run "$(runs)" test "$(runs)" = 'backend.kernels=unfused '
check the_run_ends_with_the_window_that_was_asked_for "$(cat "$calls")" called train.steps=14
check overrides_come_last "$(cat "$calls")" grep -q 'backend.device=cuda .* backend.device=cpu' "$calls"

profile "$config" fused "${here[@]}" train.batch_size=0
status=$?
check a_run_that_fails_fails_it "status $status, $(said)" test $status = 1
check a_run_that_fails_is_said "$(said)" grep -q 'the run under nsys failed' "$folder/said.err"
writes_nothing=yes profile "$config" fused "${here[@]}"
status=$?
check an_older_report_is_not_taken_for_this_one "status $status, $(said)" test $status = 1
check a_missing_report_is_said "$(said)" grep -q "nsys wrote no $folder/out/fused.nsys-rep" "$folder/said.err"

# ---- ncu
LAUNCHES=5 profile --ncu gate_up "$config" "${here[@]}"
status=$?
check it_counts "status $status, $(said)" test $status = 0
check ncu_runs_both_kinds_of_kernels "$(runs)" test "$(runs)" = 'backend.kernels=auto backend.kernels=unfused '
check ncu_looks_at_the_range_of_the_operation_in_either_kind "$(cat "$calls")" called --nvtx '--nvtx-include gate_up (fused)/' \
  '--nvtx-include gate_up (unfused)/' '--launch-count 5'
check ncu_waits_for_the_window_of_one_step "$(cat "$calls")" called '--profile-from-start off' "$TRAIN $config" train.steps=10 \
  output.profile_steps=1
check ncu_prints_its_report "$(cat "$calls")" called "ncu --import $folder/out/unfused-gate_up.ncu-rep"
exit "$failed"
