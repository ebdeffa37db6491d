#!/usr/bin/env bash
# scripts/time_to_loss.py with tiny runs: the table's numbers are those of the logs, by awk; done runs stay; mistakes are said.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
if ! command -v python3 >/dev/null; then
  echo 'ok - time_to_loss # SKIP python3 is not installed'
  exit 0
fi
prepare_data 400
write_config "$folder/config.json"
out=$folder/out
cat >"$folder/recipes.txt" <<END
# A comment, and an empty line

all $folder/config.json train.steps=24 train.eval_interval=6 optimizer.min_learning_rate=0
plain
fast optimizer.learning_rate=0.01   # more than twice the rate
short train.steps=18 optimizer.learning_rate=0.01 train.batch_size=4 train.eval_batches=2
still optimizer.learning_rate=1e-9
torch peer=eager optimizer.learning_rate=0.01
END
measure() { scripts/time_to_loss.py "$folder/recipes.txt" "$out" --data "$folder/data" "$@" >"$folder/said" 2>"$folder/said.err"; }

measure --seeds '1 2 3'
status=$?
check it_measures "status $status, $(cat "$folder/said" "$folder/said.err")" test "$status" = 0

# points RUN: of each validation step, loss, tokens and seconds of training before it. The first step counts as the median.
points() {
  local middle
  middle=$(sed -nE 's/.*"kind":"train".*"ms":([^,]*),.*/\1/p' "$1/log.jsonl" | sort -g | awk '
    { ms[NR] = $1 } END { print NR % 2 ? ms[(NR + 1) / 2] : (ms[NR / 2] + ms[NR / 2 + 1]) / 2 }')
  sed -nE -e 's/.*"kind":"train","step":([0-9]+),.*"ms":([^,]*),"tokens_per_s":([^,]*),.*/train \1 \2 \3/p' \
    -e 's/.*"kind":"val","step":([0-9]+),"loss":([^,]*),.*/val \1 \2/p' "$1/log.jsonl" | awk -v middle="$middle" '
    $1 == "train" { ms += $2 == 1 ? middle : $3; tokens += $3 * $4 / 1000 }
    $1 == "val" { printf "%d %.9g %.0f %.9g\n", $2, $3, tokens, ms / 1000 }'
}
# expected NAME TARGET: final loss and its error; steps, tokens and seconds at the end; where the mean passes the target, and the
# error of these seconds.
expected() {
  paste <(points "$out/$1/seed-1") <(points "$out/$1/seed-2") <(points "$out/$1/seed-3") | awk -v target="$2" '
    function error(a, b, c, m) { m = (a + b + c) / 3; return sqrt(((a - m) ^ 2 + (b - m) ^ 2 + (c - m) ^ 2) / 6) }
    {
      loss = ($2 + $6 + $10) / 3; tokens = $3; s = ($4 + $8 + $12) / 3
      if (!at && loss <= target) {
        part = (before - target) / (before - loss); at = s0 + part * (s - s0)
        spread = error(a + part * ($2 - a), b + part * ($6 - b), c + part * ($10 - c))
        there = sprintf("%.9g %.9g %.9g %.9g", n0 + part * ($1 - n0), t0 + part * (tokens - t0), at, spread * (s - s0) / (before - loss))
      }
      before = loss; s0 = s; n0 = $1; t0 = tokens; a = $2; b = $6; c = $10; last = error(a, b, c)
    }
    END { printf "%.17g %.9g %d %d %.9g %s\n", loss, last, n0, tokens, s, there }'
}
row() { sed -nE "s/^\| $1 \|(.*)\|\$/\1/p" "$folder/said" | sed 's/+-//g; s/|//g'; }
# agrees NAME TARGET: half of the last digit that the table has, and 1e-4 for what is divided by the first recipe's.
agrees() {
  local base
  read -ra base <<<"$(expected plain "$2")"
  { row "$1"; expected "$1" "$2"; } | awk -v tokens="${base[6]}" -v seconds="${base[7]}" '
    function near(a, b, most) { if (a - b > most || b - a > most) { print "# " a " is not " b; bad = 1 } }
    NR == 1 { for (i = 1; i <= NF; i++) is[i] = $i; count = NF; next }
    {
      near(is[1], 3, 0); near(is[3], $1, 6e-5); near(is[4], $2, 6e-5); near(is[5], $3, 0); near(is[6], $4 / 1e6, 6e-4); near(is[7], $5, 0.06)
      near(is[8], $6, 0.6); near(is[10], $7 / 1e6, 6e-4); near(is[12], $8, 0.06); near(is[13], $9, 0.06)
      near(is[14], $7 / tokens, 6e-4); near(is[15], $8 / seconds, 6e-4)
    }
    END { exit !(NR == 2 && count == 15 && !bad) }'
}
target=$(expected plain 0 | cut -d ' ' -f 1)
check the_target_is_what_the_first_ends_with "$target: $(head -n 1 "$out/table.md")" grep -q "^| recipe .* steps to $(LC_ALL=C printf '%.4f' "$target") |" "$out/table.md"
for name in plain fast short; do
  check "the_row_of_${name}_is_that_of_its_logs" "$(row "$name"), not $(expected "$name" "$target")" agrees "$name" "$target"
done
check the_first_needs_all_its_tokens "$(row plain)" test "$(row plain | awk '{ print $14, $15 }')" = '1.000 1.000'
check a_recipe_that_stays_above_says_so "$(row still)" grep -q ' 24 .* not reached ' <<<"$(row still)"
check the_table_is_kept "$(cat "$out/table.md")" test "$(grep -c '^|' "$folder/said")" = 6 -a -z "$(diff <(grep '^|' "$folder/said") "$out/table.md")"
ends() { for seed in 1 2 3; do points "$out/$1/seed-$seed" | awk -v name="$1" -v seed=$seed 'END { printf "%s %d %d %.4f\n", name, seed, $1, $2 }'; done; }
check each_run_has_a_line "$(cat "$out/runs.tsv")" \
  test "$(awk 'NR > 1 { print $1, $2, $3, $6 }' "$out/runs.tsv")" = "$(for name in plain fast short still; do ends $name; done)"
drawn() { # NAME: the picture has its end, between 50 and 740 by seconds, and between 380 and 16 by loss
  local first last
  last=$(for name in plain fast short still; do expected $name 0; done | awk '
    { low = NR == 1 || $1 < low ? $1 : low; high = $1 > high ? $1 : high; long = $5 > long ? $5 : long }
    END { high = 2 * high; print int(2 * low) / 2, (int(high) + (high > int(high))) / 2 + 2, long }')
  read -ra first <<<"$(expected "$1" 0)"
  sed -nE 's/<circle cx="([^"]*)" cy="([^"]*)".*/\1 \2/p' "$out/loss.svg" | awk -v loss="${first[0]}" -v s="${first[4]}" -v range="$last" '
    { split(range, a, " "); x = 50 + 690 * s / a[3] - $1; y = 380 - 364 * (loss - a[1]) / (a[2] - a[1]) - $2 }
    x * x < 0.01 && y * y < 0.01 { found++ } END { exit !found }'
}
for name in plain fast short still; do check "${name}_is_drawn" "$(cat "$out/loss.svg")" drawn $name; done
check the_picture_is_xml "$(cat "$out/loss.svg")" python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$out/loss.svg"
check peers_are_run_where_asked_alone 'there are runs of torch' test ! -e "$out/torch"

if "${PYTHON:-python3}" -c 'import torch, numpy' 2>/dev/null; then
  measure --seeds '1 2 3' --peer
  check "the_row_of_torch_is_that_of_its_logs" "$(row torch), not $(expected torch "$target"), $(cat "$folder/said.err")" agrees torch "$target"
else
  echo 'ok - the_row_of_torch_is_that_of_its_logs # SKIP torch or numpy is not installed (pip install -r scripts/requirements.txt)'
fi

# ---- What is done is not run again; what was cut is
before=$(cd "$out" && find . -name log.jsonl -printf '%p %T@\n' | sort)
rm "$out/fast/seed-2/done"
sed -i '$d' "$out/fast/seed-2/log.jsonl"
measure --seeds '1 2 3' --target 5.4
after=$(cd "$out" && find . -name log.jsonl -printf '%p %T@\n' | sort)
check only_the_run_that_was_cut_runs_again "$(diff <(echo "$before") <(echo "$after"))" \
  test "$(diff <(echo "$before") <(echo "$after") | grep '^>' | cut -d ' ' -f 2)" = ./fast/seed-2/log.jsonl
check a_target_can_be_given "$(row fast), not $(expected fast 5.4)" agrees fast 5.4

# ---- Mistakes: a sentence, and exit status 1
wrong() { # NAME WORDS ARGUMENTS...
  local name=$1 words=$2
  shift 2
  scripts/time_to_loss.py "$@" >"$folder/said" 2>"$folder/said.err"
  local status=$?
  check "$name" "status $status, it said: $(cat "$folder/said.err")" test "$status $(grep -cF -- "$words" "$folder/said.err")" = '1 1'
}
recipes() { printf '%s\n' "$@" >"$folder/bad.txt"; }
given=(--data "$folder/data")
wrong recipes_that_are_not_there_are_named "there is no file 'tiny'; shipped are 110m 350m 35m small" tiny "$out"
wrong an_out_is_needed 'arguments are required: OUT' small
wrong seeds_are_numbers "--seeds: 'one' is not whole numbers" small "$out" --seeds one
wrong options_are_those_of_the_help "'--seed=1' is neither an option nor section.key=value" small "$out" --seed=1
wrong a_word_alone_is_no_setting "'steps' is neither an option nor section.key=value" small "$out" steps
wrong a_target_is_a_loss "--target: invalid float value: 'low'" small "$out" --target low
wrong data_without_tokens_are_refused "'$folder' has no train-*.bin" "$folder/recipes.txt" "$out" --data "$folder"
wrong a_recipe_that_is_not_there_is_named "there is no recipe 'best' in $folder/recipes.txt; it has plain fast" "$folder/recipes.txt" "$out" --only best
wrong peers_alone_need_peer 'those with peer= need --peer' "$folder/recipes.txt" "$out" --only torch
wrong other_settings_need_another_folder "plain/seed-1 was run with other settings" "$folder/recipes.txt" "$out" "${given[@]}" train.steps=20
recipes 'all configs/quickstart.json' 'one' 'one'
wrong a_recipe_is_there_once "bad.txt: there are two recipes 'one'" "$folder/bad.txt" "$out"
recipes 'one'
wrong a_config_is_needed "there is no line 'all CONFIG.json ...'" "$folder/bad.txt" "$out"
recipes 'all configs/quickstart.json' 'one steps=3'
wrong a_setting_has_a_section "recipe one: train: override 'steps=3'" "$folder/bad.txt" "$out"
recipes "all $folder/config.json" 'one train.stepz=3'
wrong a_wrong_key_is_said_before_the_first_run "recipe one: train: " "$folder/bad.txt" "$folder/other" "${given[@]}"
recipes "all $folder/config.json" 'one' 'two train.batch_size=1'
wrong validations_of_other_tokens_are_refused 'validations read 128 and 256 tokens' "$folder/bad.txt" "$folder/other" "${given[@]}" --seeds 1

# ---- What ships
for file in scripts/recipes/*.txt; do
  check "$(basename "$file" .txt)_explains_itself" 'its first line is no comment' grep -q '^# ' <<<"$(head -n 1 "$file")"
  config=$(sed -nE 's/^all ([^ ]+\.json).*/\1/p' "$file")
  all=$(sed -nE 's/^all [^ ]+\.json(.*)/\1/p' "$file")
  while read -r name settings; do
    settings=$(sed -E 's/#.*//; s/peer=[^ ]*//' <<<"$settings")
    # shellcheck disable=SC2086 # a recipe's words have no spaces
    "$TRAIN" --plan "$config" data.train=absent.bin $all $settings >"$folder/said" 2>&1
    status=$?
    check "$(basename "$file" .txt)_${name}_is_a_recipe" "$(tail -n 1 "$folder/said")" test "$status" = 0
  done < <(grep -E '^[A-Za-z0-9]' "$file" | grep -v '^all ')
done
exit "$failed"
