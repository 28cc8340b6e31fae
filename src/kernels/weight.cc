#include "kernels/weight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/code_tables.h"
#include "kernels/formats.h"

namespace galley::kernels {
namespace {

// Mapped checkpoint bytes have no alignment.
template <class T>
T load(const std::byte* bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

float scale_at(const Weight& weight, std::size_t index) {
  return weight.scale_format == ScaleFormat::kF32
             ? load<float>(weight.scales, index)
             : kCodes.e8m0[load<std::uint8_t>(weight.scales, index)];
}

void dequantise_fp8_row(const Weight& weight, std::size_t row, std::span<float> out) {
  const std::size_t scale_columns = (weight.columns + weight.block - 1) / weight.block;
  const std::size_t scale_row =
      (weight.format == WeightFormat::kFp8Row ? row : row / weight.block) * scale_columns;
  for (std::size_t begin = 0; begin < weight.columns; begin += weight.block) {
    const float scale = scale_at(weight, scale_row + begin / weight.block);
    const std::size_t end = std::min(weight.columns, begin + weight.block);
    for (std::size_t c = begin; c < end; ++c) {
      out[c] = kCodes.e4m3[load<std::uint8_t>(weight.data, row * weight.columns + c)] * scale;
    }
  }
}

void dequantise_fp4_row(const Weight& weight, std::size_t row, std::span<float> out) {
  const std::size_t bytes = weight.columns / 2;
  const std::size_t scale_columns = weight.columns / weight.block;
  for (std::size_t j = 0; j < bytes; ++j) {
    const auto pair = load<std::uint8_t>(weight.data, row * bytes + j);
    const float scale = scale_at(weight, row * scale_columns + 2 * j / weight.block);
    out[2 * j] = kCodes.e2m1[pair][0] * scale;
    out[2 * j + 1] = kCodes.e2m1[pair][1] * scale;
  }
}

}  // namespace

void dequantise_row(const Weight& weight, std::size_t row, std::span<float> out) {
  GALLEY_ASSERT(row < weight.rows);
  GALLEY_ASSERT(out.size() == weight.columns);
  switch (weight.format) {
    case WeightFormat::kF32:
      std::memcpy(out.data(), weight.data + row * weight.columns * sizeof(float), out.size_bytes());
      return;
    case WeightFormat::kBf16:
      for (std::size_t c = 0; c < weight.columns; ++c) {
        out[c] = from_bf16(load<std::uint16_t>(weight.data, row * weight.columns + c));
      }
      return;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      dequantise_fp8_row(weight, row, out);
      return;
    case WeightFormat::kFp4:
      dequantise_fp4_row(weight, row, out);
      return;
  }
}

}  // namespace galley::kernels
