#!/usr/bin/env bash
# ./prepare --train-tokenizer end to end: the same file from the same documents, what it encodes, that AutoTokenizer
# loads it, and that every failure leaves what was there.
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
mkdir "$folder/text"
cat base/*.[ch] >"$folder/text/c.txt"
cat ./*.md data/*.md >"$folder/text/words.txt"
printf 'caf\303\251 \360\237\231\202\r\n\tna\303\257ve   \343\201\202\n' >"$folder/text/z.txt"
cd "$folder" || exit 1

trained() { "$PREPARE" --train-tokenizer 1000 --out "$@" >said 2>said.err; }
# shellcheck disable=SC2317 # check calls these
same_tokenizer() { cmp "$1/tokenizer.json" "$2/tokenizer.json" && cmp "$1/tokenizer_config.json" "$2/tokenizer_config.json"; }
# shellcheck disable=SC2317
holds_the_two_files() { [ "$(ls -A "$1")" = $'tokenizer.json\ntokenizer_config.json' ]; }

must trained one text
check the_report_says_how_to_go_on "$(cat said)" grep -qF './prepare --tokenizer one --out FOLDER TEXT' said
check nothing_but_the_two_files_is_written "$(ls -A one)" holds_the_two_files one

# ---- The same documents give the same file

for threads in 1 2 3; do
  trained "threads$threads" --threads "$threads" text
  check "${threads}_threads_give_the_same_file" "$(cat said.err)" same_tokenizer one "threads$threads"
done
mkdir packed && gzip -k text/c.txt && mv text/c.txt.gz packed && cp text/[wz]* packed
trained packed-out packed
check compressed_text_gives_the_same_file "$(cat said.err)" same_tokenizer one packed-out
trained single text/z.txt text/words.txt text/c.txt
check the_order_of_documents_does_not_matter "$(cat said.err)" same_tokenizer one single
trained words text/words.txt && trained piped - <text/words.txt
check standard_input_gives_the_same_file "$(cat said.err)" same_tokenizer words piped
trained other --pattern '\S+|\s+' text
check another_pattern_gives_another_file "$(cat said.err)" grep -qF '"Regex": "\\S+|\\s+"' other/tokenizer.json

# ---- What it encodes

must "$PREPARE" --tokenizer one --out data --val-fraction 0.5 text
"$PREPARE" --show 3 data >shown
check the_text_comes_back "$(head -c 300 shown)" grep -qF "$(sed -n 1p text/c.txt)" shown
check it_takes_less_than_half_as_many_tokens_as_bytes "$(ls -l data)" \
  test "$(cat data/*.bin | wc -c)" -lt "$(cat text/* | wc -c)" # two bytes a token

python=${PYTHON:-python3}
name=autotokenizer_loads_it_and_gives_the_same_ids
if ! "$python" -c 'import transformers' 2>/dev/null; then echo "ok - $name # SKIP transformers is not installed"
else
  must "$PREPARE" --tokenizer one --out z --val-fraction 0.001 text/z.txt text/z.txt
  tail -c +1025 z/train-00000.bin | od -An -v -tu2 -w2 | tr -d ' ' | awk '{ print } $1 == 999 { exit }' >ids
  "$python" - >said 2>&1 <<'END'
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("one")
assert tokenizer.bos_token_id == 998 and tokenizer.eos_token_id == 999 and len(tokenizer) == 1000
ids = [int(line) for line in open("ids")]
text = open("text/z.txt", newline="").read()
cut = tokenizer.decode(ids, skip_special_tokens=True)  # a document's last byte is for validation
assert len(cut) + 1 >= len(text) and text.startswith(cut), cut
assert tokenizer(cut).input_ids + [999] == ids, ids
END
  status=$?
  check $name "$(cat said)" test $status = 0
fi

# ---- What is refused, and leaves nothing

refuses_to_train() { # NAME WORDS ARGUMENTS...
  local name=$1 words=$2 why
  shift 2
  before=$(listing)
  "$PREPARE" --train-tokenizer "$@" >said 2>said.err </dev/null
  why=$(why_no_clear_error $? "$words")
  check "$name" "$why" test -z "$why"
}
: >empty.txt
refuses_to_train a_tokenizer_that_is_there_is_kept "'one/tokenizer.json' exists: --force" 500 --out one text
for option in '--tokenizer one' '--val-fraction 0.2' '--seed 0' '--shard-tokens 9'; do
  # shellcheck disable=SC2086 # two words
  refuses_to_train "${option%% *}_says_nothing_here" "makes no token files: leave ${option%% *} out" 300 $option \
    --out new/folder text
done
refuses_to_train too_few_ids_are_refused 'from 258 to 1048576 tokens' 257 --out new/folder text
refuses_to_train too_many_ids_are_refused 'from 258 to 1048576 tokens' 1048577 --out new/folder text
refuses_to_train too_little_text_is_refused 'the text is too little for 1000 tokens: it gives ' 1000 --out new/folder text/z.txt
refuses_to_train a_broken_pattern_is_refused 'the regular expression does not compile' 300 --pattern '(' --out new/folder text
refuses_to_train a_pattern_without_an_end_is_refused 'backtrack for ever' 300 --pattern '([a-z ]+)+[\x{1}\x{2}]' --out new/folder text
refuses_to_train a_file_in_the_folders_place_is_refused "'text/c.txt' is not a folder" 300 --out text/c.txt/out text
refuses_to_train an_empty_file_is_refused "'empty.txt' is empty" 300 --out new/folder empty.txt
cp -r one kept
ln -s /dev/full kept/tokenizer.json.tmp
trained kept --force text/words.txt
check a_full_disk_is_an_error "$(cat said.err)" grep -q 'No space left on device' said.err
# shellcheck disable=SC2317 # called by check
old_one_alone() { same_tokenizer one kept && holds_the_two_files kept; }
check the_old_tokenizer_is_whole "$(ls -A kept)" old_one_alone
trained kept --force text/words.txt
check force_replaces_it "$(cat said.err)" same_tokenizer words kept

mkfifo pipe
"$PREPARE" --train-tokenizer 300 --out new/folder - <pipe >said 2>said.err &
job=$!
{ yes 'some text' | head -c 2000000; kill -TERM $job; yes 'some text' | head -c 2000000; } >pipe 2>/dev/null
wait $job
status=$?
check a_signal_ends_it_by_that_signal "status $status: $(cat said.err)" test $status = 143
check a_signal_leaves_nothing "$(find new 2>&1)" test ! -e new
check a_signal_is_said "$(cat said.err)" test "$(cat said.err)" = 'prepare: interrupted: nothing was written'
exit "$failed"
