#!/usr/bin/env bash
# What ./prepare reads: compressed files, standard input, fields and separators, and what is wrong with them.
# shellcheck source=tests/support/prepare.sh
. "$(dirname "$0")/../support/prepare.sh"

# same_dataset NAME FOLDER: its token files are those of the folder `plain`.
same_dataset() {
  if diff <(cd plain && cat -- *.bin | sha256sum) <(cd "$2" && cat -- *.bin | sha256sum) >/dev/null; then passes "$1"
  else fails "$1" "the token files differ: $(documents "$2"/*.bin | head -c 200)"; fi
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
holds text_is_read_from_standard_input_twice_where_its_size_matters '[0123456789abcdefgh][ijk]' text.in/*.bin
gzip -c text | runs --out text.gz -
holds so_is_compressed_text '[0123456789abcdefgh][ijk]' text.gz/*.bin
mkdir folder && gzip -c text >folder/a.txt.gz && cp many.jsonl.gz folder/b.jsonl.gz
runs --out folder.out folder
check a_folder_may_hold_compressed_files "$(cat stdout)" grep -q '301 in 2 files' stdout

for threads in 1 2 7; do
  runs --threads $threads --out "threads$threads" many.jsonl && same_dataset "${threads}_threads_write_the_same_bytes" "threads$threads"
done

# ---- Fields and separators

runs --field meta.body --val-fraction 0.000001 --out body many.jsonl
name=a_dotted_field_is_read
if documents body/train-00000.bin | grep -qF '[b1][b2]'; then passes $name; else fails $name "$(documents body/*.bin | head -c 200)"; fi

printf 'one\n<|endoftext|>\n\ntwo\nlines\n<|endoftext|>\n' >marked
runs --separator '<|endoftext|>' --val-fraction 0.3 --out marked.out marked
holds a_separator_ends_documents $'[on][two\nli]' marked.out/train-00000.bin
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
name=an_archive_in_a_folder_is_passed_over
if runs --out unpacked archives && grep -q '^skipped  *2 binary' stdout; then passes $name; else fails $name "$(cat stdout stderr)"; fi
printf 'PAR1xxxx' >table.parquet
refuses a_parquet_file_names_the_script 'scripts/parquet_to_jsonl.py' table.parquet
mkdir tables && cp table.parquet tables
refuses so_does_a_folder_of_them '(skipped: 1 parquet (see scripts/parquet_to_jsonl.py))' tables
printf '\xff\xfeh\0i\0' >utf16
refuses utf16_is_refused 'convert UTF-16 to UTF-8 with iconv' utf16
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

# ---- Parquet, where pyarrow is

python=${PYTHON:-python3}
if "$python" -c 'import pyarrow.parquet' 2>/dev/null; then
  "$python" -c 'import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"n": [1] * 300, "text": [f"document {i}" for i in range(1, 301)]}), "many.parquet")'
  script=$source/scripts/parquet_to_jsonl.py
  "$python" "$script" many.parquet | runs --jsonl --out parquet - && same_dataset parquet_is_read_by_the_script parquet
  name=a_column_that_is_not_there_is_named
  if ! "$python" "$script" --field body many.parquet 2>stderr && grep -q "column 'body': there are only the columns n, text" stderr; then
    passes $name; else fails $name "$(cat stderr)"; fi
  "$python" -c 'import pyarrow as pa, pyarrow.parquet as pq
call = {"function": {"name": "f", "arguments": {"a": 1}}}
talk = lambda i: [{"role": "user", "content": f"Say {i}", "tool_calls": None},
                  {"role": "assistant", "content": f"{i}", "tool_calls": [call] if i % 2 else None}]
pq.write_table(pa.table({"messages": [talk(i) for i in range(20)]}), "talks.parquet")'
  must "$prepare" --train-tokenizer 300 --template chatml --out tok "$source/README.md"
  "$python" "$script" --chat talks.parquet | runs --chat --tokenizer tok --out talks -
  check conversations_in_parquet_are_read "$(cat stdout stderr)" grep -q '^documents  20 in 1 file' stdout
  name=a_column_of_conversations_needs_chat
  if ! "$python" "$script" --field messages talks.parquet 2>stderr && grep -q "are these messages for --chat?" stderr; then
    passes $name; else fails $name "$(cat stderr)"; fi
else echo "ok - parquet_is_read_by_the_script # SKIP the Python package pyarrow is not installed"; fi

exit $failed
