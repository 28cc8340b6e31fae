#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace galley::kernels {

// How a matrix lies in the checkpoint (spec model 11.1). It stays as narrow in memory;
// kernels widen it on the way.
enum class WeightFormat : std::uint8_t {
  kF32,
  kBf16,
  kFp8Block,  // e4m3 codes, one scale a block x block square
  kFp8Row,    // e4m3 codes, one scale for `block` columns of a row (engram tables)
  kFp4,       // two e2m1 codes a byte, low nibble first; one e8m0 scale for 32 inputs of a row
};

enum class ScaleFormat : std::uint8_t { kNone, kE8m0, kF32 };

// A borrowed matrix W[rows, columns] with y = W x; points into mapped checkpoint bytes, unaligned.
struct Weight {
  WeightFormat format{};
  ScaleFormat scale_format = ScaleFormat::kNone;
  std::size_t rows{};
  std::size_t columns{};
  std::size_t block{};  // kFp8Block: side of a square; kFp8Row, kFp4: columns of a scale
  const std::byte* data{};
  const std::byte* scales{};
  // The groups of packed_weight.h where somebody made them, 64-byte aligned; products read these
  // alone.
  const std::byte* packed{};

  [[nodiscard]] bool empty() const { return data == nullptr; }
  // True for the formats in front of which the reference quantises activations (spec model 2.3,
  // table).
  [[nodiscard]] bool quantised() const {
    return format == WeightFormat::kFp8Block || format == WeightFormat::kFp4;
  }
};

// Row `row` of `weight` as float32; out has `columns` entries. Exact.
void dequantise_row(const Weight& weight, std::size_t row, std::span<float> out);

}  // namespace galley::kernels
