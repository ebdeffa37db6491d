// Reads dataset.json back, for tests: strictly as ./prepare writes it.
#pragma once
#include "data/prepare/dataset.h"

// 1 and what FOLDER/dataset.json says, 0 if there is none, -1 on error.
int dataset_read(Dataset *dataset, const char *folder, Error *err);
void dataset_free(Dataset *dataset); // safe after a failure
