#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// The number formats of the checkpoints, value by value (spec model 2.3, 11.1). Everything here is
// exact.
namespace galley::kernels {

// bfloat16: the upper half of a float32.
[[nodiscard]] inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

// Nearest bfloat16, ties to even; NaN stays NaN.
[[nodiscard]] inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

[[nodiscard]] inline float round_to_bf16(float value) {
  return from_bf16(to_bf16(value));
}

// e4m3fn: bias 7, largest value 448, subnormal step 2^-9, no infinities, 0x7f and 0xff are NaN.
inline constexpr float kE4m3Max = 448.0F;
[[nodiscard]] inline float from_e4m3(std::uint8_t code) {
  const int exponent = (code >> 3U) & 15;
  const int mantissa = code & 7;
  float value = 0.0F;
  if (exponent == 15 && mantissa == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    value = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  }
  return (code & 0x80U) != 0 ? -value : value;
}

// Nearest number with `kMantissa` bits behind the leading one and 2^kSmallest as its smallest
// normal one, ties to even; there is no largest, and NaN stays NaN. Without branches, so that loops
// over it become vectors.
template <int kSmallest, int kMantissa>
[[nodiscard]] inline float nearest(float value) {
  constexpr std::uint32_t kExponentBits = 0x7f800000U;
  constexpr std::uint32_t kSignBit = 0x80000000U;
  constexpr unsigned kFloatMantissa = 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Subnormals, zero among them, share the smallest exponent.
  const std::uint32_t exponent =
      std::max(bits & kExponentBits, static_cast<std::uint32_t>(127 + kSmallest) << kFloatMantissa);
  // The last place of this number is that of the result: adding it rounds, taking it away is exact.
  const auto place = std::bit_cast<float>(
      exponent + ((kFloatMantissa - static_cast<unsigned>(kMantissa)) << kFloatMantissa));
  const float rounded = (std::bit_cast<float>(bits & ~kSignBit) + place) - place;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | (bits & kSignBit));
}

[[nodiscard]] inline float nearest_e4m3(float value) {
  return nearest<-6, 3>(value);
}

// Code of an e4m3 number.
[[nodiscard]] inline std::uint8_t e4m3_code(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  constexpr std::uint32_t kNormal = (127U - 6U) << 23U;
  constexpr std::uint32_t kInfinite = 0x7f800000U;
  const auto subnormal = static_cast<std::uint32_t>(static_cast<std::int32_t>(
      magnitude < kNormal ? std::bit_cast<float>(magnitude) * 512 : 0.0F));
  const std::uint32_t normal = (magnitude >> 20U) - ((127U - 7U) << 3U);
  const std::uint32_t number = magnitude < kNormal ? subnormal : normal;
  const std::uint32_t code = magnitude > kInfinite ? 0x7fU : number;
  return static_cast<std::uint8_t>((bits >> 31U << 7U) | code);
}

// Nearest e4m3 code of |value| <= 448, ties to the even code.
[[nodiscard]] inline std::uint8_t to_e4m3(float value) {
  return e4m3_code(nearest_e4m3(value));
}

// ue8m0 scale byte: 2^(b - 127); 255 is NaN.
[[nodiscard]] inline float from_e8m0(std::uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, code - 127);
}

// e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6 by the low three bits, bit 3 is the sign.
[[nodiscard]] inline float from_e2m1(std::uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitudes[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// Nearest e2m1 number of |value| <= 6, ties to the even code; of NaN, which the format lacks, zero.
[[nodiscard]] inline float nearest_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000U;
  return nearest<0, 1>(std::bit_cast<float>((bits ^ sign) > 0x7f800000U ? sign : bits));
}

// Code of an e2m1 number.
[[nodiscard]] inline std::uint8_t e2m1_code(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  constexpr std::uint32_t kOne = 127U << 23U;
  const std::uint32_t normal = (magnitude >> 22U) - (126U << 1U);
  const std::uint32_t code = magnitude >= kOne ? normal : (magnitude != 0 ? 1U : 0U);
  return static_cast<std::uint8_t>((bits >> 31U << 3U) | code);
}

// Nearest e2m1 code of |value| <= 6, ties to the even code.
[[nodiscard]] inline std::uint8_t to_e2m1(float value) {
  return e2m1_code(nearest_e2m1(value));
}

// Smallest power of two >= value, for positive normal values.
[[nodiscard]] inline float pow2_ceil(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> 23U) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
  return std::bit_cast<float>(exponent << 23U);
}

}  // namespace galley::kernels
