#!/usr/bin/env bash
# Runs whose moments, masters or gradients, too, lie in the host's memory: the bits of plain runs, also after kills in steps and in
# saves, and resumed under a limit; the memory that was planned; and one sentence where either side has too little. Set KILLS
# (12) for more.
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/../night/share.sh"
faulty=$PWD/build/release/tests/gpu/train_faults
prepare_data 4000
config=$folder/config.json
cat >"$config" <<END
{
  "model": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2, "num_attention_heads": 8,
            "vocab_size": 32000, "max_position_embeddings": 64},
  "data": {"train": "$folder/data/train-*.bin", "tokenizer": "bytes"},
  "train": {"steps": 8, "batch_size": 2, "sequence_length": 64, "eval_interval": 0, "save_interval": 0,
            "keep_checkpoints": 2, "sample_interval": -1, "loss_chunks": 1},
  "optimizer": {"schedule": "constant", "learning_rate": 0.0005},
  "backend": {"device": "cuda", "deterministic": true},
  "output": {"dir": "$folder/run"}
}
END
ask_doctor
run() { # NAME OVERRIDES...
  local name=$1
  shift
  must "$TRAIN" "$config" "output.dir=$folder/$name" "$@"
}
of_start() { grep -oE "\"$1\":[0-9]+" "$folder/$2/log.jsonl" | head -n 1 | grep -oE '[0-9]+$'; } # FIELD RUN

# ---- Equal bits of saved runs; test_offload.c has all kinds of steps
offloaded_alike() { # NAME OVERRIDES...
  local name=$1 offload
  shift
  run "$name" "$@"
  for offload in moments masters gradients; do
    run "$name-$offload" "backend.offload=$offload" "$@"
    check "${name}_with_${offload}_on_the_host_has_the_same_bits" "$(same_end "$folder/$name" "$folder/$name-$offload")" \
      same_bits "$folder/$name" "$folder/$name-$offload"
    rm -rf "${folder:?}/$name-$offload"
  done
}
offloaded_alike saved_beside_steps train.save_interval=1
offloaded_alike saved_while_training_waits train.save_interval=1 output.background_save=false
[ -z "$(fp8_kernels "$config")" ] || offloaded_alike fp8 backend.precision=fp8 train.gradient_accumulation=2
rm -rf "$folder"/saved* "$folder"/fp8*

# ---- Kills, in steps and in saves
killed=(train.steps=40 train.save_interval=2 backend.moments=bf16)
run plain "${killed[@]}"
for offload in moments gradients; do
  run=$folder/killed-$offload
  for ((kill = 0; kill < ${KILLS:-12}; kill++)); do
    "$TRAIN" "$config" "${killed[@]}" "backend.offload=$offload" "output.dir=$run" train.resume=auto >"$folder/said" \
      2>"$folder/said.err" </dev/null &
    process=$!
    starts=$(grep -c '"kind":"start"' "$run/log.jsonl" 2>/dev/null)
    until [ "$(grep -c '"kind":"start"' "$run/log.jsonl" 2>/dev/null)" != "$starts" ]; do
      kill -0 $process 2>/dev/null || break
    done
    sleep "$(milliseconds 900)"
    kill -KILL $process 2>/dev/null && count "SIGKILL, $offload"
    wait $process
    latest_is_whole "$run" || fault "after kill $kill latest is no whole checkpoint" "$run"
    [ ! -s "$run/latest/state.json" ] || ! grep -q '"step": 40\b' "$run/latest/state.json" || break
  done 2>/dev/null
  run "killed-$offload" "${killed[@]}" "backend.offload=$offload" train.resume=auto
  [ -n "$problem" ] || differs=$(same_bits "$folder/plain" "$run" 2>&1) || fault "it ended with other bits: $differs" "$run"
  rm -rf "$run"
done
finish offloaded_runs_that_are_killed_go_on_and_end_with_the_bits_of_a_plain_one
check some_were_killed "${counted[*]}" test ${#counted[@]} = 2

# ---- Memory: what is taken against the plan, and limits. A limit counts what other programs and the driver have.
for offload in none moments masters gradients; do
  must "$TRAIN" configs/llama-15m.json "data.train=$folder/data/train-*.bin" data.val= data.tokenizer=bytes train.steps=2 \
    optimizer.warmup_steps=0 train.sample_interval=-1 train.save_interval=-1 backend.device=cuda "backend.offload=$offload" \
    "output.dir=$folder/15m-$offload"
  taken=$(of_start memory_taken "15m-$offload") planned=$(of_start planned "15m-$offload")
  echo "# offload=$offload: $taken bytes taken, $planned planned, $(of_start host "15m-$offload") on the host; bound 1 %"
  check "with_offload_${offload}_the_gpu_has_the_memory_that_was_planned" "$taken, $planned planned" \
    awk -v t="$taken" -v p="$planned" 'BEGIN { d = t - p; exit !(p > 0 && t > 0 && d * d <= (p / 100) ^ 2) }'
done
less=$(($(of_start planned 15m-none) - $(of_start planned 15m-masters))) on_host=$(of_start host 15m-masters)
check what_the_gpu_has_less_the_host_has "$less and $on_host" \
  awk -v a="$less" -v b="$on_host" 'BEGIN { d = a - b; exit !(b > 0 && d * d <= (4 * 2 ^ 20) ^ 2) }'

CODA_MEMORY_LIMIT=20GB run limited train.steps=1 optimizer.warmup_steps=0
used=$((20000000000 - $(of_start free limited))) planned=$(of_start planned limited)
echo "# the driver and others have $used bytes, a plain run $planned"
limit=$(((used + planned - 100000000) / 1000000))MB # masters and moments have 470 MB
says_in_one_sentence() { # NAME WORDS STATUS
  check "${1}_ends_with_status_1" "status $3: $(cat "$folder/said.err")" test "$3" = 1
  check "${1}_says_so_in_one_sentence" "$(cat "$folder/said.err")" \
    test "$(grep -cE "$2" "$folder/said.err")/$(wc -l <"$folder/said.err")" = 1/1
}
CODA_MEMORY_LIMIT=$limit "$TRAIN" "$config" "output.dir=$folder/refused" >"$folder/said" 2>"$folder/said.err"
says_in_one_sentence a_run_beyond_the_limit '^train: not enough memory: .*it would fit with .*backend.offload=moments' $?
check it_wrote_nothing "$(ls "$folder/refused" 2>&1)" test ! -e "$folder/refused"
CODA_MEMORY_LIMIT=$limit "$TRAIN" --plan "$config" >"$folder/said" 2>&1
check the_plan_knows_the_limit "$(tail -n 4 "$folder/said")" grep -q 'the run does not fit; it would fit with' "$folder/said"
CODA_MEMORY_LIMIT=$limit "$TRAIN" --plan "$config" backend.offload=masters >"$folder/said" 2>&1
check the_plan_of_both_sides_fits "$(tail -n 4 "$folder/said")" \
  grep -qE 'this GPU has .* free, and the host .*: the run fits' "$folder/said"

# A plain run goes on within the limit.
first=${all_kernels%% *}
run resumed "backend.kernels=$first" train.steps=4
CODA_MEMORY_LIMIT=$limit run resumed "backend.kernels=$first" train.resume=auto backend.offload=masters
run whole "backend.kernels=$first"
check a_plain_run_goes_on_offloaded_within_a_limit "$(same_bits "$folder/whole" "$folder/resumed" 2>&1)" \
  same_bits "$folder/whole" "$folder/resumed"

# ---- The host's memory
"$TRAIN" configs/70b-width.json "data.train=$folder/data/train-*.bin" data.tokenizer=bytes backend.device=cuda \
  backend.offload=masters model.num_hidden_layers=900 "output.dir=$folder/refused" >"$folder/said" 2>"$folder/said.err"
says_in_one_sentence a_host_without_the_memory '^train: not enough memory on the host: backend.offload needs ' $?
FAIL_HOST_ALLOCATION=1 "$faulty" "$config" backend.offload=moments "output.dir=$folder/refused" >"$folder/said" \
  2>"$folder/said.err"
says_in_one_sentence pinned_memory_that_is_refused 'the system refused .* of pinned memory' $?
check neither_wrote_anything "$(ls "$folder/refused" 2>&1)" test ! -e "$folder/refused"
exit "$failed"
