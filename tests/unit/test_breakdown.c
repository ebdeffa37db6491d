// Where a step's time goes: kernels by name, the sums, what is printed and logged, and which steps
// a run has traced, with a backend that tells planted times.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/support/cmocka_all.h"

#include "base/file.h"
#include "base/memory.h"
#include "model/run/breakdown.h"
#include "model/run/run.h"
#include "tests/support/data_test.h"
#include "tests/support/tiny_run.h"
#include "tests/support/tiny_training.h"

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-9)) fail_msg("%.17g is not %.17g", a, b);
}

static Activity kernel(const char *name, uint64_t began, uint64_t ended) {
  return (Activity){.kind = ACTIVITY_KERNEL, .name = name, .began = began, .ended = ended};
}

// Names as the compiler and the libraries make them.
static void kernels_are_known_by_name(void **state) {
  (void)state;
  static const struct {
    const char *name, *label;
    ActivityGroup group;
  } cases[] = {
      {"_Z12fused_kernelI4TileILi128ELi256ELi4EL8Schedule0EE6SwigluL5Major0ELS4_0EEv14CUtensorMap_"
       "stS5_16EpilogueOperandsiii",
       "fused_kernel Swiglu 128x256", GROUP_PRODUCTS},
      {"_Z12fused_kernelI4TileILi128ELi128ELi5EL8Schedule1EE17NormDgradResidualL5Major0ELS4_1EEv",
       "fused_kernel NormDgradResidual 128x128", GROUP_PRODUCTS},
      {"_Z12fused_kernelI5OtherEv", "fused_kernel", GROUP_PRODUCTS},
      {"_Z11sync_kernelI8ResidualEv11ProgramCalli", "sync_kernel Residual", GROUP_PRODUCTS},
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
       GROUP_PRODUCTS},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
       "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", GROUP_PRODUCTS},
      {"_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8E"
       "EvNT_6ParamsE",
       "cutlass::Kernel2", GROUP_PRODUCTS},
      {"_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb1ELb0EEEv",
       "cublasLt::splitKreduce_kernel", GROUP_PRODUCTS},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x64x64_1x1x1_kernel0",
       "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x64x64_1x1x1_kernel0",
       GROUP_ATTENTION},
      {"_ZN5cudnn6fusion16compute_dot_do_oILb1E13__nv_bfloat16fLi128EEEv",
       "cudnn::fusion::compute_dot_do_o", GROUP_ATTENTION},
      {"fmha_v2_flash_attention_bf16_64_128_S_128_sm90_kernel",
       "fmha_v2_flash_attention_bf16_64_128_S_128_sm90_kernel", GROUP_ATTENTION},
      {"_Z20norm_backward_kernelILi8EEvli8RowScale", "norm_backward_kernel", GROUP_ROWS},
      {"_Z12embed_kernelILi8EEvliiPKiPKtPtPf", "embed_kernel", GROUP_ROWS},
      {"_Z22swiglu_backward_kernelILb0EEvi8RowScale", "swiglu_backward_kernel", GROUP_ROWS},
      {"_Z20cross_entropy_kernelILb1EEvl12SoftmaxParts", "cross_entropy_kernel", GROUP_LOSS},
      {"_Z25cross_entropy_loop_kernel12CrossEntropy", "cross_entropy_loop_kernel", GROUP_LOSS},
      {"_Z12adamw_kernelIfLb0EEv10ParamTablelPK9StepState", "adamw_kernel", GROUP_UPDATE},
      {"_Z11norm_kernellPKfP9StepState", "norm_kernel", GROUP_UPDATE},
      {"_ZN12_GLOBAL__N_111some_kernelEv", "some_kernel", GROUP_OTHER},
      {"_ZL11some_kernelv", "some_kernel", GROUP_OTHER},
      {"_Z99short", "_Z99short", GROUP_OTHER},
      {"_Z", "_Z", GROUP_OTHER},
      {"", "", GROUP_OTHER},
      {NULL, "a kernel without a name", GROUP_OTHER},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const Activity a = kernel(cases[i].name, 0, 1);
    assert_string_equal(activity_label(&a).text, cases[i].label);
    if (activity_group(&a) != cases[i].group)
      fail_msg("%s is in group %d", cases[i].name, (int)activity_group(&a));
  }
  const Activity copy = {.kind = ACTIVITY_COPY}, set = {.kind = ACTIVITY_MEMSET};
  assert_string_equal(activity_label(&copy).text, "copy");
  assert_string_equal(activity_label(&set).text, "memset");
  assert_int_equal(activity_group(&copy), GROUP_COPIES);
  assert_int_equal(activity_group(&set), GROUP_COPIES);
}

// Every kernel that the GPU backends launch is in a group.
static void every_kernel_of_ours_has_a_group(void **state) {
  (void)state;
  FILE *list = popen("grep -rhoE '\\b[a-z_]+_kernel *(<[^<>]*>)? *<<<' kernels --include=*.cu "
                     "--include=*.cuh | grep -oE '^[a-z_]+'",
                     "r");
  assert_non_null(list);
  char name[128];
  int count = 0;
  while (fscanf(list, "%127s", name) == 1) {
    char *mangled = xasprintf("_Z%zu%sv", strlen(name), name);
    const Activity a = kernel(mangled, 0, 1);
    if (activity_group(&a) == GROUP_OTHER) fail_msg("%s is in no group of activity.c", name);
    free(mangled);
    count++;
  }
  pclose(list);
  assert_true(count > 20);
}

static const char gemm[] = "nvjet_a", row[] = "_Z12embed_kernelv", other[] = "x";

// 100..300 a product, 200..400 a row kernel that overlaps it, 350..380 one inside that one, a gap,
// 1000..1500 a copy: in no order.
static const Activity planted[] = {
    {ACTIVITY_COPY, NULL, 1000, 1500},
    {ACTIVITY_KERNEL, row, 200, 400},
    {ACTIVITY_KERNEL, gemm, 100, 300},
    {ACTIVITY_KERNEL, gemm, 350, 380},
};
static const Activities all_planted = {planted, sizeof planted / sizeof *planted, 0};

static void groups_and_gaps_add_up_to_the_gpus_time(void **state) {
  (void)state;
  Breakdown b = {.step_ms = 2, .other_steps_ms = 1};
  breakdown_make(&b, &all_planted);
  near(b.step_ms, 2);
  near(b.other_steps_ms, 1);
  near(b.gpu_ms, 1400e-6);
  near(b.gaps_ms, 600e-6);
  near(b.groups[GROUP_PRODUCTS].ms, 200e-6); // the second one is hidden
  assert_int_equal(b.groups[GROUP_PRODUCTS].count, 2);
  near(b.groups[GROUP_ROWS].ms, 100e-6);
  near(b.groups[GROUP_COPIES].ms, 500e-6);
  double sum = b.gaps_ms;
  for (int i = 0; i < GROUP_COUNT; i++) sum += b.groups[i].ms;
  near(sum, b.gpu_ms);
  assert_int_equal(b.kernel_count, 3);
  assert_string_equal(b.kernels[0].label.text, "copy");
  assert_string_equal(b.kernels[1].label.text, "nvjet_a");
  assert_int_equal(b.kernels[1].group, GROUP_PRODUCTS);
  assert_int_equal(b.kernels[1].part.count, 2);
  near(b.kernels[1].part.ms, 230e-6);
  assert_string_equal(b.kernels[2].label.text, "embed_kernel");
  breakdown_free(&b);
  breakdown_make(&b, &(Activities){NULL, 0, 3}); // everything was lost
  near(b.gpu_ms, 0);
  assert_int_equal(b.lost, 3);
  assert_int_equal(b.kernel_count, 0);
}

static char *printed(const Breakdown *b) {
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  assert_non_null(out);
  breakdown_print(b, 7, 100, out);
  fclose(out);
  return text;
}

static void it_prints_a_line_for_each_group(void **state) {
  (void)state;
  Activity list[12];
  for (uint64_t i = 0; i < 12; i++) list[i] = kernel(other, 1000000 * i, 1000000 * i + 500000);
  list[0].name = gemm;
  Breakdown b = {.step_ms = 12.25, .other_steps_ms = NAN};
  breakdown_make(&b, &(Activities){list, 12, 0});
  char *text = printed(&b);
  assert_string_equal(
      text,
      "step   7/100 | breakdown: 11.500 ms on the GPU, in a step of 12.25 ms\n"
      "  products               0.500 ms   4.3 %     1   |    5.500 ms =   11 x    500.0 us  x\n"
      "  attention              0.000 ms   0.0 %     0   |    0.500 ms =    1 x    500.0 us  "
      "nvjet_a\n"
      "  row kernels            0.000 ms   0.0 %     0\n"
      "  loss                   0.000 ms   0.0 %     0\n"
      "  update                 0.000 ms   0.0 %     0\n"
      "  copies and memsets     0.000 ms   0.0 %     0\n"
      "  other                  5.500 ms  47.8 %    11\n"
      "  gaps                   5.500 ms  47.8 %      \n");
  free(text);
  breakdown_free(&b);
  b.other_steps_ms = 11;
  breakdown_make(&b, &(Activities){NULL, 0, 2});
  text = printed(&b);
  assert_non_null(strstr(text, "; untraced steps take 11.00 ms; CUPTI lost 2 "));
  assert_null(strstr(text, "nan"));
  free(text);
}

// ---- A run with a backend that has planted activities. It gets no context to keep this in.

static struct Traced {
  const Run *run;
  int64_t begun[16], asked_at_end[16], count;
  int opened;
  bool fails;
} traced;
static bool traced_nothing; // but a copy

static int note_open(Backend *be, Error *err) {
  (void)be;
  (void)err;
  traced.opened++;
  return 0;
}

static int note_begin(Backend *be, Error *err) {
  (void)be;
  const Run *t = traced.run;
  assert_int_equal(t->asked, t->booked); // nothing of an earlier step is in the trace
  traced.begun[traced.count] = run_steps_asked(t) + 1;
  return traced.fails ? error_set(err, "planted") : 0;
}

static int note_end(Backend *be, Activities *activities, Error *err) {
  (void)be;
  (void)err;
  assert_int_equal(traced.run->asked, traced.run->booked);
  traced.asked_at_end[traced.count++] = run_steps_asked(traced.run);
  *activities = traced_nothing ? (Activities){planted, 1, 0} : all_planted;
  return 0;
}

// Trains as a run on a GPU whose trace is planted, and saves. What it traced is in `traced`.
static void train(const Config *config, int steps, bool fails) {
  Error err = {""};
  Run run;
  tiny_training_open(&run, config);
  traced = (struct Traced){.run = &run, .fails = fails};
  run.be->trace_open = note_open;
  run.be->trace_begin = note_begin;
  run.be->trace_end = note_end;
  run.be->steps_ahead = 1;
  run.config.output.breakdown = true; // the CPU would have refused it
  run.tracing = true;
  for (int i = 0; i < steps; i++) tiny_training_step(&run);
  must(run_settle(&run, &err), &err);
  must(run_save(&run, &err), &err);
  run_close(&run);
}

// The run's last record of a breakdown, NULL where there is none, and how many there are.
static cJSON *last_breakdown(const char *folder, int *count) {
  char *path = xasprintf("%s/run/log.jsonl", folder), *text;
  size_t bytes;
  Error err;
  must(file_read(path, 1 << 20, &text, &bytes, &err), &err);
  cJSON *found = NULL;
  *count = 0;
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    cJSON *json = cJSON_Parse(line);
    assert_non_null(json);
    if (strcmp(cJSON_GetObjectItemCaseSensitive(json, "kind")->valuestring, "breakdown") == 0) {
      cJSON_Delete(found);
      found = json;
      ++*count;
    } else {
      cJSON_Delete(json);
    }
  }
  free(text);
  free(path);
  return found;
}

static double number(const cJSON *object, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
  if (!cJSON_IsNumber(item)) fail_msg("%s is no number", name);
  return item->valuedouble;
}

static void expect_told(const char *folder, int times, int64_t last_step) {
  int count;
  cJSON *json = last_breakdown(folder, &count);
  assert_int_equal(count, times);
  if (times > 0) near(number(json, "step"), (double)last_step);
  cJSON_Delete(json);
}

static void every_nth_step_is_traced_from_the_fourth_on(void **state) {
  const Config third = tiny_training_config(*state, 9, ", \"breakdown_interval\": 3");
  train(&third, 4, false);
  assert_int_equal(traced.count, 1); // the third, which is thrown away
  assert_int_equal(traced.begun[0], 3);
  assert_int_equal(traced.asked_at_end[0], 3);
  expect_told(*state, 0, 0);
  Config resumed = third;
  strcpy(resumed.train.resume, "auto");
  train(&resumed, 5, false); // from step 5 on: 5 and 6 warm up, 7 is thrown away
  assert_int_equal(traced.count, 2);
  assert_int_equal(traced.begun[0], 7);
  assert_int_equal(traced.begun[1], 9);
  expect_told(*state, 1, 9);
}

static void every_step_can_be_traced(void **state) {
  const Config each = tiny_training_config(*state, 9, ", \"breakdown_interval\": 1");
  train(&each, 6, false);
  assert_int_equal(traced.count, 4);
  for (int i = 0; i < 4; i++) assert_int_equal(traced.begun[i], i + 3);
  expect_told(*state, 3, 6);
}

static void a_trace_that_fails_ends_the_traces_alone(void **state) {
  const Config config = tiny_training_config(*state, 9, ", \"breakdown_interval\": 3");
  train(&config, 9, true);
  assert_int_equal(traced.begun[0], 3);
  assert_int_equal(traced.count, 0); // never ended, never begun again
  expect_told(*state, 0, 0);
}

static void a_trace_without_products_is_not_believed(void **state) {
  const Config config = tiny_training_config(*state, 9, ", \"breakdown_interval\": 3");
  traced_nothing = true;
  train(&config, 9, false);
  traced_nothing = false;
  assert_int_equal(traced.count, 2);
  expect_told(*state, 0, 0);
}

static void a_trace_changes_no_bit(void **state) {
  char *files[2];
  size_t bytes[2];
  for (int i = 0; i < 2; i++) {
    const Config config = tiny_training_config(*state, 9, ", \"breakdown_interval\": 1");
    Error err;
    train(&config, 9, i == 0);
    char *run = xasprintf("%s/run", (const char *)*state), *path;
    path = xasprintf("%s/latest/model.safetensors", run);
    must(file_read(path, 1 << 20, &files[i], &bytes[i], &err), &err);
    must(directory_remove(run, &err), &err);
    free(path);
    free(run);
  }
  assert_int_equal(bytes[0], bytes[1]);
  assert_memory_equal(files[0], files[1], bytes[0]);
  free(files[0]);
  free(files[1]);
}

static void the_log_has_a_record_of_it(void **state) {
  const Config config = tiny_training_config(*state, 9, ", \"breakdown_interval\": 5");
  train(&config, 9, false);
  int count;
  cJSON *json = last_breakdown(*state, &count);
  assert_int_equal(count, 2);
  near(number(json, "step"), 9); // the last
  near(number(json, "gpu_ms"), 1400e-6);
  near(number(json, "gaps_ms"), 600e-6);
  near(number(json, "lost"), 0);
  assert_true(number(json, "step_ms") > 0);
  assert_true(number(json, "other_steps_ms") > 0);
  const cJSON *groups = cJSON_GetObjectItemCaseSensitive(json, "groups");
  assert_int_equal(cJSON_GetArraySize(groups), GROUP_COUNT);
  const cJSON *products = cJSON_GetObjectItemCaseSensitive(groups, "products");
  near(number(products, "ms"), 200e-6);
  near(number(products, "count"), 2);
  const cJSON *kernels = cJSON_GetObjectItemCaseSensitive(json, "kernels");
  assert_int_equal(cJSON_GetArraySize(kernels), 3);
  const cJSON *first = cJSON_GetArrayItem(kernels, 0);
  assert_string_equal(cJSON_GetObjectItemCaseSensitive(first, "name")->valuestring, "copy");
  assert_string_equal(cJSON_GetObjectItemCaseSensitive(first, "group")->valuestring,
                      "copies_memsets");
  near(number(first, "count"), 1);
  cJSON_Delete(json);
}

static void a_run_on_the_cpu_says_that_it_has_none(void **state) {
  Config config =
      tiny_training_config(*state, 9, ", \"breakdown\": true, \"breakdown_interval\": 9");
  Error err = {""};
  static const volatile sig_atomic_t never = 0;
  Run run;
  expect_error(run_open(&run, &config, &never, &err), &err, "this run is on the CPU");
}

int main(void) {
#define ON_TOKENS(test) cmocka_unit_test_setup_teardown(test, make_tokens_folder, remove_folder)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_are_known_by_name),
      cmocka_unit_test(every_kernel_of_ours_has_a_group),
      cmocka_unit_test(groups_and_gaps_add_up_to_the_gpus_time),
      cmocka_unit_test(it_prints_a_line_for_each_group),
      ON_TOKENS(every_nth_step_is_traced_from_the_fourth_on),
      ON_TOKENS(every_step_can_be_traced),
      ON_TOKENS(a_trace_that_fails_ends_the_traces_alone),
      ON_TOKENS(a_trace_without_products_is_not_believed),
      ON_TOKENS(a_trace_changes_no_bit),
      ON_TOKENS(the_log_has_a_record_of_it),
      ON_TOKENS(a_run_on_the_cpu_says_that_it_has_none),
  };
  return cmocka_run_group_tests_name("test_breakdown", tests, NULL, NULL);
}
