#!/usr/bin/env bash
# ./train --page and --compare on logs written here: what the page holds, what its server answers,
# what a browser makes of it, and the numbers of the comparison.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
cd "$folder" || exit 1
if ! command -v python3 >/dev/null; then
  echo 'ok - page # SKIP python3 is not installed, which reads the data of the pages here'
  exit 0
fi

# log FOLDER STEPS RATE FACTOR [EVERY]: a run's log. The loss of a step is 2 + FACTOR / step; a step
# has 1000 tokens and takes 100 ms, but for the loss the speed of a run is its rate.
log() {
  mkdir -p "$1"
  awk -v steps="$2" -v lr="$3" -v factor="$4" -v every="${5:-10}" 'BEGIN {
    printf "{\"kind\":\"start\",\"step\":0,\"steps\":%d,\"parameters\":1000,\"tokens_per_step\":1000,", steps
    printf "\"backend\":\"cpu\",\"device\":\"a machine\",\"costs\":\"\",\"tokenizer\":null,"
    printf "\"memory\":{\"planned\":2097152,\"free\":4194304,\"items\":[{\"name\":\"x\",\"shape\":\"\",\"bytes\":9}]},"
    printf "\"config\":{\"train\":{\"steps\":%d},\"optimizer\":{\"learning_rate\":%g},\"output\":{\"dir\":\"%d\"}}}\n",
      steps, lr, lr * 1e6
    for (s = 1; s <= steps; s++) {
      printf "{\"kind\":\"train\",\"step\":%d,\"loss\":%.9g,\"lr\":%g,\"grad_norm\":%g,\"ms\":100,", s, 2 + factor / s, lr, 1 / s
      printf "\"tokens_per_s\":10000,\"mfu\":null,\"applied\":true}\n"
      if (s % every == 0)
        printf "{\"kind\":\"val\",\"step\":%d,\"loss\":%.9g,\"stderr\":0.003,\"bits_per_byte\":1.5,\"tokens\":64}\n", s, 2 + factor / s
    }
    printf "{\"kind\":\"sample\",\"step\":%d,\"text\":\"</script><b>\\u00e9\\\"\"}\n", steps
    printf "{\"kind\":\"stop\",\"step\":%d,\"reason\":\"done\"}\n", steps
  }' >"$1/log.jsonl"
}
page() { "$TRAIN" --page "$@" >said 2>&1; }
# What stands in the page, as JSON.
data() { sed -n 's/^<script type="application\/json" id="data">\(.*\)<\/script>$/\1/p' page.html; }
# holds NAME EXPRESSION: true in Python, of the runs and of the first one, r.
holds() {
  local said
  said=$(data | python3 -c "import json, sys
runs = json.load(sys.stdin)['runs']; r = runs[0]; t = r['train']
sys.exit(0 if ($2) else f'{r[\"name\"]} has {json.dumps(t)[:300]}')" 2>&1)
  check "$1" "$said" test $? = 0
}
refuses() { # NAME WORDS ARGUMENTS...: status 1, one line, no file
  local name=$1 words=$2
  shift 2
  "$TRAIN" "$@" >said 2>&1
  check "$name" "status $?: $(cat said)" test "$(wc -l <said) $(grep -cF -- "$words" said) $(ls -- *.html 2>/dev/null)" = '1 1 '
}

# ---- What is refused

log runs/a 100 0.001 1
echo '{"kind":"start","step":0}' >empty.jsonl
echo hello >other.txt
refuses a_run_that_is_not_there_is_named "cannot open 'absent': No such file or directory; name a run's folder" --page absent
refuses a_log_without_losses_is_refused "'empty.jsonl' has no line of training or validation yet" --page empty.jsonl
refuses another_file_is_no_log "'other.txt' has no line of training or validation: is it a run's log?" --page other.txt
refuses a_page_needs_a_run '--page needs the folders of runs' --page
refuses a_server_writes_no_file 'leave --out out' --page runs/a --serve 8123 --out x.html
cp runs/a/log.jsonl mine.jsonl
refuses no_other_file_is_replaced "'mine.jsonl' is there already, and no page of --page" --page runs/a --out mine.jsonl
check it_is_as_it_was "$(head -c 60 mine.jsonl)" cmp -s runs/a/log.jsonl mine.jsonl
refuses a_comparison_needs_two '--compare needs two runs or more' --compare runs/a
refuses a_comparison_has_no_options "not '--out'" --compare runs/a --out runs/b

# ---- What is in the page

page runs/a
check a_page_is_written "$(cat said)" grep -q '^page.html: 1 run, ' said
check it_needs_nothing_else "$(grep -noE '(src|href)="[^"]*"' page.html)" test "$(grep -oE '(src|href)="[^"]*"' page.html)" = 'href="data:,"'
check no_text_of_a_run_ends_the_data "$(grep -c '</script>' page.html)" test "$(grep -c '</script>' page.html)" = 2
holds a_run_has_its_last_folder_as_name 'r["name"] == "a"'
holds its_sample_is_there 'r["samples"] == [{"step": 100, "text": "</script><b>\u00e9\""}]'
holds its_steps_are_there 'r["steps"] == 100 and t["step"] == [*range(1, 101)] and t["loss"][49] == 2.02'
holds tokens_and_seconds_add_up '(t["tokens"][99], t["seconds"][99], r["val"][0]["tokens"]) == (100000, 10, 10000)'
holds what_is_not_known_is_null 't["mfu"] == [None] * 100'
holds the_start_is_there 'r["start"]["config"]["optimizer"]["learning_rate"] == 0.001 and r["start"]["memory"]["planned"] == 2097152'

# Scores: of several files their mean, of CORE what is above chance, of a repeated step the later.
mkdir scored
{
  head -n 60 runs/a/log.jsonl
  echo '{"kind":"score","step":20,"task":"piqa","file":"a","acc":0.5,"acc_stderr":0.1,"acc_norm":0.25,"acc_norm_stderr":0.2}'
  echo '{"kind":"score","step":30,"task":"mmlu","file":"a","acc":0.1,"acc_stderr":0.1}'
  echo '{"kind":"score","step":30,"task":"mmlu","file":null,"acc":0.2,"acc_stderr":0.1}'
  echo '{"kind":"score","step":30,"task":"core/x","file":"a","acc":0.2,"acc_stderr":0.1,"centered":0.9}'
  echo '{"kind":"score","step":30,"task":"core","file":null,"centered":0.125}'
  echo '{"kind":"score","step":20,"task":"piqa","file":"a","acc":0.5,"acc_stderr":0.1,"acc_norm":0.75,"acc_norm_stderr":0.2}'
} >scored/log.jsonl
page scored
holds scores_are_there '[(s["task"], s["step"], s["value"], s["error"]) for s in r["scores"]] == [("mmlu", 30, 0.2, 0.1), ("core", 30, 0.125, None), ("piqa", 20, 0.75, 0.2)]'

# A resumed run repeats steps, and a loss was not finite; a killed one tears its last line.
mkdir torn
{
  head -n 100 runs/a/log.jsonl
  echo '{"kind":"train","step":50,"loss":null,"lr":1,"grad_norm":null,"ms":100,"tokens_per_s":10000,"mfu":0.5,"applied":false}'
  echo '{"kind":"train","step":51,"loss":9,"lr":1,"grad_norm":1,"ms":100,"tokens_per_s":10000,"mfu":0.5,"applied":true}'
  printf '{"kind":"train","st'
} >torn/log.jsonl
page torn/log.jsonl
holds a_repeated_step_is_what_it_was_last 't["step"] == [*range(1, 52)] and t["loss"][49:] == [None, 9] and t["seconds"][50] == 5.1'
holds a_torn_line_is_counted '(r["unreadable"], r["skipped"], r["reason"], r["name"]) == (1, 1, "", "torn")'

# What a run said behind the checkpoint from which it resumed is gone.
mkdir resumed
{
  cat runs/a/log.jsonl
  echo '{"kind":"start","step":50,"steps":100}'
  echo '{"kind":"train","step":51,"loss":9,"lr":1,"grad_norm":1,"ms":100,"tokens_per_s":10000,"mfu":0.5,"applied":true}'
} >resumed/log.jsonl
page resumed
holds a_resumed_run_is_where_it_resumed '(t["step"][-1], t["loss"][-1], r["val"][-1]["step"], r["samples"], r["reason"]) == (51, 9, 50, [], "")'
head -n -1 resumed/log.jsonl >start.jsonl && page start.jsonl
holds also_before_its_first_step '(t["step"][-1], r["val"][-1]["step"]) == (50, 50)'

# Many steps become pieces: each has the mean of its steps between the least and the greatest.
log long 100000 0.001 50 5000
page long
holds a_long_run_is_thinned '(r["steps"], len(t["step"]), t["step"][-1]) == (100000, 2000, 100000)'
holds pieces_hold_all_steps 'abs(sum(t["loss"]) / 2000 - 2 - sum(50 / n for n in range(1, 100001)) / 100000) < 1e-5'
holds a_mean_is_between 'all(a <= b <= c for a, b, c in zip(t["low"], t["loss"], t["high"]))'
check a_page_of_many_steps_is_small "$(stat -c %s page.html)" test "$(stat -c %s page.html)" -lt 1000000
for i in $(seq 20); do log "runs/of-$i" 400 "0.00$i" "$i"; done
page runs/of-* --out twenty.html
check a_page_of_many_runs_is_written "$(cat said)" grep -q '^twenty.html: 20 runs' said
log runs/b 100 0.002 0.5
page runs/a runs/b runs/of-1
mkdir -p seeds/x/1 seeds/y/1 && cp runs/a/log.jsonl seeds/x/1 && cp runs/b/log.jsonl seeds/y/1
cp page.html three.html && page seeds/x/1/ seeds/y/1
holds names_begin_where_folders_differ '[each["name"] for each in runs] == ["x/1", "y/1"]'

# ---- The server

port=$((20000 + $$ % 20000))
cp -r runs/a live && head -n 40 runs/a/log.jsonl >live/log.jsonl
"$TRAIN" --page live --serve $port >served 2>&1 &
server=$!
until [ -s served ] || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
if command -v curl >/dev/null; then
  get() { curl -s --max-time 10 --path-as-is -w '%{http_code}' "$@"; }
  url=http://127.0.0.1:$port
  check it_says_where_it_serves "$(cat served)" grep -qx "$url/ follows the run until Ctrl-C" served
  check it_serves_the_page "$(get $url/ | tail -c 100)" test "$(get $url/ | grep -c 'id="data">null</script>')" = 1
  steps() { curl -s $url/data | grep -o '"steps":[0-9]*,"skipped"'; }
  before=$(steps)
  cp runs/a/log.jsonl live/log.jsonl
  check it_follows_the_run "$before, then $(steps)" test "$before $(steps)" = '"steps":36,"skipped" "steps":100,"skipped"'
  check it_has_no_other_paths "$(get $url/live/log.jsonl)" test "$(get $url/live/log.jsonl)$(get $url/../etc/passwd)" = 404404
  check nor_other_methods "$(get -X POST $url/data)" test "$(get -X POST $url/data)" = 404
  check it_answers_no_other_name "$(get -H 'Host: elsewhere.example' $url/data)" test "$(get -H 'Host: elsewhere.example' $url/data)" = 403
  for i in 1 2 3 4 5 6; do exec {idle[i]}<>/dev/tcp/127.0.0.1/$port; done # as a browser has them
  code=$(curl -s --max-time 4 -o /dev/null -w '%{http_code}' $url/)
  check it_waits_for_no_idle_connection "$code" test "$code" = 200
  for i in 1 2 3 4 5 6; do exec {idle[i]}>&-; done
  mv live gone
  check a_run_that_is_gone_is_said "$(get $url/data)" test "$(get $url/data | grep -c "cannot open 'live'.*500$")" = 1
  mv gone live
else echo 'ok - it_serves_the_page # SKIP no curl here'; fi
"$TRAIN" --page live --serve $port >said 2>&1
check a_port_in_use_is_said "$(cat said)" grep -q "cannot serve on 127.0.0.1:$port: Address already in use" said
kill -TERM $server
wait $server
check a_signal_ends_it "status $?" test $? = 0

# ---- In a browser

browser=$(command -v chromium chromium-browser google-chrome | head -n 1)
if [ -z "$browser" ]; then echo 'ok - a_browser_draws_the_page # SKIP no chromium here'
else
  log runs/short 10 0.001 1 5
  page runs/short --out short.html && page runs/a --out one.html && page long --out long.html
  # opens FILE RUNS WIDTH DARK [CURVES]: as many as that more
  opens() {
    HOME=$folder timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" \
      --window-size="$3,900" --blink-settings="preferredColorScheme=$4" --virtual-time-budget=5000 \
      --enable-logging=stderr --dump-dom "file://$folder/$1" >dom 2>console
    local curves
    curves=$(grep -o 'class="curve" d="M[^"]*"' dom | wc -l)
    check "a_browser_draws_${1%.html}_${3}_wide_$4" "$curves curves; $(grep -o 'id="error"[^<]*<' dom); $(grep CONSOLE console)" \
      test "$(grep -c "<html[^>]*data-ready=\"$2\"" dom) $(grep -c '<p id="error" role="alert"></p>' dom) $(grep -c CONSOLE console) $(grep -c 'NaN\|undefined' <(grep -o '<svg.*' dom)) $curves" = "1 1 0 0 $((6 * $2 + ${5:-0}))"
  }
  opens one.html 1 1280 1
  opens short.html 1 390 0
  opens long.html 1 1280 0
  opens three.html 3 390 1
  grep -v '"kind":"\(sample\|score\)"' scored/log.jsonl >none.jsonl && page scored none.jsonl --out scores.html
  opens scores.html 2 800 1 3
  check a_browser_shows_scores "$(grep -o 'id="scores" .*' dom | head -c 300)" grep -q '<td class="number">0.2000 ± 0.1000</td>' dom
  opens twenty.html 20 1600 0
fi

# ---- The comparison. The losses are 2 + 1 / step and 2 + 0.5 / step, with errors of 0.003

"$TRAIN" --compare runs/a runs/b >said 2>&1
check keys_that_differ_are_said "$(cat said)" test "$(grep -c '^optimizer.learning_rate  *0.001 | 0.002$' said) $(grep -c 'train.steps\|output.dir' said)" = '1 0'
check losses_at_equal_steps_are_said "$(cat said)" grep -qE '^a +(2\.0100 \+- 0\.0030 +){2}2\.0100 \+- 0\.0030$' said
check the_better_one_is_said "$(cat said)" grep -qx '  better by 0.0050 +- 0.0042 at equal steps: less than two errors, which chance may do' said
# 2.01 is between 2.0125 at step 40 and 2.01 at 50.
check what_it_needs_is_said "$(cat said)" grep -q "reaches a's last validation, 2.0100, after 0.500 of its tokens and 0.500 of its seconds" said
mkdir better && sed 's/"acc":0.2,/"acc":0.5,/' scored/log.jsonl >better/log.jsonl
"$TRAIN" --compare scored better >said 2>&1
check what_is_equal_is_said "$(cat said)" test "$(grep -c '^  equal at equal ' said) $(grep -c 'after 1.000 of its tokens and 1.000 of its seconds' said)" = '3 1'
check scores_are_compared "$(cat said)" grep -qE '^better  0\.5000 \+- 0\.1000 +\+0\.3000 \+- 0\.1414 +step 30$' said
log runs/worse 60 0.001 9
"$TRAIN" --compare runs/a runs/worse >said 2>&1
check the_shorter_run_says_where "$(cat said)" grep -qE '^loss at +60 steps +60\.0k tokens +6\.0 s$' said
check the_worse_one_is_said "$(cat said)" grep -qx '  worse by 0.1333 +- 0.0042 at equal tokens' said
check what_it_does_not_reach_is_said "$(cat said)" grep -q "does not reach a's last validation, 2.0100" said
sed 's/"tokenizer":null/"tokenizer":"x.json"/; s/_byte":1.5/_byte":1.25/' runs/b/log.jsonl >other.jsonl
"$TRAIN" --compare runs/a other.jsonl >said 2>&1
check bits_a_byte_are_said_of_other_tokenizers "$(cat said)" test "$(grep -c '^The tokenizers are not known | x.json. Where they differ, losses' said) $(grep -c ' 1.5000 | 1.2500$' said)" = '1 1'
"$TRAIN" --compare runs/a runs/b >said 2>&1
check and_not_of_one "$(cat said)" test "$(grep -c '^The tokenizers' said)" = 0
sed '/"val"/s/"loss":[^,]*/"loss":null/' runs/a/log.jsonl >infinite.jsonl
"$TRAIN" --compare infinite.jsonl runs/b >said 2>&1
check no_loss_is_nan "$(cat said)" test "$(grep -c nan said) $(grep -c '(training)' said)" = '0 1'
grep -v '"val"' runs/a/log.jsonl >train.jsonl
"$TRAIN" --compare train.jsonl runs/b >said 2>&1
check without_validations_training_is_compared "$(cat said)" test "$(grep -c '(training) *(training) *(training)' said) $(grep -c '^train.jsonl  *2\.010' said)" = '1 1'
exit "$failed"
