// What NVIDIA's data sheets and architecture whitepapers say of cards.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "kernels/gpu.h"

typedef struct Card {
  const char *name;                // as the driver gives it, after "NVIDIA "
  int capability, multiprocessors; // 89: 8.9
  double bf16, fp8;                // dense TFLOP/s with sums in fp32; 0: it has no FP8
  int gibibytes, bandwidth;        // of memory; GB/s
} Card;

// GeForce cards add up in fp32 at half the rate of fp16, and that half is theirs here. Laptops'
// chips and weaker editions have names of their own, and so no row. Of rows that the same words
// name the first is meant.
static const Card cards[] = {
    {"A100-SXM4-80GB", 80, 108, 312, 0, 80, 2039},
    {"A100-SXM4-40GB", 80, 108, 312, 0, 40, 1555},
    {"A100-PCIE-40GB", 80, 108, 312, 0, 40, 1555},
    {"A100 80GB PCIe", 80, 108, 312, 0, 80, 1935},
    {"A10", 86, 72, 125, 0, 24, 600},
    {"A40", 86, 84, 149.7, 0, 48, 696},
    {"RTX A6000", 86, 84, 154.8, 0, 48, 768},
    {"GeForce RTX 3060", 86, 28, 25.5, 0, 12, 360},
    {"GeForce RTX 3060 Ti", 86, 38, 32.4, 0, 8, 448},
    {"GeForce RTX 3070", 86, 46, 40.6, 0, 8, 448},
    {"GeForce RTX 3070 Ti", 86, 48, 43.5, 0, 8, 608},
    {"GeForce RTX 3080", 86, 68, 59.5, 0, 10, 760},
    {"GeForce RTX 3080 Ti", 86, 80, 68.2, 0, 12, 912},
    {"GeForce RTX 3090", 86, 82, 71, 0, 24, 936},
    {"GeForce RTX 3090 Ti", 86, 84, 80, 0, 24, 1008},
    {"L4", 89, 58, 121, 242, 24, 300},
    {"L40", 89, 142, 181, 362, 48, 864},
    {"L40S", 89, 142, 362, 733, 48, 864},
    {"RTX 6000 Ada Generation", 89, 142, 364.2, 728.5, 48, 960},
    {"GeForce RTX 4060", 89, 24, 30.2, 60.4, 8, 272},
    {"GeForce RTX 4060 Ti", 89, 34, 44.1, 88.3, 8, 288},
    {"GeForce RTX 4060 Ti", 89, 34, 44.1, 88.3, 16, 288},
    {"GeForce RTX 4070", 89, 46, 58.3, 116.6, 12, 504},
    {"GeForce RTX 4070 SUPER", 89, 56, 71, 141.9, 12, 504},
    {"GeForce RTX 4070 Ti", 89, 60, 80.2, 160.4, 12, 504},
    {"GeForce RTX 4070 Ti SUPER", 89, 66, 88.2, 176.4, 16, 672},
    {"GeForce RTX 4080", 89, 76, 97.5, 194.9, 16, 717},
    {"GeForce RTX 4080 SUPER", 89, 80, 104.4, 208.9, 16, 736},
    {"GeForce RTX 4090", 89, 128, 165.2, 330.3, 24, 1008},
    {"H100 80GB HBM3", 90, 132, 989.4, 1978.9, 80, 3350},
    {"H100 PCIe", 90, 114, 756, 1513, 80, 2000},
    {"H100 NVL", 90, 132, 835.5, 1671, 94, 3900},
    {"GH200 480GB", 90, 132, 989.4, 1978.9, 95, 4000},
    {"H200", 90, 132, 989.4, 1978.9, 140, 4800},
    {"H200 NVL", 90, 132, 835.5, 1671, 140, 4800},
    {"B200", 100, 148, 2250, 4500, 178, 8000},
    {"GeForce RTX 5060", 120, 30, 38.4, 76.7, 8, 448},
    {"GeForce RTX 5060 Ti", 120, 36, 47.4, 94.8, 8, 448},
    {"GeForce RTX 5060 Ti", 120, 36, 47.4, 94.8, 16, 448},
    {"GeForce RTX 5070", 120, 48, 61.7, 123.5, 12, 672},
    {"GeForce RTX 5070 Ti", 120, 70, 87.9, 175.8, 16, 896},
    {"GeForce RTX 5080", 120, 84, 112.6, 225.1, 16, 960},
    {"GeForce RTX 5090", 120, 170, 209.5, 419, 32, 1792},
    {"RTX PRO 6000 Blackwell Workstation Edition", 120, 188, 503.8, 1007.6, 95, 1792},
    {"RTX PRO 6000 Blackwell Max-Q Workstation Edition", 120, 188, 438.9, 877.9, 95, 1792},
    {"GB10", 121, 48, 62, 124, 119, 273}, // DGX Spark, whose memory is the host's
};
enum { CARDS = sizeof cards / sizeof *cards };
static const char maker[] = "NVIDIA ";

static GpuRates rates_of(const Card *c) {
  return (GpuRates){c->bf16 * 1e12, c->fp8 * 1e12, c->bandwidth * 1e9};
}

GpuRates gpu_rates(const Gpu *gpu) {
  const size_t lead = sizeof maker - 1;
  if (strncmp(gpu->name, maker, lead) != 0) return (GpuRates){0};
  for (const Card *c = cards; c < cards + CARDS; c++)
    if (strcmp(gpu->name + lead, c->name) == 0 && gpu->sm_count == c->multiprocessors &&
        gpu->major * 10 + gpu->minor == c->capability)
      return rates_of(c);
  return (GpuRates){0};
}

// ---- A card by name

// The next word of the text, which moves behind it: letters and digits. Its length; 0: none.
static size_t next_word(const char **text, const char **word) {
  while (**text && !isalnum((unsigned char)**text)) (*text)++;
  for (*word = *text; isalnum((unsigned char)**text);) (*text)++;
  return (size_t)(*text - *word);
}

static bool has_word(const char *text, const char *word, size_t length) {
  const char *other;
  for (size_t n; (n = next_word(&text, &other)) > 0;) {
    size_t i = 0;
    while (i < n && i < length &&
           tolower((unsigned char)other[i]) == tolower((unsigned char)word[i]))
      i++;
    if (i == n && i == length) return true;
  }
  return false;
}

// Of "12GB" 12; 0: it is no memory alone.
static int memory_alone(const char *text) {
  char *end;
  const long gigabytes = strtol(text, &end, 10);
  return strcasecmp(end, "GB") == 0 && gigabytes >= 2 && gigabytes <= 4096 ? (int)gigabytes : 0;
}

// Every word of the text is one of its name's or its memory's.
static bool is_named(const Card *c, const char *text) {
  char all[128];
  const char *word;
  snprintf(all, sizeof all, "%s%s %dGB", maker, c->name, c->gibibytes);
  for (size_t n; (n = next_word(&text, &word)) > 0;)
    if (!has_word(all, word, n)) return false;
  return true;
}

// The first row that has the words. NULL: none, or there are no words.
static const Card *find_card(const char *text) {
  const char *rest = text, *word;
  if (next_word(&rest, &word) == 0) return NULL;
  for (const Card *c = cards; c < cards + CARDS; c++)
    if (is_named(c, text)) return c;
  return NULL;
}

// "RTX 3060 12 GB" becomes "RTX 3060 12GB", as names have it. Cut where it is too long for a name.
static PathText join_units(const char *text) {
  PathText joined = {""};
  size_t n = 0;
  for (const char *c = text; *c && n + 1 < sizeof joined.text; c++)
    if (*c != ' ' || c == text || !isdigit((unsigned char)c[-1]) || strncasecmp(c, " GB", 3) != 0)
      joined.text[n++] = *c;
  return joined;
}

int gpu_named(Gpu *gpu, const char *text, Error *err) {
  static const Card unknown = {"", 86, 0, 0, 0, 0, 0}; // what runs on it runs on any card
  const PathText words = join_units(text);
  const int gigabytes = memory_alone(words.text);
  const Card *c = gigabytes > 0 ? &unknown : find_card(words.text);
  if (!c)
    return error_set(err,
                     "gpu is '%.80s', but it must be a card such as \"RTX 3060\", \"RTX 4090\", "
                     "\"A100 80GB\" or \"H100\", or a memory such as 12GB",
                     text);
  const size_t all = (size_t)(gigabytes > 0 ? gigabytes : c->gibibytes) << 30;
  *gpu = (Gpu){.major = c->capability / 10,
               .minor = c->capability % 10,
               .compiled_for = c->capability,
               .mainloop = c->capability == 90 ? MAINLOOP_WGMMA : MAINLOOP_MMA_SYNC,
               .sm_count = c->multiprocessors,
               .memory_bytes = all,
               .free_bytes = all - GPU_TAKEN_BYTES,
               .rates = rates_of(c)};
  if (gigabytes > 0)
    snprintf(gpu->name, sizeof gpu->name, "a GPU of %d GB", gigabytes);
  else
    snprintf(gpu->name, sizeof gpu->name, "%s%s, %d GB", maker, c->name, c->gibibytes);
  return 0;
}
