// What a GPU did in a traced step: each kernel, copy and memset with its times, and what part of a
// training step it belongs to, by its name.
#pragma once
#include <stdint.h>

typedef enum ActivityKind { ACTIVITY_KERNEL, ACTIVITY_COPY, ACTIVITY_MEMSET } ActivityKind;

typedef struct Activity {
  ActivityKind kind;
  const char *name;      // a kernel's as the linker knows it, else NULL
  uint64_t began, ended; // nanoseconds on the GPU's clock
} Activity;

typedef struct Activities {
  const Activity *list; // in no order
  int64_t count;
  int64_t lost; // that happened besides, of which nothing is known
} Activities;

// The parts of a step: name in the log, name for people.
#define ACTIVITY_GROUPS(X)                                                                         \
  X(PRODUCTS, "products", "products")    /* cuBLASLt's, and the fused programs */                  \
  X(ATTENTION, "attention", "attention") /* cuDNN's */                                             \
  X(ROWS, "rows", "row kernels")         /* norm, RoPE, SwiGLU, embedding */                       \
  X(LOSS, "loss", "loss")                                                                          \
  X(UPDATE, "update", "update")                     /* gradients made true, their norm, AdamW */   \
  X(COPIES, "copies_memsets", "copies and memsets") /* the batch's, the result's, libraries' */    \
  X(OTHER, "other", "other")                        /* a kernel that no rule knows */

#define ACTIVITY_ENUMERATOR(enumerator, key, name) GROUP_##enumerator,
typedef enum ActivityGroup { ACTIVITY_GROUPS(ACTIVITY_ENUMERATOR) GROUP_COUNT } ActivityGroup;
#undef ACTIVITY_ENUMERATOR

ActivityGroup activity_group(const Activity *activity);

// A name for people: "adamw_kernel", "fused_kernel Swiglu 128x256",
// "cublasLt::splitKreduce_kernel", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT". Other instances of a
// template are called the same.
typedef struct ActivityLabel {
  char text[128];
} ActivityLabel;
ActivityLabel activity_label(const Activity *activity);
