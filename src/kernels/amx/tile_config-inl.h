#pragma once

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

// What the compilers do not know about tiles. Everything here has internal linkage (see matmul.h).
namespace galley::kernels {
namespace {

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Not _tile_loadconfig: it does not tell g++ 12 that it reads the memory, and -O2 drops the stores.
inline void load_config(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// Every register 16 rows of 64 bytes.
inline void configure_whole_tiles() {
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.row_bytes[tile] = 64;
  }
  load_config(config);
}

// Stands between stores and the tile loads that read them: g++ 12 does not know that _tile_loadd
// reads memory, and may move the stores behind it or drop them. It does know that _tile_stored
// writes.
inline void finish_stores() {
  asm volatile("" : : : "memory");
}

}  // namespace
}  // namespace galley::kernels
