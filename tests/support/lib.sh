# shellcheck shell=bash disable=SC2034 # a test that sources this ends with "exit $failed"
# For the shell tests, which source it: TAP lines, a temporary folder, and a tiny model on a small prepared text.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
TRAIN=$(realpath "${TRAIN:-./train}")
PREPARE=$(realpath "${PREPARE:-./prepare}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

passes() { echo "ok - $1"; }
fails() {
  echo "not ok - $1: ${2//$'\n'/; }"
  failed=1
}

# check NAME WHY COMMAND...: passes if the command succeeds.
check() {
  local name=$1 why=$2
  shift 2
  if "$@"; then passes "$name"; else fails "$name" "$why"; fi
}

# "train: ..." of a run that was to succeed and did not ends the test.
must() {
  local said
  if ! said=$("$@" 2>&1); then
    fails "$(basename "$0" .sh)_can_be_set_up" "$* said: $said"
    exit 1
  fi
}

# A text of lines that differ, so that there is something to learn and to shuffle.
write_text() { seq -f 'line %g is a line of a small text, and so is the next one.' "$1"; }

# write_config FILE: a model of a step in about a millisecond, on the tokens in $folder/data.
write_config() {
  cat >"$1" <<END
{
  "model": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 258, "max_position_embeddings": 32},
  "data": {"train": "$folder/data/train-*.bin", "val": "$folder/data/val-*.bin"},
  "train": {"steps": 20, "batch_size": 2, "sequence_length": 32, "eval_interval": 0, "eval_batches": 4,
            "save_interval": 0, "sample_interval": -1},
  "optimizer": {"learning_rate": 0.003, "warmup_steps": 5},
  "backend": {"device": "cpu", "threads": 1},
  "output": {"dir": "$folder/run"}
}
END
}

prepare_data() { # LINES
  write_text "$1" >"$folder/text.txt"
  must "$PREPARE" --out "$folder/data" "$folder/text.txt"
}

# Every name under $folder, to see whether anything was written.
listing() { (cd "$folder" && find . ! -name 'said*' | LC_ALL=C sort); }

# one_line_error STATUS WORDS: why what was said on standard error ($folder/said.err) is not one line with these
# words and the status 1; nothing if it is.
why_no_clear_error() {
  local status=$1 words=$2 said lines
  said=$(cat "$folder/said.err")
  lines=$(wc -l <"$folder/said.err")
  if [ "$status" != 1 ]; then echo "exit status $status instead of 1, and it said: $said"
  elif [ "$lines" != 1 ]; then echo "$lines lines on standard error instead of one: $said"
  elif [[ $said != *"$words"* ]]; then echo "'$words' is not in what it said: $said"
  elif [ "$(listing)" != "$before" ]; then
    echo "it wrote something: $(diff <(echo "$before") <(listing) | tr '\n' ' ')"
  fi
}

# refuses NAME WORDS ARGUMENTS...: train must exit with 1, say one line with the words, and write nothing.
refuses() {
  local name=$1 words=$2 why
  shift 2
  before=$(listing)
  "$TRAIN" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null
  why=$(why_no_clear_error $? "$words")
  if [ -z "$why" ]; then passes "$name"; else fails "$name" "$why"; fi
}

# The part of log.jsonl's training and validation records that does not depend on the clock, one per step.
losses() { # KIND LOG
  grep "\"kind\":\"$1\".*}\$" "$2" | sed -E 's/,"(ms|tokens_per_s|mfu)":[^,}]*//g' | awk '!seen[$0]++'
}

# same_bits A B: the checkpoints that two runs ended with are equal in every bit.
same_bits() {
  local file
  for file in model.safetensors optimizer.safetensors state.json; do
    cmp "$1/latest/$file" "$2/latest/$file" || return 1
  done
}

# wait_for WORDS LOG PROCESS: until the log has the words; fails when the process has ended without them.
wait_for() {
  until grep -q -- "$1" "$2" 2>/dev/null; do
    kill -0 "$3" 2>/dev/null || { grep -q -- "$1" "$2" 2>/dev/null; return; }
    sleep 0.005
  done
}

# For tests on the GPU: has --doctor look at it, and sets `all_kernels`. Only a GPU that they are not made for is spared the
# fused kernels.
ask_doctor() {
  "$TRAIN" --doctor >"$folder/said" 2>&1
  local status=$?
  check the_doctor_finds_nothing_wrong "$(cat "$folder/said")" test $status = 0
  check the_doctor_tried_the_gpu "$(cat "$folder/said")" grep -q '^PASS  cuda, unfused' "$folder/said"
  all_kernels='unfused fused'
  if grep '^----  cuda, fused' "$folder/said" | sed 's/^/# /' | grep .; then all_kernels=unfused; fi
}

# For tests of ranges: the library that writes them down, built where NVTX's headers are.
RECORDER=$PWD/build/release/tests/nvtx_recorder.so

# recorded NAME OVERRIDES...: trains $folder/config.json with every range written to $folder/NAME.ranges.
recorded() {
  local name=$1
  shift
  must env "NVTX_INJECTION64_PATH=$RECORDER" "NVTX_RECORD=$folder/$name.ranges" \
    "$TRAIN" "$folder/config.json" "output.dir=$folder/$name" "$@"
}

# range_paths FILE: every range as it was opened, with those around it ("step > forward > layer 0"). Fails where one is
# closed that was not opened, or left open.
range_paths() {
  awk '
    /^push / { name[++depth] = substr($0, 6); line = name[1]
               for (i = 2; i <= depth; i++) line = line " > " name[i]
               print line; next }
    $0 == "pop" && depth > 0 { depth--; next }
    { bad = 1 }
    END { exit bad || depth || !NR }' "$1"
}
