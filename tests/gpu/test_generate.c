// Generation on a GPU, kernels of one row and recorded tokens included, against the CPU: the tokens
// that a GPU writes must be the likeliest, by the CPU's logits of the same text, but for rounding.
#include "tests/gpu/gpu_test.h"

#include "model/generate.h"
#include "tests/gpu/fp8_here.h"
#include "tests/support/bf16_twin.h"
#include "tests/support/choosing.h"
#include "tests/support/shapes.h"

enum { PROMPT = 100, WRITTEN = 60, TEXT = PROMPT + WRITTEN, SHORT_CONTEXT = 120 };

static const ModelConfig model = {MODEL_SHAPE(256, 656, 3, 6, 2, 64, 1003, 256),
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
static void write_text(const KernelMode *mode, bool fp8, bool graphs, int64_t context,
                       int32_t *text) {
  const Spec asked = {.batch = 1,
                      .seq = 64,
                      .loss_chunks = 1,
                      .context = context,
                      .kernels = mode->kernels,
                      .mainloop = mode->mainloop,
                      .graphs = graphs,
                      .fp8_weights = fp8};
  Spec spec = model_spec(&model, asked);
  if (fp8) scalings_declare(&model, &spec);
  Backend *be = gpu_backend(spec);
  free((void *)spec.scalings);
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
static float *cpu_logits(int32_t *text, bool fp8, bool rounded_to_bf16) {
  Spec spec =
      model_spec(&model, (Spec){.batch = 1, .seq = TEXT, .loss_chunks = 1, .fp8_weights = fp8});
  if (fp8) scalings_declare(&model, &spec);
  Backend *be = backend_cpu_create(&spec);
  free((void *)spec.scalings);
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
static void check_written(const char *name, bool fp8, int32_t *text) {
  const int64_t V = model.vocab_size;
  float *exact = cpu_logits(text, fp8, false), *twin = cpu_logits(text, fp8, true);
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

static void check_backend(const KernelMode *mode, bool fp8) {
  int32_t text[TEXT], launched[TEXT], past_context[TEXT], past_launched[TEXT];
  write_text(mode, fp8, true, model.max_position_embeddings, text);
  write_text(mode, fp8, false, model.max_position_embeddings, launched);
  assert_memory_equal(text, launched, sizeof text);
  check_written(mode->name, fp8, text);
  write_text(mode, fp8, true, SHORT_CONTEXT, past_context); // the cache's newer half is fed again
  write_text(mode, fp8, false, SHORT_CONTEXT, past_launched);
  assert_memory_equal(past_context, past_launched, sizeof past_context);
  assert_memory_equal(past_context, text, SHORT_CONTEXT * sizeof *text);
  assert_memory_not_equal(past_context, text, sizeof text);
}

TEST(unfused_writes_what_the_cpu_finds_likeliest) {
  check_backend(&kernel_modes[0], false);
}
TEST(fused_writes_what_the_cpu_finds_likeliest) {
  check_backend(&kernel_modes[1], false);
}
TEST(mma_sync_writes_what_the_cpu_finds_likeliest) {
  check_backend(&kernel_modes[2], false);
}
TEST(with_e4m3_weights_it_writes_what_the_cpu_finds_likeliest) {
  if (!fp8_here()) skip();
  check_backend(&(KernelMode){"e4m3 weights", KERNELS_UNFUSED, MAINLOOP_AUTO}, true);
}

// One and several steps of each thread of the kernel, whole and with a rest.
TEST(tokens_are_chosen_as_on_the_cpu) {
  static const int64_t sizes[] = {2, 1003, 32000, 128256, 300001};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    ModelConfig wide = model;
    wide.vocab_size = sizes[i];
    Backend *be = gpu_backend(
        model_spec(&wide, (Spec){.batch = 1, .seq = 4, .loss_chunks = 1, .context = 8}));
    act_t *logits = be->services.alloc(be, (size_t)(padded_vocab(&be->spec) + 16) * 2);
    Draw *draw = be->services.alloc(be, sizeof *draw);
    int32_t *next = be->services.alloc(be, sizeof *next);
    check_choosing(be, logits, draw, next);
    be->services.release(be, logits);
    be->services.release(be, draw);
    be->services.release(be, next);
    be->services.destroy(be);
  }
}

// A GPU, which works ahead, against the same backend that is told not to.
TEST(working_ahead_changes_no_token) {
  const SampleOptions options = {
      .temperature = 0.9, .top_p = 0.95, .top_k = 300, .seed = 8, .max_tokens = WRITTEN};
  int32_t prompt[PROMPT], id[2][WRITTEN];
  fill_prompt(prompt);
  for (int64_t context = SHORT_CONTEXT; context <= 256; context += 256 - SHORT_CONTEXT) {
    for (int ahead = 0; ahead < 2; ahead++) {
      const Spec asked = {
          .batch = 1, .seq = 64, .loss_chunks = 1, .context = context, .graphs = true};
      Backend *be = gpu_backend(model_spec(&model, asked));
      assert_int_equal(be->steps_ahead, 1);
      be->steps_ahead = ahead;
      Llama llama;
      open_model(&llama, be);
      static const int begun[] = {1, 2, WRITTEN}; // the first two texts are left before their end
      Generator *g = generator_create(&llama, context, &err);
      for (int text = 0; text < 3; text++) {
        must(generator_start(g, prompt, PROMPT, &options, &err), &err);
        for (int i = 0; i < begun[text]; i++)
          assert_int_equal(generator_next(g, &id[ahead][i], &err), 1);
        if (text != 1) continue;
        generator_destroy(g);
        g = generator_create(&llama, context, &err);
      }
      generator_destroy(g);
      llama_destroy(&llama);
      be->services.destroy(be);
    }
    assert_memory_equal(id[0], id[1], sizeof id[0]);
  }
}

// As --eval judges e4m3 weights: rows of a batch, and logits of several at a time.
static double loss_of(Backend *be, int32_t *text) {
  Llama llama;
  open_model(&llama, be);
  const double loss =
      llama_sum_of_losses(&llama, &(Batch){.tokens = text, .targets = text + 1}) / (TEXT - 1);
  llama_destroy(&llama);
  be->services.destroy(be);
  return loss;
}

TEST(e4m3_weights_have_the_loss_that_the_cpu_finds) {
  if (!fp8_here()) skip();
  int32_t text[TEXT];
  for (int i = 0; i < TEXT; i++)
    text[i] = (int32_t)(rng_u64(6, (uint64_t)i) % (uint64_t)model.vocab_size);
  double gpu[2], cpu[2];
  for (int fp8 = 0; fp8 < 2; fp8++) {
    Spec spec = model_spec(
        &model, (Spec){.batch = 1, .seq = TEXT - 1, .loss_chunks = 3, .fp8_weights = fp8});
    spec.kernels = KERNELS_UNFUSED;
    if (fp8) scalings_declare(&model, &spec);
    gpu[fp8] = loss_of(gpu_backend(spec), text);
    cpu[fp8] = loss_of(backend_cpu_create(&spec), text);
    free((void *)spec.scalings);
  }
  printf("# loss with bf16 weights %.5f (CPU %.5f), e4m3 %.5f (%.5f)\n", gpu[0], cpu[0], gpu[1],
         cpu[1]);
  // The rounding of activations to bf16 alone makes 0.12.
  assert_true(fabs(gpu[1] - cpu[1]) < 0.3 * fabs(cpu[1] - cpu[0]));
}
