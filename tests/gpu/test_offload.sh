#!/usr/bin/env bash
# Runs whose moments, masters or gradients, too, lie in the host's memory: the bits of plain runs, also after kills in steps and in
# saves; and one sentence where the host has too little. Set KILLS (12) for more.
# shellcheck source=tests/night/share.sh
. "$(dirname "$0")/../night/share.sh"
faulty=$PWD/build/release/tests/gpu/train_faults
prepare_data 4000
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

# ---- The host's memory
refuses a_host_without_the_memory 'not enough memory on the host: backend.offload needs ' configs/70b-width.json \
  "data.train=$folder/data/train-*.bin" data.val= data.tokenizer=bytes backend.device=cuda backend.offload=masters \
  model.num_hidden_layers=900 "output.dir=$folder/refused"
FAIL_HOST_ALLOCATION=1 TRAIN=$faulty refuses pinned_memory_that_is_refused 'of pinned memory' \
  "$config" backend.offload=moments "output.dir=$folder/refused"
exit "$failed"
