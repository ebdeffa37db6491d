// The tensors of a run that may have FP8 copies, numbered: first the parameters in the order of
// their table, then what a forward and a backward make of them.
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

// Of layer l. The residual stream and its gradient at the input of layer L are final x and dx;
// there are dlogits, too.
typedef enum ScalingOf {
  SCALING_X,
  SCALING_DX,
  SCALING_O,
  SCALING_X1,
  SCALING_Y,
  SCALING_DZ,
  SCALING_DX1,
  SCALING_DQKV,
  SCALING_KINDS,
  SCALING_DLOGITS = SCALING_O, // of layer L
} ScalingOf;

int scaling_count(const ModelConfig *model);
// That of a parameter is its place in their table.
int scaling_index(const ModelConfig *model, int64_t layer, ScalingOf of);
// How each is scaled: [scaling_count].
void scaling_kinds(const ModelConfig *model, ScalingKind *kinds);

typedef struct ScalingName {
  char text[64]; // "y of layer 3", "down weight of layer 0", "final norm"
} ScalingName;
ScalingName scaling_name(const ModelConfig *model, int index);
