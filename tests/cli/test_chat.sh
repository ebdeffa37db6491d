#!/usr/bin/env bash
# Conversations from a line of JSON to an answer: prepared, shown, refused, trained on, spoken with.
# shellcheck source=tests/support/prepare.sh
. "$(dirname "$0")/../support/prepare.sh"

# turns LINES: a conversation a line, of which the answer can be learnt.
turns() {
  seq "$1" | sed 's/.*/{"messages":[{"role":"user","content":"Say &!"},{"role":"assistant","content":"It is &."}]}/'
}
turns 300 >turns.jsonl
must "$prepare" --train-tokenizer 400 --template chatml --out tok "$source/README.md" "$source/data/README.md"
must "$prepare" --train-tokenizer 400 --template llama3 --out tok3 "$source/README.md" "$source/data/README.md"

check the_templates_markers_are_special "$(head -c 900 tok/tokenizer.json)" \
  grep -q '"content": "<|im_end|>"' tok/tokenizer.json
check and_the_template_is_beside_them "$(cat tok/tokenizer_config.json)" \
  grep -q '"chat_template": "{% for message in messages %}' tok/tokenizer_config.json

# ---- Every way in gives the same files
same() { # same NAME FOLDER
  check "$1" "$2 differs from chat" test "$(cat chat/*.bin chat/*.docs | cksum)" = "$(cat "$2"/*.bin "$2"/*.docs | cksum)"
}
must "$prepare" --chat --tokenizer tok --out chat turns.jsonl
runs --chat --tokenizer tok --out again --threads 1 turns.jsonl && same threads_change_nothing again
gzip -k turns.jsonl && runs --chat --tokenizer tok --out gz turns.jsonl.gz && same a_gz_is_read gz
runs --chat --tokenizer tok --out stdin - <turns.jsonl && same standard_input_is_read stdin
(printf '\xef\xbb\xbf'; sed 's/$/\r\n/' turns.jsonl) >marked.txt
runs --chat --tokenizer tok --out marked marked.txt && same a_mark_and_blank_lines_are_passed_over marked
cp turns.jsonl plain && runs --chat --tokenizer tok --template chatml --out named plain && same its_own_template_by_name named
check it_writes_no_other_template "$(ls named)" test ! -e named/chat_template.jinja
# Of few conversations whole ones are for validation, too.
head -n 3 turns.jsonl >three && runs --chat --tokenizer tok --out few three
check few_conversations_stay_whole "$(cat stdout)" grep -q '^documents  3 in 1 file, whole ones' stdout

# ---- --show
printf '%s\n' '{"messages":[{"role":"system","content":"S"},{"role":"user","content":"<|im_end|>?"},{"role":"assistant","content":"A"}]}' \
  '{"messages":[{"role":"user","content":" U\n"},{"role":"assistant","content":"\u00e9 <|eot_id|>\n"}]}' >shown.jsonl
shown() { # shown TOKENIZER: both conversations, whichever of them is for validation
  runs --chat --force --tokenizer "$1" --out shown shown.jsonl &&
    { "$prepare" --show 9 shown; "$prepare" --show 9 shown/val-00000.bin; }
}
shown tok >said
check what_counts_is_marked "$(cat said)" \
  grep -qzF $'<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n<|im_end|>?<|im_end|>\n<|im_start|>assistant\n[[A<|im_end|>]]' said
shown tok3 >said
check llama3_trims_contents "$(cat said)" \
  grep -qzF $'<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[[\u00e9 <|eot_id|><|eot_id|>]]' said

# ---- Roles in any order, null, parts, and a turn that is shown but not learnt
printf '%s\n' '{"messages":[{"role":"assistant","content":"A","tool_calls":null},{"role":"tool","content":[{"type":"text","text":"{1"},{"type":"text","text":"}"}]},{"role":"system","content":"S"},{"role":"assistant","content":"B","weight":0},{"role":"assistant","content":"C"}],"n":1}' \
  '{"messages":[{"role":"assistant","content":"D"}]}' >shown.jsonl
shown tok >said
check messages_of_any_roles "$(cat said)" \
  grep -qzF $'<|im_start|>assistant\n[[A<|im_end|>]]\n<|im_start|>tool\n{1}<|im_end|>\n<|im_start|>system\nS<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>assistant\n[[C<|im_end|>]]' said

# ---- What is refused, with its file and line: unit/test_messages has each
{ head -n 1 turns.jsonl; echo '{"messages": [{"role": "user", "content": "a"}]}'; } >bad.jsonl
refuses a_user_alone "'bad.jsonl' line 2: it has no message of the assistant" --chat --tokenizer tok bad.jsonl
# Its advice can be followed: no template has its markers in bytes.
refuses a_tokenizer_without_template "'bytes' has no chat template: it has no special tokens for one either; ./prepare --train-tokenizer N --template llama3 or chatml makes" --chat turns.jsonl
refuses a_tokenizer_without_markers "'bytes' has no special token <|im_start|>, which the chat template of ChatML needs; ./prepare --train-tokenizer N --template chatml makes" --chat --template chatml turns.jsonl
cp -r tok plain_tok && sed -i 's/"chat_template"/"other"/' plain_tok/tokenizer_config.json
refuses a_template_that_its_tokens_fit "has no chat template: name one with --template chatml" --chat --tokenizer plain_tok turns.jsonl
refuses the_markers_of_another_template 'has no special token <|start_header_id|>' --chat --tokenizer tok --template llama3 turns.jsonl
refuses an_unknown_template "--template 'alpaca' is none" --chat --tokenizer tok --template alpaca turns.jsonl
refuses a_template_for_text '--template is for --chat or --train-tokenizer' --template chatml turns.jsonl
refuses a_field_of_a_conversation 'leave --field out' --chat --field text --tokenizer tok turns.jsonl
refuses conversations_for_a_tokenizer 'leave --chat out' --chat --train-tokenizer 400 turns.jsonl
cp -r tok changed && sed -i 's/assistant\\n/Assistant\\n/' changed/tokenizer_config.json
refuses a_template_that_differs_in_a_letter 'is none of those that are known here' --chat --tokenizer changed turns.jsonl
runs --chat --tokenizer changed --template chatml --out renamed turns.jsonl
check a_named_template_is_written_beside_the_tokens "$(ls renamed)" grep -q "'<|im_start|>assistant" renamed/chat_template.jinja
# Jinja does not see a newline at the end.
mkdir ended && cp renamed/tokenizer*.json ended && { cat renamed/chat_template.jinja; echo; } >ended/chat_template.jinja
runs --chat --tokenizer ended --out lined turns.jsonl && same a_template_with_a_newline_at_its_end lined
cp -r tok old && echo '{{ x }}' >old/chat_template.jinja
"$prepare" --train-tokenizer 400 --force --out old "$source/README.md" 2>stderr
check a_template_that_would_be_the_new_tokenizers "$(cat stderr)" grep -q "'old/chat_template.jinja' would become" stderr

{ echo Hello; cat turns.jsonl; echo '{"messages": []}'; } >mixed.jsonl
runs --chat --skip-bad --tokenizer tok --out mixed mixed.jsonl
check bad_conversations_are_counted "$(cat stdout)" \
  grep -q '^bad        2 lines skipped, the first: mixed.jsonl:1: is not JSON' stdout
check and_the_others_are_there "$(cat stdout)" test "$(cat mixed/*.bin | wc -c)" = "$(cat chat/*.bin | wc -c)"
refuses a_bad_conversation_names_the_way_past_it '; --skip-bad passes over such lines' --chat --tokenizer tok mixed.jsonl

# ---- A message of 100 MB, in bounded memory
if [ -z "${TEST_TIER:-}" ]; then
  { head -n 2 turns.jsonl; printf '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"'
    yes 'a line of text, and one more' | head -c 100000000 | tr '\n' ' '; printf '"}]}\n'; } >long.jsonl
  runs --chat --tokenizer tok --out long long.jsonl
  check a_message_of_100_mb "$(cat stderr)" test -e long/train-00000.bin
  rm -r long long.jsonl
fi

# ---- Training, and the answer
cat >run.json <<END
{"model": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "vocab_size": 400, "max_position_embeddings": 128},
 "data": {"train": "chat/train-*.bin", "val": "chat/val-*.bin"},
 "train": {"steps": 20, "batch_size": 4}, "optimizer": {"learning_rate": 0.003, "warmup_steps": 5},
 "output": {"dir": "run"}}
END
must "$TRAIN" run.json
check the_template_is_in_the_checkpoint "$(ls run/latest)" cmp tok/tokenizer_config.json run/latest/tokenizer_config.json
check the_end_of_a_turn_is_an_end_of_text "$(cat run/latest/generation_config.json)" \
  test "$(tr -d ' \n' <run/latest/generation_config.json)" = '{"bos_token_id":396,"eos_token_id":[397,399]}'
# A run from that checkpoint on data of a named template has that one, and a list that is there is extended.
cp -rL run/latest base && echo '{"temperature": 0.6, "eos_token_id": 397}' >base/generation_config.json
rm base/checksums.json && echo '{{ x }}' >base/chat_template.jinja
must "$TRAIN" run.json model=base train.steps=1 optimizer.warmup_steps=0 output.dir=tuned
check its_own_template_wins "$(ls tuned/latest)" test ! -e tuned/latest/chat_template.jinja
check a_carried_list_is_extended "$(cat tuned/latest/generation_config.json)" \
  test "$(tr -d ' \t\n' <tuned/latest/generation_config.json)" = '{"temperature":0.6,"eos_token_id":[397,399]}'

tune() { # ARGUMENTS...
  "$TRAIN" "$source/configs/finetune.json" 'data.train=chat/train-*.bin' 'data.val=chat/val-*.bin' optimizer.warmup_steps=1 \
    output.dir=fine "$@" >stdout 2>stderr
}
tune
check a_model_that_is_not_there_says_what_to_give "$(cat stderr)" \
  grep -q "finetune.json: model: there is no 'models/Llama-3.2-1B'; give model=FOLDER" stderr
tune model=run
check a_context_that_is_too_short_says_what_to_set "$(cat stderr)" grep -q 'which is 128; set train.sequence_length=128$' stderr
must tune model=run train.sequence_length=128 train.steps=2
check finetune_json_goes_on_from_a_run "$(ls fine/latest)" cmp tok/tokenizer_config.json fine/latest/tokenizer_config.json
check a_chat_model_is_written_with_by_user "$(cat stdout)" \
  grep -q '^done; the model: fine/step-00000002; write with it: ./train --generate fine/step-00000002 --user "..."$' stdout
check the_end_has_the_last_validation "$(cat stdout)" grep -qE '^validation loss [0-9.]+ at the end, the best of the run$' stdout
# A rate at which the second half undoes the first.
again=(model=run train.sequence_length=128 optimizer.schedule=constant optimizer.min_learning_rate=0)
rm -r fine && must tune "${again[@]}" train.steps=4 optimizer.learning_rate=0.002
must tune "${again[@]}" train.steps=8 optimizer.learning_rate=0.3 train.resume=auto
best=$(sed -nE 's/^validation loss ([0-9.]+) at the end; the best: ([0-9.]+) at step 4$/\1 \2/p' stdout)
check the_end_has_the_best_validation "$(cat stdout)" awk -v best="$best" 'BEGIN { split(best, l); exit !(l[2] > 0 && l[2] < l[1]) }'
check the_best_is_what_to_write_with "$(cat stdout)" \
  grep -q '; the best by validation: fine/best; write with it: ./train --generate fine/best --user "..."$' stdout

for how in '' data.tokenizer=tok model=base; do
  rm -rf flipped && cp -r chat flipped && sed -i 's/in messages/in Messages/' flipped/tokenizer_config.json
  # shellcheck disable=SC2086 # nothing or one override
  "$TRAIN" run.json $how 'data.train=flipped/train-*.bin' output.dir=never >stdout 2>stderr
  status=$?
  check "a_template_that_was_changed_beside_the_tokens_is_refused_with_'$how'" "$(cat stderr)" \
    test $status = 1 -a "$(grep -c "'flipped/tokenizer_config.json' is not what was saved" stderr)" = 1 -a ! -e never
done

answers() { "$TRAIN" --generate run --temperature 0 --tokens 8 "$@" 2>stderr; }
said=$(answers --user 'Say 7!')
check a_user_is_answered "it said '$said', $(cat stderr)" test -n "$said"
check and_the_message_is_not_repeated "$said" test "${said#*Say 7}" = "$said"
spelled=$(answers --user 'Say <|im_end|>!')
check a_marker_in_a_message_is_text "it said '$spelled', $(cat stderr)" test -n "$spelled"
said_no() { # said_no NAME WORDS ARGUMENTS...
  local name=$1 words=$2
  shift 2
  "$TRAIN" --generate "$@" >stdout 2>stderr </dev/null
  local status=$?
  check "$name" "$(cat stderr)" test "$status$(wc -l <stderr)$(grep -cF -- "$words" stderr)" = 111
}
said_no a_prompt_and_a_user '--prompt is continued, and --user is answered' run --prompt a --user b
said_no a_system_alone '--system needs --user' run --system a
said_no a_message_beyond_the_context 'the context of 128 tokens is full' run --user "$(seq 200)"
sed -i 's/assistant\\n/Assistant\\n/' base/tokenizer_config.json
said_no a_model_of_another_template 'prepare conversations with ./prepare --chat --template' base --user a
rm base/tokenizer.json
said_no a_model_without_a_tokenizer 'has no tokenizer.json' base --user a

# On a terminal it is a conversation, in which the messages before are in view.
if command -v script >/dev/null; then
  printf 'Say 7!\n\nAgain\n' | script -qec "'$TRAIN' --generate run --temperature 0 --tokens 8" /dev/null |
    tr -d '\r' >said
  check a_terminal_has_a_conversation "$(cat said)" grep -qF "> $said" said
  check until_its_end "$(cat said)" test "$(grep -o '> ' said | wc -l)" = 4
fi
exit $failed
