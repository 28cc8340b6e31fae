#include "kernels/reference/quantise.h"

#include <algorithm>
#include <cmath>

#include "kernels/formats.h"

namespace galley::kernels::reference {
namespace {

float largest_magnitude(std::span<const float> values) {
  float largest = 0.0F;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// Runs `scale_of(largest magnitude)` and `code`/`value` over every block of the row.
template <class ScaleOf, class Encode, class Decode>
void quantise_blocks(std::span<float> row,
                     std::size_t block,
                     QuantiseParts parts,
                     float limit,
                     ScaleOf scale_of,
                     Encode encode,
                     Decode decode) {
  for (std::size_t begin = 0; begin < row.size(); begin += block) {
    const std::span<float> values = row.subspan(begin, std::min(block, row.size() - begin));
    const float scale = scale_of(largest_magnitude(values));
    if (!parts.scales.empty()) {
      parts.scales[begin / block] = scale;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint8_t code = encode(std::clamp(values[i] / scale, -limit, limit));
      if (!parts.codes.empty()) {
        parts.codes[begin + i] = code;
      }
      values[i] = decode(code) * scale;
    }
  }
}

constexpr float kE2m1Max = 6.0F;
constexpr float kFp8Floor = 1e-4F;  // of a block's largest magnitude

}  // namespace

void fake_quantise_fp8(std::span<float> row, std::size_t block, QuantiseParts parts) {
  quantise_blocks(
      row, block, parts, kE4m3Max,
      [](float largest) { return pow2_ceil(std::max(largest, kFp8Floor) * (1.0F / kE4m3Max)); },
      to_e4m3, from_e4m3);
}

void fake_quantise_fp4(std::span<float> row, std::size_t block, QuantiseParts parts) {
  const float floor = std::ldexp(kE2m1Max, -126);
  quantise_blocks(
      row, block, parts, kE2m1Max,
      [floor](float largest) { return pow2_ceil(std::max(largest, floor) * (1.0F / kE2m1Max)); },
      to_e2m1, from_e2m1);
}

void fake_quantise_fp4_e4m3(std::span<float> row, std::size_t block, QuantiseParts parts) {
  const float floor = std::ldexp(kE2m1Max, -9);  // the smallest e4m3 scale is 2^-9, never zero
  quantise_blocks(
      row, block, parts, kE2m1Max,
      [floor](float largest) {
        return from_e4m3(to_e4m3(std::min(std::max(largest, floor) / kE2m1Max, kE4m3Max)));
      },
      to_e2m1, from_e2m1);
}

void hadamard(std::span<float> row) {
  for (std::size_t stride = 1; stride < row.size(); stride *= 2) {
    for (std::size_t base = 0; base < row.size(); base += 2 * stride) {
      for (std::size_t i = base; i < base + stride; ++i) {
        const float a = row[i];
        const float b = row[i + stride];
        row[i] = a + b;
        row[i + stride] = a - b;
      }
    }
  }
  const auto factor = static_cast<float>(std::pow(static_cast<double>(row.size()), -0.5));
  for (float& value : row) {
    value *= factor;
  }
}

}  // namespace galley::kernels::reference
