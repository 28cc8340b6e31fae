#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "kernels/amx/tile_config-inl.h"
#include "kernels/probe_loops.h"

// The fastest loop of bfloat16 tiles: two by two of them, so that four loads feed four products.
namespace galley::kernels {
namespace {

constexpr std::size_t kTileBytes = 1024;
constexpr std::size_t kRowBytes = 64;
constexpr std::size_t kLoads = 4;  // two tiles of each side
constexpr std::size_t kSteps = kProbeValueBytes / (kLoads * kTileBytes);
constexpr std::size_t kProducts = 4;
constexpr std::size_t kRounds = std::size_t{1} << 10U;
constexpr double kOperationsOfProduct = 2.0 * 16 * 16 * 32;

// As in the products' own loops, the result goes through memory.
float sum_of(const float* values, std::size_t count) {
  float out = 0;
  for (std::size_t i = 0; i < count; ++i) {
    out += values[i];
  }
  return out;
}

float tiles(const std::byte* values) {
  configure_whole_tiles();
  _tile_loadd(0, values, kRowBytes);
  _tile_loadd(1, values + kTileBytes, kRowBytes);
  _tile_loadd(2, values + 2 * kTileBytes, kRowBytes);
  _tile_loadd(3, values + 3 * kTileBytes, kRowBytes);
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      const std::byte* const at = values + step * kLoads * kTileBytes;
      _tile_loadd(6, at, kRowBytes);
      _tile_loadd(7, at + kTileBytes, kRowBytes);
      _tile_loadd(4, at + 2 * kTileBytes, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, at + 3 * kTileBytes, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[kProducts][kTileBytes / sizeof(float)];
  _tile_stored(0, sums[0], kRowBytes);
  _tile_stored(1, sums[1], kRowBytes);
  _tile_stored(2, sums[2], kRowBytes);
  _tile_stored(3, sums[3], kRowBytes);
  _tile_release();
  return sum_of(sums[0], kProducts * kTileBytes / sizeof(float));
}

}  // namespace

const ComputeLoop kAmxTileLoop = {kOperationsOfProduct * kProducts * kSteps * kRounds, tiles};

}  // namespace galley::kernels
