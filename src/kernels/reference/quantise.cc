#include "kernels/reference/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/formats.h"

namespace galley::kernels::reference {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000U;

// Magnitudes compare as their bits do. Unlike comparisons of numbers, which may trap, that leaves
// the compiler free to take many at a time.
constexpr std::uint32_t kMagnitude = 0x7fffffffU;

// NaN counts as nothing.
float largest_magnitude(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & kMagnitude;
    largest = std::max(largest, magnitude > kInfinity ? 0U : magnitude);
  }
  return std::bit_cast<float>(largest);
}

// To [-limit, limit]; NaN stays NaN.
float clamped(float value, float limit) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kMagnitude;
  const std::uint32_t within = std::min(magnitude, std::bit_cast<std::uint32_t>(limit));
  return std::bit_cast<float>((magnitude > kInfinity ? magnitude : within) | (bits & ~kMagnitude));
}

// Runs `scale_of(largest magnitude)`, then `nearest` and `code` over every block of the row.
template <class ScaleOf, class Nearest, class Code>
void quantise_blocks(std::span<float> row,
                     std::size_t block,
                     QuantiseParts parts,
                     float limit,
                     ScaleOf scale_of,
                     Nearest nearest,
                     Code code) {
  for (std::size_t begin = 0; begin < row.size(); begin += block) {
    const std::span<float> values = row.subspan(begin, std::min(block, row.size() - begin));
    const float scale = scale_of(largest_magnitude(values));
    if (!parts.scales.empty()) {
      parts.scales[begin / block] = scale;
    }
    for (float& value : values) {
      value = nearest(clamped(value / scale, limit));
    }
    for (std::size_t i = 0; i < values.size() && !parts.codes.empty(); ++i) {
      parts.codes[begin + i] = code(values[i]);
    }
    for (float& value : values) {
      value *= scale;
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
      nearest_e4m3, e4m3_code);
}

void fake_quantise_fp4(std::span<float> row, std::size_t block, QuantiseParts parts) {
  const float floor = std::ldexp(kE2m1Max, -126);
  quantise_blocks(
      row, block, parts, kE2m1Max,
      [floor](float largest) { return pow2_ceil(std::max(largest, floor) * (1.0F / kE2m1Max)); },
      nearest_e2m1, e2m1_code);
}

void fake_quantise_fp4_e4m3(std::span<float> row, std::size_t block, QuantiseParts parts) {
  const float floor = std::ldexp(kE2m1Max, -9);  // the smallest e4m3 scale is 2^-9, never zero
  quantise_blocks(
      row, block, parts, kE2m1Max,
      [floor](float largest) {
        return from_e4m3(to_e4m3(std::min(std::max(largest, floor) / kE2m1Max, kE4m3Max)));
      },
      nearest_e2m1, e2m1_code);
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
