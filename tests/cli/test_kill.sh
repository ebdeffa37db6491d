#!/usr/bin/env bash
# A run that saves every second step is killed with SIGKILL at 50 random moments, saves included. Each time it must
# go on, and in the end it must have the bits of a run that was never killed.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
RANDOM=${KILL_SEED:-20240520} # bash's own generator: the same moments each time, as far as the clock allows
kills=50
prepare_data 400
config=$folder/config.json
write_config "$config"
options=(train.steps=150 train.save_interval=2 train.keep_checkpoints=2 train.eval_interval=25)

must "$TRAIN" "$config" "${options[@]}" "output.dir=$folder/whole"

# What must be there after a kill: `latest` is a whole checkpoint. Only the very first save may leave its folder named and
# the link not there yet; resuming finds that folder by itself, and the equal bits at the end show that it did.
latest_is_whole() {
  local file saved
  mapfile -t saved < <(compgen -G "$1/step-????????")
  if [ ! -L "$1/latest" ]; then
    [ ${#saved[@]} -le 1 ]
    return
  fi
  for file in model.safetensors config.json optimizer.safetensors run.json state.json; do
    [ -s "$1/latest/$file" ] || return 1
  done
}

killed=0 in_saves=0 rounds=0
problem=''
while [ $killed -lt $kills ] && [ -z "$problem" ]; do
  rounds=$((rounds + 1))
  run=$folder/killed-$rounds starts=0
  while :; do
    "$TRAIN" "$config" "${options[@]}" "output.dir=$run" train.resume=auto >"$folder/said" 2>"$folder/said.err" &
    process=$!
    if [ $killed -lt $kills ]; then
      # From the first step on: how long a start takes depends on the libraries that are linked.
      starts=$((starts + 1))
      until [ "$(grep -c '"kind":"start"' "$run/log.jsonl" 2>/dev/null)" = $starts ]; do
        kill -0 $process 2>/dev/null || break
      done
      sleep "0.$(printf '%03d' $((RANDOM % 120)))"
      kill -KILL $process 2>/dev/null
    fi
    wait $process 2>/dev/null
    status=$?
    [ $status = 137 ] || break
    killed=$((killed + 1))
    [ -z "$(compgen -G "$run/step-*.tmp")" ] || in_saves=$((in_saves + 1))
    latest_is_whole "$run" || problem="after kill $killed latest is no whole checkpoint: $(ls -l "$run")"
    [ -z "$problem" ] || break
  done
  if [ -z "$problem" ] && [ "$status" != 0 ]; then
    problem="after kill $killed it did not go on (status $status): $(cat "$folder/said.err")"
  elif [ -z "$problem" ]; then
    problem=$(same_bits "$folder/whole" "$run" 2>&1)
  fi
done
echo "# $killed kills in $rounds runs, $in_saves of them in the middle of a save"
check a_run_killed_at_50_random_moments_always_goes_on_and_ends_with_the_same_bits "$problem" test -z "$problem"
check some_kills_fell_into_a_save 'none did, so the test shows less than it should' test $in_saves -gt 0
left=$(compgen -G "$run/step-*.tmp"; compgen -G "$run/step-*.old")
check what_the_kills_left_behind_is_cleaned_up "$left" test -z "$left"
check a_killed_run_logs_the_same_losses \
  "$(diff <(losses train "$folder/whole/log.jsonl") <(losses train "$run/log.jsonl") | head -n 4)" \
  test "$(losses train "$folder/whole/log.jsonl")" = "$(losses train "$run/log.jsonl")"
lost=$(for step in $(seq 2 2 150); do grep -q "\"kind\":\"save\",\"step\":$step," "$run/log.jsonl" || echo "$step"; done)
check a_killed_run_logs_every_save "the saves of these steps are missing: $lost" test -z "$lost"
exit $failed
