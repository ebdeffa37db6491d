// Where a configuration is far from what configs/RECIPE.md says.
#include <math.h>
#include <stdio.h>

#include "base/os.h"
#include "model/optimizer.h"
#include "model/run/backend.h"
#include "model/run/log.h"

// The rate of configs/RECIPE.md: 1e-3 at a width of 768, in inverse proportion to the width, but no
// more for narrow models than they bear.
static double usual_rate(const Config *c) {
  return fmin(0.768 / (double)c->model.hidden_size, 2e-3);
}

// Says which lengths hold where those of the configuration do not fit into the run.
static void print_lengths(const Config *c) {
  const OptimizerConfig *o = &c->optimizer;
  const long long steps = c->train.steps, warmup = o->warmup_steps, decay = o->decay_steps;
  const ScheduleLengths hold = schedule_lengths(o, steps);
  if (o->schedule == SCHEDULE_WSD && (hold.warmup != warmup || hold.decay != decay))
    printf("schedule   optimizer.warmup_steps %lld and decay_steps %lld are more than the %lld "
           "steps: warm-up takes %lld, decay %lld\n",
           warmup, decay, steps, (long long)hold.warmup, (long long)hold.decay);
  else if (hold.warmup != warmup)
    printf(
        "schedule   optimizer.warmup_steps %lld is more than the %lld steps: warm-up takes %lld\n",
        warmup, steps, (long long)hold.warmup);
}

static void check_threads(const Config *c) {
  const bool set = c->backend.threads > 0;
  const ThreadsAsked asked = threads_asked("");
  const int threads = set ? (int)c->backend.threads : asked.count, usable = processors_usable("");
  if (threads > usable)
    printf("warning    %d threads, %s, share %d processor%s: steps take longer; try "
           "backend.threads=%d\n",
           threads, set ? "as backend.threads asks" : asked.why, usable, usable == 1 ? "" : "s",
           usable);
}

// Trained weights take lower rates and fewer tokens. A trial of a few steps is no training.
static void check_training(const Config *c) {
  enum { TRIAL = 100, USUAL = 20 }; // steps; tokens for each parameter
  const long long steps = c->train.steps, width = c->model.hidden_size,
                  warmup = schedule_lengths(&c->optimizer, steps).warmup;
  const double rate = c->optimizer.learning_rate, usual = usual_rate(c),
               parameters = (double)model_parameters(&c->model, true), each = tokens_per_step(c),
               tokens = (double)steps * each, share = tokens / parameters;
  const bool untrained = c->train.init_from[0] == '\0', whole = untrained && steps >= TRIAL;
  if (rate > 5 * usual)
    printf("warning    optimizer.learning_rate %g is far above the usual %.2g of a width of "
           "%lld: the loss may jump or diverge; try optimizer.learning_rate=%.2g\n",
           rate, usual, width, usual);
  if (untrained && rate < usual / 10)
    printf("warning    optimizer.learning_rate %g is far below the usual %.2g of a width of "
           "%lld: the loss falls slowly; try optimizer.learning_rate=%.2g\n",
           rate, usual, width, usual);
  if (warmup > steps / 2)
    printf("warning    optimizer.warmup_steps %lld is more than half of the %lld steps: "
           "little is left at the full rate; try optimizer.warmup_steps=%lld\n",
           warmup, steps, steps / 20);
  if (whole && share < 0.1)
    printf("warning    %s tokens are %.3f for each parameter: the model learns little of what "
           "it could; 20 are usual: try train.steps=%.0f, or a smaller model\n",
           count_text(tokens).text, share, ceil(USUAL * parameters / each));
  if (whole && share > 2000)
    printf("warning    %s tokens are %.0f for each parameter: a larger model would learn more "
           "from them; 20 are usual: try one of %s parameters\n",
           count_text(tokens).text, share, count_text(tokens / USUAL).text);
}

void recipe_print(const Config *c, bool gpu, bool resumed) {
  print_lengths(c);
  if (!gpu) check_threads(c);
  if (!resumed) check_training(c);
}
