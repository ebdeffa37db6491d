#!/usr/bin/env bash
# The command line of ./train as a user meets it: what it answers, what it refuses and how, what a short run leaves.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400

# says NAME WORDS ARGUMENTS...: exit status 0, the words on standard output, nothing on standard error, nothing written.
says() {
  local name=$1 words=$2 status
  shift 2
  before=$(listing)
  "$TRAIN" "$@" >"$folder/said" 2>"$folder/said.err" </dev/null
  status=$?
  if [ $status != 0 ]; then fails "$name" "exit status $status: $(cat "$folder/said.err")"
  elif [ -s "$folder/said.err" ]; then fails "$name" "said on standard error: $(cat "$folder/said.err")"
  elif ! grep -qF -- "$words" "$folder/said"; then fails "$name" "'$words' is not in: $(head -c 300 "$folder/said")"
  elif [ "$(listing)" != "$before" ]; then fails "$name" 'it wrote something'
  else passes "$name"; fi
}

# ---- Options
says help_shows_how_to_call_it 'usage: train CONFIG.json' --help
says version_names_the_program 'coda.c train ' --version
says help_config_lists_the_keys 'train.sequence_length' --help-config
check no_line_of_help_config_is_longer_than_80_columns "$(awk 'length > 80' "$folder/said")" \
  test -z "$(awk 'length > 80' "$folder/said")"
keys_shown() { sed -nE 's/^([a-z_.]+)(=[^ ]*)?( \*)? \(.*/\1/p' "$folder/said" | tr '\n' ' '; }
says help_config_shows_a_key 'train.max_minutes=0 (a number, at least 0 and at most 100000000)' --help-config train.max_minutes
check help_config_shows_nothing_else "$(cat "$folder/said")" test "$(keys_shown)" = 'train.max_minutes '
says help_config_shows_what_begins_so 'train.seed=1337 * (' --help-config train.s
check help_config_leaves_the_rest_out "$(keys_shown)" \
  test "$(keys_shown)" = 'train.steps train.sequence_length train.seed train.save_interval train.score train.score_limit train.sample_interval train.sample_tokens '
# shown NAME KEYS WORD: these keys alone.
shown() {
  "$TRAIN" --help-config "$3" >"$folder/said" 2>&1
  check "$1" "$(keys_shown)" test "$(keys_shown)" = "$2 "
}
shown help_config_finds_a_word_in_names_and_meanings 'model.rms_norm_eps optimizer.eps' eps
rates='optimizer.schedule optimizer.learning_rate optimizer.min_learning_rate optimizer.warmup_steps optimizer.decay_steps'
rates+=' optimizer.norm_rate'
shown help_config_takes_words_as_they_are_written "$rates" 'Learning rate'
shown help_config_finds_an_abbreviation "$rates" lr
for word in batch seed context epochs dropout; do
  says "help_config_finds_$word" "$word" --help-config $word
done
refuses help_config_of_no_key_names_the_nearest 'did you mean train.batch_size?' --help-config train.batchsize
refuses help_config_of_no_word_at_all_names_the_list 'xyzzy is not a key; ./train --help-config lists them' --help-config xyzzy
for option in --help --version --help-config --doctor; do
  said=$("$TRAIN" $option 2>&1 >/dev/full)
  status=$?
  check "${option#--}_that_cannot_be_written_is_an_error" "exit status $status, it said '$said'" \
    test "$status $said" = '1 train: cannot write to standard output: No space left on device'
done
refuses no_arguments_is_an_error_that_points_to_help '--help'
mkdir "$folder/many"
for i in 1 2 3 4 5 6 7 8; do cp "$folder/data/train-00000.bin" "$folder/many/train-$i.bin"; done
(ulimit -n 8 && exec "$TRAIN" "$config" "data.train=$folder/many/train-*.bin" "output.dir=$folder/many/run") \
  >"$folder/said" 2>"$folder/said.err" </dev/null
check too_many_open_files_say_how_to_allow_more "status $?, $(cat "$folder/said.err")" \
  grep -q 'too many files .*ulimit -n' "$folder/said.err"
refuses an_unknown_option_names_the_nearest_one 'did you mean --generate' --genrate x
refuses an_abbreviated_option_names_the_whole_one 'did you mean --generate?' --gen x
refuses an_option_like_no_other_has_no_nearest_one "unknown option '--sample'; see ./train --help" --sample x
refuses a_command_without_its_dashes_is_named 'did you mean ./train --generate?' generate x
refuses plan_without_a_config_is_refused 'no config' --plan
refuses an_option_behind_the_config_says_where_it_goes '--plan comes before the config: ./train --plan' "$config" --plan
refuses so_it_does_behind_an_override '--bench comes before the config: ./train --bench' "$config" train.steps=3 --bench
refuses a_key_like_an_option_is_named "'--steps' is not section.key=value; did you mean train.steps=VALUE?" "$config" --steps 5
refuses a_key_with_dashes_is_named_whole 'did you mean optimizer.learning_rate=VALUE?' "$config" --lr=1e-3

# ---- The config file
refuses a_missing_config_is_named "$folder/absent.json" "$folder/absent.json"
refuses a_folder_as_config_is_refused "'$folder/data' is a folder, not a config" "$folder/data"
refuses a_model_as_config_says_what_takes_it './train configs/continue.json model=tests/fixtures/mha_tied' \
  tests/fixtures/mha_tied
echo '{"model": {"hidden_size": 32,' >"$folder/broken.json"
refuses json_that_breaks_off_is_refused "$folder/broken.json" "$folder/broken.json"

# ---- Overrides and values: unit/test_messages has each
refuses an_override_of_an_unknown_key_names_the_nearest_one 'did you mean train.batch_size' "$config" train.batchsize=4
refuses a_contradiction_names_both_keys "$config with the overrides: model.num_key_value_heads is 2, but" \
  "$config" model.num_attention_heads=3
refuses a_gpu_that_is_not_there_is_refused 'backend.device' "$config" backend.device=cuda
refuses a_model_too_large_for_any_memory_is_refused 'memory' "$config" model.hidden_size=131072 \
  model.num_attention_heads=1024 model.intermediate_size=1048576 model.num_hidden_layers=4096

# ---- Data
refuses a_missing_token_file_is_named "$folder/absent" "$config" "data.train=$folder/absent-*.bin"
refuses a_missing_validation_file_is_named 'data.val' "$config" "data.val=$folder/absent.bin"
refuses a_file_that_holds_no_tokens_is_refused "$folder/text.txt" "$config" "data.train=$folder/text.txt"
refuses token_ids_beyond_the_vocabulary_are_refused 'vocab_size' "$config" model.vocab_size=100
refuses data_smaller_than_a_batch_says_how_many_tokens_are_needed 'tokens' "$config" train.batch_size=4096
size=$(stat -c %s "$folder/data/train-00000.bin")
head -c $((size - 1)) "$folder/data/train-00000.bin" >"$folder/cut.bin"
refuses a_token_file_that_was_cut_is_refused "$folder/cut.bin" "$config" "data.train=$folder/cut.bin"

# ---- The run's folder
refuses a_file_as_output_folder_is_refused "$folder/text.txt" "$config" "output.dir=$folder/text.txt"
refuses an_output_folder_below_a_file_is_refused "$folder/text.txt" "$config" "output.dir=$folder/text.txt/run"
[ ! -e /proc/self ] || \
  may_print=yes refuses an_output_folder_that_cannot_be_made_is_refused '/proc/absent' "$config" output.dir=/proc/absent/run
refuses resuming_from_a_folder_that_is_not_there_names_it "$folder/absent" "$config" "train.resume=$folder/absent"
refuses resume_says_what_it_takes "train.resume is 'yes', but it must be \"auto\"" "$config" train.resume=yes

# ---- The plan
says plan_shows_the_resolved_config '"sequence_length": 32' --plan "$config"
of=configs/llama-110m.json
says plan_is_for_a_card_that_is_not_here 'RTX 4090, 24 GB has 23.00 GiB free: the run fits' --plan $of gpu=4090
says plan_estimates_a_step_by_the_data_sheet 'from 165.2 TFLOP/s and 1008 GB/s' --plan $of 'gpu=RTX 4090'
says plan_takes_a_memory_alone 'a GPU of 24 GB has 23.00 GiB free: the run fits' --plan $of gpu=24GB
"$TRAIN" --plan $of gpu=8GB >"$folder/said" 2>"$folder/said.err"
status=$?
check a_run_that_does_not_fit_such_a_card_ends_with_1 "$(cat "$folder/said" "$folder/said.err")" \
  test $status.$(grep -c 'does not fit; it would fit with ' "$folder/said").$(grep -c 'a step takes' "$folder/said") = 1.1.0
advice=$(sed -n 's/.*it would fit with //p' "$folder/said")
while read -ra words; do
  "$TRAIN" --plan $of gpu=8GB "${words[@]}" >"$folder/said" 2>&1 || unfit+="${words[*]}; "
done <<<"${advice//, or with /$'\n'}"
check a_run_that_is_advised_fits "of $advice not $unfit" test "${advice:+there}$unfit" = there
refuses no_card_is_called_so "gpu is 'RTX 9999', but it must be a card such as" --plan $of 'gpu=RTX 9999'
refuses a_card_without_fp8_is_named 'RTX 3090, 24 GB has no FP8; take backend.precision=bf16' --plan $of gpu=3090 \
  backend.precision=fp8
refuses a_card_without_wgmma_is_named 'RTX 4090, 24 GB has no wgmma; take backend.mainloop=auto' --plan $of gpu=4090 \
  backend.kernels=fused backend.mainloop=wgmma
refuses a_card_for_a_cpu_is_refused 'but backend.device is "cpu"' --plan $of gpu=3090 backend.device=cpu
says plan_shows_the_memory '  total' --plan "$config"
says plan_needs_no_data_and_takes_overrides '"num_hidden_layers": 3' --plan "$config" model.num_hidden_layers=3 \
  data.train=absent.bin
says plan_names_the_largest_runs ' with train.batch_size=1 (raise model.max_position_embeddings for that); or train.batch_size=' \
  --plan "$config"
# 500 GB. What is named fits, with half of it as a margin: other programs take and leave memory.
huge=(model.hidden_size=8 model.intermediate_size=262144 model.num_hidden_layers=8 train.batch_size=600)
before=$(listing)
"$TRAIN" --plan "$config" "${huge[@]}" data.train=absent.bin >"$folder/said" 2>&1
check a_plan_that_does_not_fit_names_a_batch_that_would "$(tail -n 3 "$folder/said")" \
  grep -qE 'does not fit; it would fit with .*train.batch_size=[0-9]+$' "$folder/said"
check a_plan_writes_nothing "$(listing)" test "$before" = "$(listing)"
batch=$(grep -oE 'train.batch_size=[0-9]+$' "$folder/said" | grep -oE '[0-9]+')
says the_batch_that_is_named_fits 'the run fits' --plan "$config" "${huge[@]}" \
  "train.batch_size=$(((batch + 1) / 2))"
says a_saving_without_need_is_named 'train.recompute=none fits, too' --plan "$config" train.recompute=layer
"$TRAIN" --plan "$config" "${huge[@]}" "train.batch_size=$((2 * batch))" train.recompute=layer >"$folder/said" 2>&1
layers=$(sed -nE 's/^  train.recompute_layers=([0-9]+) is enough$/\1/p' "$folder/said")
says the_layers_that_are_named_fit 'the run fits' --plan "$config" "${huge[@]}" "train.batch_size=$((batch * 3 / 2))" \
  train.recompute=layer "train.recompute_layers=${layers:-0}"
refuses more_layers_than_the_model_has 'must be at most model.num_hidden_layers, which is 2' "$config" train.recompute_layers=3
says a_batch_of_twice_that_does_not 'does not fit' --plan "$config" "${huge[@]}" "train.batch_size=$((3 * batch))"
refuses a_run_that_does_not_fit_names_it_too 'train.batch_size=' "$config" "${huge[@]}" data.val=

# ---- A run and what it leaves
must "$TRAIN" "$config" train.sample_interval=0 train.sample_tokens=20 train.eval_interval=10
log=$folder/run/log.jsonl
check validation_is_logged_at_step_0_at_intervals_and_at_the_end "$(grep '"val"' "$log")" \
  test "$(grep '"kind":"val"' "$log" | grep -oE '"step":[0-9]+' | tr '\n' ' ')" = '"step":0 "step":10 "step":20 '
check every_step_is_logged "$(grep -c '"train"' "$log") of 20" test "$(grep -c '"kind":"train"' "$log")" = 20
must "$TRAIN" "$config" train.steps=1 optimizer.warmup_steps=0 "output.dir=$folder/single"
must "$TRAIN" "$config" train.steps=1 optimizer.warmup_steps=0 backend.offload=masters "output.dir=$folder/offloaded"
check on_a_cpu_offloading_changes_nothing "$(head -n 1 "$folder/offloaded/log.jsonl")" \
  same_bits "$folder/single" "$folder/offloaded"
check a_run_of_one_step_trains "$(grep '"train"' "$folder/single/log.jsonl")" \
  grep -q '"kind":"train","step":1,.*"lr":0.003,' "$folder/single/log.jsonl"
# Matrices of one row: out_proj and down_proj. They are no norm weights, whose masters stay fp32.
for kind in adamw muon; do
  "$TRAIN" "$config" model.hidden_size=1 model.head_dim=4 model.intermediate_size=1 "optimizer.kind=$kind" backend.masters=bf16 \
    train.sample_interval=0 train.sample_tokens=4 "output.dir=$folder/one-$kind" >"$folder/said" 2>&1
  check "a_width_of_one_trains_with_$kind" "$(tail -n 1 "$folder/said")" grep -q '^done; ' "$folder/said"
done
check the_sample_is_logged "$(cat "$log")" grep -q '"kind":"sample","step":20' "$log"
sample_text() { grep '"kind":"sample"' "$1/log.jsonl" | sed -E 's/.*"text":"(.*)"\}$/\1/'; }
must "$TRAIN" "$config" train.sample_interval=0 train.sample_tokens=400 "output.dir=$folder/more"
# Without a character at its end that the longer one may complete.
short=$(sample_text "$folder/run" | LC_ALL=C sed -E 's/(\\u[0-9a-f]{4}|[^ -~])*$//')
check a_sample_is_the_beginning_of_a_longer_one "'$short' of '$(sample_text "$folder/more")'" \
  test "${#short}" -gt 4 -a "$(sample_text "$folder/more" | head -c "$(printf %s "$short" | wc -c)")" = "$short"
cache_of() { "$TRAIN" --plan "$config" train.sample_interval=0 train.sequence_length=131072 \
  model.max_position_embeddings=131072 "train.sample_tokens=$1" | sed -n 's/^  sampler .*layer *//p'; }
check its_cache_has_its_own_length "$(cache_of 20), $(cache_of 131072)" \
  test "$(cache_of 20) $(cache_of 131072)" = '3.11 MiB 67.10 MiB'
check the_end_is_logged "$(tail -n 1 "$log")" grep -q '"kind":"stop","step":20,"reason":"done"' "$log"
if command -v python3 >/dev/null; then
  check every_line_of_the_log_is_a_json_object 'python3 says no' python3 -c \
    'import json, sys; assert all("kind" in json.loads(line) for line in open(sys.argv[1]))' "$log"
else
  check every_line_of_the_log_looks_like_a_json_object "$(cat "$log")" \
    test "$(grep -cvE '^\{"kind":"[a-z]+","step":[0-9]+.*\}$' "$log")" = 0
fi
for file in config.json model.safetensors optimizer.safetensors run.json state.json; do
  check "the_checkpoint_has_$file" "it is not in $(ls "$folder/run/latest/")" test -s "$folder/run/latest/$file"
done
refuses a_folder_that_holds_a_run_is_not_overwritten 'train.resume=auto' "$config"
refuses a_run_as_config_is_refused "'$folder/single' is a folder, not a config" "$folder/single"
command=$(sed -n 's/.*to resume the run: \.\/train //p' "$folder/said.err")
check a_run_as_config_says_how_to_resume "$command" eval "\"$TRAIN\" $command train.steps=2 >/dev/null"

"$TRAIN" "$config" "output.dir=$folder/timed" train.save_interval=-1 >"$folder/said"
check a_run_that_is_only_timed_saves_nothing "$(ls "$folder/timed")" \
  test "$(ls "$folder/timed"; grep -c 'nothing was saved' "$folder/said")" = $'log.jsonl\nrun.json\n1'

mkdir "$folder/my configs" && cp "$config" "$folder/my configs/a.json"
"$TRAIN" "$folder/my configs/a.json" "output.dir=$folder/my run" >"$folder/said"
command=$(sed -n 's/^done; .* write with it: //p' "$folder/said")
check a_printed_command_holds_paths_with_spaces_together "$command" \
  eval "\"$TRAIN\" ${command#./train} --tokens 3 >/dev/null"

# ---- Writing
refuses generating_from_nothing_is_refused '--generate needs' --generate
refuses generating_from_a_missing_folder_names_it "$folder/absent" --generate "$folder/absent"
refuses generating_from_a_folder_without_a_model_is_refused "$folder/data" --generate "$folder/data"
refuses an_unknown_option_of_generate_names_the_nearest_one 'did you mean --temperature' --generate "$folder/run" \
  --temprature 1
refuses the_beginning_of_an_option_names_the_whole_one 'did you mean --temperature?' --generate "$folder/run" --temp 1
refuses a_seed_is_a_whole_number "--seed needs a whole number from 0 to 9007199254740991, not '1.5'" --generate "$folder/run" \
  --seed 1.5
refuses a_temperature_below_0_is_refused '--temperature needs a number from 0' --generate "$folder/run" --temperature -1
refuses a_temperature_that_is_no_number_is_refused "not 'warm'" --generate "$folder/run" --temperature warm
refuses a_temperature_of_nan_is_refused "not 'nan'" --generate "$folder/run" --temperature nan
refuses a_top_p_above_1_is_refused '--top-p needs' --generate "$folder/run" --top-p 1.5
refuses weights_of_another_format_are_refused "--weights needs bf16 or fp8, not 'int4'" --generate "$folder/run" --weights int4
refuses an_option_without_its_value_is_refused '--tokens needs' --generate "$folder/run" --tokens
says a_prompt_is_gone_on_from 'line 1' --generate "$folder/run" --prompt 'line 1' --tokens 10
says an_empty_prompt_starts_a_document '' --generate "$folder/run" --prompt '' --tokens 10
check a_prompt_is_read_from_standard_input 'it does not begin with the prompt' \
  test "$(printf 'hello' | "$TRAIN" --generate "$folder/run" --tokens 5 | head -c 5)" = hello
first=$("$TRAIN" --generate "$folder/run" --prompt a --seed 7 --tokens 40 | od -c)
check the_same_seed_writes_the_same_text 'the texts differ' \
  test "$first" = "$("$TRAIN" --generate "$folder/run" --prompt a --seed 7 --tokens 40 | od -c)"
check another_seed_writes_another_text 'the texts are equal' \
  test "$first" != "$("$TRAIN" --generate "$folder/run" --prompt a --seed 8 --tokens 40 | od -c)"
exit $failed
