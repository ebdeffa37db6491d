#!/usr/bin/env bash
# scripts/plot.py on logs and benches written here: a picture comes out, and what cannot be drawn is said in a sentence.
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

passes() { echo "ok - $1"; }
fails() { echo "not ok - $1: $2" && failed=1; }

# refuses NAME EXPECTED_WORDS ARGUMENTS...: plot.py must exit with 1, say the words, and draw nothing.
refuses() {
  local name=$1 words=$2 refused=$folder/refused.${suffix:-png}
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

# What ./train --bench --json writes, in short.
operation() { # NAME CLASS BARE
  echo '{"name":"'"$1"'","class":"'"$2"'","runs":"fused","shape":"8 x 8 x 8","calls":2,"fused":{"median":1.5},
    "unfused":{"median":2.25},"bare":{"median":'"$3"'}}'
}
parts='{"products":3,"attention":1,"rest":1.5}'
cat >"$folder/bench.json" <<END
{"kind":"bench","version":1,"config":"configs/tiny.json","model":"1M parameters: 2 layers, hidden 8",
 "operations":[$(operation gate_up product 1.25),$(operation adamw memory null)],
 "step":{"fused_over_floor":1.1,"unfused_over_fused":1.2},
 "step_parts":{"fused":$parts,"unfused":$parts,"floor":$parts},
 "measured":{"gpu":"NVIDIA H200, compute capability 9.0","verdict":"conclusive"}}
END
sed 's/"step":/"other":/' "$folder/bench.json" >"$folder/one.json"
sed 's/"bare"/"nude"/' "$folder/bench.json" >"$folder/lacking.json"
echo '{"kind":"train","step":1}' >"$folder/train.json"
sed 's/tiny/a<b>\&c/' "$folder/bench.json" >"$folder/markup.json"

# ---- Benches, which need no matplotlib
suffix=svg
refuses a_bench_that_does_not_exist_is_named "$folder/absent.json" bench "$folder/absent.json"
refuses a_file_that_is_not_json_is_no_bench 'is not JSON' bench "$folder/other.txt"
refuses json_of_another_kind_is_no_bench 'is no bench' bench "$folder/train.json"
refuses a_bench_that_lacks_something_is_refused "lacks 'bare'" bench "$folder/lacking.json"
suffix=png
refuses a_bench_is_drawn_as_svg_only 'ends in .svg' bench "$folder/bench.json"
said=$("$python" scripts/plot.py bench "$folder/bench.json" -o "$folder/absent/out.svg" 2>&1)
case $?:$said in
1:*"$folder/absent/out.svg cannot be written"*) passes a_picture_that_cannot_be_written_is_named ;;
*) fails a_picture_that_cannot_be_written_is_named "said: $said" ;;
esac

cat >"$folder/look.py" <<'END'
import re, sys
from xml.etree import ElementTree
root, bars = ElementTree.parse(sys.argv[1]).getroot(), {}
assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
texts = [e.text for e in root.iter() if e.tag.endswith("}text")]
for e in root.iter():
    if e.tag.endswith("}rect") and e.get("class"):
        x, y, width, height = (float(e.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= float(root.get("width")), "a bar sticks out at the side"
        assert 0 <= y <= y + height <= float(root.get("height")), "a bar sticks out above or below"
        bars.setdefault(e.get("class"), []).append((width, height))
ticks = [float(re.match("M([0-9.]+)", e.get("d")).group(1)) for e in root.iter() if e.get("class") == "bare"]
near = lambda a, b: abs(a - b) < 0.2
sys.exit(0 if eval(f"({sys.argv[2]})") else f"not so: texts {texts}, bars {bars}, ticks {ticks}")
END
# draws_bench NAME CHECK FILES...: a well-formed SVG comes out, and CHECK, an expression, is true of what it holds:
# texts; bars, the widths and heights of the rectangles by class; ticks, where the marks of the bare GEMMs stand.
draws_bench() {
  local name=$1 check=$2
  shift 2
  rm -f "$folder/out.svg"
  if ! said=$("$python" scripts/plot.py bench "$@" -o "$folder/out.svg" 2>&1); then fails "$name" "$said"
  elif ! said=$("$python" "$folder/look.py" "$folder/out.svg" "$check" 2>&1); then fails "$name" "$said"
  else passes "$name"; fi
}

# The first rectangle of a kind and the first tick are the legend's; the bars begin at x = 165.
draws_bench a_bench_names_its_operations \
  'all(t in texts for t in ("gate_up x 2", "adamw x 2", "1.50"))' "$folder/bench.json"
draws_bench bars_are_as_long_as_their_times 'len(bars["fused"]) == 3 and bars["fused"][1][0] > 200 and
  all(near(u[0], 1.5 * f[0]) for f, u in list(zip(bars["fused"], bars["unfused"]))[1:])' "$folder/bench.json"
draws_bench the_bare_product_is_marked_where_it_ends \
  'len(ticks) == 2 and near(ticks[1] - 165, bars["fused"][1][0] * 1.25 / 1.5)' "$folder/bench.json"
draws_bench a_step_is_drawn_in_parts '[len(bars[p]) for p in ("products", "attention", "rest")] == [4, 4, 4] and
  near(bars["products"][0][1], 3 * bars["attention"][0][1]) and
  near(bars["rest"][0][1], 1.5 * bars["attention"][0][1]) and
  texts.count("5.5") == 3 and "step, ms: fused / floor 1.100," in texts' "$folder/bench.json"
draws_bench the_gpu_and_the_verdict_stand_above '"NVIDIA H200; tiny: conclusive" in texts' "$folder/bench.json"
draws_bench a_title_takes_the_place_of_the_gpu '"a card, a commit; tiny: conclusive" in texts' \
  "$folder/bench.json" --title 'a card, a commit'
draws_bench benches_of_a_step_and_of_one_operation_are_drawn_together \
  'texts.count("gate_up x 2") == 2 and len(bars["products"]) == 4' "$folder/bench.json" "$folder/one.json"
draws_bench markup_in_a_name_is_text '"a<b>&c, 1M parameters: 2 layers" in texts' "$folder/markup.json"
cp "$folder/out.svg" "$folder/before.svg"
draws_bench the_same_bench_is_drawn_again True "$folder/markup.json"
if cmp -s "$folder/before.svg" "$folder/out.svg"; then passes two_pictures_of_a_bench_are_equal
else fails two_pictures_of_a_bench_are_equal "the pictures differ"; fi

# ---- Runs
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
