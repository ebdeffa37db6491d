// Which tile shape a product gets.
#include "kernels/fused/program.h"

int32_t tile_parts(TileShape tile, int64_t N) {
  static const int64_t cols[TILE_SHAPES] = {
      [TILE_128x256] = 256, [TILE_128x192] = 192, [TILE_128x128] = 128};
  return (int32_t)((N + cols[tile] - 1) / cols[tile]);
}

TileShape tile_choose(ProgramName name, int64_t M, int64_t N, int64_t K) {
  (void)name, (void)M, (void)N;
  return K <= 4096 ? TILE_128x192 : TILE_128x256;
}
