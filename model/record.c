// The calls of a step: the model's own functions run on a backend that lists them.
#include "kernels/record.h"

#include "model/llama.h"

Recorder *llama_record(const Llama *llama, int micro_batches) {
  const AdamW hyper = {0};
  const OpsConfig ops = llama_ops_config(&llama->config, &llama->shape, 1, 0);
  Recorder *recorder = recorder_create(&ops, llama->be);
  Llama recorded = *llama;
  recorded.be = &recorder->base;
  llama_forward(&recorded);
  llama_loss(&recorded, 1);
  if (!llama->shape.train) return recorder;
  for (int i = 0; i < micro_batches; i++) llama_backward(&recorded, 1, i > 0);
  llama_update(&recorded, &hyper);
  return recorder;
}
