#!/usr/bin/env bash
# The folder that ./prepare writes: what it replaces and refuses, what it says of itself, and its way back to text.
# shellcheck source=tests/support/prepare.sh
. "$(dirname "$0")/../support/prepare.sh"

for i in $(seq 1 150); do echo "{\"text\": \"document $i é\\n\"}"; done >many.jsonl
printf '0123456789abcdefghijk' >text
files() { find "$1" | LC_ALL=C sort | tr '\n' ' '; }

# untouched NAME WORDS ARGUMENTS...: refused with the words, and nothing under the folder changes.
untouched() {
  local name=$1 words=$2 before
  shift 2
  before=$(find . ! -name std\* -type f -exec sha256sum {} + | sort)
  "$prepare" "$@" >stdout 2>stderr
  local status=$?
  if [ $status = 1 ] && [ "$(wc -l <stderr)" = 1 ] && grep -qF -- "$words" stderr &&
    [ "$before" = "$(find . ! -name std\* -type f -exec sha256sum {} + | sort)" ]; then passes "$name"
  else fails "$name" "status $status, said: $(cat stderr)"; fi
}

# ---- What --out may be

untouched an_out_folder_must_be_named '--out is missing' text
untouched an_empty_name_is_refused '--out is missing' --out '' text
runs --out set text
untouched a_dataset_is_not_replaced "the folder 'set' holds a dataset already" --out set many.jsonl
mkdir mine && echo x >mine/notes.txt
untouched a_folder_with_other_files_is_refused "the folder 'mine' holds 'notes.txt'" --out mine text
untouched even_with_force "the folder 'mine' holds 'notes.txt'" --force --out mine text
untouched a_file_is_no_folder "'text' is a link or a file" --out text text
untouched nor_has_it_one "'text" --out text/out text
mkdir empty && runs --out empty/ text
holds an_empty_folder_is_filled '[0123456789abcdefgh]' empty/train-00000.bin
ln -s set link && runs --force --out link --val-fraction 0.5 text
holds a_link_to_a_folder_stays_one '[0123456789]' set/train-00000.bin
mkdir tokenizer && cp set/tokenizer*.json tokenizer
check a_folder_of_the_same_tokenizer_alone_is_filled 'it was not' runs --out tokenizer text
mkdir other && sed 's/begin_of_text/start_of_text/g' set/tokenizer.json >other/tokenizer.json
cmp -s set/tokenizer.json other/tokenizer.json && fails a_file_that_says_something_else 'it says the same'
untouched another_tokenizer_is_not_replaced "the folder 'other' holds another tokenizer" --out other text

# ---- What stands beside it, and comes to it: unit/test_folder_faults has the other cases

mkdir -p late.tmp && touch late.tmp/train-00000.bin late.tmp/.unfinished
runs --out late text
check what_a_killed_run_left_is_removed "$(cat stderr)" test -e late -a ! -e late.tmp
cp -r set copy.tmp
untouched a_dataset_that_somebody_keeps_there_is_not \
  "'copy.tmp' is not for ./prepare to remove, as it holds 'checksums.json'" --out copy text

# meanwhile NAME WORDS OUT COMMAND ARGUMENTS...: the command runs while ./prepare writes OUT. Both stay.
meanwhile() {
  local name=$1 words=$2 out=$3 command=$4 job status
  shift 4
  mkfifo waits
  "$prepare" --out "$out" "$@" - <waits >stdout 2>stderr &
  job=$!
  exec 3>waits
  until [ -e "$out.tmp/.unfinished" ] || ! kill -0 $job 2>/dev/null; do sleep 0.01; done
  eval "$command"
  cat text >&3
  exec 3>&-
  wait $job
  status=$?
  rm waits
  if [ $status = 1 ] && [ "$(wc -l <stderr)" = 1 ] && grep -qF -- "$words" stderr && [ "$(cat "$out/letter")" = theirs ] &&
    [ "$(documents "$out".tmp/*.bin)" = '[0123456789abcdefgh][ijk]' ]; then passes "$name"
  else fails "$name" "status $status, said: $(cat stderr), left: $(files "$out") $(files "$out.tmp")"; fi
}
cp -r set again
meanwhile a_file_that_comes_to_a_dataset_is_kept "(see 'letter')" again 'echo theirs >again/letter' --force
mkfifo pipe
"$prepare" --out busy - <pipe >stdout 2>stderr.first &
job=$!
exec 3>pipe
until [ -e busy.tmp/.unfinished ]; do sleep 0.01; done
untouched two_runs_into_one_folder_are_refused "another ./prepare is writing '" --out busy text
cat text >&3
exec 3>&-
check the_first_of_the_two_ends_well "$(cat stderr.first)" wait $job
holds with_its_documents '[0123456789abcdefgh][ijk]' busy/*.bin

# ---- What it says of itself

runs --out said --shard-tokens 1000 many.jsonl
python3 - said "$(cat stdout)" >problems 2>&1 <<'END'
import glob, re, struct, sys
folder, report = sys.argv[1:]
assert re.search(r"^tokenizer +bytes, 258 ids$", report, re.M), report
assert re.search(r"^documents +150 in 1 file, whole ones for validation$", report, re.M), report
for part in ("train", "val"):
    files = sorted(glob.glob(f"{folder}/{part}-*.bin"))
    headers = [struct.unpack("<4i2Q", open(f, "rb").read(32)) for f in files]
    tokens = [i for f in files for (i,) in struct.iter_unpack("<H", open(f, "rb").read()[1024:])]
    assert all(h[3] == 0x61646F63 and h[4] == headers[0][4] for h in headers), headers
    ends = [struct.unpack("<2I3Q", open(f[:-3] + "docs", "rb").read(32)) for f in files]
    assert [h[5] for h in headers] == [e[3] for e in ends], part
    said = re.search(fr"^{part} +(\d+) tokens of (\d+) documents, (\S+) bytes a token", report, re.M).groups()
    assert int(said[0]) == len(tokens), said
    assert int(said[1]) == tokens.count(256) == tokens.count(257), said
    assert said[2] == f"{sum(t < 256 for t in tokens) / len(tokens):.2f}", said
END
check the_report_says_what_is_there "$(tail -n 1 problems)" test ! -s problems

cp -r said flipped && sed -i 's/eos_token/eos-token/' flipped/tokenizer_config.json
untouched a_tokenizer_config_that_was_changed_is_noticed "'flipped/tokenizer_config.json' is not what was saved" --show 1 flipped
untouched where_it_is_the_tokenizer_too "'flipped/tokenizer_config.json' is not what was saved" --tokenizer flipped --out new text

# ---- Back to text

"$prepare" --show 2 said >shown
expected=$'<|begin_of_text|>document 1 é\n<|end_of_text|>\n--- end of document 1, 16 tokens ---\n'
expected+=$'<|begin_of_text|>document 2 é\n<|end_of_text|>\n--- end of document 2, 16 tokens ---'
check show_prints_the_first_documents "$(cat shown)" test "$(cat shown)" = "$expected"
"$prepare" --show 1 said/val-00000.bin >shown
check show_prints_a_token_file "$(cat shown)" \
  test "$(grep -c '^<|begin_of_text|>document [0-9]* é$\|^--- end of document' shown)" = 2
runs --shard-tokens 5 --out spans text && "$prepare" --show 9 spans >shown
check show_prints_a_document_that_spans_files "$(cat shown)" \
  test "$(cat shown)" = $'<|begin_of_text|>0123456789abcdefgh<|end_of_text|>\n--- end of document 1, 20 tokens ---'
head -c 12 said/train-00000.bin >unmarked && head -c 1012 /dev/zero >>unmarked && tail -c +1025 said/train-00000.bin >>unmarked
untouched show_asks_for_the_tokenizer_of_a_file_that_names_none 'name it with --tokenizer' --show 1 unmarked
"$prepare" --show 1 --tokenizer bytes unmarked >shown
check show_takes_a_tokenizer "$(cat shown)" grep -q '^<|begin_of_text|>document 1 é$' shown
untouched show_writes_nothing '--show takes one folder' --show 1 --out new said
{ head -c 2000 said/train-00000.bin; printf 'xx'; tail -c +2003 said/train-00000.bin; } >said/train-00009.bin
cp said/tokenizer*.json .
untouched a_damaged_token_file_is_found "'said/train-00009.bin' is damaged" --show 1 said/train-00009.bin

# ---- Other tokenizers. The text is cut into pieces, of which only the first begins a text

seq -f 'line %g: été, don'"'"'t  stop' 100000 >long # 3.1 MB
for kind in llama3 llama2 mistral; do
  runs --tokenizer "$source/tests/fixtures/tokenizers/$kind" --val-fraction 0.000001 --out $kind long
  bytes=$(($(stat -c %s long) * 999999 / 1000000)) # of train
  "$prepare" --show 1 $kind | sed '1s/^\(<s>\|<|begin|>\)//' | head -n -1 | head -c "$bytes" >shown
  check "${kind}_gives_the_text_back" "$(cmp -n "$bytes" long shown)" cmp -s -n "$bytes" long shown
  ids=$(($(stat -c %s $kind/train-00000.bin) / 2))
  check "${kind}_makes_fewer_tokens_than_bytes" "$ids ids" test $ids -lt "$bytes" -a "$bytes" -gt 3000000
done
untouched a_tokenizer_that_is_none_is_refused "tokenizer.json" --tokenizer mine --out new text
printf 'a<|begin|>b and more of it' >marker
runs --tokenizer "$source/tests/fixtures/tokenizers/llama3" --val-fraction 0 --out special marker
tokens=$("$prepare" --show 9 special | sed 's/[0-9]* tokens/N tokens/')
check a_special_token_in_the_text_is_one_id_and_shown "$tokens" \
  test "$tokens" = $'<|begin|>a<|begin|>b and more of it\n--- end of document 1, N tokens ---'

# ---- BOS and EOS that the text spells out, as apply_chat_template(tokenize=False) does

for i in $(seq 1 120); do printf '{"text": "<|begin_of_text|>document %d<|end_of_text|>"}\n' "$i"; done >spelled.jsonl
sed 's/<|[a-z_]*|>//g' spelled.jsonl >unspelled.jsonl
runs --out unspelled unspelled.jsonl && runs --out spelled spelled.jsonl
check a_document_has_one_bos_and_one_eos "$(documents spelled/*.bin | head -c 200)" \
  test "$(documents unspelled/*.bin)" = "$(documents spelled/*.bin)"
check the_report_says_so "$(cat stdout)" grep -qx 'spelled    120 documents begin with <|begin_of_text|> in the text: no second one is put there' stdout
check for_both "$(cat stdout)" grep -q '^spelled    120 documents end with <|end_of_text|>' stdout
printf '<|begin_of_text|><|begin_of_text|>two' >two
runs --val-fraction 0 --out two.out two
holds what_is_twice_in_the_text_stays_twice '[[two]' two.out/*.bin

exit $failed
