// The cards that are known by name: their rates, and plans for one that is not in the machine.
#include "kernels/gpu.h"
#include "tests/support/test.h"

// ---- Rates

static GpuRates rates_of(const char *name, int major, int minor, int sm_count) {
  Gpu gpu = {.major = major, .minor = minor, .sm_count = sm_count};
  snprintf(gpu.name, sizeof gpu.name, "%s", name);
  return gpu_rates(&gpu);
}

// Dense, with sums in fp32. flops: of a multiprocessor and clock in bf16, ghz: both by the
// architecture's whitepaper, which the table does not read.
TEST(rates_are_those_of_the_data_sheets) {
  static const struct {
    const char *name;
    int major, minor, sm_count;
    double flops, ghz;
    bool fp8;
  } list[] = {
      {"NVIDIA A100-SXM4-80GB", 8, 0, 108, 2048, 1.41, false},
      {"NVIDIA A100 80GB PCIe", 8, 0, 108, 2048, 1.41, false},
      {"NVIDIA A10", 8, 6, 72, 1024, 1.695, false},
      {"NVIDIA A40", 8, 6, 84, 1024, 1.74, false},
      {"NVIDIA RTX A6000", 8, 6, 84, 1024, 1.8, false},
      {"NVIDIA GeForce RTX 3060", 8, 6, 28, 512, 1.777, false},
      {"NVIDIA GeForce RTX 3060 Ti", 8, 6, 38, 512, 1.665, false},
      {"NVIDIA GeForce RTX 3070", 8, 6, 46, 512, 1.725, false},
      {"NVIDIA GeForce RTX 3080", 8, 6, 68, 512, 1.71, false},
      {"NVIDIA GeForce RTX 3090", 8, 6, 82, 512, 1.695, false},
      {"NVIDIA L4", 8, 9, 58, 1024, 2.04, true},
      {"NVIDIA L40S", 8, 9, 142, 1024, 2.52, true},
      {"NVIDIA RTX 6000 Ada Generation", 8, 9, 142, 1024, 2.505, true},
      {"NVIDIA GeForce RTX 4060", 8, 9, 24, 512, 2.46, true},
      {"NVIDIA GeForce RTX 4060 Ti", 8, 9, 34, 512, 2.535, true},
      {"NVIDIA GeForce RTX 4070", 8, 9, 46, 512, 2.475, true},
      {"NVIDIA GeForce RTX 4070 SUPER", 8, 9, 56, 512, 2.475, true},
      {"NVIDIA GeForce RTX 4070 Ti SUPER", 8, 9, 66, 512, 2.61, true},
      {"NVIDIA GeForce RTX 4080 SUPER", 8, 9, 80, 512, 2.55, true},
      {"NVIDIA GeForce RTX 4080", 8, 9, 76, 512, 2.505, true},
      {"NVIDIA GeForce RTX 4090", 8, 9, 128, 512, 2.52, true},
      {"NVIDIA H100 80GB HBM3", 9, 0, 132, 4096, 1.83, true},
      {"NVIDIA H100 PCIe", 9, 0, 114, 4096, 1.62, true},
      {"NVIDIA H200", 9, 0, 132, 4096, 1.83, true},
      {"NVIDIA B200", 10, 0, 148, 8192, 1.86, true},
      {"NVIDIA GeForce RTX 5060", 12, 0, 30, 512, 2.497, true},
      {"NVIDIA GeForce RTX 5060 Ti", 12, 0, 36, 512, 2.572, true},
      {"NVIDIA GeForce RTX 5070", 12, 0, 48, 512, 2.512, true},
      {"NVIDIA GeForce RTX 5080", 12, 0, 84, 512, 2.617, true},
      {"NVIDIA GeForce RTX 5090", 12, 0, 170, 512, 2.407, true},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 12, 0, 188, 1024, 2.617, true},
      {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 12, 0, 188, 1024, 2.28, true},
      {"NVIDIA GB10", 12, 1, 48, 512, 2.42, true},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const GpuRates rates = rates_of(list[i].name, list[i].major, list[i].minor, list[i].sm_count);
    const double expected = list[i].flops * list[i].sm_count * list[i].ghz * 1e9,
                 apart = list[i].minor == 1 ? 0.05 : 0.015; // the sheets are rounded
    if (!(fabs(rates.bf16 / expected - 1) <= apart))
      fail_msg("%s: %.1f TFLOP/s, not %.1f", list[i].name, rates.bf16 * 1e-12, expected * 1e-12);
    if (list[i].fp8 ? !(fabs(rates.fp8 / rates.bf16 - 2) < 0.03) : rates.fp8 != 0)
      fail_msg("%s: %.1f TFLOP/s in FP8", list[i].name, rates.fp8 * 1e-12);
  }
}

TEST(a_card_without_a_data_sheet_has_no_rates) {
  static const struct {
    const char *name;
    int major, minor, sm_count;
  } list[] = {
      {"NVIDIA GeForce RTX 4090 Laptop GPU", 8, 9, 76}, // RTX 4080's multiprocessors
      {"NVIDIA GeForce RTX 4090 D", 8, 9, 114},
      {"NVIDIA GeForce RTX 3080", 8, 6, 70}, // of 12 GB
      {"NVIDIA GeForce RTX 3050", 8, 6, 20},
      {"NVIDIA GeForce RTX 5090 Laptop GPU", 12, 0, 82},
      {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188},
      {"NVIDIA A100-SXM4-80GB MIG 3g.40gb", 8, 0, 42},
      {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9, 0, 16},
      {"NVIDIA GeForce RTX 4090", 8, 6, 128}, // no such card
      {"Tesla T4", 7, 5, 40},
      {"", 9, 0, 132},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const GpuRates rates = rates_of(list[i].name, list[i].major, list[i].minor, list[i].sm_count);
    if (rates.bf16 != 0 || rates.fp8 != 0)
      fail_msg("%s: %.1f TFLOP/s", list[i].name, rates.bf16 * 1e-12);
  }
}

// ---- Names

static void check_named(const char *text, const char *name, int major, int minor, int gibibytes) {
  Gpu gpu;
  Error err = {""};
  must(gpu_named(&gpu, text, &err), &err);
  assert_string_equal(gpu.name, name);
  assert_int_equal(gpu.major * 10 + gpu.minor, major * 10 + minor);
  assert_int_equal(gpu.memory_bytes, (size_t)gibibytes << 30);
  assert_int_equal(gpu.free_bytes, gpu.memory_bytes - GPU_TAKEN_BYTES);
  assert_int_equal(gpu.mainloop, major == 9 ? MAINLOOP_WGMMA : MAINLOOP_MMA_SYNC);
}

TEST(a_card_is_found_by_the_words_of_its_name) {
  check_named("RTX 3060 12GB", "NVIDIA GeForce RTX 3060, 12 GB", 8, 6, 12);
  check_named("rtx 3060 12 GB", "NVIDIA GeForce RTX 3060, 12 GB", 8, 6, 12);
  check_named("RTX 3060 Ti", "NVIDIA GeForce RTX 3060 Ti, 8 GB", 8, 6, 8);
  check_named("4070", "NVIDIA GeForce RTX 4070, 12 GB", 8, 9, 12);
  check_named("4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti, 16 GB", 8, 9, 16);
  check_named("4060 Ti", "NVIDIA GeForce RTX 4060 Ti, 8 GB", 8, 9, 8);
  check_named("NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5090, 32 GB", 12, 0, 32);
  check_named("A100 80GB", "NVIDIA A100-SXM4-80GB, 80 GB", 8, 0, 80);
  check_named("pcie a100 80gb", "NVIDIA A100 80GB PCIe, 80 GB", 8, 0, 80);
  check_named("H100", "NVIDIA H100 80GB HBM3, 80 GB", 9, 0, 80);
  check_named("H100 PCIe", "NVIDIA H100 PCIe, 80 GB", 9, 0, 80);
  check_named("A100", "NVIDIA A100-SXM4-80GB, 80 GB", 8, 0, 80);
  check_named("H200", "NVIDIA H200, 140 GB", 9, 0, 140);
}

TEST(a_memory_alone_has_no_speed) {
  Gpu gpu;
  check_named("12GB", "a GPU of 12 GB", 8, 6, 12);
  check_named("24 gb", "a GPU of 24 GB", 8, 6, 24);
  must(gpu_named(&gpu, "8GB", &err), &err);
  assert_true(gpu.rates.bf16 == 0 && gpu.rates.memory == 0);
}

TEST(no_card_has_the_name) {
  static const char *const names[] = {"RTX 9999", "",   " ",     "RTX 3060 16GB",  "1GB",
                                      "0GB",      "12", "12GBs", "RTX 3060 laptop"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    Gpu gpu;
    if (gpu_named(&gpu, names[i], &err) != -1) fail_msg("'%s' is %s", names[i], gpu.name);
    assert_says(&err, held_text("gpu is '%s', but it must be a card", names[i]));
  }
}

// A name that the driver gives finds its own row.
TEST(every_card_is_found_by_its_own_name) {
  static const char *const names[] = {"A100-PCIE-40GB",
                                      "L40",
                                      "L40S",
                                      "H100 NVL",
                                      "H200 NVL",
                                      "RTX PRO 6000 Blackwell Workstation Edition",
                                      "GB10"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    Gpu gpu;
    must(gpu_named(&gpu, names[i], &err), &err);
    if (strncmp(gpu.name + strlen("NVIDIA "), names[i], strlen(names[i])) != 0)
      fail_msg("'%s' is %s", names[i], gpu.name);
    assert_true(gpu.rates.bf16 > 0 && gpu.rates.memory > 0);
  }
}
