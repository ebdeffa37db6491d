#!/usr/bin/env bash
# ./train --score on a run's folder, and train.score in a run. tests/unit/test_score.c compares sums
# with lm-evaluation-harness'.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
export CUDA_VISIBLE_DEVICES= # on a machine with a GPU, too
prepare_run 400
run=$folder/run
tasks=tests/fixtures/scores

must "$TRAIN" "$config" train.steps=20 train.eval_interval=10 train.eval_batches=2 \
  "train.score=piqa=$tasks/piqa.jsonl  lambada_openai=$tasks/lambada_openai.jsonl" \
  train.score_limit=3
said=$("$TRAIN" --score "$run" "piqa=$tasks/piqa.jsonl" \
  "lambada_openai=$tasks/lambada_openai.jsonl" --limit 3 2>&1)
check a_run_is_scored_in_a_table "it said $said" \
  grep -qE '^piqa +3 +[01]\.[0-9]{4} \+- 0\.[0-9]{4} +[01]\.[0-9]{4} \+- 0\.[0-9]{4}' <<<"$said"
json=$("$TRAIN" --score "$run" "piqa=$tasks/piqa.jsonl" --limit 3 --json)
question='\{"line":[0-9]+,"gold":[01],"sums":\[-[0-9.]+,-[0-9.]+\][^}]*\}'
check json_has_the_sums_of_every_question "it said $json" \
  grep -qE '"acc":[0-9.]+,.*"answers":\['"($question,){2}$question\\]" <<<"$json"
# The last scores of the run are those of its last checkpoint.
acc() { sed -n 's/.*"task":"piqa".*"acc":\([0-9.e-]*\),"acc_stderr.*/\1/p'; }
check a_run_logs_its_scores_with_each_validation "$(grep score "$run/log.jsonl")" \
  test "$(grep -c '"kind":"score"' "$run/log.jsonl")" = 6
logged=$(grep '"kind":"score","step":20,' "$run/log.jsonl" | acc)
check and_they_are_its_checkpoints "the run says '$logged', --score $(acc <<<"$json")" \
  test "$logged" = "$(acc <<<"$json")"

# ---- Parquet
if "${PYTHON:-python3}" -c 'import pyarrow' 2>/dev/null; then
  mkdir "$folder/tables"
  "${PYTHON:-python3}" - "$tasks" "$folder/tables" <<'END'
import json, sys
import pyarrow, pyarrow.parquet
for name in "arc_easy", "mmlu", "mmlu-dev", "boolq":
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}.jsonl")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), f"{sys.argv[2]}/{name}.parquet")
END
  mkdir "$folder/lines"
  cp "$tasks"/{arc_easy,mmlu,mmlu-dev,boolq}.jsonl "$folder/lines"
  scores() { "$TRAIN" --score "$run" "$folder/$1" --json | sed 's/"file":"[^"]*"//'; }
  check parquet_is_scored_as_json_lines_are "$(scores tables | cut -c 1-300)" \
    test "$(scores tables)" = "$(scores lines)" -a "$(scores lines | wc -l)" = 3
else
  echo "ok - parquet_is_scored_as_json_lines_are # SKIP pyarrow is not installed"
fi

mkdir "$folder/blimp"
head -n 2 "$tasks/blimp.jsonl" >"$folder/blimp/an_agreement.jsonl"
tail -n 1 "$tasks/blimp.jsonl" >"$folder/blimp/a_tie.jsonl"
said=$("$TRAIN" --score "$run" "blimp=$folder/blimp" | cut -c1-34 | tr -s ' \n' ' ')
check several_files_of_a_task_are_named "$said" \
  test "$said" = 'task blimp a_tie blimp an_agreement blimp '

refuses without_a_task_it_names_them 'tasks are hellaswag, piqa, arc_easy' --score "$run"
refuses a_missing_file_is_named "there is no file '$folder/none.jsonl'" \
  --score "$run" "piqa=$folder/none.jsonl"
refuses an_unknown_task_is_named "there is no task 'piqqa'" --score "$run" "piqqa=$tasks/piqa.jsonl"
refuses a_fault_has_its_line "piqa.jsonl', line 1: it has no \"passage\"" \
  --score "$run" "boolq=$tasks/piqa.jsonl"
refuses train_score_is_refused_likewise "train.score: there is no task 'piqqa'" "$config" \
  "output.dir=$folder/other" "train.score=piqqa=$tasks/piqa.jsonl"
exit "$failed"
