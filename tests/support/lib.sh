# shellcheck shell=bash disable=SC2034 # a test that sources this ends with "exit $failed"
# The shell tests source this: TAP lines, a temporary folder, and a tiny model on a small text.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
TRAIN=$(realpath "${TRAIN:-./train}")
PREPARE=$(realpath "${PREPARE:-./prepare}")
folder=$(mktemp -d)
config=$folder/config.json
trap 'rm -rf "$folder"' EXIT
failed=0

# Logs have 1.5 and names an order, whatever the user's locale has: only what is tested sees that one.
ls() { LC_ALL=C command ls "$@"; }
awk() { LC_ALL=C command awk "$@"; }
sort() { LC_ALL=C command sort "$@"; }

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

# must COMMAND...: ends the test if the command fails, with what it said.
must() {
  local said
  if ! said=$("$@" 2>&1); then
    fails "$(basename "$0" .sh)_can_be_set_up" "$* said: $said"
    exit 1
  fi
}

# The files of the tree, one a line: those that git knows or would add; without git all that nobody built.
tree() {
  if [ -e .git ]; then git ls-files --cached --others --exclude-standard | while IFS= read -r file; do [ ! -e "$file" ] || echo "$file"; done
  else find . -type f ! -path './build/*' ! -path './runs/*' ! -path './data/*/*.*' -o -path './data/*/*.[ch]' | cut -c 3-; fi
}

# write_text LINES: the lines differ, so that there is something to learn and to shuffle.
write_text() { seq -f 'line %g is a line of a small text, and so is the next one.' "$1"; }

# write_words LINES: words in no order, which can be known only so well. A text that a model comes to know by heart makes runs
# that differ in the last bits part by hundredths while its loss falls: then no bound can tell a fault from rounding.
write_words() {
  awk -v lines="$1" 'BEGIN {
    x = 1
    for (line = 0; line < lines; line++) {
      text = ""
      for (i = 0; i < 10; i++) {
        x = (x * 1103 + 12345) % 1048573
        word = x % 97
        text = text (i ? " " : "")
        for (k = 0; k < 2 + word % 4; k++) text = text sprintf("%c", 97 + (word * 7 + k * 11) % 26)
      }
      print text "."
    }
  }'
}

# write_documents: JSON lines, documents of 1 to 12 lines of such words, which are 30 to 400 tokens of bytes.
write_documents() {
  write_words 6000 | awk '{
    text = text $0 "\\n"
    if (NR % (1 + x % 12) == 0) { printf "{\"text\": \"%s\"}\n", text; text = ""; x = x * 7 + 5 }
  }'
}

# write_config FILE: a model of a step in about a millisecond, on the tokens in $folder/data.
write_config() {
  cat >"$1" <<END
{
  "model": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 258,
            "max_position_embeddings": 32},
  "data": {"train": "$folder/data/train-*.bin", "val": "$folder/data/val-*.bin"},
  "train": {"steps": 20, "batch_size": 2, "sequence_length": 32, "eval_interval": 0,
            "eval_batches": 4, "save_interval": 0, "sample_interval": -1},
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

prepare_run() { # LINES
  prepare_data "$1"
  write_config "$config"
}

# train_into RUN ARGUMENTS...: trains $config into $folder/RUN; what it says is in $folder/said and said.err.
train_into() { "$TRAIN" "$config" "output.dir=$folder/$1" "${@:2}" >"$folder/said" 2>"$folder/said.err" </dev/null; }

# What a command said that was sent there, and whether these words are in it.
said() { echo "it said: $(tail -n 5 "$folder/said" | tr -d '\0') $(cat "$folder/said.err")"; }
grep_said() { grep -qF -- "$1" "$folder/said" "$folder/said.err"; }

# works NAME COMMAND...: passes if the command does, whose words are there.
works() {
  "${@:2}" >"$folder/said" 2>"$folder/said.err" </dev/null
  local status=$?
  check "$1" "status $status, $(said)" test $status = 0
}

# run NAME OVERRIDES...: trains $config into $folder/NAME, which must succeed.
run() { must "$TRAIN" "$config" "output.dir=$folder/$1" "${@:2}"; }

# token_slice FILE COUNT [FIRST]: so many of a file's 16-bit tokens, as a token file that does not say
# who made it.
token_slice() {
  head -c 8 "$1"
  printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\0' $(($2 % 256)) $(($2 / 256 % 256)) $(($2 / 65536)))"
  head -c 1012 /dev/zero
  tail -c +$((1025 + 2 * ${3:-0})) "$1" | head -c $((2 * $2))
}

# Every name under $folder, which shows whether anything was written.
listing() { (cd "$folder" && find . ! -name 'said*' | LC_ALL=C sort); }

# why_no_clear_error STATUS WORDS: a clear error is the status 1, one line on standard error
# ($folder/said.err) with these words, nothing else said (unless may_print is set), and no file written. Prints what is wrong,
# or nothing.
why_no_clear_error() {
  local status=$1 words=$2 said lines
  said=$(cat "$folder/said.err")
  lines=$(wc -l <"$folder/said.err")
  if [ "$status" != 1 ]; then echo "exit status $status instead of 1, and it said: $said"
  elif [ "$lines" != 1 ]; then echo "$lines lines on standard error instead of one: $said"
  elif [ -s "$folder/said" ] && [ -z "${may_print:-}" ]; then echo "it printed before it: $(head -n 2 "$folder/said")"
  elif [[ $said != *"$words"* ]]; then echo "'$words' is not in what it said: $said"
  elif [ "$(listing)" != "$before" ]; then
    echo "it wrote something: $(diff <(echo "$before") <(listing) | tr '\n' ' ')"
  fi
}

# refuses NAME WORDS ARGUMENTS...: passes if train ends with a clear error that has the words.
refuses() {
  local name=$1 words=$2 why
  shift 2
  before=$(listing)
  "$TRAIN" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null
  why=$(why_no_clear_error $? "$words")
  if [ -z "$why" ]; then passes "$name"; else fails "$name" "$why"; fi
}

# losses KIND LOG: the log's train or val records, one a step, without what depends on the clock.
losses() {
  grep "\"kind\":\"$1\".*}\$" "$2" | sed -E 's/,"(ms|tokens_per_s|mfu)":[^,}]*//g' |
    awk '!seen[$0]++'
}

# last_loss KIND RUN: of the last record of that kind.
last_loss() { grep "\"kind\":\"$1\"" "$folder/$2/log.jsonl" | tail -n 1 | sed -E 's/.*"loss":([^,}]*).*/\1/'; }

# near A B MOST: two numbers above 0 that differ by so much at most.
near() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { d = a > b ? a - b : b - a; exit !(a > 0 && b > 0 && d <= most) }'; }

# same_bits A B: two runs ended with checkpoints that are equal in every bit.
same_bits() {
  local file
  for file in model.safetensors optimizer.safetensors state.json; do
    cmp "$1/latest/$file" "$2/latest/$file" || return 1
  done
}

# wait_for WORDS LOG PROCESS: waits until the log has the words. Fails if the process ends first.
wait_for() {
  until grep -q -- "$1" "$2" 2>/dev/null; do
    kill -0 "$3" 2>/dev/null || { grep -q -- "$1" "$2" 2>/dev/null; return; }
    sleep 0.005
  done
}

# stop PROCESS: it stands still, every thread of it, when this returns. SIGCONT lets it go on.
stop() {
  kill -STOP "$1"
  while kill -0 "$1" 2>/dev/null && grep -L '^State:.*[TZ] (' /proc/"$1"/task/*/status 2>/dev/null | grep -q .; do
    sleep 0.005
  done
}

# For tests on the GPU: has --doctor look at it, and sets `all_kernels`. The fused kernels are left
# out only on a GPU that they are not made for.
ask_doctor() {
  "$TRAIN" --doctor >"$folder/said" 2>&1
  local status=$?
  check the_doctor_finds_nothing_wrong "$(cat "$folder/said")" test $status = 0
  check the_doctor_tried_the_gpu "$(cat "$folder/said")" \
    grep -q '^PASS  cuda, unfused' "$folder/said"
  all_kernels='unfused fused'
  if grep '^----  cuda, fused' "$folder/said" | sed 's/^/# /' | grep .; then all_kernels=unfused; fi
}

# kernels_are NAME: the overrides for these kernels. mma_sync: the fused ones on the mainloop of every GPU.
kernels_are() {
  case $1 in
  mma_sync) echo backend.kernels=fused backend.mainloop=mma_sync ;;
  *) echo "backend.kernels=$1" ;;
  esac
}

# fp8_kernels CONFIG OVERRIDES...: the names of all_kernels that multiply in FP8 on this GPU, each tried for a step.
# shellcheck disable=SC2046 # kernels_are gives several overrides
fp8_kernels() {
  local kernels
  for kernels in $all_kernels; do
    "$TRAIN" "$@" $(kernels_are "$kernels") backend.precision=fp8 train.steps=1 optimizer.warmup_steps=0 \
      train.save_interval=-1 "output.dir=$folder/fp8-$kernels-tried" 2>&1 | grep -q 'FP8 needs' || echo "$kernels"
  done
}

# For tests of ranges: the library that writes them down. It is built where NVTX's headers are.
RECORDER=$PWD/build/release/tests/nvtx_recorder.so

# recorded NAME OVERRIDES...: trains $folder/config.json, with its ranges in $folder/NAME.ranges.
recorded() {
  local name=$1
  shift
  must env "NVTX_INJECTION64_PATH=$RECORDER" "NVTX_RECORD=$folder/$name.ranges" \
    "$TRAIN" "$folder/config.json" "output.dir=$folder/$name" "$@"
}

# range_paths FILE: every range as it was opened, with those around it: "step > forward > layer 0".
# Fails if a range is left open, or closed without having been opened.
range_paths() {
  awk '
    /^push / { name[++depth] = substr($0, 6); line = name[1]
               for (i = 2; i <= depth; i++) line = line " > " name[i]
               print line; next }
    $0 == "pop" && depth > 0 { depth--; next }
    { bad = 1 }
    END { exit bad || depth || !NR }' "$1"
}
