#pragma once

#include <cstddef>
#include <cstdint>

// Attention and index scores as products of bfloat16 tiles, for rows whose values are bfloat16
// numbers already: what RowKernels does for float32. Plain structs only, for the reason given in
// matmul.h. Every sum's order is fixed by a row's own keys, never by what else is computed.
namespace galley::kernels {

inline constexpr std::size_t kTileKeys = 16;       // keys of a tile
inline constexpr std::size_t kTileHeads = 16;      // heads of a tile
inline constexpr std::size_t kTileHeadsMax = 64;   // of a call
inline constexpr std::size_t kTileWidthUnit = 64;  // rows of attention are multiples of it
inline constexpr std::size_t kTileWidthMax = 1024;

inline constexpr std::size_t kTileWeightTerms = 3;
inline constexpr std::size_t kTileValueKeys = 32;  // keys that a product of weights and values sums
inline constexpr std::size_t kTilePieceKeys = 128;  // keys whose values stay near for all heads

// What RowKernels::attend computes. Scores are sums of exact products; the weights e^score enter as
// the sum of three bfloat16 numbers, exact down to weights of 2^-110: with one or two, results
// round to other bfloat16 numbers than the reference's so often that quantised activations drift.
// Tiles take subnormal numbers as 0.
struct TileAttend {
  const float* q;     // [heads, width], bfloat16 values
  std::size_t heads;  // at most kTileHeadsMax
  std::size_t width;
  const std::uint16_t* const* keys;  // [count] rows of `width` bfloat16
  std::size_t count;                 // may be 0: out is zero
  float scale;
  const float* sinks;  // [heads]
  float* out;          // [heads, width]
  std::byte* scratch;  // tile_attend_scratch() bytes (attention.h), 64-byte aligned
};

// What RowKernels::index_scores computes, for keys laid out by arrange_keys.
struct TileScores {
  const float* q;         // [heads, width], bfloat16 values
  const float* weights;   // [heads]
  std::size_t heads;      // at most kTileHeadsMax
  std::size_t width;      // a multiple of 32, at most kTileWidthMax
  const std::byte* keys;  // [ceil(count / 16)] of 16 * width bfloat16, 64-byte aligned
  std::size_t count;      // of keys
  float* scores;          // [count rounded up to kTileKeys]
  std::byte* scratch;     // kTileScoresScratch bytes, 64-byte aligned
};
inline constexpr std::size_t kTileScoresScratch =
    kTileHeadsMax * kTileWidthMax * sizeof(std::uint16_t) +
    kTileHeadsMax * kTileKeys * sizeof(float);

// Codes of two e2m1 values a byte, low nibble first, as row_format.h lays out kFp4 and kFp4E4m3.
struct Fp4Row {
  const std::byte* codes;
  const std::byte* scales;    // one for `block` channels
  const float* scale_values;  // [256], of every scale byte
  std::size_t block;          // 16, or a multiple of 32
  std::size_t width;          // a multiple of 32
};

struct TileKernels {
  void (*attend)(const TileAttend& args);
  void (*index_scores)(const TileScores& args);
  // 16 keys of `width` bfloat16, those missing at the end zero, to one block of TileScores::keys,
  // 64-byte aligned.
  void (*arrange_keys)(const std::uint16_t* keys,
                       std::size_t count,
                       std::size_t width,
                       std::byte* out);
  void (*unpack_fp4)(const Fp4Row& row, std::uint16_t* out);
  // float32 to the nearest bfloat16; `count` is a multiple of 32.
  void (*narrow)(const float* values, std::size_t count, std::uint16_t* out);
};

extern const TileKernels kAmxTiles;

}  // namespace galley::kernels
