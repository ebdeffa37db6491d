#!/usr/bin/env bash
# What ./prepare reads: compressed files, standard input, fields and separators, and what is wrong with them.
# shellcheck source=tests/support/prepare.sh
. "$(dirname "$0")/../support/prepare.sh"

# same_dataset NAME FOLDER: its token files are those of the folder `plain`.
same_dataset() {
  check "$1" "the token files differ: $(documents "$2"/*.bin | head -c 200)" \
    test "$(cat plain/*.bin | sha256sum)" = "$(cat "$2"/*.bin | sha256sum)"
}

# ---- Compressed files and standard input give what the plain file gives

for i in $(seq 1 300); do echo "{\"text\": \"document $i\", \"meta\": {\"body\": \"b$i\"}}"; done >many.jsonl
runs --out plain many.jsonl
have_zstd=$(command -v zstd)
gzip -k many.jsonl
runs --out gz many.jsonl.gz && same_dataset a_gz_file_is_read gz
{ head -n 100 many.jsonl | gzip; tail -n +101 many.jsonl | gzip -1; } >members.jsonl.gz
runs --out members members.jsonl.gz && same_dataset the_members_of_a_gz_file_are_read members
if [ -n "$have_zstd" ]; then
  { head -n 100 many.jsonl | zstd -q; tail -n +101 many.jsonl | zstd -q --long=27; } >many.jsonl.zst
  runs --out zst many.jsonl.zst && same_dataset the_frames_of_a_zst_file_are_read zst
else echo "ok - the_frames_of_a_zst_file_are_read # SKIP no zstd here"; fi
runs --jsonl --out stdin - <many.jsonl && same_dataset jsonl_is_read_from_standard_input stdin
runs --field text --out stdin.gz - <members.jsonl.gz && same_dataset compressed_jsonl_is_read_from_standard_input stdin.gz
{ head -n 1 many.jsonl; sleep 0.3; tail -n +2 many.jsonl; } | runs --jsonl --out slow - &&
  same_dataset a_pipe_that_pauses_is_read_to_its_end slow

printf '0123456789abcdefghijk' >text
runs --out text.in - <text
holds text_on_standard_input_is_split_at_its_end '[0123456789abcdefgh][ijk]' text.in/*.bin
gzip -c text | runs --out text.gz -
holds so_is_compressed_text '[0123456789abcdefgh][ijk]' text.gz/*.bin
seq 1 9000000 >large # 70 MB, more than waits for the number of documents
for fraction in 0.1 0.9; do
  runs --force --out large.file --val-fraction $fraction large && gzip -1 -c large | runs --force --out large.pipe --val-fraction $fraction -
  check "a_document_of_unknown_size_is_split_at_the_same_byte_$fraction" "$(sha256sum large.*/*)" diff -r large.file large.pipe
done
{ printf '{"text": "'; head -c 70000000 /dev/zero | tr '\0' x; printf '"}\n'; cat many.jsonl; } | runs --jsonl --out large.lines -
check few_documents_in_64_MiB_are_split_at_their_ends "$(cat stdout)" grep -q '^documents  301 in 1 file, the tail of each' stdout
rm -r large*
mkdir folder && gzip -c text >folder/a.txt.gz && cp many.jsonl.gz folder/b.jsonl.gz
runs --out folder.out folder
check a_folder_may_hold_compressed_files "$(cat stdout)" grep -q '301 in 2 files' stdout

for threads in 1 2 7; do
  runs --threads $threads --out "threads$threads" many.jsonl && same_dataset "${threads}_threads_write_the_same_bytes" "threads$threads"
done

# ---- JSON lines under every name, told by their first line

have_lines() { # have_lines NAME FILE [ARGUMENTS]: the file is read as many.jsonl is
  local name=$1 file=$2
  shift 2
  rm -rf named
  runs --out named "$@" "$file" && same_dataset "$name" named
}
for name in c4.json dolma.JSON lines.ndjson lines.jsonlines LINES.JSONL part-00000 lines.txt; do
  cp many.jsonl "$name"
  have_lines "json_lines_are_read_from_$name" "$name"
  gzip -c many.jsonl >"$name.gz"
  have_lines "json_lines_are_read_from_$name.gz" "$name.gz"
done
if [ -n "$have_zstd" ]; then
  zstd -q many.jsonl -o dolma.json.zst
  have_lines json_lines_are_read_from_dolma.json.zst dolma.json.zst
fi
have_lines json_lines_are_known_on_standard_input - <many.jsonl
{ printf '\xef\xbb\xbf\n'; cat many.jsonl; } >marked.json
have_lines a_byte_order_mark_and_a_blank_line_may_be_in_front marked.json
{ printf '{"id": "'; head -c 1000000 /dev/zero | tr '\0' x; printf '", "text": "a"}\n{"text": "b"}\n'; } >wide
runs --val-fraction 0 --out wide.out wide
holds a_first_line_of_a_megabyte_is_looked_at '[a][b]' wide.out/train-00000.bin

echo '{"text": "{\"a\": 1}"}' >nested.jsonl
printf '{"a": 1}\n{"b": 2}' >object.json
runs --text --val-fraction 0 --out as.text object.json
holds json_is_plain_text_with_text $'[{"a": 1}\n{"b": 2}]' as.text/train-00000.bin
refuses jsonl_is_obeyed_for_a_named_file "'object.json' line 1 has no \"text\" string" --jsonl object.json
refuses lines_without_the_field_are_refused "its first line has no \"text\" string: name another --field" object.json
printf '{"a": "x"}\n{"a": "y"}\n' >field.json
runs --field a --val-fraction 0 --out field.out field.json
holds field_is_obeyed_for_a_named_file '[x][y]' field.out/train-00000.bin
printf '[\n  {"text": "a"},\n  {"text": "b"}\n]\n' >list.json
cp list.json list.data
refuses a_list_of_documents_names_the_way_out "'list.json' is JSON, but not a document in each line: use jq -c '.[]' on a list" list.json
refuses under_any_name "'list.data' is JSON, but not a document in each line" list.data
refuses on_standard_input_too "'standard input' is JSON, but not a document in each line" - <list.json
printf '{\n  "name": "x"\n}\n' >package.json
refuses an_object_over_several_lines_is_no_line "'package.json' is JSON, but not" package.json
printf '[1]: a list that is text\n{ int x; }\n' >text.md
runs --val-fraction 0 --out md.out text.md
holds text_that_begins_with_a_bracket_is_text $'[[1]: a list that is text\n{ int x; }\n]' md.out/train-00000.bin
refuses a_field_without_lines_is_refused '--field is for JSON lines, but no file has any' --field body text.md
refuses skip_bad_without_lines_is_refused '--skip-bad is for JSON lines, but no file has any' --skip-bad text.md
refuses a_separator_without_text_is_refused '--separator is for text files, but all have JSON lines' --separator x many.jsonl
refuses text_and_lines_are_refused 'leave it or --jsonl out' --text --jsonl many.jsonl

mkdir kinds && cp list.json package.json kinds && cp many.jsonl kinds/a.json && cp many.jsonl.gz kinds/b.jsonl.gz &&
  cp text.md kinds && cp text.md kinds/readme
runs --out kinds.out kinds
check the_kinds_of_files_are_said "$(cat stdout)" \
  grep -qx 'files      2 of text, 2 of JSON lines' stdout
check json_in_a_folder_is_passed_over "$(cat stdout)" grep -q '^skipped    2 JSON without a document in each line' stdout

# ---- What ./prepare wrote is not read again

mkdir -p corpus/models/run && printf 'text of a corpus' >corpus/a.txt
echo '{}' >corpus/models/run/run.json && echo '{"kind":"start"}' >corpus/models/run/log.jsonl
runs --val-fraction 0 --out corpus/out corpus
runs --val-fraction 0 --out corpus/out --force corpus
holds the_output_in_the_folder_that_is_read_is_left_out '[text of a corpus]' corpus/out/train-00000.bin
cp -r corpus/out corpus/other
runs --val-fraction 0 --out corpus/out --force corpus
check so_are_other_datasets_and_runs "$(cat stdout)" grep -q '^skipped    3 in --out' stdout
refuses a_dataset_is_no_text "there is no text in 'corpus/out' (skipped: 1 in --out" corpus/out

# ---- Lines that are bad

{ sed -n 1,3p many.jsonl; echo '{"text": "x", "score": NaN}'; echo '{"title": "x"}'; sed -n 4,6p many.jsonl; echo '{"text'; } >bad.json
refuses a_nan_is_named "'bad.json' line 4 is not JSON: it goes wrong at column 24: NaN and Infinity are no JSON; write null" bad.json
runs --skip-bad --val-fraction 0 --out good bad.json
holds bad_lines_are_passed_over_with_skip_bad "$(seq -s '' -f '[document %g]' 1 6)" good/train-00000.bin
check and_counted_with_the_first "$(cat stdout)" grep -q '^bad        3 lines skipped, the first: bad.json:4: is not JSON' stdout
runs --skip-bad --train-tokenizer 260 --out bad.tok bad.json
check also_for_a_tokenizer "$(cat stdout)" grep -q '^bad        3 lines skipped' stdout

# ---- Fields and separators

runs --field meta.body --val-fraction 0.000001 --out body many.jsonl
check a_dotted_field_is_read "$(documents body/*.bin)" grep -qF '[b1][b2]' <(documents body/train-00000.bin)

printf 'one\n<|endoftext|>\n\ntwo\nlines\n<|endoftext|>\n' >marked
runs --separator '<|endoftext|>' --val-fraction 0.3 --out marked.out marked
holds a_separator_ends_documents $'[on][two\nli]' marked.out/train-00000.bin
printf '\xef\xbb\xbfmarked' >mark.txt
runs --val-fraction 0 --out mark.out mark.txt
holds a_byte_order_mark_in_front_is_no_text '[marked]' mark.out/*.bin
printf 'a é' >accent # 4 bytes: 0.9 of them would cut the last character
runs --out accent.out accent
holds a_tail_begins_with_a_whole_character '[a ][é]' accent.out/*.bin

# ---- What is wrong with them

head -c 700 many.jsonl.gz >cut.jsonl.gz
{ head -c 400 many.jsonl.gz; printf 'xxxxxxxx'; tail -c +409 many.jsonl.gz; } >flipped.jsonl.gz
refuses a_gz_file_that_is_cut_short_is_refused "'cut.jsonl.gz' behind its byte 700: it is cut short; copy or download it again" cut.jsonl.gz
refuses a_gz_file_with_other_bytes_is_refused "cannot decompress 'flipped.jsonl.gz'" flipped.jsonl.gz
{ cat many.jsonl.gz; echo more; } >tail.jsonl.gz
refuses text_behind_a_gz_file_is_refused 'is not gzip' tail.jsonl.gz
if [ -n "$have_zstd" ]; then
  zstd -q many.jsonl -o one.jsonl.zst
  head -c 500 one.jsonl.zst >cut.jsonl.zst
  { head -c 300 one.jsonl.zst; printf 'xxxxxxxx'; tail -c +309 one.jsonl.zst; } >flipped.jsonl.zst
  refuses a_zst_file_that_is_cut_short_is_refused "'cut.jsonl.zst' behind its byte 500: it is cut short" cut.jsonl.zst
  refuses a_zst_file_with_other_bytes_is_refused "cannot decompress 'flipped.jsonl.zst'" flipped.jsonl.zst
fi
mkdir broken && cp cut.jsonl.gz broken
refuses a_broken_file_in_a_folder_is_refused "cannot decompress 'broken/cut.jsonl.gz'" broken
gzip -c /dev/null >empty.gz
refuses a_compressed_empty_file_is_refused "'empty.gz' is empty" empty.gz
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' >lfs.jsonl
refuses a_git_lfs_pointer_is_refused \
  "'lfs.jsonl' is a git-lfs pointer, not the file that it stands for: run git lfs pull" lfs.jsonl
mkdir pointers && cp lfs.jsonl pointers
refuses a_git_lfs_pointer_in_a_folder_is_refused 'is a git-lfs pointer' pointers
printf 'PK\3\4 an archive and more' >texts.zip
refuses an_archive_names_what_unpacks_it "'texts.zip' is compressed by zip, which is not read here: unpack it first (unzip)" texts.zip
printf '\3757zXZ\0 and more bytes' >text.xz
refuses another_compression_names_it_too "'text.xz' is compressed by xz" text.xz
mkdir archives && cp texts.zip text.xz archives && echo text >archives/text
runs --out unpacked archives
check an_archive_in_a_folder_is_passed_over "$(cat stdout stderr)" grep -q '^skipped  *2 binary' stdout
printf '\xff\xfeh\0i\0' >utf16
refuses utf16_is_refused 'UTF-16, which iconv converts to UTF-8' utf16
mkfifo pipe
refuses a_pipe_by_name_is_refused "'pipe' is not a regular file or a folder; standard input is read from '-'" pipe
refuses a_line_without_the_field_names_it "'many.jsonl' line 1 has no \"body\" string" --field body many.jsonl
refuses standard_input_twice_is_refused 'can be read only once' - -
refuses an_empty_separator_is_refused '--separator needs 1 to 256 bytes' --separator '' text
refuses no_standard_input_is_refused "'standard input' is empty" - </dev/null
refuses a_closed_standard_input_is_refused "'standard input' is empty" - <&-
refuses binary_standard_input_is_refused "'standard input' is not text" - </bin/true
refuses broken_json_on_standard_input_is_named "'standard input' line 2 is not JSON" --jsonl - <<<$'{"text": "a"}\n{"text"'
refuses a_tokenizer_that_is_not_there_is_refused "'missing" --tokenizer missing text

# ---- Parquet: what can be told without pyarrow

python=${PYTHON:-python3}
printf 'PAR1 and its end PAR1' >table.parquet
printf 'PAR1 and no end' >short.parquet
refuses a_parquet_file_that_is_cut_short_is_refused_at_once "'short.parquet' has not the end of a Parquet file" table.parquet short.parquet
mkdir tables && cp short.parquet tables && cp text.md tables/a.txt
refuses so_is_one_in_a_folder "'tables/short.parquet' has not the end" tables
refuses a_parquet_file_is_no_text "'table.parquet' is a Parquet file: leave --text out" --text table.parquet
refuses parquet_is_named_and_not_piped "'standard input' is a Parquet file: name it, uncompressed, instead of a pipe" - <table.parquet
gzip -k table.parquet
refuses nor_compressed "'table.parquet.gz' is a Parquet file: name it, uncompressed" table.parquet.gz
cp lfs.jsonl lfs.parquet
refuses a_pointer_in_its_place_is_named "'lfs.parquet' is a git-lfs pointer" lfs.parquet
refuses a_pattern_without_files_is_refused "cannot open 'none-*.parquet': No such file" 'none-*.parquet'
refuses a_separator_does_not_stand_in_parquet '--separator is for text files' --separator x table.parquet

# fake NAME: a Python of which standard input is the program.
fake() { { echo '#!/bin/sh' && cat; } >"$1" && chmod +x "$1"; }
PYTHON=$PWD/nowhere refuses a_python_that_is_missing_says_what_to_install \
  "'table.parquet' is read by Python and its package pyarrow, but $PWD/nowhere cannot be started: No such file or directory; install both" table.parquet
mkdir bin && for tool in cat grep wc; do ln -s "$(command -v $tool)" bin; done
PYTHON='' PATH=$PWD/bin refuses so_does_a_path_without_one "but python3 cannot be started" table.parquet
mkdir without && echo 'raise ImportError("none here")' >without/pyarrow.py
PYTHONPATH=$PWD/without refuses a_missing_pyarrow_says_what_to_install \
  "'table.parquet' is read by the Python package pyarrow, which is missing (none here): python3 -m pip install pyarrow" table.parquet
fake killed <<<'kill -KILL $$'
PYTHON=$PWD/killed refuses a_reader_that_is_killed_is_said "'table.parquet' was not read to its end: $PWD/killed, which reads it, was ended by signal 9 (Killed)" table.parquet
fake quiet <<<'exit 3'
PYTHON=$PWD/quiet refuses a_reader_that_ends_is_said 'ended with status 3' table.parquet
fake half <<<'printf "\11\0\0\0"'
PYTHON=$PWD/half refuses half_a_head_is_an_early_end 'ended with status 0' table.parquet
# Readers that wait forever end with ./prepare, which a signal ends.
fake waits <<<'echo $$ >>'"$PWD/pids"'; exec sleep 1000'
PYTHON=$PWD/waits "$prepare" --out waits.out table.parquet >stdout 2>stderr &
until [ -e pids ] && [ "$(wc -l <pids)" -ge 2 ]; do sleep 0.05; done
kill -TERM $!
wait $!
check a_signal_ends_a_wait_for_a_reader "status $?: $(cat stderr)" grep -q 'interrupted: nothing was written' stderr
check and_its_readers "$(ps -fp "$(paste -sd , pids)")" test -z "$(ps -o pid= -p "$(paste -sd , pids)")"
check and_leaves_nothing "$(find . -name "waits.out*")" test ! -e waits.out -a ! -e waits.out.tmp

# ---- Parquet, where pyarrow is

if ! "$python" -c 'import pyarrow.parquet' 2>/dev/null; then
  echo "ok - parquet_files_are_read # SKIP the Python package pyarrow is not installed (PYTHON names a Python that has it)"
  exit $failed
fi
export PYTHON=$python
"$python" - <<'END'
import pyarrow as pa, pyarrow.parquet as pq
def rows(numbers):
    return pa.table({"n": [1.5] * len(numbers), "text": [f"document {i}" for i in numbers],
                     "meta": [{"body": f"b{i}", "null": None} for i in numbers]})
pq.write_table(rows(range(1, 301)), "many.parquet", row_group_size=7, compression="zstd")
pq.write_table(rows(range(1, 301)), "one-group.parquet")
pq.write_table(rows(range(1, 1)), "no-rows.parquet")
pq.write_table(pa.table({"text": ["a", None, "", "b\u00e9\n\"\\"]}), "nulls.parquet")
pq.write_table(pa.table({"meta.body": [f"b{i}" for i in range(1, 301)]}), "dotted.parquet")
for part in range(3):
    pq.write_table(rows(range(1 + 100 * part, 101 + 100 * part)), f"part-{part}.parquet", row_group_size=33)
# More than fits into pipes and batches, of all lengths.
texts = ["x" * (i * 7919 % 30000) + f" {i} \u20ac" for i in range(4000)]
pq.write_table(pa.table({"text": texts}), "long.parquet", compression="zstd", row_group_size=1500)
call = {"function": {"name": "f", "arguments": {"a": 1}}}
talk = lambda i: [{"role": "user", "content": f"Say {i}", "tool_calls": None},
                  {"role": "assistant", "content": f"{i}", "tool_calls": [call] if i % 2 else None}]
pq.write_table(pa.table({"id": range(20), "messages": [talk(i) for i in range(20)]}), "talks.parquet")
END
runs --out parquet many.parquet && same_dataset parquet_is_read_by_its_name parquet
check and_counted "$(cat stdout)" grep -qx 'files      0 of text, 0 of JSON lines, 1 of Parquet' stdout
runs --out one parquet --force one-group.parquet no-rows.parquet && same_dataset of_any_row_groups one
runs --out parts 'part-*.parquet' && same_dataset a_quoted_pattern_names_its_files_in_order parts
runs --out shell part-*.parquet && same_dataset so_does_one_for_the_shell shell
mkdir mixed && head -n 100 many.jsonl >mixed/part-0.jsonl && cp part-1.parquet mixed && tail -n 100 many.jsonl | gzip >mixed/part-2.jsonl.gz
runs --out mixed.out mixed && same_dataset a_folder_may_hold_lines_and_parquet mixed.out
check and_both_are_counted "$(cat stdout)" grep -qx 'files      0 of text, 2 of JSON lines, 1 of Parquet' stdout
script=$source/scripts/parquet_to_jsonl.py
"$python" "$script" many.parquet | runs --jsonl --out script - && same_dataset the_script_writes_the_lines script
runs --val-fraction 0 --out nulls nulls.parquet
holds nulls_are_no_documents $'[a][b\303\251\n"\\]' nulls/train-00000.bin
runs --field meta.body --val-fraction 0 --out nested many.parquet
holds a_dotted_field_is_in_a_column "$(seq -s '' -f '[b%g]' 300)" nested/train-00000.bin
runs --field meta.body --val-fraction 0 --out dotted dotted.parquet
holds or_a_columns_own_name "$(seq -s '' -f '[b%g]' 300)" dotted/train-00000.bin
"$python" "$script" long.parquet >long.jsonl
runs --out long.lines long.jsonl && runs --out long.out long.parquet
check long_documents_are_read "$(cat stdout)" diff -r long.lines long.out
must "$prepare" --train-tokenizer 300 --template chatml --out tok "$source/README.md"
runs --chat --tokenizer tok --out talks talks.parquet
check conversations_in_parquet_are_read "$(cat stdout stderr)" grep -q '^documents  20 in 1 file' stdout
"$python" "$script" --chat talks.parquet >talks.jsonl
check without_keys_that_are_null "$(head -n 2 talks.jsonl)" test "$(sed -n 1p talks.jsonl)" = \
  '{"messages": [{"role": "user", "content": "Say 0"}, {"role": "assistant", "content": "0"}]}'
"$python" "$script" --all talks.parquet >rows.jsonl
check whole_rows_have_every_column "$(head -n 1 rows.jsonl)" test "$(head -n 1 rows.jsonl)" = \
  '{"id": 0, "messages": [{"role": "user", "content": "Say 0"}, {"role": "assistant", "content": "0"}]}'

refuses a_column_that_is_not_there_is_named "cannot read 'many.parquet': there is no column 'body', only n, text, meta" --field body many.parquet
refuses so_is_one_inside_of_another "there is no column 'meta.nose', only n, text, meta.body, meta.null" --field meta.nose many.parquet
refuses a_column_of_numbers_is_no_text "cannot read 'many.parquet': the column 'n' holds no text" --field n many.parquet
refuses nor_is_one_of_conversations '--chat reads messages' --field messages talks.parquet
refuses text_is_no_conversation "there is no column 'messages', only n, text, meta" --chat --tokenizer tok many.parquet
{ head -c 3000 long.parquet; head -c 3000 /dev/zero; tail -c +6001 long.parquet; } >flipped.parquet
refuses a_damaged_file_is_refused "cannot read 'flipped.parquet'" flipped.parquet
mkdir some && cp part-0.parquet some/0.parquet && cp flipped.parquet some/1.parquet
refuses behind_others_too "cannot read 'some/1.parquet'" some
fake dies <<<"\"$python\" \"\$@\" | { head -c 1000000; kill -KILL \$\$ 2>/dev/null; }"
PYTHON=$PWD/dies refuses a_reader_that_is_killed_in_the_middle_is_said "'long.parquet' was not read to its end" long.parquet

exit $failed
