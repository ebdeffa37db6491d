#include "kernels/activity.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// ---- Names. What a kernel is called is its name in C++ mangled (Itanium C++ ABI, 5.1):
// _Z12adamw_kernelIfLb1EEv... is adamw_kernel<float, true>, _ZN8cublasLt19splitKreduce_kernelI...
// is in a namespace. Libraries' generated kernels are not mangled.

enum { ANONYMOUS_CHARS = 9 };
static const char anonymous[ANONYMOUS_CHARS + 1] = "_GLOBAL__";

// The identifier that a mangled name has at `at` ("12adamw_kernel"): its length, 0 where there is
// none, and where it ends.
static size_t identifier(const char *at, const char **end) {
  size_t n = 0;
  while (isdigit((unsigned char)*at) && n < 100000) n = 10 * n + (size_t)(*at++ - '0');
  if (n > strlen(at)) return 0;
  *end = at + n;
  return n;
}

static void append(ActivityLabel *label, const char *text, size_t length) {
  const size_t used = strlen(label->text);
  snprintf(label->text + used, sizeof label->text - used, "%.*s", (int)length, text);
}

// Appends the function's name without its arguments, and leaves where they begin; NULL where the
// name is not mangled, or in a way that is not read here.
static const char *append_function(ActivityLabel *label, const char *mangled) {
  if (strncmp(mangled, "_Z", 2) != 0) return NULL;
  const char *at = mangled + 2;
  const bool nested = *at == 'N';
  if (nested || *at == 'L') at++; // L: local to its file
  int parts = 0;
  for (size_t length; (length = identifier(at, &at)) > 0;) {
    const char *text = at - length;
    const bool named = length < ANONYMOUS_CHARS || strncmp(text, anonymous, ANONYMOUS_CHARS) != 0;
    if (named && parts++ > 0) append(label, "::", 2);
    if (named) append(label, text, length);
    if (!nested) break;
  }
  return parts > 0 ? at : NULL;
}

// " Residual": the program of a kernel of mma.sync's mainloop (kernels/fused/mainloop_sync.cuh).
static void append_sync_program(ActivityLabel *label, const char *arguments) {
  const char *end;
  const size_t length = *arguments == 'I' ? identifier(arguments + 1, &end) : 0;
  if (length > 0) append(label, " ", 1), append(label, end - length, length);
}

// " Swiglu 128x256": the program and the tile of a fused kernel, which tell its instances apart
// (kernels/fused/mainloop.cuh). Nothing where the arguments read otherwise.
static void append_program(ActivityLabel *label, const char *arguments) {
  int m, n, stages, schedule, read = 0;
  if (sscanf(arguments, "I4TileILi%dELi%dELi%dEL8Schedule%dEE%n", &m, &n, &stages, &schedule,
             &read) != 4 ||
      read == 0)
    return;
  const char *end;
  const size_t length = identifier(arguments + read, &end), used = strlen(label->text);
  if (length > 0)
    snprintf(label->text + used, sizeof label->text - used, " %.*s %dx%d", (int)length,
             end - length, m, n);
}

ActivityLabel activity_label(const Activity *a) {
  ActivityLabel label = {""};
  if (a->kind == ACTIVITY_COPY) append(&label, "copy", 4);
  if (a->kind == ACTIVITY_MEMSET) append(&label, "memset", 6);
  if (a->kind != ACTIVITY_KERNEL) return label;
  const char *name = a->name ? a->name : "a kernel without a name";
  const char *arguments = append_function(&label, name);
  if (!arguments) {
    label.text[0] = '\0';
    append(&label, name, strlen(name));
  } else if (strcmp(label.text, "fused_kernel") == 0) {
    append_program(&label, arguments);
  } else if (strcmp(label.text, "sync_kernel") == 0) {
    append_sync_program(&label, arguments);
  }
  return label;
}

// ---- Groups

typedef struct Rule {
  const char *text;
  ActivityGroup group;
} Rule;

// Ours: the names in kernels/cuda, kernels/unfused and kernels/fused, by the beginning.
static const Rule ours[] = {{"fused_kernel", GROUP_PRODUCTS},
                            {"sync_kernel", GROUP_PRODUCTS},
                            {"gemv_kernel", GROUP_PRODUCTS},
                            {"decode_kernel", GROUP_ATTENTION},
                            {"join_parts_kernel", GROUP_ATTENTION},
                            {"cross_entropy_", GROUP_LOSS},
                            {"head_", GROUP_LOSS},
                            {"dlogits_", GROUP_LOSS},
                            {"add_loss_kernel", GROUP_LOSS},
                            {"embed_kernel", GROUP_ROWS},
                            {"row_sumsq_kernel", GROUP_ROWS},
                            {"scale_row_kernel", GROUP_ROWS},
                            {"norm_backward_kernel", GROUP_ROWS},
                            {"copies_kernel", GROUP_ROWS},
                            {"rope_", GROUP_ROWS},
                            {"swiglu_", GROUP_ROWS},
                            {"rank_kernel", GROUP_ROWS}, // from here: the embedding's backward
                            {"start_kernel", GROUP_ROWS},
                            {"list_kernel", GROUP_ROWS},
                            {"sort_kernel", GROUP_ROWS},
                            {"sum_pieces_kernel", GROUP_ROWS},
                            {"join_pieces_kernel", GROUP_ROWS},
                            {"draw_kernel", GROUP_UPDATE}, // at the start alone
                            {"scaling", GROUP_UPDATE},
                            {"adamw_", GROUP_UPDATE},
                            {"largest_weight_kernel", GROUP_UPDATE},
                            {"norm_kernel", GROUP_UPDATE}, // of all gradients
                            {"columns_kernel", GROUP_UPDATE},
                            {"gradients_kernel", GROUP_UPDATE},
                            {"round_gradient_kernel", GROUP_UPDATE},
                            {"factors_kernel", GROUP_UPDATE}};

// The libraries', by a word anywhere in the name as it is, mangled or not. Attention comes first:
// its kernels may be called after the products in them.
static const Rule libraries[] = {
    {"cudnn", GROUP_ATTENTION}, {"fmha", GROUP_ATTENTION},  {"sdpa", GROUP_ATTENTION},
    {"flash", GROUP_ATTENTION}, {"nvjet", GROUP_PRODUCTS},  {"gemm", GROUP_PRODUCTS},
    {"gemv", GROUP_PRODUCTS},   {"cublas", GROUP_PRODUCTS}, {"cutlass", GROUP_PRODUCTS},
    {"splitK", GROUP_PRODUCTS}, {"xmma", GROUP_PRODUCTS}};

ActivityGroup activity_group(const Activity *a) {
  if (a->kind != ACTIVITY_KERNEL) return GROUP_COPIES;
  const ActivityLabel label = activity_label(a);
  for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
    if (strncmp(label.text, ours[i].text, strlen(ours[i].text)) == 0) return ours[i].group;
  for (size_t i = 0; a->name && i < sizeof libraries / sizeof *libraries; i++)
    if (strstr(a->name, libraries[i].text)) return libraries[i].group;
  return GROUP_OTHER;
}
