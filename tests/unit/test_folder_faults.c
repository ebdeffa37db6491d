// Folders that appear whole: whatever fails, wherever the process dies, and whoever else is there,
// PATH holds what it was or what it is to be, and the next writer leaves no trace of a fault.
// Checkpoints use folder_alone, datasets folder_look.
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/folder.h"
#include "tests/support/data_test.h"
#include "tests/support/faults.h"
#include "tests/support/test.h"

enum { FILES = 3 };
static const char *const names[FILES] = {"a", "b", "c"};

static bool is_letter(const char *name) {
  return strlen(name) == 1 && name[0] <= 'c';
}

// Files of a version: "a", "b" and "c" with its digit.
static int write_files(const char *folder, int version, Error *err) {
  const char text[] = {(char)('0' + version), '\n'};
  for (int i = 0; i < FILES; i++)
    if (file_write(path_text("%s/%s", folder, names[i]).text, text, 2, err) != 0) return -1;
  return 0;
}

static void make(const char *folder, int version) {
  Error err = {""};
  must(directory_create(folder, &err), &err);
  must(write_files(folder, version, &err), &err);
}

// -1: not whole, or of two versions; 0: nothing is there.
static int version_in(const char *folder) {
  Error err = {""};
  int version = 0;
  if (!path_exists(folder)) return 0;
  for (int i = 0; i < FILES; i++) {
    char *text;
    size_t bytes;
    if (file_read(path_text("%s/%s", folder, names[i]).text, 9, &text, &bytes, &err) != 0)
      return -1;
    const int found = bytes == 2 ? text[0] - '0' : -1;
    free(text);
    if (i > 0 && found != version) return -1;
    version = found;
  }
  return version;
}

static int look(Folder *f, bool alone, const char *path, Error *err) {
  if (!alone) return folder_look(f, path, is_letter, err);
  folder_alone(f, path, is_letter);
  return 0;
}

static int write_version(bool alone, const char *path, int version, Error *err) {
  Folder f;
  const bool failed = look(&f, alone, path, err) || folder_begin(&f, err) ||
                      write_files(f.temporary.text, version, err) || folder_commit(&f, err);
  folder_close(&f);
  return failed ? -1 : 0;
}

static PathText beside(const char *path, const char *suffix) {
  return path_text("%s%s", path, suffix);
}

static bool has(const char *path, const char *suffix) {
  struct stat st;
  return lstat(beside(path, suffix).text, &st) == 0;
}

static void remove_all(const char *path) {
  static const char *const suffixes[] = {"", ".tmp", ".old", ".target"};
  Error err = {""};
  for (int i = 0; i < 4; i++) {
    unlink(beside(path, suffixes[i]).text);
    must(directory_remove(beside(path, suffixes[i]).text, &err), &err);
  }
}

// ---- Faults

enum { BEFORE = 1, DURING = 2, AFTER = 3 };

typedef struct Scenario {
  const char *name;
  bool alone, before, no_exchange;
} Scenario;

// In a child: its status, 0 or 1, or EXIT_KILLED. *reached: the fault came to pass; *removing: in a
// call that only removes.
static int struck(const Scenario *s, const char *path, Fault fault, int at, bool *reached,
                  bool *removing) {
  const pid_t child = fork();
  if (child < 0) fail_msg("fork: %s", strerror(errno));
  if (child == 0) {
    Error err = {""};
    injected = (struct Injected){.fault = fault, .at = at, .no_exchange = s->no_exchange};
    const int status = write_version(s->alone, path, DURING, &err);
    const char *call = injected.struck ? injected.struck : "";
    _exit((status ? 1 : 0) | (injected.calls >= at ? 2 : 0) |
          (strcmp(call, "unlink") == 0 || strcmp(call, "rmdir") == 0 ? 4 : 0) |
          (status && !err.text[0] ? 8 : 0));
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == EXIT_KILLED || status >> 8 < 8));
  const int code = WEXITSTATUS(status), killed = code == EXIT_KILLED;
  *reached = killed || (code & 2);
  *removing = !killed && (code & 4);
  return killed ? code : code & 1;
}

// One fault at call `at`. False when there are fewer calls.
static bool strike(const Scenario *s, const char *path, Fault fault, int at) {
  Error err = {""};
  bool reached, removing;
  const PathText when = path_text("%s, %s at call %d", s->name, fault_names[fault], at);
  if (s->before) make(path, BEFORE);
  const int status = struck(s, path, fault, at, &reached, &removing);
  if (!has(path, "") && has(path, ".old")) { // between the two renames
    if (!s->no_exchange || status != EXIT_KILLED) fail_msg("%s: nothing is there", when.text);
    if (version_in(beside(path, ".old").text) != BEFORE) fail_msg("%s: PATH.old", when.text);
    if (!s->alone) {
      expect_error(write_version(false, path, AFTER, &err), &err, "rename it back, or remove it");
      must(path_rename(beside(path, ".old").text, path, &err), &err);
    }
  } else {
    const int version = version_in(path);
    if (version != DURING && (status == 0 || version != (s->before ? BEFORE : 0)))
      fail_msg("%s: status %d, version %d", when.text, status, version);
    // Where the new names could not be synced, the old folder is still needed.
    const bool unsynced = status == 1 && version == DURING && s->before;
    const char *old = s->no_exchange ? ".old" : ".tmp";
    if (unsynced && version_in(beside(path, old).text) != BEFORE)
      fail_msg("%s: the old one is gone too early", when.text);
    const bool may_stay = removing || status == EXIT_KILLED || unsynced;
    if (!may_stay && (has(path, ".tmp") || has(path, ".old"))) fail_msg("%s: leftovers", when.text);
  }
  injected = (struct Injected){.no_exchange = s->no_exchange};
  for (int i = 0; i < 2; i++) { // the second removes the PATH.old that stood for PATH
    must(write_version(s->alone, path, AFTER, &err), &err);
    if (version_in(path) != AFTER) fail_msg("%s: the next is not there", when.text);
  }
  injected = (struct Injected){0};
  if (has(path, ".tmp") || has(path, ".old") || has(path, "/" FOLDER_MARK))
    fail_msg("%s: leftovers of the next", when.text);
  remove_all(path);
  return reached;
}

TEST_WITH(a_fault_leaves_the_old_or_the_new_folder, make_folder, NULL) {
  static const Scenario scenarios[] = {
      {"alone, new", true, false, false},
      {"alone, replaced", true, true, false},
      {"alone, replaced without exchange", true, true, true},
      {"among others, new", false, false, false},
      {"among others, replaced", false, true, false},
      {"among others, replaced without exchange", false, true, true},
  };
  const PathText path = path_text("%s/set", *(char **)state);
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    int faults = 0;
    for (Fault fault = FAIL_EIO; fault < FAULTS; fault++) {
      int at = 1;
      for (; strike(&scenarios[i], path.text, fault, at); at += fault_stride()) faults++;
      assert_in_range(at, 12, 100);
    }
    printf("# %s: %d faults\n", scenarios[i].name, faults);
  }
}

TEST_WITH(all_is_on_disk_before_it_gets_its_name, make_folder, NULL) {
  const PathText path = path_text("%s/set", *(char **)state);
  for (int alone = 0; alone < 2; alone++) {
    injected = (struct Injected){.log = true};
    const int status = write_version(alone, path.text, DURING, &err);
    injected.log = false;
    must(status, &err);
    char *expected =
        xasprintf("%ssync a\nsync b\nsync c\nsync set.tmp\nrename set.tmp set\nsync %s\n",
                  alone ? "" : "sync set.tmp\n", basename(*(char **)state));
    assert_string_equal(injected.events, expected);
    free(expected);
    remove_all(path.text);
  }
}

// ---- What is there before, of a killed process or of somebody else

typedef struct There {
  bool alone;
  const char *suffix;  // of what is there
  const char *holds;   // its files, a letter each; "link" or "file": it is one
  bool path;           // and PATH is there
  const char *refused; // words of the error; NULL: PATH is written
  bool stays;          // it is there afterwards
} There;

static void put(const char *path, const char *holds) {
  Error err = {""};
  if (strcmp(holds, "link") == 0) {
    make(path_text("%.*s.target", (int)(strlen(path) - 4), path).text, 7);
    assert_int_equal(symlink("set.target", path), 0);
  } else if (strcmp(holds, "file") == 0) {
    put_file(path, "x");
  } else {
    must(directory_create(path, &err), &err);
    for (; *holds; holds++) {
      const PathText name =
          *holds == '*' ? path_text("%s/" FOLDER_MARK, path) : path_text("%s/%c", path, *holds);
      if (*holds == 'b')
        must(directory_create(name.text, &err), &err); // ours by its name, but no file
      else
        put_file(name.text, "");
    }
  }
}

TEST_WITH(leftovers_go_and_what_is_somebody_elses_stays, make_folder, NULL) {
  static const There there[] = {
      {true, ".tmp", "", false, NULL, false},
      {true, ".tmp", "ac", false, NULL,
       false}, // also of older versions, and of checkpoints that go
      {true, ".tmp", "ac", true, NULL, false},
      {true, ".tmp", "ax", true, "as it holds 'x'", true},
      {true, ".tmp", "ab", false, "as it holds 'b'", true},
      {true, ".tmp", "link", true, "is a link or a file", true},
      {true, ".tmp", "file", true, "is a link or a file", true},
      {true, ".old", "ac", true, NULL, false},
      {true, ".old", "ac", false, NULL, true}, // all that there was
      {true, ".old", "ax", true, "as it holds 'x'", true},
      {false, ".tmp", "", false, NULL, false},
      {false, ".tmp", "*ac", true, NULL, false},
      {false, ".tmp", "ac", true, "as it holds 'a'", true},
      {false, ".tmp", "*ax", false, "as it holds 'x'", true},
      {false, ".tmp", "link", true, "Not a directory", true},
      {false, ".old", "*ac", true, NULL, false},
      {false, ".old", "*ac", false, "rename it back, or remove it", true},
      {false, ".old", "ac", true, NULL, true},
      {false, ".old", "link", true, NULL, true},
  };
  const PathText path = path_text("%s/set", *(char **)state);
  for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
    const There *t = &there[i];
    const bool linked = strcmp(t->holds, "link") == 0;
    printf("# %s PATH%s with '%s'\n", t->alone ? "alone" : "others", t->suffix, t->holds);
    if (t->path) make(path.text, BEFORE);
    put(beside(path.text, t->suffix).text, t->holds);
    const int status = write_version(t->alone, path.text, DURING, &err);
    if (t->refused)
      expect_error(status, &err, t->refused);
    else
      must(status, &err);
    assert_int_equal(version_in(path.text), t->refused ? (t->path ? BEFORE : 0) : DURING);
    assert_int_equal(has(path.text, t->suffix), t->stays);
    if (linked) assert_int_equal(version_in(beside(path.text, ".target").text), 7);
    remove_all(path.text);
  }
}

// Without an exchange the old folder needs the name PATH.old.
TEST_WITH(somebodys_old_folder_is_not_replaced, make_folder, NULL) {
  const PathText path = path_text("%s/set", *(char **)state);
  make(path.text, BEFORE);
  put(beside(path.text, ".old").text, "x");
  injected.no_exchange = true;
  expect_error(write_version(false, path.text, DURING, &err), &err, "what was made is in '");
  injected.no_exchange = false;
  assert_int_equal(version_in(path.text), BEFORE);
  assert_int_equal(version_in(beside(path.text, ".tmp").text), DURING);
  assert_true(has(path.text, ".old/x"));
  remove_all(path.text);
}

// Whoever is alone replaces the link itself; else the folder that it points to is meant.
TEST_WITH(a_link_in_the_place_of_the_folder, make_folder, NULL) {
  const PathText path = path_text("%s/set", *(char **)state), target = beside(path.text, ".target");
  make(target.text, BEFORE);
  assert_int_equal(symlink("set.target", path.text), 0);
  must(write_version(false, path.text, DURING, &err), &err);
  assert_int_equal(version_in(target.text), DURING);
  must(write_version(true, path.text, AFTER, &err), &err);
  assert_int_equal(version_in(target.text), DURING);
  assert_int_equal(version_in(path.text), AFTER);
  assert_true(has(path.text, ".tmp")); // the link, which somebody made
  remove_all(path.text);
  assert_int_equal(symlink("nowhere", path.text), 0);
  expect_error(write_version(false, path.text, DURING, &err), &err, "that is not there: remove it");
  remove_all(path.text);
}

// ---- Somebody else, meanwhile

static void change(const char *path, int how) {
  Error err = {""};
  if (how == 1) must(directory_remove(path, &err), &err);
  if (how > 0) make(path, 4); // other files of the same names
  if (how == 0) must(file_write(path_text("%s/x", path).text, "", 0, &err), &err);
}

TEST_WITH(a_folder_that_changes_meanwhile_stays_and_so_does_the_new_one, make_folder, NULL) {
  static const char *const words[] = {"was changed while", "(see 'a')", "(see 'a')"};
  const PathText path = path_text("%s/set", *(char **)state);
  for (int how = 0; how < 3; how++) {
    Folder f;
    if (how < 2) make(path.text, BEFORE);
    must(folder_look(&f, path.text, is_letter, &err), &err);
    must(folder_begin(&f, &err), &err);
    must(write_files(f.temporary.text, DURING, &err), &err);
    change(path.text, how);
    expect_error(folder_commit(&f, &err), &err, words[how]);
    folder_close(&f);
    assert_int_equal(version_in(path.text), how == 0 ? BEFORE : 4);
    assert_int_equal(version_in(beside(path.text, ".tmp").text), DURING);
    assert_false(has(path.text, "/" FOLDER_MARK) || has(path.text, ".tmp/" FOLDER_MARK));
    remove_all(path.text);
  }
}

// Global because the hook has no argument.
static const char *struck_folder;

// Once PATH was compared with what it was, and is about to be exchanged.
static void put_letter(void) {
  Error err = {""};
  if (!has(struck_folder, "/" FOLDER_MARK)) return;
  injected.before_sync = NULL;
  must(file_write(path_text("%s/x", struck_folder).text, "", 0, &err), &err);
}

TEST_WITH(a_file_that_comes_at_the_last_moment_stays, make_folder, NULL) {
  const PathText path = path_text("%s/set", *(char **)state);
  make(path.text, BEFORE);
  struck_folder = path.text;
  injected = (struct Injected){.before_sync = put_letter};
  const int status = write_version(false, path.text, DURING, &err);
  injected = (struct Injected){0};
  expect_error(status, &err, "is complete, but a file came to the old one");
  assert_int_equal(version_in(path.text), DURING);
  assert_true(has(path.text, ".tmp/x") && !has(path.text, "/x"));
  remove_all(path.text);
}

TEST_WITH(a_second_writer_is_refused_until_the_first_is_gone, make_folder, NULL) {
  const PathText path = path_text("%s/above/set", *(char **)state);
  Folder f;
  must(folder_look(&f, path.text, is_letter, &err), &err);
  must(folder_begin(&f, &err), &err);
  must(write_files(f.temporary.text, DURING, &err), &err);
  expect_error(write_version(false, path.text, AFTER, &err), &err, "another ./");
  assert_int_equal(version_in(f.temporary.text), DURING);
  folder_close(&f); // without a commit nothing stays, nor does the folder above
  assert_false(has(*(char **)state, "/above"));
  must(write_version(false, path.text, AFTER, &err), &err);
  assert_int_equal(version_in(path.text), AFTER);
}

TEST_WITH(the_permissions_stay, make_folder, NULL) {
  const PathText path = path_text("%s/set", *(char **)state);
  struct stat st;
  assert_int_equal(mkdir(path.text, 0700), 0);
  for (int version = 1; version < 3; version++) {
    must(write_version(false, path.text, version, &err), &err);
    assert_int_equal(stat(path.text, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
  }
}

// A run's folder that was removed is not made again.
TEST_WITH(whoever_is_alone_makes_no_folder_above, make_folder, NULL) {
  const PathText path = path_text("%s/gone/set", *(char **)state);
  expect_error(write_version(true, path.text, DURING, &err), &err, "No such file or directory");
  assert_false(has(*(char **)state, "/gone"));
}

// ---- Removing

TEST_WITH(only_what_the_caller_wrote_is_removed, make_folder, NULL) {
  static const struct {
    const char *holds, *words; // NULL: it goes
  } cases[] = {{"", NULL},
               {"ac", NULL},
               {"acx", "as it holds 'x'"},
               {"ab", "as it holds 'b'"},
               {"link", "is a link or a file"},
               {"file", "is a link or a file"}};
  const PathText folder = path_text("%s/set.tmp", *(char **)state),
                 last = path_text("%s/set.old", *(char **)state);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    put(folder.text, cases[i].holds);
    assert_int_equal(folder_remove(folder.text, i % 2 ? last.text : NULL, is_letter, &err),
                     cases[i].words ? 1 : 0);
    if (cases[i].words) assert_says(&err, cases[i].words);
    assert_int_equal(has(folder.text, ""), cases[i].words != NULL);
    assert_false(has(last.text, ""));
    remove_all(path_text("%s/set", *(char **)state).text);
  }
  must(folder_remove(folder.text, NULL, is_letter, &err), &err); // none is there
  put(folder.text, "ac");
  put(last.text, "x");
  assert_int_equal(folder_remove(folder.text, last.text, is_letter, &err), -1);
  assert_true(has(folder.text, "/a") && has(last.text, "/x"));
}
