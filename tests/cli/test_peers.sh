#!/usr/bin/env bash
# scripts/torch_llama.py: PyTorch trains as we do, from the same weights on the same tokens; and the tables of
# step_times.sh, with a stand-in for Python where that is enough.
# shellcheck disable=SC2016,SC2317 # the stand-in's own text; functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
real_python=${PYTHON:-}
for candidate in .venv/bin/python python3; do
  [ -n "$real_python" ] || ! command -v "$candidate" >/dev/null || real_python=$candidate
done

# ---- Tables. The stand-in's peers are a step's time in ms, and what part of its peak that is, if it is told: 100+0.5
cat >"$folder/python" <<'END'
#!/usr/bin/env bash
[ "$1" != -c ] || { [[ $2 = *print* ]] && echo 'torch 2.99'; exit 0; }
IFS=+ read -r ms mfu <<<"$2"
for word; do case $word in output.dir=*) out=${word#*=} ;; train.steps=*) steps=${word#*=} ;; esac; done
[ "$ms" != hangs ] || exec sleep 20
[ "$ms" != bad ] || { echo 'torch_llama.py: it is bad' >&2; exit 1; }
mkdir -p "$out"
for step in $(seq "$steps"); do
  echo '{"kind":"train","step":'"$step"',"loss":1,"ms":'"$ms"',"tokens_per_s":7680,"mfu":'"${mfu:-null}"'}'
done >"$out/log.jsonl"
echo "step 1/$steps | loss 1"
echo 'memory     1.5 GiB'
END
chmod +x "$folder/python"
export DEVICE=cpu STEPS=11
has() { grep -qE -- "$1" "$folder/said"; }
table() { # NAME WORDS: the line is in what was said
  check "$1" "$(cat "$folder/said")" has "$2"
}
cell() { awk -F ' [|] ' -v name="$1" -v at="$2" '$3 == name { sub(/ .*/, "", $at); print $at; exit }' "$folder/said"; }

PYTHON=$folder/python PEERS='100+0.5 bad 200' scripts/step_times.sh quickstart >"$folder/said" 2>&1
status=$?
check a_peer_that_fails_fails_the_comparison "status $status, $(cat "$folder/said")" test "$status" = 1
table a_peer_that_fails_is_said 'quickstart in fp32 with bad did not run to its end: torch_llama.py: it is bad$'
table the_table_says_whose_torch '^torch 2.99$'
n='[0-9.]+' shape='6 x 128'
table ours_is_measured "^\| quickstart \| fp32 \| auto \| $shape \| $n \($n to $n\) \| ${n}k \|  \| $n MiB \| $n s \| 1.00 \|\$"
table a_peers_row_has_all_columns "100\+0.5 \| $shape \| 100.0 \(100.0 to 100.0\) \| 7.7k \| 50.0 % \| 1.5 GiB \| $n s \| $n \|\$"
table the_peers_after_one_that_failed_go_on '^\| quickstart \| fp32 \| 200 .*\| 200.0 .*\| 25.0 % \|'
check ours_is_measured_again_at_the_end "$(cat "$folder/said")" test "$(grep -c '| auto |' "$folder/said")" = 2
check the_last_column_is_the_ratio "$(cat "$folder/said")" awk -v ours="$(cell auto 5)" -v ratio="$(cell 200 10)" \
  'BEGIN { d = 200 / ours - ratio; exit !(ours > 0 && ratio > 0 && d < 0.006 && -d < 0.006) }'

PYTHON=$folder/python PEERS=hangs setsid scripts/step_times.sh quickstart >"$folder/shown" 2>&1 &
shown_early() { wait_for '| auto |' "$folder/shown" "$1" && kill -0 "$1" 2>/dev/null; } # PROCESS
check a_row_is_shown_before_the_next_is_there "the whole table came at once" shown_early $!
kill -- -$! && wait $! 2>/dev/null # with all that it started

"${real_python:-false}" scripts/torch_llama.py --help >"$folder/said" 2>&1
[ -z "$real_python" ] || table the_peers_are_explained_without_torch '^usage: scripts/torch_llama.py PEER'
[ -z "$real_python" ] || "$real_python" scripts/torch_llama.py >"$folder/said" 2>&1
table the_peer_asks_for_what_it_needs '^torch_llama.py: (torch|numpy) is not installed|^torch_llama.py: it needs a peer and a config'

# ---- scripts/peers/kernels.sh. What was measured is drawn without torch.
mkdir "$folder/measured"
measured() { # WHO MS: of a step
  printf '"1b %s bf16": {"model": "1b", "who": "%s", "precision": "bf16", "batch": 4, "length": 8192, "failed": null,
  "card": "a GPU", "passes_ms": [380, 390, 395], "step_ms": [%d, %d, %d],
  "shares": {"GEMMs": 0.75, "attention": 0.125, "the rest": 0.125}}' "$1" "$1" "$2" "$2" "$2"
}
echo "{$(measured ours 400), $(measured torch 500)}" >"$folder/measured/results.json"
if [ -n "$real_python" ]; then
  "$real_python" scripts/peers/kernels.py report "$folder/measured" >"$folder/said" 2>&1
  table a_step_is_split '^[|] bf16 [|] ours [|] 390.0 [(]380.0 to 395.0[)] [|] 400.0 .*[|] 75.0 % [|] 12.5 % [|] 12.5 % [|]$'
  drawn() { grep -q "<rect .* width=\"$1\" height=\"26\"" "$folder/measured/shares.svg"; }
  check the_slowest_step_is_drawn_in_full "$(cat "$folder/measured/shares.svg")" drawn 390.0 # 0.75 of 520
  check others_by_their_time "$(cat "$folder/measured/shares.svg")" drawn 312.0
fi

# ---- Losses, and results of single operations
if ! { [ -n "$real_python" ] && "$real_python" -c 'import torch, numpy, safetensors' 2>/dev/null; }; then
  echo 'ok - pytorch_trains_as_we_do # SKIP torch, numpy or safetensors is not installed (pip install -r scripts/requirements.txt)'
  exit "$failed"
fi
# In fp32, of all values together: observed at most 4e-7 for ours and PyTorch's.
agree_with_fp64() {
  "$real_python" - "$folder/operations/results.json" <<'END'
import json, sys
patterns = json.load(open(sys.argv[1]))["tiny"]["patterns"]
errors = [error for rivals in patterns.values() for name in ("ours", "unfused", "torch.compile")
          for error in rivals[name]["error"].values()]
sys.exit(not (len(patterns) == 9 and len(errors) == 57 and max(errors) < 1e-6))
END
}
if [ -e build/shared/peers.so ]; then
  must "$real_python" scripts/peers/kernels.py width tiny "$folder/operations"
  check operations_agree_with_fp64 "$(cat "$folder/operations/results.json")" agree_with_fp64
else
  echo 'ok - operations_agree_with_fp64 # SKIP make build/shared/peers.so was not called'
fi
prepare_data 400
write_config "$folder/config.json"
# Loss, gradient norm and rate of each step; validations before the first, in the middle and at the end have no norm.
steps() {
  sed -nE -e 's/.*"kind":"train".*"loss":([^,]*),"lr":([^,]*),"grad_norm":([^,]*),.*/\1 \3 \2/p' \
    -e 's/.*"kind":"val".*"loss":([^,]*),.*"tokens":([^,}]*).*/\1 1 \2/p' "$1/log.jsonl"
}

# Of loss and gradient norm of five steps and three validations, relative to ours: observed at most 1.6e-7 and 3.1e-7. Rates
# have nine digits in our log.
agree() { # OURS THEIRS
  paste <(steps "$1") <(steps "$2") | awk '
    function off(a, b, d) { d = (a - b) / b; return d < 0 ? -d : d }
    { loss = off($4, $1) > loss ? off($4, $1) : loss; norm = off($5, $2) > norm ? off($5, $2) : norm; last = $1 }
    off($6, $3) > 1e-8 { rates = 1 }
    NR == 1 { first = $1 }
    END { printf "# losses differ by %.1e, norms by %.1e, bounds 2e-6 and 4e-6\n", loss, norm
          exit !(NR == 8 && !rates && last < first && loss <= 2e-6 && norm <= 4e-6) }'
}

trains_alike() { # NAME OVERRIDES...
  local name=$1 all
  shift
  all=("$folder/config.json" "$@" train.save_interval=-1 train.eval_interval=3)
  must "$TRAIN" "$folder/config.json" "$@" train.steps=5 "output.dir=$folder/$name"
  all+=(train.steps=5 "train.init_from=$folder/$name/latest")
  must "$TRAIN" "${all[@]}" "output.dir=$folder/$name-ours"
  must "$real_python" scripts/torch_llama.py eager "${all[@]}" "output.dir=$folder/$name-theirs"
  check "pytorch_trains_$name" "ours: $(steps "$folder/$name-ours"), theirs: $(steps "$folder/$name-theirs")" \
    agree "$folder/$name-ours" "$folder/$name-theirs"
}
trains_alike grouped_heads_in_two_micro_batches train.gradient_accumulation=2 \
  optimizer.norm_rate=4
trains_alike tied_embeddings model.tie_word_embeddings=true model.num_key_value_heads=4 optimizer.clip_norm=0 \
  data.shuffle=false optimizer.schedule=constant optimizer.warmup_steps=0 train.eval_batches=0
token_slice "$folder/data/train-00000.bin" 150 >"$folder/few.bin" # 3 windows and an offset: a new order every second step
trains_alike in_the_same_order data.train="$folder/few.bin" optimizer.schedule=wsd optimizer.decay_steps=3 \
  optimizer.warmup_steps=2 optimizer.min_learning_rate=0.0001
trains_alike quarters_and_halves_of_sequences train.first_context=8 train.context_warmup=3
trains_alike halves_of_sequences train.first_context=16 train.context_warmup=3
trains_alike stretched_rope optimizer.schedule=linear model.rope_scaling.rope_type=llama3 model.rope_scaling.factor=8 \
  model.rope_scaling.low_freq_factor=1 model.rope_scaling.high_freq_factor=4 \
  model.rope_scaling.original_max_position_embeddings=16 model.rope_theta=500
exit "$failed"
