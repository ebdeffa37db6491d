// What the host gives absmax.cu in ProgramArgs::params.
#pragma once

enum { ABSMAX_LEAST }; // f: no a is taken to be smaller
