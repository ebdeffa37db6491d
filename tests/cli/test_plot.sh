#!/usr/bin/env bash
# scripts/plot.py on logs written here: a picture comes out, and what cannot be drawn is said in a sentence.
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

passes() { echo "ok - $1"; }
fails() { echo "not ok - $1: $2" && failed=1; }

# refuses NAME EXPECTED_WORDS ARGUMENTS...: plot.py must exit with 1, say the words, and draw nothing.
refuses() {
  local name=$1 words=$2 refused=$folder/refused.png
  shift 2
  said=$("$python" scripts/plot.py "$@" -o "$refused" 2>&1)
  local status=$?
  if [ $status != 1 ]; then fails "$name" "exit status $status instead of 1"
  elif [[ $said != *"$words"* ]]; then fails "$name" "said: $said"
  elif [ -e "$refused" ]; then fails "$name" "it drew a picture"
  else passes "$name"; fi
}

is_png() { [ "$(head -c 8 "$1" 2>/dev/null | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]; }

# draws NAME ARGUMENTS...
draws() {
  local name=$1
  shift
  rm -f "$folder/out.png"
  if ! said=$("$python" scripts/plot.py "$@" -o "$folder/out.png" 2>&1); then fails "$name" "$said"
  elif ! is_png "$folder/out.png"; then fails "$name" "what it wrote is not a PNG"
  else passes "$name"; fi
}

python=${PYTHON:-}
for candidate in .venv/bin/python python3; do
  [ -n "$python" ] || ! command -v "$candidate" >/dev/null || python=$candidate
done
if [ -z "$python" ]; then
  echo "ok - loss curves are drawn # SKIP python3 is not installed"
  exit 0
fi

mkdir "$folder/first" "$folder/second"
{
  echo '{"kind":"start","step":0,"steps":40}'
  echo '{"kind":"val","step":0,"loss":5.5}'
  for step in $(seq 1 40); do
    echo '{"kind":"train","step":'"$step"',"loss":'"$((100 / step + 2))"'.25,"lr":0.001,"grad_norm":1.5,"ms":3}'
  done
  echo '{"kind":"train","step":39,"loss":null,"lr":0.001,"grad_norm":null,"ms":3}'
  echo '{"kind":"val","step":20,"loss":4.75,"stderr":null,"bits_per_byte":null,"tokens":64}'
  echo '{"kind":"val","step":40,"loss":4.5,"stderr":0.0625,"bits_per_byte":2.25,"tokens":64}'
  printf '{"kind":"train","st'
} >"$folder/first/log.jsonl"
grep -v '"val"' "$folder/first/log.jsonl" >"$folder/second/log.jsonl"
echo '{"kind":"start","step":0}' >"$folder/empty.jsonl"
echo 'hello' >"$folder/other.txt"

refuses a_run_that_does_not_exist_is_named "$folder/absent" "$folder/absent"
refuses a_log_without_losses_is_refused 'no training or validation record yet' "$folder/empty.jsonl"
refuses a_file_that_is_no_log_is_refused "is not a run's log" "$folder/other.txt"

if ! "$python" -c 'import matplotlib' 2>/dev/null; then
  refuses without_matplotlib_it_says_what_to_install 'pip install matplotlib' "$folder/first"
  echo "ok - loss curves are drawn # SKIP matplotlib is not installed (pip install -r scripts/requirements.txt)"
  exit $failed
fi
draws a_run_with_a_cut_last_line_and_a_null_loss_is_drawn "$folder/first"
draws two_runs_are_drawn_with_every_panel_on_a_logarithmic_axis "$folder/first" "$folder/second/log.jsonl" --all --log
"$python" scripts/plot.py "$folder/first" -o "$folder/words.svg" >/dev/null 2>&1
if grep -q 'first, validation (4.500 +- 0.062 at the end)' "$folder/words.svg"; then passes a_validation_has_its_standard_error
else fails a_validation_has_its_standard_error "it says: $(grep -o 'first, validation[^<]*' "$folder/words.svg")"; fi

# The later record of a repeated step counts: leaving out the one before it draws the same picture.
"$python" scripts/plot.py "$folder/first" --title same -o "$folder/all.png" >/dev/null 2>&1
sed -i '/"step":39,"loss":4/d' "$folder/first/log.jsonl"
"$python" scripts/plot.py "$folder/first" --title same -o "$folder/later.png" >/dev/null 2>&1
if cmp -s "$folder/all.png" "$folder/later.png"; then passes a_repeated_step_is_drawn_as_it_was_last
else fails a_repeated_step_is_drawn_as_it_was_last "the pictures differ"; fi
exit $failed
