#!/usr/bin/env bash
# ./prepare end to end: what ends up in the token files, and that every bad input is answered with one line,
# exit status 1 and nothing written.
# shellcheck source=tests/support/prepare.sh
. "$(dirname "$0")/../support/prepare.sh"

# ---- What is written

printf '0123456789abcdefghijk' >text # 21 bytes: floor(18.9) = 18 for training
runs --out one text
holds a_text_is_split_at_the_floor_of_its_training_part '[0123456789abcdefgh]' one/train-00000.bin
holds the_tail_is_a_document_of_its_own '[ijk]' one/val-00000.bin

check the_report_has_the_lines_for_a_config "$(cat stdout)" \
  test "$(grep -oF -e '"data": {"train": "one/train-*.bin", "val": "one/val-*.bin"}' -e '"vocab_size": 258' stdout | wc -l)" = 2

head -c 10 text >ten
runs --out fraction --val-fraction 0.8 ten
holds a_fraction_that_is_not_binary_is_cut_exactly '[01]' fraction/train-00000.bin

# More than a block and a chunk, and not a multiple of either.
seq 1 200000 >long
size=$(stat -c %s long)
cut=$((size - size / 10 - 1)) # floor(0.9 n) where 10 does not divide n
[ $((size % 10)) != 0 ] || cut=$((size - size / 10))
runs --out long.out long
holds a_long_text_is_split_at_the_byte "[$(head -c $cut long)]" long.out/train-00000.bin
holds and_kept_whole "[$(tail -c +$((cut + 1)) long)"$'\n]' long.out/val-00000.bin

printf 'gr\xc3\xbc\xc3\x9fe \xe2\x82\xac \xf0\x9f\x8e\xad\n\t\x1b[1m' >utf8
runs --out utf8.out --val-fraction 0.01 utf8
od -An -v -tu1 -w1 utf8 | tr -d ' ' >expected
{ ids utf8.out/train-00000.bin; ids utf8.out/val-00000.bin; } | grep -v '^25[67]$' >found
check every_byte_of_utf8_is_kept "$(diff expected found)" cmp -s expected found

# ---- .jsonl

cat >lines.jsonl <<'END'
{"text": "first line", "id": 1}

  {"id": {"text": "inner"}, "text": "sec\u006fnd\nline"}
{"text": ""}
{"text": "a \\u0000"}
END
runs --out lines lines.jsonl
holds each_line_of_a_jsonl_file_is_a_document $'[first lin][second\nli][a \\u000]' lines/train-00000.bin
printf '{"text": "x\\u0000y\\\\\\u0000z"}' >nul.jsonl
runs --out nul --val-fraction 0.01 nul.jsonl
got=$(ids nul/train-00000.bin | tr '\n' ' ')
check an_escaped_nul_is_a_byte_of_zero "$got" test "$got" = '256 120 0 121 92 0 257 '

{ printf '{"text": "'; seq -s ' ' 1 300000 | tr -d '\n'; printf '"}'; } >huge.jsonl
runs --out huge huge.jsonl
check a_line_of_two_megabytes_is_read "the text differs" \
  test "$(documents huge/train-00000.bin huge/val-00000.bin | tr -d '[]')" = "$(seq -s ' ' 1 300000)"

# ---- Folders

mkdir -p tree/b/c tree/.git tree/d
printf 'aa' >tree/a
printf 'bcbc' >tree/b/c/x
printf '{"text": "jsonl"}\n' >tree/b/y.jsonl
printf 'zz' >tree/z
printf 'hidden' >tree/.hidden
printf 'hidden' >tree/.git/config
printf 'bin\0ary' >tree/b/binary
head -c 500 /dev/zero | tr '\0' '\377' >tree/b/latin
: >tree/empty
ln -s .. tree/d/loop
ln -s nowhere tree/d/dangling
ln -s ../a tree/d/link
mkfifo tree/fifo
runs --out tree.out --val-fraction 0.5 tree
holds folders_are_read_in_name_order '[a][bc][js][a][z]' tree.out/train-00000.bin
check what_was_passed_over_is_counted "$(cat stdout)" \
  grep -q '2 hidden, 2 binary, 1 empty, 1 unreadable, 2 links' stdout
runs --out paths.out --val-fraction 0.5 tree/z tree/.git tree/d/loop/a
holds a_named_path_is_taken_even_if_hidden '[z][hid][a]' paths.out/train-00000.bin

# ---- Many documents

for i in $(seq 1 300); do echo "{\"text\": \"<$i>\"}"; done >many.jsonl
runs --out many many.jsonl
check documents_are_for_training_or_for_validation "$(documents many/*.bin)" \
  test "$(documents many/*.bin | tr ']' '\n' | tr -d '[<>' | sort)" = "$(seq 1 300 | sort)"
kept=$(documents many/val-00000.bin | tr -dc ']' | wc -c)
echo "# $kept of 300 documents are kept for validation, 30 expected: bounds 10 and 55"
check about_as_many_as_asked_for_are_kept_for_validation "$kept" test "$kept" -ge 10 -a "$kept" -le 55
runs --out again many.jsonl
runs --out other --seed 1 many.jsonl
check the_same_seed_chooses_the_same_documents 'others' cmp -s many/val-00000.bin again/val-00000.bin
check another_seed_chooses_others 'the same' test "$(documents many/val-00000.bin)" != "$(documents other/val-00000.bin)"
head -n 100 many.jsonl >hundred.jsonl
wrong=
for seed in 1 2 3; do
  for fraction in 0.000001 0.999999; do
    runs --force --out edge --seed $seed --val-fraction $fraction hundred.jsonl || wrong="seed $seed, fraction $fraction"
  done
done
check both_sides_get_a_document_whatever_the_fraction "$wrong" test -z "$wrong"

# ---- A validation split of one's own

head -n 200 many.jsonl >train.jsonl
tail -n +201 many.jsonl >valid.jsonl
gzip -k valid.jsonl
split_is() { # split_is NAME FOLDER: the first 200 documents are for training, the others for validation
  holds "$1" "$(seq -s '' -f '[<%g>]' 200)" "$2"/train-*.bin
  holds "$1" "$(seq -s '' -f '[<%g>]' 201 300)" "$2"/val-*.bin
}
runs --out given train.jsonl --val valid.jsonl && split_is files_of_its_own_are_for_validation given
runs --out given2 --val=valid.jsonl.gz -- train.jsonl && split_is one_may_be_compressed given2
mkdir both && cp train.jsonl valid.jsonl both
runs --out given3 --val both/valid.jsonl --threads 2 both && split_is what_is_for_validation_is_not_trained_on given3
runs --out given4 --val valid.jsonl --seed=0 train.jsonl
check other_ways_to_split_are_refused_then "$(cat stderr)" grep -q 'leave --seed out' stderr
runs --out all --val-fraction 0 many.jsonl
holds a_fraction_of_0_keeps_nothing_for_validation "$(seq -f '[<%g>]' 1 300 | tr -d '\n')" all/*.bin
check then_there_is_no_file_for_it "$(cat stdout)" grep -q '^config .*"train": "all/train-\*.bin"}, and' stdout
refuses no_path_behind_val_is_refused '--val needs files or folders behind it' text --val
refuses no_path_but_those_of_val_is_refused 'put those to train on in front of it' --val text many.jsonl
echo '{"text": ""}' >blank.text
refuses no_text_for_validation_is_refused "there is no text in what --val names: 'blank.text'" many.jsonl --val blank.text

# ---- Shards

runs --out shards --shard-tokens 5 text # [ + 18 + ] and [ + 3 + ]
holds shards_in_name_order_hold_the_text '[0123456789abcdefgh]' shards/train-0000*.bin
sizes=$(stat -c %s shards/train-*.bin shards/val-*.bin | tr '\n' ' ')
check a_shard_holds_the_tokens_it_may "sizes $sizes" test "$sizes" = '1034 1034 1034 1034 1034 '
runs --force --out shards --shard-tokens 12 text
left=$(ls -A shards | tr '\n' ' ')
files='checksums.json tokenizer.json tokenizer_config.json train-00000.bin train-00000.docs '
files+='train-00001.bin train-00001.docs val-00000.bin val-00000.docs '
check a_forced_run_replaces_the_whole_dataset "left: $left" test "$left" = "$files"

# ---- What is refused

: >empty
printf 'x' >tiny
printf 'text\0text' >binary
head -c 1000 /dev/zero | tr '\0' '\341' >koi8
mkdir -p nothing/.git
: >nothing/empty
printf '{"text": "fine"}\n{"text": "cut\n' >cut.jsonl
printf '{"text": "fine"}\n{"content": "x"}\n' >key.jsonl
printf '{"text": 7}\n' >type.jsonl
printf '\n \n' >blank.jsonl
{ for i in $(seq 1 150); do echo '{"text": "fine"}'; done; echo '{"text": }'; } >late.jsonl
refuses an_empty_file_is_refused "'empty' is empty" empty
refuses a_tiny_file_is_refused '1 bytes of text are too little to split' tiny
refuses a_binary_file_is_refused "'binary' is not text: it holds NUL bytes" binary
refuses text_in_another_encoding_is_refused 'is not UTF-8, to which iconv converts' koi8
refuses a_missing_path_is_refused "cannot open 'missing': No such file" text missing
refuses a_device_is_refused "'/dev/null' is not a regular file or a folder" /dev/null
refuses a_folder_without_text_is_refused "there is no text in 'nothing' (skipped: 1 hidden, 1 empty)" nothing
refuses no_path_is_refused './prepare --out data/mine my.txt'
refuses broken_json_names_file_and_line "'cut.jsonl' line 2 is not JSON" cut.jsonl
refuses broken_json_late_in_the_file_leaves_nothing "'late.jsonl' line 151 is not JSON" late.jsonl
refuses a_line_without_text_names_the_ways_past_it "'key.jsonl' line 2 has no \"text\" string, as in {\"text\": \"...\"}; \
--field names another field; --skip-bad passes over such lines" key.jsonl
refuses only_bad_lines_are_no_text "bad lines: 1, the first: type.jsonl:1: has no \"text\" string" --skip-bad type.jsonl
refuses a_jsonl_file_of_blank_lines_is_refused "there is no text in 'blank.jsonl'" blank.jsonl
refuses an_unknown_option_is_answered_with_the_nearest \
  "unknown option '--val-fractoin' of ./prepare; did you mean --val-fraction?" --val-fractoin 0.1 text
refuses a_pattern_without_a_tokenizer_to_train_is_refused '--pattern is for --train-tokenizer alone' text --pattern 'x'
refuses an_option_without_a_value_is_refused '--seed needs a whole number from 0' text --seed
for fraction in 1 -0.1 1.5 nan ten ''; do
  refuses "a_val_fraction_of_'$fraction'_is_refused" "a number from 0 to 0.999999, not '$fraction'" --val-fraction "$fraction" text
done
for count in 0 -5 2147483648 1e9 99999999999999999999 ''; do
  refuses "shard_tokens_of_'$count'_is_refused" "a whole number from 1 to 2147483647, not '$count'" --shard-tokens="$count" text
done
refuses more_shards_than_five_digits_number_are_refused 'use a larger --shard-tokens' --shard-tokens 1 long
if seq 1 20000 >sparse && truncate -s 8T sparse; then
  refuses a_text_larger_than_the_disk_is_refused_at_once 'the token files need 16.00 TiB' sparse
else echo "ok - a_text_larger_than_the_disk_is_refused_at_once # SKIP no sparse files of 8 TiB here"; fi
if [ -r /proc/self/mem ]; then refuses a_file_that_cannot_be_read_is_refused "cannot read '/proc/self/mem'" /proc/self/mem; fi
if [ "$(id -u)" = 0 ]; then echo "ok - a_file_without_permission_is_refused # SKIP root may read every file"
else
  cp text locked && chmod 000 locked
  refuses a_file_without_permission_is_refused "cannot open 'locked': Permission denied" locked
fi

# ---- Failures on the way leave what was there

runs --out kept text
cp -r kept before
# Nothing changed, and no folder stands beside it.
same() { diff -r before kept && [ -z "$(ls -d kept.*)" ]; } 2>/dev/null

failed_as() { # NAME STATUS WORDS
  local expected=$2 words=$3
  check "$1" "status $status, said: $(cat stderr), left: $(ls -Ad kept* kept/* | tr '\n' ' ')" \
    eval '[ $status = $expected ] && grep -q "$words" stderr && same'
}
(ulimit -f 8 && exec "$prepare" --force --out kept long) >stdout 2>stderr
status=$?
failed_as a_limit_on_file_sizes_is_a_failed_write 1 'File too large'
ended_by() { # SIGNAL NAME JOB
  wait "$3"
  status=$?
  failed_as "$2" $((128 + $(kill -l "$1"))) '^prepare: interrupted: nothing was written$'
}

mkfifo pipe
"$prepare" --force --out kept - <pipe >stdout 2>stderr &
job=$!
exec 3>pipe
until [ -e kept.tmp ]; do sleep 0.01; done
kill -TERM $job
ended_by TERM a_signal_while_standard_input_waits_leaves_the_files_that_were_there $job
exec 3>&-
yes '{"text": "a line that never ends"}' | head -n 5000000 | "$prepare" --force --jsonl --out kept - >stdout 2>stderr &
job=$!
until [ -e kept.tmp/train-00000.bin ]; do sleep 0.01; done
kill -USR1 $job # as a batch system may
ended_by USR1 a_signal_while_text_is_encoded_leaves_the_files_that_were_there $job

runs --help
check help_is_printed_on_request "$(cat stderr)" grep -q -- --val-fraction stdout

exit $failed
