#include "base/control_group.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

// Whether `word` is one of the words between commas.
static bool has_word(const char *words, const char *word) {
  const size_t length = strlen(word);
  for (;; words++) {
    const size_t next = strcspn(words, ",");
    if (next == length && strncmp(words, word, length) == 0) return true;
    words += next;
    if (*words == '\0') return false;
  }
}

// A line of /proc/self/cgroup is NUMBER:CONTROLLERS:PATH. Version 2's has no controllers.
char *control_group_folder(const char *root, const char *controller) {
  char *file = xasprintf("%s/proc/self/cgroup", root), line[4096], *folder = NULL;
  FILE *in = fopen(file, "r");
  free(file);
  while (in && !folder && fgets(line, sizeof line, in)) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : 0;
    if (!path) continue;
    *path++ = '\0';
    if (has_word(controllers + 1, controller))
      folder = xasprintf("%s/sys/fs/cgroup%s%s%s", root, *controller ? "/" : "", controller, path);
  }
  if (in) fclose(in);
  return folder;
}

// The first two numbers of a file, which may have one in each of two files; `max` is none.
static double quota_of(const char *folder, const char *file, const char *period_file) {
  double numbers[2] = {0};
  int found = 0;
  const char *const names[] = {file, period_file};
  for (int i = 0; i < 2 && names[i]; i++) {
    char *path = xasprintf("%s/%s", folder, names[i]);
    FILE *in = fopen(path, "r");
    while (in && found < 2 && fscanf(in, "%lf", &numbers[found]) == 1) found++;
    if (in) fclose(in);
    free(path);
  }
  return found == 2 && numbers[0] > 0 && numbers[1] > 0 ? numbers[0] / numbers[1] : INFINITY;
}

// The least quota of the folder and of those around it, up to the mount. Inside a container the
// path may be the host's: folders that are not there set no limit. Takes folder over.
static double least_quota(char *folder, size_t mount_length, const char *file,
                          const char *period_file) {
  double least = INFINITY;
  while (folder && strlen(folder) >= mount_length) {
    least = fmin(least, quota_of(folder, file, period_file));
    char *end = strrchr(folder, '/');
    if (!end) break;
    *end = '\0';
  }
  free(folder);
  return least;
}

double control_group_cpus(const char *root) {
  const size_t mount = strlen(root) + strlen("/sys/fs/cgroup");
  return fmin(least_quota(control_group_folder(root, ""), mount, "cpu.max", NULL),
              least_quota(control_group_folder(root, "cpu"), mount, "cpu.cfs_quota_us",
                          "cpu.cfs_period_us"));
}
