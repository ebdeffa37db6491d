#include "model/run/log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/memory.h"
#include "model/run/run.h"

ShortText time_text(double seconds) {
  if (!(seconds > 0)) seconds = 0; // NAN too
  const long long s = seconds < 1e12 ? llround(seconds) : 0;
  if (seconds < 59.95) return short_text("%.1f s", seconds);
  if (s < 3600) return short_text("%lld min %02lld s", s / 60, s % 60);
  if (s < 86400) return short_text("%lld h %02lld min", s / 3600, s / 60 % 60);
  return short_text("%lld d %02lld h", s / 86400, s / 3600 % 24);
}

ShortText count_text(double count) {
  if (count < 1000) return short_text("%.0f", count);
  if (count < 999500) return short_text("%.1fk", count / 1e3);
  if (count < 999.5e6) return short_text("%.2fM", count / 1e6);
  return short_text("%.2fB", count / 1e9);
}

ShortText model_text(const ModelConfig *m) {
  return short_text("%s parameters: %lld layer%s, hidden %lld, ffn %lld, heads %lld/%lld of %lld, "
                    "vocabulary %lld%s",
                    count_text((double)model_parameters(m, true)).text,
                    (long long)m->num_hidden_layers, m->num_hidden_layers == 1 ? "" : "s",
                    (long long)m->hidden_size, (long long)m->intermediate_size,
                    (long long)m->num_attention_heads, (long long)m->num_key_value_heads,
                    (long long)m->head_dim, (long long)m->vocab_size,
                    m->tie_word_embeddings ? ", tied" : "");
}

// ---- The file

// Said once, until lines can be written again.
static void fails(RunLog *log, const char *what) {
  const char *why = errno == ELOOP ? "it is a link" : errno_text();
  if (!log->failed)
    fprintf(stderr, "cannot %s '%s': %s; training goes on, and keeps its lines to try again\n",
            what, log->name.text, why);
  log->failed = true;
}

// Cuts off the part of a line that a crash wrote, and sets log->bytes.
static int cut_torn_line(RunLog *log) {
  char block[1 << 16];
  off_t end = lseek(log->fd, 0, SEEK_END);
  log->bytes = 0;
  if (end < 0) return errno == ESPIPE ? 0 : -1;
  for (off_t at = end; at > 0 && log->bytes == 0;) {
    const size_t n = at < (off_t)sizeof block ? (size_t)at : sizeof block;
    at -= (off_t)n;
    if (pread(log->fd, block, n, at) != (ssize_t)n) return -1;
    for (size_t i = n; i > 0 && log->bytes == 0; i--)
      if (block[i - 1] == '\n') log->bytes = at + (off_t)i;
  }
  return log->bytes < end ? ftruncate(log->fd, log->bytes) : 0;
}

// Sets errno where it fails: ELOOP for a link.
static int open_file(RunLog *log) {
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  log->fd = open(log->path.text, flags, 0666);
  log->opened = log->fd >= 0;
  if (!log->opened) return -1;
  log->torn = false;
  return cut_torn_line(log);
}

// Where the open file has lost its name, opens the one that has it now, or a new one.
static int follow_name(RunLog *log) {
  struct stat mine, named;
  if (log->opened) {
    const bool there = stat(log->path.text, &named) == 0;
    if ((!there && errno != ENOENT) || fstat(log->fd, &mine) != 0 ||
        (there && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev))
      return 0;
    close(log->fd);
  }
  if (open_file(log) == 0) return 0;
  if (errno != ENOENT) fails(log, "open"); // else the run's folder is gone, which ends the run
  return -1;
}

// Writes the lines that wait, all of them or none: a full disk takes a part of one, which is cut
// off again.
static void write_lines(RunLog *log) {
  JsonWriter *w = &log->lines;
  size_t done = 0;
  if (log->abandoned || follow_name(log) != 0) return;
  if (log->torn && ftruncate(log->fd, log->bytes) != 0) return;
  log->torn = false;
  while (done < w->used) {
    const ssize_t n = write(log->fd, w->text + done, w->used - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      fails(log, "write to");
      log->torn = done > 0 && ftruncate(log->fd, log->bytes) != 0;
      return;
    }
    done += (size_t)n;
  }
  log->bytes += (off_t)done;
  log->failed = false;
  w->used = 0;
}

void log_sync(RunLog *log) {
  write_lines(log);
  if (log->opened && fsync(log->fd) != 0 && errno != EINVAL && errno != EROFS) fails(log, "sync");
}

int log_open(RunLog *log, const char *run_dir, const char *name, int64_t steps, Error *err) {
  *log = (RunLog){.steps = steps, .lines = {.foreign = true}, .opened_ms = now_ms()};
  log->path = path_text("%s/log.jsonl", run_dir);
  log->name = path_text("%s/log.jsonl", name);
  if (open_file(log) == 0) return 0;
  if (errno == ELOOP)
    return error_set(err, "'%s' is a link, and the run would write into another file: remove it",
                     log->name.text);
  return error_set(err, "cannot open '%s': %s", log->name.text, errno_text());
}

int log_complete(const RunLog *log, Error *err) {
  if (log->lines.used == 0 && !log->lost) return 0;
  return error_set(err, "the run's last lines could not be written to '%s'", log->name.text);
}

void log_abandon(RunLog *log) {
  if (log->opened) close(log->fd);
  log->opened = false;
  log->abandoned = true;
}

void log_close(RunLog *log) {
  if (log->opened) log_sync(log);
  if (log->opened) close(log->fd);
  free(log->lines.text);
  *log = (RunLog){.steps = 0};
}

// ---- Records

// Fractions have nine digits, which is more than a float's.
static void put_number(JsonWriter *w, const char *name, double value) {
  json_number(w, name, value, 9);
}

static JsonWriter *begin_record(RunLog *log, const char *kind, int64_t step) {
  enum { MOST_WAITING = 1 << 24 }; // bytes
  JsonWriter *w = &log->lines;
  if (w->used > MOST_WAITING) {
    log->lost = true;
    w->used = 0;
  }
  json_open(w, NULL, '{');
  json_string(w, "kind", kind);
  json_whole(w, "step", step);
  return w;
}

static void end_record(RunLog *log) {
  json_close(&log->lines, '}');
  log->lines.comma = false;
  json_raw(&log->lines, NULL, "\n");
  log->lines.comma = false;
  write_lines(log);
}

// A record of one text.
static void put_record(RunLog *log, const char *kind, int64_t step, const char *name,
                       const char *text) {
  json_string(begin_record(log, kind, step), name, text);
  end_record(log);
}

static void put_sources(JsonWriter *w, const Loader *loader) {
  json_open(w, "sources", '[');
  for (int i = 0; i < loader->source_count; i++) {
    const Source *s = &loader->sources[i];
    json_open(w, NULL, '{');
    json_bytes(w, "path", s->name, strlen(s->name));
    put_number(w, "share", s->share);
    put_number(w, "weight", loader->weights[i]);
    json_whole(w, "tokens", s->tokens);
    json_whole(w, "counted", s->counted);
    json_whole(w, "sequences", s->windows);
    json_close(w, '}');
  }
  json_close(w, ']');
}

static void put_data(JsonWriter *w, const Run *run) {
  const Loader *train = run->inputs.train, *val = run->inputs.val;
  const Epoch *e = &train->epoch;
  json_open(w, "data", '{');
  json_whole(w, "train_tokens", e->tokens);
  json_whole(w, "train_files", train->file_count);
  json_whole(w, "train_counted", e->counted);
  json_whole(w, "val_tokens", val ? val->epoch.tokens : 0);
  json_whole(w, "val_counted", val ? val->epoch.counted : 0);
  put_number(w, "epochs", run_epochs(run));
  if (loader_packs(train)) {
    json_whole(w, "documents", e->documents);
    json_whole(w, "cut", e->cut);
    put_number(w, "padding", e->padding);
  }
  if (train->source_count > 1) put_sources(w, train);
  json_close(w, '}');
}

static void put_memory(JsonWriter *w, const Run *run) {
  const MemoryPlan *plan = &run->llama.plan;
  const SavesPlan *saves = &run->saves.plan;
  json_open(w, "memory", '{');
  json_whole(w, "planned", (int64_t)plan->total_bytes);
  json_whole(w, "free", (int64_t)run->be->spec.memory_bytes);
  if (plan->host_bytes > 0) {
    json_whole(w, "host", (int64_t)plan->host_bytes);
    json_whole(w, "host_free", (int64_t)run->be->spec.host_bytes);
  }
  json_whole(w, "host_copy", saves->background ? (int64_t)saves->bytes : 0);
  json_open(w, "items", '[');
  for (const PlanItem *item = plan->items; item < plan->items + plan->count; item++) {
    json_open(w, NULL, '{');
    json_string(w, "name", item->name);
    json_string(w, "shape", item->shape);
    json_whole(w, "bytes", (int64_t)item->bytes);
    if (item->host) json_bool(w, "host", true);
    json_close(w, '}');
  }
  json_close(w, ']');
  json_close(w, '}');
}

void log_start(Run *run) {
  const Config *c = &run->config;
  JsonWriter *w = begin_record(&run->log, "start", run->state.step);
  json_whole(w, "steps", run->log.steps);
  json_whole(w, "parameters", model_parameters(&c->model, true));
  json_whole(w, "tokens_per_step", tokens_per_step(c));
  put_number(w, "flops_per_step", flops_per_step(c));
  json_string(w, "backend", run->be->name);
  json_string(w, "device", run->be->description);
  json_string(w, "costs", run->be->costs);
  put_data(w, run);
  if (run->inputs.tokenizer)
    json_string(w, "tokenizer", tokenizer_facts(run->inputs.tokenizer)->name);
  else
    json_raw(w, "tokenizer", "null");
  put_memory(w, run);
  config_write(w, "config", c);
  json_bool(w, "resumed", run->start.changes);
  if (run->start.changes) json_string(w, "changes", run->start.changes);
  end_record(&run->log);
}

void log_opened(RunLog *log, int64_t step, const Phases *phases, size_t memory_taken) {
  JsonWriter *w = begin_record(log, "opened", step);
  put_number(w, "ms", phases_sum(phases));
  json_open(w, "phases", '{');
  for (int i = 0; i < phases->count; i++) put_number(w, phases->list[i].name, phases->list[i].ms);
  json_close(w, '}');
  json_whole(w, "memory_taken", (int64_t)memory_taken);
  end_record(log);
}

static void print_step(const RunLog *log, const StepLine *s, double tokens_per_s) {
  const StepResult *r = &s->result;
  ShortText mfu = {""}, saturated = {""};
  if (isfinite(s->mfu))
    mfu = short_text(" | %4.1f%% of %speak", 100 * s->mfu, s->fp8 ? "FP8's " : "");
  if (s->fp8 && r->saturated > 0) saturated = short_text(" | %d saturated", r->saturated);
  printf("step %*lld/%lld | loss %.4f | lr %.2e | norm %.3f | %.1f ms | %s tok/s%s | %s left%s%s\n",
         snprintf(NULL, 0, "%lld", (long long)log->steps), (long long)s->step,
         (long long)log->steps, r->loss, s->lr, r->grad_norm, r->ms, count_text(tokens_per_s).text,
         mfu.text, time_text((double)(log->steps - s->step) * log->ms_mean / 1000).text,
         saturated.text, r->applied ? "" : " | SKIPPED: not finite, weights unchanged");
  fflush(stdout);
}

void log_train(RunLog *log, const StepLine *s) {
  const StepResult *r = &s->result;
  const double tokens_per_s = r->ms > 0 ? 1000 * (double)s->tokens / r->ms : 0, now = now_ms(),
               pace_ms = now - log->opened_ms < 60e3 ? 1e3 : 10e3;
  log->ms_mean = log->ms_mean > 0 ? 0.95 * log->ms_mean + 0.05 * r->ms : r->ms;
  if (!r->applied || s->step == log->steps || log->printed_ms == 0 ||
      now - log->printed_ms >= pace_ms) {
    print_step(log, s, tokens_per_s);
    log->printed_ms = now;
  }
  JsonWriter *w = begin_record(log, "train", s->step);
  put_number(w, "loss", r->loss);
  put_number(w, "lr", s->lr);
  put_number(w, "grad_norm", r->grad_norm);
  put_number(w, "ms", r->ms);
  put_number(w, "tokens_per_s", tokens_per_s);
  if (s->counted != s->tokens) json_whole(w, "counted", s->counted);
  put_number(w, "mfu", s->mfu);
  json_bool(w, "applied", r->applied);
  if (s->fp8) json_whole(w, "saturated", r->saturated);
  end_record(log);
}

void log_val(RunLog *log, const ValLine *v, bool best) {
  ShortText error = {""}, bits = {""};
  if (!v->whole && isfinite(v->error)) error = short_text(" +- %.4f", v->error);
  if (isfinite(v->bits_per_byte)) bits = short_text(", %.4f bits per byte,", v->bits_per_byte);
  printf("step %lld | validation loss %.4f%s%s over %s tokens%s%s\n", (long long)v->step, v->loss,
         error.text, bits.text, count_text((double)v->tokens).text, v->whole ? ", all windows" : "",
         best ? " (best so far)" : "");
  fflush(stdout);
  JsonWriter *w = begin_record(log, "val", v->step);
  put_number(w, "loss", v->loss);
  put_number(w, "stderr", v->error);
  put_number(w, "bits_per_byte", v->bits_per_byte);
  json_whole(w, "tokens", v->tokens);
  end_record(log);
}

void log_score(RunLog *log, int64_t step, const TaskResult *r) {
  const struct {
    const char *name;
    Estimate value;
  } values[] = {{"acc", r->acc},
                {"acc_norm", r->acc_norm},
                {"perplexity", r->perplexity},
                {"centered", {r->centered, NAN}}};
  printf("step %lld | %s", (long long)step, r->task);
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    const Estimate v = values[i].value;
    if (isfinite(v.mean)) printf(" %s %.4f", values[i].name, v.mean);
    if (isfinite(v.mean) && isfinite(v.error)) printf(" +- %.4f", v.error);
  }
  printf(" of %lld questions\n", (long long)r->questions);
  fflush(stdout);
  scorer_fields(r, begin_record(log, "score", step));
  end_record(log);
}

void log_sample(RunLog *log, int64_t step, const char *text, size_t bytes) {
  json_bytes(begin_record(log, "sample", step), "text", text, bytes);
  end_record(log);
}

void log_save(RunLog *log, int64_t step, const char *path, double ms, double waited_ms) {
  printf("step %lld | saved %s in %s; training waited %.0f ms\n", (long long)step, path,
         time_text(ms / 1000).text, waited_ms);
  fflush(stdout);
  JsonWriter *w = begin_record(log, "save", step);
  json_string(w, "path", path);
  put_number(w, "ms", ms);
  put_number(w, "waited_ms", waited_ms);
  end_record(log);
  log_sync(log);
}

void log_sources(RunLog *log, const TrainState *s) {
  if (s->source_count == 0) return;
  JsonWriter *w = begin_record(log, "sources", s->step);
  json_open(w, "shares", '[');
  for (int64_t i = 0; i < s->source_count; i++)
    put_number(w, NULL, (double)s->sources[i].drawn / (double)s->sequences);
  json_close(w, ']');
  end_record(log);
}

// Whether a line of the file begins so.
static bool has_line(const char *path, const char *begin) {
  Error ignored;
  size_t room = 0;
  const int fd = file_open(path, &room, &ignored);
  FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
  char *line = NULL;
  bool found = false;
  room = 0;
  while (file && !found && getline(&line, &room, file) > 0)
    found = strncmp(line, begin, strlen(begin)) == 0;
  free(line);
  if (file) fclose(file);
  return found;
}

void log_saved_before(RunLog *log, int64_t step, const char *path) {
  const ShortText begin = short_text("{\"kind\":\"save\",\"step\":%lld,", (long long)step);
  if (!has_line(log->path.text, begin.text)) put_record(log, "save", step, "path", path);
}

bool log_has_end(const char *run_dir, int64_t step) {
  const ShortText begin =
      short_text("{\"kind\":\"stop\",\"step\":%lld,\"reason\":\"done\"}", (long long)step);
  return has_line(path_text("%s/log.jsonl", run_dir).text, begin.text);
}

void log_stop(RunLog *log, int64_t step, const char *reason) {
  put_record(log, "stop", step, "reason", reason);
  log_sync(log);
}
