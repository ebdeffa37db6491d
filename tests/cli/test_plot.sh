#!/usr/bin/env bash
# scripts/plot.py on logs written here: a picture comes out, and what cannot be drawn is said in a sentence.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
python=${PYTHON:-}
for candidate in .venv/bin/python python3; do
  [ -n "$python" ] || ! command -v "$candidate" >/dev/null || python=$candidate
done
if [ -z "$python" ]; then
  echo "ok - loss curves are drawn # SKIP python3 is not installed"
  exit 0
fi

plot() { "$python" scripts/plot.py "$@" >"$folder/said" 2>&1; }
is_png() { [ "$(head -c 8 "$1" 2>/dev/null | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]; }
cannot_draw() { # WORDS ARGUMENTS...: exit status 1, these words, and no picture
  plot "${@:2}" -o "$folder/no.png"
  [ $? = 1 ] && grep -qF -- "$1" "$folder/said" && [ ! -e "$folder/no.png" ]
}
draws() { rm -f "$folder/out.png" && plot "$@" -o "$folder/out.png" && is_png "$folder/out.png"; }
says() { # NAME COMMAND...: with what plot.py said, if it fails
  "${@:2}"
  local status=$?
  check "$1" "$(cat "$folder/said")" test $status = 0
}

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

says a_run_that_does_not_exist_is_named cannot_draw "$folder/absent" "$folder/absent"
says a_log_without_losses_is_refused cannot_draw 'no training or validation record yet' "$folder/empty.jsonl"
says a_file_that_is_no_log_is_refused cannot_draw "is not a run's log" "$folder/other.txt"
if ! "$python" -c 'import matplotlib' 2>/dev/null; then
  says without_matplotlib_it_says_what_to_install cannot_draw 'pip install matplotlib' "$folder/first"
  echo "ok - loss curves are drawn # SKIP matplotlib is not installed (pip install -r scripts/requirements.txt)"
  exit "$failed"
fi
says a_run_with_a_cut_last_line_and_a_null_loss_is_drawn draws "$folder/first"
says two_runs_are_drawn_with_every_panel_on_a_logarithmic_axis draws "$folder/first" "$folder/second/log.jsonl" --all --log
plot "$folder/first" -o "$folder/words.svg"
check a_validation_has_its_standard_error "$(grep -o 'first, validation[^<]*' "$folder/words.svg")" \
  grep -q 'first, validation (4.500 +- 0.062 at the end)' "$folder/words.svg"
# The later record of a repeated step counts: leaving out the one before it draws the same picture.
plot "$folder/first" --title same -o "$folder/all.png"
sed -i '/"step":39,"loss":4/d' "$folder/first/log.jsonl"
plot "$folder/first" --title same -o "$folder/later.png"
check a_repeated_step_is_drawn_as_it_was_last 'the pictures differ' cmp -s "$folder/all.png" "$folder/later.png"
exit "$failed"
