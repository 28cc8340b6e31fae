#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/matmul.h"
#include "kernels/weight.h"

// The one layout that products read, for one row as for thousands. A matrix is cut into groups of
// 16 outputs, a group into tiles of 32 inputs, which follow each other:
//
//   kBf16  tile of 1024 bytes: input pair p, output n, the pair's two values: byte 64 p + 4 n
//   kFp8   the group's scales, one a tile, padded to 64 bytes; then tiles of 512 bytes, in the same
//          order, a byte a value
//   kFp4   units of four tiles: 64 bytes of scales, 16 a tile by output, then four tiles of 256
//          bytes. Pairs 4 q ... 4 q + 3 of a tile share 64 bytes; the 16-bit word 2 n + i of them
//          holds input i of output n, pair 4 q + j in bits 4 j ... 4 j + 3
//
// Scales are e8m0 bytes. The bfloat16 tile is what AMX multiplies and what AVX512-BF16 multiplies
// pair by pair; the narrow ones widen to it with a shift and a table. Missing rows, inputs and
// tiles are zero codes. A group is read from front to back, so one stream of memory feeds a core.
namespace galley::kernels {

// Raised with every change of the bytes above: files that keep packed matrices are then made anew.
inline constexpr std::uint32_t kPackedLayout = 1;

inline constexpr std::size_t kPackedAlignment = 64;  // of every group

// Where the products of `weight` would lie; null when its format or block sizes have no packed
// form.
[[nodiscard]] std::optional<PackedView> packed_shape(const Weight& weight);

// Writes group `group` to out[shape.group_bytes]. False: a weight is infinite or NaN, or a scale is
// no power of two or so small or large that the weights are not normal bfloat16 numbers; `out` is
// then undefined and the rows belong to the reference.
[[nodiscard]] bool pack_group(const Weight& weight,
                              const PackedView& shape,
                              std::size_t group,
                              std::byte* out);

}  // namespace galley::kernels
