// --page: runs as one HTML file (page.html with their data), or served on the loopback address
// while they run.
#define _GNU_SOURCE // strcasestr
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/command.h"
#include "base/embed.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/os.h"
#include "model/run/commands.h"
#include "model/run/history.h"
#include "model/run/run.h"

EMBED(page_html, "model/run/page.html");
#define DATA_MARK "@DATA@" // in page.html, where the data go

// A run of more steps is drawn by the mean, least and greatest of as many pieces. All runs together
// have ALL_PIECES, so that a page has some MB at most.
enum { LEAST_PIECES = 300, MOST_PIECES = 2000, ALL_PIECES = 16000 };
enum { MOST_SAMPLES = 40, SAMPLE_BYTES = 4000, DIGITS = 6 };

// ---- The data: {"runs": [...]}

// The columns of a run's steps; page.html reads them by these names.
enum { STEP, TOKENS, SECONDS, LOSS, LOW, HIGH, LR, NORM, NORM_HIGH, RATE, MFU, COLUMNS };
static const char *const column_names[COLUMNS] = {
    "step", "tokens", "seconds", "loss", "low", "high", "lr", "norm", "norm_high", "rate", "mfu"};

typedef struct Mean {
  double sum, low, high;
  int64_t count;
} Mean;

static void add(Mean *m, double value) {
  if (isnan(value)) return;
  m->low = m->count > 0 ? fmin(m->low, value) : value;
  m->high = m->count > 0 ? fmax(m->high, value) : value;
  m->sum += value;
  m->count++;
}

static double mean(const Mean *m) {
  return m->count > 0 ? m->sum / (double)m->count : NAN;
}

// Steps [begin, end) of the run as one row.
static void thin(const History *h, size_t begin, size_t end, double row[COLUMNS]) {
  Mean loss = {0}, norm = {0}, mfu = {0};
  for (const HistoryStep *s = h->steps + begin; s < h->steps + end; s++) {
    add(&loss, s->loss);
    add(&norm, s->grad_norm);
    add(&mfu, s->mfu);
  }
  const HistoryStep *last = &h->steps[end - 1];
  const HistoryPlace before = begin > 0 ? h->steps[begin - 1].at : (HistoryPlace){0};
  const double seconds = last->at.seconds - before.seconds;
  row[STEP] = (double)last->at.step;
  row[TOKENS] = last->at.tokens;
  row[SECONDS] = last->at.seconds;
  row[LOSS] = mean(&loss);
  row[LOW] = loss.count > 0 ? loss.low : NAN;
  row[HIGH] = loss.count > 0 ? loss.high : NAN;
  row[LR] = last->lr;
  row[NORM] = mean(&norm);
  row[NORM_HIGH] = norm.count > 0 ? norm.high : NAN;
  row[RATE] = seconds > 0 ? (last->at.tokens - before.tokens) / seconds : NAN;
  row[MFU] = mean(&mfu);
}

static void put_steps(JsonWriter *w, const History *h, size_t pieces) {
  const size_t rows = h->step_count < pieces ? h->step_count : pieces;
  double(*table)[COLUMNS] = xcalloc(rows, sizeof *table);
  for (size_t i = 0; i < rows; i++)
    thin(h, i * h->step_count / rows, (i + 1) * h->step_count / rows, table[i]);
  json_open(w, "train", '{');
  for (int c = 0; c < COLUMNS; c++) {
    json_open(w, column_names[c], '[');
    for (size_t i = 0; i < rows; i++) json_number(w, NULL, table[i][c], c == STEP ? 16 : DIGITS);
    json_close(w, ']');
  }
  json_close(w, '}');
  free(table);
}

// As many of a list of `count` as `most`, its last one among them.
static size_t every(size_t count, size_t most) {
  return count > most ? (count + most - 1) / most : 1;
}

static void put_vals(JsonWriter *w, const History *h, size_t pieces) {
  const size_t stride = every(h->val_count, pieces);
  json_open(w, "val", '[');
  for (size_t i = 0; i < h->val_count; i++) {
    const HistoryVal *v = &h->vals[i];
    if ((h->val_count - 1 - i) % stride != 0) continue;
    json_open(w, NULL, '{');
    json_whole(w, "step", v->at.step);
    json_number(w, "tokens", v->at.tokens, DIGITS);
    json_number(w, "seconds", v->at.seconds, DIGITS);
    json_number(w, "loss", v->loss, DIGITS);
    json_number(w, "error", v->error, DIGITS);
    json_number(w, "bits", v->bits, DIGITS);
    json_close(w, '}');
  }
  json_close(w, ']');
}

static void put_scores(JsonWriter *w, const History *h) {
  json_open(w, "scores", '[');
  for (const HistoryScore *s = h->scores; s < h->scores + h->score_count; s++) {
    json_open(w, NULL, '{');
    json_string(w, "task", s->task);
    json_whole(w, "step", s->at.step);
    json_number(w, "tokens", s->at.tokens, DIGITS);
    json_number(w, "seconds", s->at.seconds, DIGITS);
    json_number(w, "value", s->value, DIGITS);
    json_number(w, "error", s->error, DIGITS);
    json_close(w, '}');
  }
  json_close(w, ']');
}

static void put_samples(JsonWriter *w, const History *h) {
  const size_t stride = every(h->sample_count, MOST_SAMPLES);
  json_open(w, "samples", '[');
  for (size_t i = 0; i < h->sample_count; i++) {
    const char *text = h->samples[i].text;
    if ((h->sample_count - 1 - i) % stride != 0) continue;
    json_open(w, NULL, '{');
    json_whole(w, "step", h->samples[i].step);
    json_bytes(w, "text", text, strnlen(text, SAMPLE_BYTES));
    json_close(w, '}');
  }
  json_close(w, ']');
}

static void put_tree(JsonWriter *w, const char *name, const cJSON *tree) {
  char *text = tree ? cJSON_PrintUnformatted(tree) : NULL;
  json_raw(w, name, text ? text : "null");
  cJSON_free(text);
}

static void put_run(JsonWriter *w, const History *h, size_t pieces) {
  json_open(w, NULL, '{');
  json_string(w, "name", h->name);
  json_string(w, "reason", h->reason ? h->reason : "");
  json_whole(w, "steps", (int64_t)h->step_count);
  json_whole(w, "skipped", h->skipped);
  json_whole(w, "unreadable", h->unreadable);
  put_steps(w, h, pieces);
  put_vals(w, h, pieces);
  put_scores(w, h);
  put_samples(w, h);
  put_tree(w, "start", h->start);
  put_tree(w, "opened", h->opened);
  json_close(w, '}');
}

// The caller frees w->text, also after an error. One log is in memory at a time.
static int read_data(JsonWriter *w, int count, char *const *runs, Error *err) {
  const int64_t pieces = min_i64(MOST_PIECES, max_i64(LEAST_PIECES, ALL_PIECES / count));
  int status = 0;
  *w = (JsonWriter){.foreign = true};
  json_open(w, NULL, '{');
  json_open(w, "runs", '[');
  for (int i = 0; i < count && status == 0; i++) {
    History h;
    status = history_open(&h, count, runs, i, err);
    if (status == 0) put_run(w, &h, (size_t)pieces);
    history_close(&h);
  }
  json_close(w, ']');
  json_close(w, '}');
  return status;
}

// The page with the data in it. No text of a run can end the element that holds them.
static Text page_of(const char *data) {
  Text page = {0};
  const char *mark = strstr(page_html, DATA_MARK), *end = mark + strlen(DATA_MARK);
  text_append(&page, page_html, (size_t)(mark - page_html));
  for (size_t n; *data; data += n) {
    n = strcspn(data, "<");
    text_append(&page, data, n);
    if (data[n] == '<') text_append(&page, "\\u003c", 6), n++;
  }
  text_append(&page, end, strlen(end));
  return page;
}

// A page of before is replaced, but no other file: a log, or /dev/stdout.
static int check_out(const char *path, Error *err) {
  const size_t head = strcspn(page_html, "("); // as far as it names this command
  size_t bytes = 0;
  if (!path_exists(path)) return 0;
  const int fd = file_open(path, &bytes, err);
  if (fd < 0) return -1;
  char *start = xcalloc(1, head);
  int status = file_read_at(fd, path, 0, start, bytes < head ? bytes : head, err);
  if (status == 0 && memcmp(start, page_html, head) != 0)
    status =
        error_set(err, "'%s' is there already, and no page of --page: name another file", path);
  free(start);
  close(fd);
  return status;
}

static int write_page(int count, char *const *runs, const char *path, Error *err) {
  JsonWriter data = {0};
  Text page = {0};
  int status = check_out(path, err);
  if (status == 0) status = read_data(&data, count, runs, err);
  if (status == 0) {
    page = page_of(data.text);
    status = file_write_atomic(path, page.data, page.bytes, err);
  }
  if (status == 0)
    printf("%s: %d run%s, %s; open it in a browser\n", path, count, count == 1 ? "" : "s",
           size_text(page.bytes).text);
  free(data.text);
  free(page.data);
  return status;
}

// ---- A server of two paths, / and /data, one connection at a time

static void send_all(int to, const char *data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(to, data, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return; // it does not want the rest
    data += n;
    bytes -= (size_t)n;
  }
}

static void answer(int to, const char *status, const char *type, const char *body, size_t bytes) {
  char *head = xasprintf("HTTP/1.1 %s\r\nContent-Type: %s; charset=utf-8\r\n"
                         "Content-Length: %zu\r\nCache-Control: no-store\r\n"
                         "Connection: close\r\n\r\n",
                         status, type, bytes);
  send_all(to, head, strlen(head));
  send_all(to, body, bytes);
  free(head);
}

// A page elsewhere may have a name of its own for this address: it is not answered.
static bool is_for_loopback(const char *request) {
  const char *host = strcasestr(request, "\r\nhost:");
  if (!host) return false;
  host += strlen("\r\nhost:");
  while (*host == ' ') host++;
  const size_t length = strcspn(host, ":\r");
  return (length == 9 && strncmp(host, "127.0.0.1", 9) == 0) ||
         (length == 9 && strncasecmp(host, "localhost", 9) == 0);
}

// The head of a request, in text[room], NUL-terminated: what comes in a second.
static void read_request(int from, char *text, size_t room) {
  size_t used = 0;
  struct pollfd ready = {.fd = from, .events = POLLIN};
  const double end = now_ms() + 1000;
  text[0] = '\0';
  while (used + 1 < room && !strstr(text, "\r\n\r\n") &&
         poll(&ready, 1, (int)fmax(0, end - now_ms())) > 0) {
    const ssize_t n = recv(from, text + used, room - 1 - used, 0);
    if (n <= 0) break;
    used += (size_t)n;
    text[used] = '\0';
  }
}

static void serve_one(int connection, int count, char *const *runs) {
  char request[8192];
  const struct timeval patience = {.tv_sec = 5};
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  read_request(connection, request, sizeof request);
  if (!*request) return;
  if (!is_for_loopback(request)) {
    answer(connection, "403 Forbidden", "text/plain", "", 0);
  } else if (strncmp(request, "GET / ", 6) == 0) {
    const Text page = page_of("null");
    answer(connection, "200 OK", "text/html", page.data, page.bytes);
    free(page.data);
  } else if (strncmp(request, "GET /data ", 10) == 0) {
    JsonWriter data;
    Error err;
    if (read_data(&data, count, runs, &err) == 0)
      answer(connection, "200 OK", "application/json", data.text, data.used);
    else
      answer(connection, "500 Error", "text/plain", err.text, strlen(err.text));
    free(data.text);
  } else {
    answer(connection, "404 Not Found", "text/plain", "", 0);
  }
}

// On 127.0.0.1, until a signal comes.
static int serve(int count, char *const *runs, int port, Error *err) {
  const volatile sig_atomic_t *stop = process_catch_signals();
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  const struct sockaddr_in here = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (listener >= 0) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
#ifdef TCP_DEFER_ACCEPT // browsers open connections that they do not use yet
  if (listener >= 0) setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &yes, sizeof yes);
#endif
  if (listener < 0 || bind(listener, (const struct sockaddr *)&here, sizeof here) != 0 ||
      listen(listener, 16) != 0) {
    error_set(err, "cannot serve on 127.0.0.1:%d: %s", port, strerror(errno));
    if (listener >= 0) close(listener);
    return -1;
  }
  printf("http://127.0.0.1:%d/ follows the run%s until Ctrl-C\n", port, count == 1 ? "" : "s");
  fflush(stdout);
  struct pollfd ready = {.fd = listener, .events = POLLIN};
  while (!*stop) {
    if (poll(&ready, 1, 200) <= 0) continue;
    const int connection = accept(listener, NULL, NULL);
    if (connection < 0) continue;
    serve_one(connection, count, runs);
    close(connection);
  }
  close(listener);
  return 0;
}

int page_command(int argc, char **argv, Error *err) {
  const char *out = NULL;
  int64_t port = 0;
  const Option options[] = {{.name = "--out", .needs = "a file to write to", .text = &out},
                            {.name = "--serve", .low = 1, .high = 65535, .whole = &port}};
  int count = 0; // of runs, which move to the front of argv
  for (int i = 0; i < argc; i++)
    if (argv[i][0] != '-')
      argv[count++] = argv[i];
    else if (option_read(options, sizeof options / sizeof *options, "--page", argc, argv, &i, err))
      return -1;
  if (count == 0) return error_set(err, "--page needs the folders of runs, as in --page runs/mine");
  if (port > 0 && out) return error_set(err, "--serve writes no file: leave --out out");
  if (port > 0) return serve(count, argv, (int)port, err);
  return write_page(count, argv, out ? out : "page.html", err);
}
