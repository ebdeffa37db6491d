// What ./train --doctor prints: which paths this machine can train on, and, tried with a tiny
// model, whether they work.
#pragma once

// 0 if every path that the machine has the hardware for works; 1 if one fails or misses something.
int doctor(void);
