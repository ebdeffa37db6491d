#!/usr/bin/env bash
# Runs on documents and on mixtures: windows of whole documents, what is said of them, resumes in the same bits, resumes
# with other weights, and judging a model both ways.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
sed -i 's/"steps": 20/"steps": 40/; s/"save_interval": 0/"save_interval": 10, "keep_checkpoints": 9/; s/"data": {/&"documents": "mask", /' "$config"
for set in words lines; do
  awk -v set="$set" 'BEGIN { for (i = 0; i < 300; i++) {
    printf "{\"text\": \"%s %d", set, i; for (j = i * 7 % 23; j > 0; j--) printf " word%d", (i * j) % 50; print "\"}" } }' \
    >"$folder/$set.jsonl"
  must "$PREPARE" --out "$folder/$set" "$folder/$set.jsonl"
done

said() { echo "it said: $(head -n 14 "$folder/said") $(cat "$folder/said.err")"; }
grep_said() { grep -qE -- "$1" "$folder/said" "$folder/said.err"; }
half_of() { # RUN RUN: the second has the first one's checkpoint of step 20 alone
  mkdir "$folder/$2" && cp -r "$folder/$1/step-00000020" "$folder/$2"
}

# ---- Documents
sets=("data.train=$folder/words" "data.val=$folder/words")
train_into mask "${sets[@]}"
check a_run_packs_documents_and_says_so "$(said)" \
  grep_said '^data .*; 2[0-9]* documents, [0-9.]+ % cut, [0-9.]+ % padding$'
check the_log_has_documents_and_padding "$(head -n 1 "$folder/mask/log.jsonl")" \
  grep -qE '"documents":2[0-9]*,"cut":[0-9]+,"padding":[0-9.e-]+' "$folder/mask/log.jsonl"
check its_validation_has_bits_per_byte "$(said)" grep_said 'validation loss .* bits per byte'
half_of mask half
train_into half "${sets[@]}" train.resume=auto
check packed_windows_resume_in_the_same_bits "$(said)" same_bits "$folder/mask" "$folder/half"
train_into half "${sets[@]}" train.resume=auto data.documents=join
check joined_windows_are_another_run "$(said)" grep_said 'data.documents "mask" -> "join"'
train_into join "${sets[@]}" data.documents=join
check join_says_nothing_of_documents "$(said)" grep_said '^data [^;]*$'
mkdir "$folder/old" && cp "$folder"/words/*.bin "$folder/old"
train_into old "data.train=$folder/old" "data.val=$folder/old"
check without_their_ends_windows_are_joined "$(said)" grep_said '; where documents end is not known$'
check these_are_the_windows_of_join 'the losses differ' \
  cmp -s <(grep -o '"loss":[^,]*' "$folder/join/log.jsonl") <(grep -o '"loss":[^,]*' "$folder/old/log.jsonl")

# ---- Judging both ways
evaluates() { "$TRAIN" --eval "$folder/$1" --data "$folder/words" "${@:2}" >"$folder/said" 2>"$folder/said.err"; }
evaluates mask
cp "$folder/said" "$folder/own"
check eval_judges_as_the_run_was_trained "$(said)" grep_said '^data .* documents? apart$'
evaluates mask --documents mask
check mask_can_be_asked_for "$(said)" cmp -s "$folder/own" "$folder/said"
evaluates join
check a_joined_run_is_judged_joined "$(said)" grep_said '^data .* in windows of 32$'
evaluates join --documents mask
check a_joined_run_can_be_judged_with_mask "$(said)" grep_said '^data .* documents? apart$'
val=$(python3 -c "
import struct, sys
ends = open('$folder/words/val-00000.docs', 'rb').read()
print(struct.unpack_from('<Q', ends, 8)[0] - struct.unpack_from('<Q', ends, 24)[0])")
check every_token_but_a_documents_first_is_judged "$val tokens; $(said)" grep_said "^data  *$val tokens with a loss"
evaluates join --documents all
check another_way_is_refused "$(said)" grep_said "documents is 'all', but must be mask or join"

# The same on a GPU whose attention does not stop at documents' ends: a window a piece.
value() { sed -nE "s/^$1 +([0-9.]*).*/\\1/p" "$folder/said"; }
for mode in mask join; do
  evaluates mask --documents $mode
  loss=$(value loss) bits=$(value 'bits per byte') tokens=$(grep -o '^data .* files*\|, [0-9]* documents* apart' "$folder/said")
  CODA_DOCUMENT_ATTENTION=none evaluates mask --documents $mode --batch 3
  check "${mode}_without_attention_to_documents_has_the_same_loss" "$loss and $(said)" near "$loss" "$(value loss)" 2e-6
  check "${mode}_without_it_has_the_same_bits" "$bits and $(said)" near "$bits" "$(value 'bits per byte')" 2e-6
  check "${mode}_without_it_has_the_same_tokens" "$tokens and $(said)" \
    test "$tokens" = "$(grep -o '^data .* files*\|, [0-9]* documents* apart' "$folder/said")"
done
evaluates mask --documents mask --length 16
loss=$(value loss)
CODA_DOCUMENT_ATTENTION=none evaluates mask --documents mask --length 16
check pieces_of_documents_are_too "$loss and $(said)" near "$loss" "$(value loss)" 2e-6
check and_are_no_longer_than_asked "$(said)" grep_said 'in windows of 16, .* documents apart$'
# What the run of a checkpoint did is not guessed.
cp -r "$folder/join/step-00000040" "$folder/nameless" && rm "$folder/nameless/run.json"
evaluates nameless
check without_its_config_a_checkpoint_must_be_told "status $?, $(said)" grep_said "nameless' has no run.json, .* give --documents mask or"
evaluates nameless --documents join
check then_it_is_judged "$(said)" grep_said '^loss '

# ---- Validation, and documents that are shorter than half a window
awk 'BEGIN { for (i = 0; i < 100; i++) printf "{\"text\": \"%d and %d\"}\n", i, i * 7 }' >"$folder/short.jsonl"
must "$PREPARE" --out "$folder/short" --val-fraction 0.15 "$folder/short.jsonl"
validated() { # NAME RUN --documents MODE: the last validation's loss is that of --eval on the validation split
  local name=$1 run=$2
  "$TRAIN" --eval "$folder/$run" --data "$folder/short" --length 32 "${@:3}" >"$folder/said" 2>"$folder/said.err"
  check "$name" "$(last_loss val "$run"), $(said)" near "$(last_loss val "$run")" "$(value loss)" 2e-6
}
whole=(train.eval_batches=0 train.eval_interval=20)
for batch in 2 4; do
  train_into "short-$batch" "data.train=$folder/short" "data.val=$folder/short" "${whole[@]}" train.batch_size=$batch
  validated "short_documents_are_validated_in_batches_of_$batch" "short-$batch" --documents mask
done
mkdir "$folder/endless" && cp "$folder"/words/train-*.bin "$folder/endless"
train_into endless_run "data.train=$folder/endless" "data.val=$folder/short" "${whole[@]}"
validated documents_are_validated_beside_training_without_ends endless_run --documents mask

# ---- Conversations, of whose tokens few count
must "$PREPARE" --train-tokenizer 400 --template chatml --out "$folder/tok" README.md data/README.md
awk 'BEGIN { for (i = 0; i < 12; i++) { printf "{\"messages\":[{\"role\":\"user\",\"content\":\""
  for (j = 0; j < 600; j++) printf "w%d ", (i * j) % 50
  print "\"},{\"role\":\"assistant\",\"content\":\"it is done\"}]}" } }' >"$folder/talks.jsonl"
must "$PREPARE" --chat --tokenizer "$folder/tok" --out "$folder/talks" "$folder/talks.jsonl"
talks=(model.vocab_size=402 model.max_position_embeddings=64 train.sequence_length=64 train.batch_size=1 train.steps=30
  "data.train=$folder/talks" "data.val=$folder/talks" train.eval_batches=2 train.eval_interval=10 train.keep_best=true)
for mode in mask join; do
  train_into talks-$mode "${talks[@]}" data.documents=$mode
  check "every_step_of_${mode}_has_tokens_that_count" "$(said) $(grep '"loss":0,\|"counted":0' "$folder/talks-$mode/log.jsonl")" \
    test "$(grep '"kind":"train"' "$folder/talks-$mode/log.jsonl" | grep -c '"loss":[1-9].*"counted":[1-9]')" = 30
  check "a_validation_of_${mode}_is_a_number" "$(said)" test "$(grep -c 'validation loss [1-9]' "$folder/said")" -ge 3
  check "and_${mode}_has_a_best" "$(ls "$folder/talks-$mode")" test -e "$folder/talks-$mode/best"
  check "the_start_of_${mode}_says_how_many_count" "$(said)" \
    grep_said '^data  *[0-9.k]+ training tokens in 1 file, of which [0-9]+ count, [0-9.k]+ validation tokens, of which [0-9]+ count'
done
must "$PREPARE" --tokenizer "$folder/tok" --out "$folder/prose" "$folder/words.jsonl"
train_into talks-mixed "${talks[@]}" data.documents=join "data.train=[{\"path\": \"$folder/talks\", \"weight\": 1}, {
  \"path\": \"$folder/prose\", \"weight\": 1}]"
check a_mixtures_shares_are_of_the_tokens_that_count "$(said)" grep_said \
  "^data  *50 % of '$folder/talks' \([0-9.k]+ tokens, of which [0-9]+ count, 9[0-9.]+ % of the windows, "

# ---- Mixtures
mixture() { # WEIGHT WEIGHT
  printf 'data.train=[{"path": "%s/words", "weight": %s}, {"path": "%s/lines", "weight": %s}]' \
    "$folder" "$1" "$folder" "$2"
}
train_into mixed_run "$(mixture 3 1)"
check a_mixture_says_its_shares "$(said)" grep_said "^data  *75 % of '$folder/words' .* epochs\), 25 % of '$folder/lines' "
check the_log_has_the_shares_that_were_drawn "$(grep sources "$folder/mixed_run/log.jsonl")" \
  grep -q '"kind":"sources","step":40,"shares":\[0.75,0.25\]' "$folder/mixed_run/log.jsonl"
half_of mixed_run mixed_half
train_into mixed_half "$(mixture 3 1)" train.resume=auto
check a_mixture_resumes_in_the_same_bits "$(said)" same_bits "$folder/mixed_run" "$folder/mixed_half"
half_of mixed_run same_weights
train_into same_weights "$(mixture 0.3 0.1)" train.resume=auto
check weights_in_the_same_proportion_are_the_same "$(said)" same_bits "$folder/mixed_run" "$folder/same_weights"
half_of mixed_run other_weights
train_into other_weights "$(mixture 1 3)" train.resume=auto
check other_weights_are_refused "$(said)" grep_said "'$folder/words' had 75 % of the windows, and has 25 % now"
changes() { # NAME RUN DRAWN DATA: allowed, it goes on to the last step, at which so many windows of each source were drawn
  train_into "$2" "$4" train.resume=auto train.resume_allow_changes=true
  drawn=$(grep -o '"drawn": "[0-9]*"' "$folder/$2/step-00000040/state.json" | tr -dc '0-9\n' | tr '\n' ' ')
  check "$1" "drawn: $drawn; $(said)" test "$drawn" = "$3 "
}
changes allowed_they_hold_from_there_on other_weights '40 40' "$(mixture 1 3)" # 30 and 10, then 10 and 30
half_of mask one_to_two
changes a_run_of_one_source_goes_on_with_two one_to_two '60 20' "$(mixture 1 1)" # 40 and 0 before
half_of mixed_run two_to_one
changes a_mixture_goes_on_with_one_of_its_sources two_to_one 50 "data.train=$folder/lines" # 10 before
train_into listed "data.train=[\"$folder/words\", \"$folder/lines\"]" train.steps=2
check a_list_of_paths_is_one_source "$(said)" grep_said '^data  *[0-9.k]+ training tokens in 2 files'
train_into refused "data.val=[{\"path\": \"$folder/words\", \"weight\": 1}, {\"path\": \"$folder/lines\", \"weight\": 1}]"
check validation_takes_no_weights "$(said)" grep_said 'data.val: validation takes no weights'
exit $failed
