// The fused kernels, one a line, for scripts/list_kernels.sh: program, rows and columns of the
// tile, stages, slots, bytes of shared memory, registers of a moving and of a multiplying thread.
// Needs no GPU.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/fused/program.h"

int main(void) {
  for (int name = 0; name < PROGRAMS; name++) {
    const Program *program = fused_program((ProgramName)name);
    for (int tile = 0; tile < TILE_SHAPES; tile++) {
      const ProgramKernel *k = &program->kernels[tile];
      if (!k->kernel) continue;
      printf("%s %d %d %d %d %d %d %d\n", program->name, (int)k->rows, (int)k->cols, (int)k->stages,
             (int)k->slots, (int)k->shared_bytes, (int)k->producer_registers,
             (int)k->consumer_registers);
    }
  }
  return ferror(stdout) || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
