#include "model/step.h"

#include "model/ranges.h"

// What replay records: calls of operations alone.
static void micro_batch(const StepRequest *r, bool accumulate) {
  llama_forward(r->llama);
  llama_loss_backward(r->llama, 1 / (double)r->accumulation, accumulate);
}

static void issue_first_micro_batch(void *request) {
  const StepRequest *r = request;
  r->llama->be->step_begin(r->llama->be);
  micro_batch(r, false);
}

static void issue_next_micro_batch(void *request) {
  micro_batch(request, true);
}

static void issue_update(void *request) {
  const Llama *l = ((const StepRequest *)request)->llama;
  Backend *be = l->be;
  range_push("optimizer");
  RANGED(be, OP_GRADS_FINISH, be->grads_finish(be, l->tensors, l->param_count));
  RANGED(be, OP_ADAMW, be->adamw(be, l->tensors, l->param_count));
  range_pop();
}

void step_ask(StepRequest *r, const AdamW *hyper) {
  Backend *be = r->llama->be;
  be->set_hyper(be, hyper);
  for (int64_t i = 0; i < r->accumulation; i++) {
    r->next_batch(r->context);
    if (i == 0)
      be->replay(be, REPLAY_FIRST_MICRO_BATCH, issue_first_micro_batch, r);
    else
      be->replay(be, REPLAY_NEXT_MICRO_BATCH, issue_next_micro_batch, r);
  }
  be->replay(be, REPLAY_UPDATE, issue_update, r);
  be->step_end(be);
}
