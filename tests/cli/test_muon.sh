#!/usr/bin/env bash
# optimizer.kind=muon as a user meets it: the plan, the start, runs that are killed and stopped and end with equal bits,
# and checkpoints of the other kind.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400

less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }'; }

# ---- The plan
plan_of() { "$TRAIN" --plan "$config" model.hidden_size=512 model.intermediate_size=2048 "$@" >"$folder/said" 2>&1; }
mebibytes() { # OF A LINE THAT BEGINS SO
  awk -v line="  $1" 'index($0, line) == 1 { if ($NF == "MiB") print $(NF - 1); else print "?" $NF }' "$folder/said"
}
plan_of optimizer.kind=adamw
adamw=$(mebibytes total) adamw_copy=$(mebibytes 'host: snapshot')
plan_of optimizer.kind=muon
muon=$(mebibytes total) muon_copy=$(mebibytes 'host: snapshot')
check the_plan_shows_the_kind "$(cat "$folder/said")" grep -q '"kind": "muon"' "$folder/said"
check the_plan_names_muons_momentum "$(cat "$folder/said")" grep -q '^  Muon momentum  *fp32 ' "$folder/said"
check muon_takes_less_memory "$muon MiB, adamw $adamw" less "$muon" "$adamw"
check its_copy_for_saves_is_smaller "$muon_copy MiB, adamw $adamw_copy" less "$muon_copy" "$adamw_copy"

# ---- Learning
must train_into adamw
must train_into muon optimizer.kind=muon
check the_start_names_the_kind "$(cat "$folder/said")" grep -q 'optimizer: kind="muon"' "$folder/said"
check the_log_has_the_kind "$(grep '"start"' "$folder/muon/log.jsonl")" grep -q '"kind":"start".*"kind":"muon"' "$folder/muon/log.jsonl"
start=$(grep '"kind":"val"' "$folder/muon/log.jsonl" | head -n 1 | grep -oE '"loss":[^,]*' | cut -d: -f2)
echo "# loss $start, after 20 steps of AdamW $(last_loss val adamw), of Muon $(last_loss val muon)"
check muon_learns "$start, then $(last_loss val muon)" less "$(last_loss val muon)" "$start"
check its_optimizer_file_is_smaller "$(ls -l "$folder"/{muon,adamw}/latest/optimizer.safetensors)" \
  test "$(stat -c %s "$folder/muon/latest/optimizer.safetensors")" -lt "$(stat -c %s "$folder/adamw/latest/optimizer.safetensors")"

# ---- Interrupted: killed and stopped again and again, also while momentum rises (20 steps), a run ends with the same bits.
# as_whole NAME ARGUMENTS...
as_whole() {
  local name=$1 step signal process
  shift
  local options=(train.steps=60 train.save_interval=7 optimizer.kind=muon "$@")
  must train_into "whole_$name" "${options[@]}"
  for step in 10 24 25 46; do
    signal=$([ $((step % 2)) = 0 ] && echo KILL || echo TERM)
    "$TRAIN" "$config" "output.dir=$folder/cut_$name" "${options[@]}" train.resume=auto \
      >"$folder/said" 2>"$folder/said.err" </dev/null &
    process=$!
    # The log may have the step already, and a signal to bash's fork before its exec runs this script's trap.
    wait_for '^train' "/proc/$process/comm" $process
    wait_for "\"kind\":\"train\",\"step\":$step," "$folder/cut_$name/log.jsonl" $process
    kill -"$signal" $process 2>/dev/null
    wait $process 2>/dev/null
  done
  train_into "cut_$name" "${options[@]}" train.resume=auto
  check "a_run_${name}_resumes" "$(said)" grep -q '^resumed ' "$folder/said"
  check "a_run_${name}_that_was_killed_and_stopped_ends_with_the_same_bits" \
    "$(same_bits "$folder/whole_$name" "$folder/cut_$name" 2>&1)" same_bits "$folder/whole_$name" "$folder/cut_$name"
}
as_whole of_whole_batches
as_whole of_three_micro_batches train.gradient_accumulation=3 train.loss_chunks=2 \
  model.tie_word_embeddings=true optimizer.norm_rate=3
as_whole with_bf16_moments backend.moments=bf16 output.save_dtype=bf16 output.background_save=false

# ---- The other kind's checkpoints
refuses adamws_checkpoint_is_not_resumed_with_muon "has the moments of optimizer.kind=adamw: resume with \
that, or start another run from its weights by train.init_from=" "$config" "output.dir=$folder/adamw" train.resume=auto train.steps=30 optimizer.kind=muon
refuses nor_is_muons_with_adamw 'it has the moments of optimizer.kind=muon: ' "$config" \
  "output.dir=$folder/muon" train.resume=auto train.steps=30
refuses nor_where_changes_are_allowed 'the moments of optimizer.kind=muon: resume with that' "$config" "output.dir=$folder/muon" \
  train.resume=auto train.steps=30 train.resume_allow_changes=true
train_into from_adamw optimizer.kind=muon "train.init_from=$folder/adamw"
check muon_starts_from_adamws_weights "$(said)" grep -qF 'done; ' "$folder/said"
train_into muon optimizer.kind=muon train.resume=auto train.steps=30 optimizer.momentum=0.9
check another_momentum_needs_no_permission "$(said)" grep -q 'optimizer.momentum 0.95 -> 0.9' "$folder/said"

refuses a_momentum_of_1_is_refused 'optimizer.momentum is 1, but it must be a number, at least 0 and below 1' "$config" \
  "output.dir=$folder/none" optimizer.momentum=1
refuses an_unknown_kind_lists_those_there_are 'optimizer.kind is "lion", but it must be "adamw" or "muon"' "$config" \
  "output.dir=$folder/none" optimizer.kind=lion
exit $failed
