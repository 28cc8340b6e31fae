#pragma once

#include <cstddef>
#include <cstdint>

// What a matrix product of one instruction set is. This header is compiled into translation units
// with different target flags, so it holds plain structs only: an inline function compiled twice
// would be linked once, perhaps with instructions this machine lacks.
namespace galley::kernels {

enum class PackedFormat : std::uint8_t { kBf16, kFp8, kFp4 };

inline constexpr std::size_t kGroupRows = 16;    // outputs of a group
inline constexpr std::size_t kTileColumns = 32;  // inputs of a tile
inline constexpr std::size_t kTileValues = kGroupRows * kTileColumns;

// Groups of 16 outputs, as packed_weight.h lays them out.
struct PackedView {
  PackedFormat format;
  std::size_t tiles;        // of a group: columns / 32, rounded up
  std::size_t group_bytes;  // a multiple of 64
  const std::byte* data;    // the first group, 64-byte aligned
};

// How an instruction set reads activations.
enum class ActivationForm : std::uint8_t { kF32, kBf16Terms };
inline constexpr std::size_t kTermsMax = 3;

// Rows in blocks of 16, a block as tiles [tile][16 rows][32 inputs]; missing inputs are zero,
// missing rows are not read. kF32: one term of float32. kBf16Terms: a float32 is the sum of three
// bfloat16 numbers, its leading, middle and last bits; where the second and third are zero in all
// rows they are null, so activations that are bfloat16 already cost one product. Weights are finite
// and sums are never -0, so adding the product of a zero term changes nothing: a row's result does
// not depend on whether its neighbours needed the term.
struct Activations {
  std::size_t rows;
  std::size_t tiles;  // of a block, at least those of the weights
  const std::byte* terms[kTermsMax];
};

// c[row, 16 g + n] = sum_k w[g][n, k] x[row, k] for 1 or 2 groups of `w` and at most kRowsMax rows,
// c[rows, 16 * groups]. The order of every sum is fixed by the instruction set alone. `scratch`:
// kScratchBytes, 64-byte aligned.
using Multiply = void (*)(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch);
inline constexpr std::size_t kGroupsMax = 2;
// Of bfloat16 rows of 2048 inputs, 256 are half of the second-level cache of the machines with
// tiles.
inline constexpr std::size_t kRowsMax = 256;
// A widened piece of a group stays in the first-level cache while all rows pass over it.
inline constexpr std::size_t kPieceTiles = 8;
inline constexpr std::size_t kPieceBytes = kPieceTiles * kTileValues * sizeof(float);
inline constexpr std::size_t kChains = 2;  // sums that run side by side and are added at the end
inline constexpr std::size_t kScratchBytes =
    (kPieceBytes + kRowsMax * kChains * kGroupRows * sizeof(float)) * kGroupsMax;

struct MatmulKernel {
  ActivationForm form;
  Multiply multiply;
};

extern const MatmulKernel kAvx2Matmul;
extern const MatmulKernel kAvx512Matmul;
extern const MatmulKernel kAmxMatmul;

}  // namespace galley::kernels
