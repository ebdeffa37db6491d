#!/usr/bin/env bash
# train.first_context: in the first steps batches have pieces of sequences, twice as long each time.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
prepare_run 400
pieces=(train.first_context=8 train.context_warmup=10)

values() { # RUN: loss and gradient norm of each step
  sed -nE 's/.*"kind":"train".*"loss":([^,]*),.*"grad_norm":([^,]*),.*/\1 \2/p' \
    "$folder/$1/log.jsonl"
}
validations() { # RUN: their losses
  sed -nE 's/.*"kind":"val".*"loss":([^,]*),.*/\1/p' "$folder/$1/log.jsonl"
}
first() { "$@" | head -n 1; }

# Without shuffling a step of 8 sequences of 32 tokens has the text of 32 of 8, and of 16 of 16. The
# rate is too low to change a weight.
still=(data.shuffle=false train.gradient_accumulation=4 optimizer.learning_rate=1e-30
  optimizer.min_learning_rate=0 train.steps=4)
must train_into pieces "${still[@]}" train.first_context=8 train.context_warmup=2
must train_into 1 "${still[@]}" train.sequence_length=8 train.batch_size=8 train.eval_batches=16
must train_into 2 "${still[@]}" train.sequence_length=16 train.batch_size=4 train.eval_batches=8
must train_into 3 "${still[@]}"
# Positions run through the whole sequence, so RoPE rounds otherwise: 0 and 6.4e-9 were observed.
alike() { # STEP: of the run with pieces and of the one with that name
  paste <(values pieces) <(values "$1") | awk -v step="$1" '
    function off(a, b, d) { d = (a - b) / b; return d < 0 ? -d : d }
    NR == step { loss = off($1, $3); norm = off($2, $4) }
    END { printf "# losses differ by %.1e, norms by %.1e\n", loss, norm
          exit !(NR == 4 && loss <= 1e-8 && norm <= 1e-7) }'
}
for step in 1 2 3; do
  check "step_${step}_has_sequences_of_$((4 << step))" \
    "$(values pieces | paste -sd ,), $(values $step | paste -sd ,)" alike $step
done
must train_into all data.shuffle=false train.first_context=16 train.context_warmup=3 \
  train.steps=4 train.eval_interval=3 train.save_interval=3
must train_into after data.shuffle=false "train.init_from=$folder/all/step-00000003" train.steps=1
second() { "$@" | sed -n 2p; }
check a_validation_sees_whole_sequences "$(validations all) $(validations after)" \
  test "$(second validations all)" = "$(first validations after)"

must train_into whole
must train_into both "${pieces[@]}"
check the_first_steps_differ "$(first values whole), $(first values both)" \
  test "$(first values whole)" != "$(first values both)"
for step in 6 14; do # before and after the change
  "$TRAIN" "$config" "output.dir=$folder/cut" "${pieces[@]}" train.save_interval=2 \
    >"$folder/said" 2>&1 </dev/null &
  process=$!
  wait_for "\"kind\":\"train\",\"step\":$step," "$folder/cut/log.jsonl" $process
  kill -KILL $process 2>/dev/null
  wait $process 2>/dev/null
  must train_into cut "${pieces[@]}" train.resume=auto
  check "a_run_killed_at_step_${step}_ends_in_the_same_bits" \
    "$(same_bits "$folder/both" "$folder/cut" 2>&1)" same_bits "$folder/both" "$folder/cut"
  rm -r "$folder/cut"
done
train_into both "${pieces[@]}" train.first_context=16 train.resume=auto train.steps=30
check another_context_is_another_run "$(said)" grep_said 'train.first_context'

# Any length of a sequence can be halved so often; a run has whole sequences at its end.
starts() { # NAME REST_OF_THE_LINE OVERRIDES...
  must train_into "$1" train.steps=8 "${@:3}"
  check "$1" "$(said)" grep -q "^steps .* epochs$2\$" "$folder/said"
}
starts quarters_hold_a_length '; pieces of 8 at first, twice as long every 3 steps, whole from step 7 on' \
  train.first_context=5 train.context_warmup=99
check the_steps_that_hold_are_said "$(said)" grep_said \
  'train.context_warmup 99 is more than three quarters of the 8 steps: pieces take 6'
starts halves_of_any_length '; pieces of 9 at first, twice as long every 6 steps, whole from step 7 on' \
  train.first_context=8 train.context_warmup=6 train.sequence_length=18
starts an_odd_length_has_no_half '' train.first_context=8 train.context_warmup=6 \
  train.sequence_length=17
check a_key_that_does_nothing_says_so "$(said)" grep_said \
  'train.first_context 8 does nothing: half of 17 tokens is shorter or not whole'
starts a_length_of_0_is_none '' train.first_context=0 train.context_warmup=6
refuses a_length_needs_steps 'train.context_warmup is 0, but train.first_context needs it' \
  "$config" train.first_context=8
refuses a_length_is_no_fraction 'train.first_context' "$config" train.first_context=0.5
refuses documents_are_apart_already 'needs windows of whole files: set it to 0, or set data.documents=join' \
  "$config" "${pieces[@]}" data.documents=mask
exit "$failed"
