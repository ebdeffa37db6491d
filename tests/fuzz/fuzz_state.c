// Any bytes as a checkpoint's state.json: refused with a sentence, or a state that can be, which is
// written and read back as the same.
#undef NDEBUG
#include <assert.h>
#include <math.h>

#include "model/run/checkpoint/files.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  Error err = {""};
  TrainState state, again;
  fuzz_write("state.json", bytes, size);
  if (checkpoint_read_state(fuzz_folder(), &state, &err) != 0) {
    assert(err.text[0] != '\0');
    return 0;
  }
  assert(state.step >= 0 && state.updates >= 0 && state.updates <= state.step);
  assert(state.nonfinite >= 0 && state.nonfinite_row >= 0 && !isinf(state.best_val_loss));
  char *text = state_json(&state);
  fuzz_write("state.json", text, strlen(text));
  assert(checkpoint_read_state(fuzz_folder(), &again, &err) == 0);
  char *text_again = state_json(&again);
  assert(strcmp(text, text_again) == 0);
  free(text);
  free(text_again);
  return 0;
}
