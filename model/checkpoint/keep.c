// Which checkpoints stay in a run's folder. Only what a save writes is ever removed, and nothing
// behind a link: any other folder stays, and the caller is told why.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/folder.h"
#include "model/checkpoint/files.h"

// ---- What a save wrote

bool save_writes(const char *name) {
  static const char *const names[] = {WEIGHTS_FILE,    WEIGHTS_INDEX_FILE, OPTIMIZER_FILE,
                                      RUN_CONFIG_FILE, STATE_FILE,         CHECKSUMS_FILE};
  int shard, shards;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0) return true;
  if (sscanf(name, "model-%5d-of-%5d", &shard, &shards) == 2)
    return strcmp(name, shard_name(shard - 1, shards).text) == 0;
  return export_writes(name);
}

// ---- What goes

static void remark(Error *left, const Error *why) {
  error_append(left, "%s%s", left->text[0] ? "; " : "", why->text);
}

void remove_leftovers(const char *run_dir, const char *suffix, Error *left) {
  Error why;
  int64_t *steps;
  int count;
  step_list(run_dir, suffix, &steps, &count, &why);
  for (int i = 0; i < count; i++)
    if (folder_remove(step_path(run_dir, steps[i], suffix).text, NULL, save_writes, &why) > 0)
      remark(left, &why);
  free(steps);
}

void checkpoint_clear(const char *run_dir, Error *left) {
  left->text[0] = '\0';
  remove_leftovers(run_dir, ".tmp", left);
}

int64_t checkpoint_best(const char *run_dir) {
  return link_step(run_dir, BEST_LINK);
}

// Of the complete checkpoints up to this step these stay, in the order in which a resume tries them:
//   the newest keep_checkpoints;
//   the one that RUN/best names, or without a link the state's best;
//   the newest keep_checkpoints - 1, at least one, after which an update was applied. Its loss was
//     finite, so their weights are good, while the last save's may have diverged already.
// Checkpoints of later steps (from before a rollback) stay until the run passes them.
void prune(const char *run_dir, const TrainState *now, const TrainConfig *c, int64_t before,
           Error *left) {
  Error why;
  RunCheckpoints run;
  int64_t complete = 0, good = 0;
  const int64_t keep = c->keep_checkpoints, linked = checkpoint_best(run_dir);
  const int64_t best = !c->keep_best ? -1 : linked >= 0 ? linked : now->best_val_step;
  const int status = run_checkpoints(&run, run_dir, &why);
  for (int i = 0; i < run.count && status == 0; i++) {
    const RunCheckpoint *at = &run.list[i];
    TrainState state;
    if (at->step > now->step || at->old || checkpoint_complete(at->path.text, &state, &why) != 0)
      continue;
    const bool passed = before >= 0 && at->step > before && at->step < now->step;
    const bool newest = !passed && complete++ < keep,
               last_good =
                   !passed && state.updates < now->updates && good++ < (keep > 1 ? keep - 1 : 1);
    if (!newest && !last_good && at->step != best &&
        folder_remove(at->path.text, step_path(run_dir, at->step, ".tmp").text, save_writes, &why) >
            0)
      remark(left, &why);
  }
  free(run.list);
}
