// The model's part of the configuration: what is understood of Hugging Face's config.json and what
// is refused, and what is counted of a model.
#include "model/llama.h"
#include "tests/support/config_test.h"
#include "tests/support/shapes.h"
#include "tests/support/test.h"

// ---- Hugging Face

static ModelConfig parse_model(const char *json) {
  ModelConfig model;
  Error err = {""};
  must(model_config_parse(&model, "config.json", json, &err), &err);
  return model;
}

static void expect_llama3(const char *json) {
  const ModelConfig m = parse_model(json);
  assert_int_equal(m.rope_scaling.type, ROPE_LLAMA3);
  assert_true(m.rope_scaling.factor == 8 && m.rope_scaling.low_freq_factor == 1 &&
              m.rope_scaling.high_freq_factor == 4 && m.rope_theta == 500000);
  assert_int_equal(m.rope_scaling.original_max_position_embeddings, 1024);
}

#define HF "{\"model_type\": \"llama\", " SIZES ", "

TEST(all_spellings_of_rope_scaling_are_understood) {
  expect_llama3(HF "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3
                   "}}");
  expect_llama3(HF "\"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3
                   "}}");
  expect_llama3(HF "\"rope_scaling\": {\"type\": \"llama3\", \"rope_type\": \"llama3\", " LLAMA3
                   "}, \"rope_theta\": 500000.0}");
  expect_llama3(HF "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", "
                   "\"partial_rotary_factor\": 1.0, " LLAMA3 "}}");
  expect_llama3(HF "\"rope_scaling\": null, \"rope_parameters\": {\"rope_theta\": 500000.0, "
                   "\"rope_type\": \"llama3\", " LLAMA3 "}, \"rope_theta\": 500000.0}");
  const char *const defaults[] = {
      HF "\"rope_scaling\": null}", HF "\"rope_scaling\": {\"rope_type\": \"default\"}}",
      HF "\"rope_scaling\": {\"type\": \"default\", \"factor\": 2}}",
      HF "\"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}",
      HF "\"rope_parameters\": {\"rope_theta\": 10000.0}}"};
  for (int i = 0; i < 5; i++) {
    const ModelConfig m = parse_model(defaults[i]);
    assert_int_equal(m.rope_scaling.type, ROPE_DEFAULT);
    assert_true(m.rope_theta == 10000 && m.rope_scaling.factor == 0);
  }
  const Config ours = parse(WITH_MODEL(
      "\"rope_parameters\": {\"rope_theta\": 1e4, \"rope_type\": \"llama3\", " LLAMA3 "}"));
  assert_true(ours.model.rope_theta == 10000 && ours.model.rope_scaling.factor == 8);
}

// As transformers 4.57 writes it for Llama-3.2-1B, and with keys that do not concern the shape.
static const char llama_32_1b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, "
    "\"attention_dropout\": 0.0, \"bos_token_id\": 128000, \"dtype\": \"bfloat16\", "
    "\"eos_token_id\": [128001, 128008], \"head_dim\": 64, \"hidden_act\": \"silu\", "
    "\"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 8192, "
    "\"max_position_embeddings\": 131072, \"mlp_bias\": false, \"model_type\": \"llama\", "
    "\"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, "
    "\"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 32.0, "
    "\"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}, "
    "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true, "
    "\"transformers_version\": \"4.57.0\", \"use_cache\": true, \"vocab_size\": 128256}";

TEST(the_config_of_llama_32_1b_equals_ours) {
  const ModelConfig hf = parse_model(llama_32_1b);
  Config ours;
  must(config_load(&ours, "configs/llama-3.2-1b.json", 0, NULL, &err), &err);
  assert_memory_equal(&hf, &ours.model, sizeof hf);
}

// As deepseek-coder-1.3b-base has it.
#define LINEAR                                                                                     \
  HF "\"rope_theta\": 100000, \"rope_scaling\": {\"factor\": 4.0, \"type\": \"linear\"}}"

TEST(linear_rope_scaling_is_understood_and_written) {
  const char *const spellings[] = {
      LINEAR, HF
      "\"rope_parameters\": {\"rope_theta\": 100000.0, \"rope_type\": \"linear\", \"factor\": 4, "
      "\"original_max_position_embeddings\": 4096}}"};
  const ModelConfig first = parse_model(spellings[0]);
  for (int i = 0; i < 2; i++) {
    const ModelConfig m = parse_model(spellings[i]);
    assert_memory_equal(&m, &first, sizeof m);
    assert_int_equal(m.rope_scaling.type, ROPE_LINEAR);
    assert_true(m.rope_scaling.factor == 4 && m.rope_theta == 100000);
    char *json = held(model_config_json(&m, &(ConfigExtras){.bos = -1, .eos = -1}));
    char *rope = strstr(json, "\"rope_scaling\"");
    assert_non_null(rope);
    *strchr(rope, '}') = '\0'; // transformers warns about keys that the type does not use
    assert_string_equal(
        rope, "\"rope_scaling\": {\n    \"rope_type\": \"linear\",\n    \"factor\": 4.0\n  ");
  }
}

// transformers' _compute_linear_scaling_rope_parameters: base^(-2j / d) / factor.
TEST(linear_rope_scaling_divides_each_frequency) {
  ModelConfig m = parse_model(LINEAR);
  const Spec spec = model_spec(&m, (Spec){.batch = 1, .seq = 1});
  const double frequencies[8] = {/* d = 16 */
                                 1. / 4,
                                 0.23713737056616552638 / 4,
                                 0.056234132519034908039 / 4,
                                 0.013335214321633240257 / 4,
                                 0.0031622776601683793320 / 4,
                                 0.00074989420933245582730 / 4,
                                 0.00017782794100389228012 / 4,
                                 4.2169650342858223e-05 / 4};
  for (int j = 0; j < 8; j++) assert_true(fabs(spec.inv_freq[j] / frequencies[j] - 1) < 1e-14);
}

TEST(our_config_json_reads_back_as_the_same_model) {
  const char *const models[] = {llama_32_1b, HF "\"head_dim\": 32, \"rms_norm_eps\": 3.3e-7}",
                                LINEAR};
  for (int i = 0; i < 3; i++) {
    const ModelConfig m = parse_model(models[i]);
    const bool bytes = m.vocab_size == 258;
    const ConfigExtras extras = {.bos = bytes ? 256 : -1, .eos = bytes ? 257 : -1};
    char *json = held(model_config_json(&m, &extras));
    const ModelConfig again = parse_model(json);
    assert_memory_equal(&m, &again, sizeof m);
    assert_true((strstr(json, "\"eos_token_id\": 257") != NULL) == bytes);
    assert_non_null(strstr(json, "\"architectures\": [\"LlamaForCausalLM\"]"));
    assert_true((strstr(json, "\"factor\": 32.0,") != NULL) == !bytes);
    assert_non_null(strstr(json, "\"torch_dtype\": \"float32\""));
  }
}

// More that is refused: rows of tests/fixtures/messages.txt.
TEST(a_hugging_face_model_that_is_not_ours_is_refused) {
  ModelConfig m;
  expect_error(model_config_parse(&m, "x", "{\"model_type\": \"qwen2\"}", &err), &err,
               "model_type is \"qwen2\"");
  assert_says(&err, "or \"mistral\"");
  assert_int_equal(model_config_parse(&m, "x", "[]", &err), -1);
}

// ---- Mistral

#define MISTRAL "{\"architectures\": [\"MistralForCausalLM\"], " SIZES ", "

TEST(a_mistral_whose_window_is_never_reached_is_a_llama) {
  const char *const windows[] = {"null", "128", "4096"};
  const ModelConfig llama = parse_model("{" SIZES ", \"max_position_embeddings\": 128}");
  for (int i = 0; i < 3; i++) {
    char *json = held_text(MISTRAL "\"sliding_window\": %s, \"max_position_embeddings\": 128, "
                                   "\"num_key_value_heads\": null, \"model_type\": \"mistral\"}",
                           windows[i]);
    const ModelConfig m = parse_model(json);
    assert_memory_equal(&m, &llama, sizeof m);
  }
  // MistralConfig's own defaults, where the file is silent.
  const ModelConfig m = parse_model(
      "{\"model_type\": \"mistral\", \"sliding_window\": null, \"hidden_size\": 64, "
      "\"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 16, "
      "\"vocab_size\": 258}");
  assert_int_equal(m.num_key_value_heads, 8);
  assert_int_equal(m.max_position_embeddings, 131072);
}

// ---- Counts

static ModelConfig llama3_shape(int64_t D, int64_t F, int64_t L, int64_t H) {
  return (ModelConfig){.hidden_size = D,
                       .intermediate_size = F,
                       .num_hidden_layers = L,
                       .num_attention_heads = H,
                       .num_key_value_heads = 8,
                       .head_dim = D / H,
                       .vocab_size = 128256};
}

// Totals from the model cards' safetensors indexes (total_size / 2 for the bf16 files).
TEST(parameter_counts_equal_the_published_ones) {
  const ModelConfig big = llama3_shape(4096, 14336, 32, 32);
  const ModelConfig huge = llama3_shape(8192, 28672, 80, 64);
  ModelConfig small = llama3_shape(2048, 8192, 16, 32);
  small.tie_word_embeddings = true;
  assert_int_equal(model_parameters(&big, true), 8030261248);
  assert_int_equal(model_parameters(&big, false), 8030261248 - 128256 * 4096LL);
  assert_int_equal(model_parameters(&huge, true), 70553706496);
  assert_int_equal(model_parameters(&small, true), 1235814400);
  assert_int_equal(model_parameters(&small, false), 1235814400);
}

TEST(flops_of_a_step_count_matrices_and_half_of_attention) {
  // By hand: D 2, H 1, d 2, F 3, L 1, V 5. Matrices: 4 x 2x2 + 3 x 2x3 + 5x2 = 44.
  const ModelConfig m = {MODEL_SHAPE(2, 3, 1, 1, 1, 2, 5, 7)};
  const double flops = model_step_flops(&m, 7 * 4, 7 * 4 * 4);
  assert_true(flops == 6.0 * 28 * 44 + 6.0 * 1 * 7 * 1 * 16 * 2);
}
