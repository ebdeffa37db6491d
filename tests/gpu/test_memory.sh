#!/usr/bin/env bash
# The memory of whole runs on the GPU: what is taken beside what was planned, for every kind of run, and runs under a limit.
# Both count all of the card's memory that is taken, so no other program may run on the GPU.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
# shellcheck disable=SC2046 # kernels_are gives several overrides
prepare_data 8000
write_documents >"$folder/text.jsonl"
must "$PREPARE" --out "$folder/documents" "$folder/text.jsonl"
ask_doctor

of_start() { grep -oE "\"$1\":[0-9]+" "$folder/$2/log.jsonl" | head -n 1 | grep -oE '[0-9]+$'; } # FIELD RUN
train() { # NAME CONFIG OVERRIDES...: a run of two steps that saves nothing
  must "$TRAIN" "$2" "output.dir=$folder/$1" "data.train=$folder/data" data.val= data.tokenizer=bytes train.steps=2 \
    optimizer.warmup_steps=0 train.sample_interval=-1 train.save_interval=-1 backend.device=cuda "${@:3}"
}
# takes_its_plan NAME CONFIG OVERRIDES...: within 1 %. So a plan has to be above 410 MiB: small blocks share one of the
# driver's granules of 2 MiB and libraries take one, which at 388 MiB was 1.02 %.
takes_its_plan() {
  local taken planned
  train "$@"
  taken=$(of_start memory_taken "$1") planned=$(of_start planned "$1")
  echo "# $1: $taken bytes taken, $planned planned, bound 1 %"
  check "${1}_takes_the_memory_that_was_planned" "$taken taken, $planned planned" \
    awk -v t="$taken" -v p="$planned" 'BEGIN { d = t - p; exit !(p > 410 * 2 ^ 20 && d * d <= (p / 100) ^ 2) }'
}

for kernels in $all_kernels $([ "$all_kernels" = unfused ] || echo mma_sync); do
  takes_its_plan "$kernels-shakespeare" configs/shakespeare.json $(kernels_are "$kernels") train.sample_interval=0
  takes_its_plan "$kernels-15m" configs/llama-15m.json $(kernels_are "$kernels") backend.masters=bf16
done

cat >"$config" <<END
{
  "model": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 258, "max_position_embeddings": 128},
  "train": {"steps": 2, "batch_size": 256, "sequence_length": 128},
  "backend": {"deterministic": true},
  "output": {"dir": "$folder/run"}
}
END
for kernels in $(fp8_kernels "$config" "data.train=$folder/data"); do
  takes_its_plan "$kernels-fp8" "$config" $(kernels_are "$kernels") backend.precision=fp8
done
takes_its_plan documents "$config" "data.train=$folder/documents" data.documents=mask backend.deterministic=false

# ---- Offloaded to the host. The kernels are named: with auto, a run's timings choose some of them.
for offload in none moments masters gradients; do
  takes_its_plan "offload-$offload" configs/llama-15m.json $(kernels_are "${all_kernels##* }") "backend.offload=$offload"
done
less=$(($(of_start planned offload-none) - $(of_start planned offload-masters))) on_host=$(of_start host offload-masters)
check what_the_gpu_has_less_the_host_has "$less and $on_host" \
  awk -v a="$less" -v b="$on_host" 'BEGIN { d = a - b; exit !(b > 0 && d * d <= (4 * 2 ^ 20) ^ 2) }'

# ---- A limit between an offloaded run and a plain one: masters and moments have 470 MB
large=(model.hidden_size=512 model.intermediate_size=1408 model.num_hidden_layers=2 model.num_attention_heads=8 model.num_key_value_heads=8
  model.vocab_size=32000 train.batch_size=2 train.sequence_length=64 train.loss_chunks=1 optimizer.schedule=constant)
CODA_MEMORY_LIMIT=20GB train limited "$config" "${large[@]}"
used=$((20000000000 - $(of_start free limited))) planned=$(of_start planned limited)
echo "# the driver has $used bytes, a plain run $planned"
limit=$(((used + planned - 100000000) / 1000000))MB
large+=("data.train=$folder/data" data.tokenizer=bytes backend.device=cuda optimizer.warmup_steps=0 train.sample_interval=-1)
CODA_MEMORY_LIMIT=$limit refuses a_run_beyond_the_limit 'backend.offload=moments' "$config" "${large[@]}" "output.dir=$folder/refused"
CODA_MEMORY_LIMIT=$limit "$TRAIN" --plan "$config" "${large[@]}" >"$folder/said" 2>&1
check the_plan_knows_the_limit "$(tail -n 4 "$folder/said")" grep -q 'the run does not fit; it would fit with' "$folder/said"
CODA_MEMORY_LIMIT=$limit "$TRAIN" --plan "$config" "${large[@]}" backend.offload=masters >"$folder/said" 2>&1
check the_plan_of_both_sides_fits "$(tail -n 4 "$folder/said")" \
  grep -qE 'this GPU has .* free, and the host .*: the run fits' "$folder/said"

# A plain run resumes within the limit.
large+=("backend.kernels=${all_kernels%% *}" train.steps=8)
must "$TRAIN" "$config" "${large[@]}" train.save_interval=4 "output.dir=$folder/whole"
mkdir "$folder/resumed" && cp -r "$folder/whole/step-00000004" "$folder/resumed"
CODA_MEMORY_LIMIT=$limit must "$TRAIN" "$config" "${large[@]}" train.save_interval=4 backend.offload=masters train.resume=auto \
  "output.dir=$folder/resumed"
check a_plain_run_resumes_offloaded_within_a_limit "$(same_bits "$folder/whole" "$folder/resumed" 2>&1)" \
  same_bits "$folder/whole" "$folder/resumed"
exit "$failed"
