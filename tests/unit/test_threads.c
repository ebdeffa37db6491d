// The number of threads: what is asked for, and what quotas of control groups allow.
#include "base/memory.h"
#include "base/os.h"
#include "tests/support/test.h"

static void write_line(const char *root, const char *folder, const char *file, const char *line) {
  char *path = held_text("mkdir -p %s/%s", root, folder);
  assert_int_equal(system(path), 0);
  path = held_text("%s/%s/%s", root, folder, file);
  FILE *out = fopen(path, "w");
  assert_non_null(out);
  fprintf(out, "%s\n", line);
  assert_int_equal(fclose(out), 0);
}

typedef struct Root {
  char path[32];
} Root;
static Root new_root(const char *groups) {
  Root root = {"/tmp/control_group.XXXXXX"};
  assert_non_null(mkdtemp(root.path));
  write_line(root.path, "proc/self", "cgroup", groups);
  return root;
}
static void remove_root(const Root *root) {
  char *command = held_text("rm -r %s", root->path);
  assert_int_equal(system(command), 0);
}

static void assert_cpus(const Root *root, double expected) {
  const double cpus = control_group_cpus(root->path);
  if (!(cpus == expected)) fail_msg("%g CPUs instead of %g", cpus, expected);
}

TEST(quotas_of_version_2_are_found) {
  const Root root = new_root("0::/batch/job");
  assert_cpus(&root, INFINITY);
  write_line(root.path, "sys/fs/cgroup/batch/job", "cpu.max", "max 100000");
  assert_cpus(&root, INFINITY);
  write_line(root.path, "sys/fs/cgroup/batch/job", "cpu.max", "350000 100000");
  assert_cpus(&root, 3.5);
  write_line(root.path, "sys/fs/cgroup/batch", "cpu.max", "100000 50000"); // around it
  assert_cpus(&root, 2);
  remove_root(&root);

  const Root container = new_root("0::/");
  write_line(container.path, "sys/fs/cgroup", "cpu.max", "50000 100000");
  assert_cpus(&container, 0.5);
  remove_root(&container);
}

TEST(quotas_of_version_1_are_found) {
  // As in a container: the path is the host's, and its own folder is what is mounted.
  const Root root = new_root("5:memory:/docker/1234\n4:cpu,cpuacct:/docker/1234\n0::/docker/1234");
  assert_cpus(&root, INFINITY);
  write_line(root.path, "sys/fs/cgroup/cpu", "cpu.cfs_period_us", "100000");
  write_line(root.path, "sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "-1");
  assert_cpus(&root, INFINITY);
  write_line(root.path, "sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "200000");
  assert_cpus(&root, 2);
  remove_root(&root);
}

static void assert_threads(const Root *root, int count, const char *why) {
  const ThreadsAsked threads = threads_asked(root->path);
  assert_int_equal(threads.count, count);
  assert_string_equal(threads.why, why);
}

TEST(threads_are_as_many_as_are_asked_for_or_allowed) {
  const Root root = new_root("0::/");
  assert_int_equal(unsetenv("OMP_NUM_THREADS"), 0);
  assert_string_equal(threads_asked(root.path).why, "one for each processor");
  write_line(root.path, "sys/fs/cgroup", "cpu.max", "20000 100000");
  if (threads_asked(root.path).count > 1 || threads_asked("/nowhere").count > 1)
    assert_threads(&root, 1, "as the control group's quota allows");
  const ThreadsAsked unasked = threads_asked(root.path);
  assert_int_equal(setenv("OMP_NUM_THREADS", "none", 1), 0);
  assert_threads(&root, unasked.count, unasked.why);
  assert_int_equal(setenv("OMP_NUM_THREADS", "3,2", 1), 0);
  assert_threads(&root, 3, "as OMP_NUM_THREADS asks");
  remove_root(&root);
}
