// What this process' control group allows it (cgroups, version 1 or 2): containers and batch
// systems limit programs so. root: "" for the system's files; a test has others below a folder.
#pragma once

// The group's folder, the caller's to free: of version 1's controller, such as "cpu", or for "" of
// version 2. NULL: there is none.
char *control_group_folder(const char *root, const char *controller);

// How many CPUs' time the quotas of the group, and of those around it, leave to the process: 1.5 is
// that of one and a half. INFINITY: no quota.
double control_group_cpus(const char *root);
