// Generation on a GPU, kernels of one row and recorded tokens included, against the CPU: the tokens
// that a GPU writes must be the likeliest, by the CPU's logits of the same text, but for rounding.
#include "tests/gpu/gpu_test.h"

#include "model/generate.h"
#include "tests/support/bf16_twin.h"
#include "tests/support/shapes.h"

enum { PROMPT = 100, WRITTEN = 60, TEXT = PROMPT + WRITTEN, SHORT_CONTEXT = 120 };

static const ModelConfig model = {MODEL_SHAPE(256, 648, 3, 6, 2, 64, 1003, 256),
                                  .initializer_range = 0.08};

static void open_model(Llama *llama, Backend *be) {
  Error err;
  must(llama_create(llama, &model, be, &err), &err);
  llama_init_weights(llama, 3);
}

static void fill_prompt(int32_t *text) {
  for (int i = 0; i < PROMPT; i++)
    text[i] = (int32_t)(rng_u64(5, (uint64_t)i) % (uint64_t)model.vocab_size);
}

// Writes text[PROMPT ..) greedily, twice: the second time from what the first has recorded.
static void write_text(const KernelMode *mode, bool graphs, int64_t context, int32_t *text) {
  const Spec asked = {.batch = 1,
                      .seq = 64,
                      .loss_chunks = 1,
                      .context = context,
                      .kernels = mode->kernels,
                      .mainloop = mode->mainloop,
                      .graphs = graphs};
  Backend *be = gpu_backend(model_spec(&model, asked));
  Llama llama;
  Error err;
  open_model(&llama, be);
  Generator *g = generator_create(&llama, context, &err);
  if (!g) fail_msg("%s", err.text);
  SampleOptions greedy = {.top_p = 1, .max_tokens = WRITTEN};
  fill_prompt(text);
  for (int time = 0; time < 2; time++) {
    must(generator_start(g, text, PROMPT, &greedy, &err), &err);
    for (int i = PROMPT; i < TEXT; i++) {
      int32_t id;
      assert_int_equal(generator_next(g, &id, &err), 1);
      if (time > 0) assert_int_equal(id, text[i]);
      text[i] = id;
    }
  }
  generator_destroy(g);
  llama_destroy(&llama);
  be->services.destroy(be);
}

// Of the whole text [TEXT, V], in fresh memory.
static float *cpu_logits(int32_t *text, bool rounded_to_bf16) {
  const Spec spec =
      model_spec(&model, (Spec){.batch = 1, .seq = TEXT, .loss_chunks = 1, .train = true});
  Backend *be = backend_cpu_create(&spec);
  if (rounded_to_bf16) bf16_twin(be, false);
  Llama llama;
  open_model(&llama, be);
  const int64_t V = model.vocab_size;
  float *logits = xmalloc((size_t)(TEXT * V) * sizeof *logits);
  llama_load_batch(&llama, &(Batch){.tokens = text, .targets = text});
  llama_forward(&llama);
  for (int64_t i = 0; i < TEXT; i++) {
    row_logits(&llama, i);
    be->services.read_act(be, logits + i * V, llama.acts.logits, V);
  }
  llama_destroy(&llama);
  be->services.destroy(be);
  return logits;
}

// How far what was written is from the likeliest, at most; and the same for the twin's rounding.
static void check_written(const char *name, int32_t *text) {
  const int64_t V = model.vocab_size;
  float *exact = cpu_logits(text, false), *twin = cpu_logits(text, true);
  double shortfall = 0, error = 0;
  int likeliest = 0;
  for (int64_t i = PROMPT; i < TEXT; i++) {
    const float *row = exact + (i - 1) * V, *of_twin = twin + (i - 1) * V;
    float largest = row[0];
    for (int64_t v = 0; v < V; v++) {
      largest = fmaxf(largest, row[v]);
      error = fmax(error, fabs((double)row[v] - (double)of_twin[v]));
    }
    shortfall = fmax(shortfall, (double)largest - (double)row[text[i]]);
    likeliest += row[text[i]] == largest;
  }
  // A token may win by the error of two logits. Observed: 59 of 60, 0.0125 and a bound of 0.22.
  const double bound = 2 * error;
  printf("# %s: %d of %d the likeliest, the others short by %.4f at most (bound %.4f)\n", name,
         likeliest, WRITTEN, shortfall, bound);
  fflush(stdout);
  assert_true(likeliest >= WRITTEN * 9 / 10);
  if (!(shortfall <= bound)) fail_msg("%s wrote a token that is %g short", name, shortfall);
  free(exact);
  free(twin);
}

static void check_backend(void **state) {
  const KernelMode *mode = *state;
  int32_t text[TEXT], launched[TEXT], past_context[TEXT], past_launched[TEXT];
  write_text(mode, true, model.max_position_embeddings, text);
  write_text(mode, false, model.max_position_embeddings, launched);
  assert_memory_equal(text, launched, sizeof text);
  check_written(mode->name, text);
  write_text(mode, true, SHORT_CONTEXT, past_context); // the cache's newer half is fed again
  write_text(mode, false, SHORT_CONTEXT, past_launched);
  assert_memory_equal(past_context, past_launched, sizeof past_context);
  assert_memory_equal(past_context, text, SHORT_CONTEXT * sizeof *text);
  assert_memory_not_equal(past_context, text, sizeof text);
}

int main(void) {
  static const char *const names[KERNEL_MODES] = {"unfused_writes_what_the_cpu_finds_likeliest",
                                                  "fused_writes_what_the_cpu_finds_likeliest",
                                                  "mma_sync_writes_what_the_cpu_finds_likeliest"};
  struct CMUnitTest tests[KERNEL_MODES];
  for (int i = 0; i < KERNEL_MODES; i++)
    tests[i] = (struct CMUnitTest){names[i], check_backend, NULL, NULL,
                                   (void *)(uintptr_t)&kernel_modes[i]};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
