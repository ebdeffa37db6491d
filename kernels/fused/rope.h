// What the host gives programs/rope.cu in ProgramArgs::params: row m is at position
// ROPE_FIRST + m % ROPE_PERIOD; columns below ROPE_ROTATED are heads of ROPE_HEAD_DIM.
#pragma once

enum { ROPE_FIRST, ROPE_PERIOD, ROPE_HEAD_DIM, ROPE_ROTATED };
