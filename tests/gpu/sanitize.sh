#!/usr/bin/env bash
# Short runs of tiny models under compute-sanitizer's tools: steps launched one by one, and steps recorded and replayed.
# What is reported in kernels of cuBLASLt and cuDNN is counted apart, for they are not ours to mend; anything else fails.
# So are racecheck's reports of a word that cluster_store writes and cluster_load reads: both are strong accesses, which it
# does not tell from others, and kernels/fused/tickets.h says why no word is written before all have read it.
# That a tool would report a fault of ours is seen from a program that has one (planted_faults.cu).
#
# synccheck leaves cuDNN's kernels out: it reports divergent threads in 9.19's attention backward on an H200 and ends it.
# racecheck leaves none out: with a filter on kernels' names it failed itself there ("Internal Sanitizer Error"), without
# one it runs to the end.
#
# initcheck sees a store only where it is an instruction of a thread, and on Hopper and later libraries store through the
# copy engine (TMA) where rows are multiples of 16 bytes. So it gets a model whose rows are not: hidden 36, ffn 20. The
# attention's output is still stored so, and only libraries read it: a short sequence keeps their reports few enough for
# the tool's buffer. The other tools get sizes for which our kernels take their wide accesses. The fused kernels store
# through the copy engine only, so initcheck is not for them; every program runs at any width. Recorded steps launch what
# launched ones do, and initcheck does not come to their end in 300 s: it gets launched ones, whole and in pieces.
#
# usage: make sanitize [TOOLS='racecheck memcheck'] [ONLY='*_fp8_*']: these tools alone, the runs of these names alone
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
PLANTED=build/release/tests/gpu/planted_faults
SANITIZER=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)}
if [ -z "$SANITIZER" ]; then
  fails sanitizer_runs 'compute-sanitizer was not found: install the CUDA toolkit, or name it in SANITIZER'
  exit 1
fi
read -ra tools <<<"${TOOLS:-memcheck racecheck synccheck initcheck}"
libraries='nvjet|cutlass|cudnn|cublas|xmma|splitK|fmha|sdpa'
ours=$(grep -ohE '\b[a-z_]+_kernel\(' kernels/*/*.cu kernels/*/*.cuh | tr -d '(' | sort -u | paste -sd '|')
prepare_data 200
seq 1000 1139 | sed 's/.*/{"text": "&"}/' >"$folder/short.jsonl"
must "$PREPARE" --out "$folder/short" "$folder/short.jsonl" # 14 documents of 5 rows to validate on
write_config "$folder/config.json"
common=(backend.device=cuda backend.deterministic=true model.head_dim=16 train.steps=3 optimizer.warmup_steps=1
  train.eval_interval=3 train.eval_batches=1)
sampled=(backend.kernels=unfused train.sample_interval=3 train.sample_tokens=3)
aligned=("${sampled[@]}" model.hidden_size=64 model.intermediate_size=96)
unaligned=("${sampled[@]}" model.hidden_size=36 model.intermediate_size=20 train.batch_size=1 train.sequence_length=8)
fused=(backend.kernels=fused model.num_hidden_layers=1 model.hidden_size=256 model.intermediate_size=384 model.vocab_size=384)
mma_sync=(backend.kernels=fused backend.mainloop=mma_sync model.num_hidden_layers=1 model.hidden_size=264 model.intermediate_size=168
  model.vocab_size=258) # edges of tiles; any GPU has these kernels
fp8=(backend.precision=fp8 train.steps=4) # one more: the first calibrates
narrow=(backend.moments=bf16 backend.masters=bf16)
# As fine-tuning has them: documents shorter than half a window, and 3 windows of 32 rows, or 5 of 16, in batches of 2.
documents=("data.train=$folder/short" "data.val=$folder/short" data.documents=mask train.eval_batches=0 train.batch_size=2)
short_windows=(train.sequence_length=16) # after `unaligned`
launched=(backend.graphs=false)
replayed=(backend.graphs=true train.gradient_accumulation=2 train.loss_chunks=2)

# How a tool is called: sets `options`.
tool_options() { # TOOL
  options=(--tool "$1" --print-limit 100000 --show-backtrace device)
  case $1 in
  synccheck) options+=(--kernel-name-exclude kns=cudnn) ;;
  initcheck) options+=(--force-blocking-launches) ;;
  esac
}

run() { # NAME COMMAND... -- OVERRIDES...: the run's log is $folder/NAME.log
  local name=$1 command=()
  shift
  while [ "$1" != -- ]; do command+=("$1") && shift; done
  shift
  command+=("$TRAIN" "$folder/config.json" "output.dir=$folder/$name")
  local status start=$SECONDS
  timeout "${LIMIT:-300}" "${command[@]}" "${common[@]}" "$@" >"$folder/$name.log" 2>&1
  status=$?
  echo "$status $((SECONDS - start))" >"$folder/$name.status"
}

# Reports in our code and those that are counted apart, "OURS OTHERS"; then what the first few of ours say.
count() { # LOG
  awk -v ours="($ours)" -v libraries="($libraries)" '
    function close_report() {
      if (report == "") return
      plain = report
      gsub(/access at cluster_(load|store)\(/, "", plain)
      if (report ~ libraries && report !~ ours || plain != report && plain !~ / access at /) theirs++
      else if (++mine <= 3) said = said report
      report = ""
    }
    BEGIN { mine = theirs = 0 }
    /^========= [^ ]/ {
      close_report()
      if (!/SUMMARY|COMPUTE-SANITIZER|Target application|LEAK/) report = $0 "\n"
      next
    }
    /^=========  / && report != "" { report = report $0 "\n" }
    END { close_report(); print mine, theirs; printf "%s", said }' "$1"
}

judge() { # NAME
  local log=$folder/$1.log status seconds mine theirs summary
  read -r status seconds <"$folder/$1.status"
  read -r mine theirs < <(count "$log")
  summary=$(grep -E '^========= .*SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')
  echo "# $1: $mine reports in our code, $theirs counted apart (${summary:-no summary}) in $seconds s"
  count "$log" | sed 1d | head -n 40 | sed 's/^/#   /'
  if [ "$status" != 0 ]; then fails "$1" "the run ended with status $status: $(tail -n 3 "$log")"
  elif [ -z "$summary" ]; then fails "$1" 'the tool did not say what it found'
  elif [ "$mine" != 0 ]; then fails "$1" "$mine reports in our code"
  else passes "$1"; fi
  [ -z "${LOGS:-}" ] || cp "$log" "$LOGS/"
}

is_reported() { [ "$1" -gt 0 ] && grep -q "$2" "$3"; } # COUNT KERNEL LOG
for tool in "${tools[@]}"; do
  name=${tool}_reports_a_planted_fault
  tool_options $tool
  timeout "${LIMIT:-300}" "$SANITIZER" "${options[@]}" "$PLANTED" $tool >"$folder/$name.log" 2>&1
  read -r mine _ < <(count "$folder/$name.log")
  echo "# $name: $mine reports"
  check "$name" "$(tail -n 3 "$folder/$name.log")" is_reported "$mine" "planted_${tool}_kernel" "$folder/$name.log"
done

# Once without a tool, so that choosing algorithms is not what is watched.
run warm_aligned_launched env -- "${aligned[@]}" "${launched[@]}"
run warm_aligned_replayed env -- "${aligned[@]}" "${replayed[@]}"
run warm_unaligned_launched env -- "${unaligned[@]}" "${launched[@]}"
run warm_unaligned_pieces env -- "${unaligned[@]}" "${replayed[@]}" "${launched[@]}"
run warm_documents_launched env -- "${aligned[@]}" "${documents[@]}" "${launched[@]}"
run warm_documents_replayed env -- "${aligned[@]}" "${documents[@]}" "${replayed[@]}"
run warm_unaligned_documents_launched env -- "${unaligned[@]}" "${documents[@]}" "${short_windows[@]}" "${launched[@]}"
run warm_fp8_launched env -- "${aligned[@]}" "${fp8[@]}" "${launched[@]}"
run warm_fp8_replayed env -- "${aligned[@]}" "${fp8[@]}" "${replayed[@]}"
run warm_mma_sync_launched env -- "${mma_sync[@]}" "${launched[@]}"
run warm_mma_sync_replayed env -- "${mma_sync[@]}" "${replayed[@]}"
warm=(warm_{aligned,documents,fp8,mma_sync}_{launched,replayed} warm_unaligned_{launched,pieces,documents_launched})
if ! "$TRAIN" --doctor | grep '^----  cuda, fused' | sed 's/^/# /' | grep .; then
  run warm_fused_launched env -- "${fused[@]}" "${launched[@]}"
  run warm_fused_replayed env -- "${fused[@]}" "${replayed[@]}"
  run warm_fused_documents_launched env -- "${fused[@]}" "${documents[@]}" "${launched[@]}"
  run warm_fused_documents_replayed env -- "${fused[@]}" "${documents[@]}" "${replayed[@]}"
  run warm_fused_fp8_launched env -- "${fused[@]}" "${fp8[@]}" "${launched[@]}"
  run warm_fused_fp8_replayed env -- "${fused[@]}" "${fp8[@]}" "${replayed[@]}"
  warm+=(warm_fused{,_documents,_fp8}_{launched,replayed})
fi
for name in "${warm[@]}"; do
  check "${name}_runs" "$(tail -n 3 "$folder/$name.log")" test "$(cut -d ' ' -f 1 "$folder/$name.status")" = 0
done

# Of sixteen at once on a host of 128 GiB racecheck of recorded fused steps was killed (status 9), for memory it seems; of five
# at once it was not.
at_once=${JOBS:-6}
names=()
sanitize() { # TOOL NAME OVERRIDES...: in the background; its name is added to `names`
  local tool=$1 name=$2
  shift 2
  # shellcheck disable=SC2053 # ONLY is a pattern
  [[ " ${tools[*]} " == *" $tool "* && $name == ${ONLY:-*} ]] || return 0
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
  tool_options "$tool"
  names+=("$name")
  run "$name" "$SANITIZER" "${options[@]}" -- "$@" &
}
for mode in launched replayed; do
  declare -n steps=$mode
  for tool in memcheck racecheck synccheck; do
    sanitize $tool ${tool}_finds_nothing_in_${mode}_steps "${aligned[@]}" "${steps[@]}"
    sanitize $tool ${tool}_finds_nothing_in_${mode}_documents_steps "${aligned[@]}" "${documents[@]}" "${steps[@]}"
    sanitize $tool ${tool}_finds_nothing_in_${mode}_fp8_steps "${aligned[@]}" "${fp8[@]}" "${steps[@]}"
    sanitize $tool ${tool}_finds_nothing_in_${mode}_bf16_state_steps "${aligned[@]}" "${narrow[@]}" "${steps[@]}"
    sanitize $tool ${tool}_finds_nothing_in_${mode}_mma_sync_steps "${mma_sync[@]}" "${steps[@]}"
    case ${warm[*]} in *warm_fused*)
      sanitize $tool ${tool}_finds_nothing_in_${mode}_fused_steps "${fused[@]}" "${steps[@]}"
      sanitize $tool ${tool}_finds_nothing_in_${mode}_fused_documents_steps "${fused[@]}" "${documents[@]}" "${steps[@]}"
      sanitize $tool ${tool}_finds_nothing_in_${mode}_fused_fp8_steps "${fused[@]}" "${fp8[@]}" "${steps[@]}" ;;
    esac
  done
done
sanitize initcheck initcheck_finds_nothing_in_launched_steps "${unaligned[@]}" "${launched[@]}"
sanitize initcheck initcheck_finds_nothing_in_launched_bf16_state_steps "${unaligned[@]}" "${narrow[@]}" "${launched[@]}"
sanitize initcheck initcheck_finds_nothing_in_launched_pieces "${unaligned[@]}" "${replayed[@]}" "${launched[@]}"
sanitize initcheck initcheck_finds_nothing_in_launched_documents_steps "${unaligned[@]}" "${documents[@]}" "${short_windows[@]}" \
  "${launched[@]}"
wait
for name in "${names[@]}"; do judge "$name"; done
exit "$failed"
