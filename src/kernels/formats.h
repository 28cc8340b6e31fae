#pragma once

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

// Nearest e4m3 code of |value| <= 448, ties to the even code.
[[nodiscard]] inline std::uint8_t to_e4m3(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80U : 0U;
  const float magnitude = std::fabs(value);
  if (std::isnan(magnitude)) {
    return static_cast<std::uint8_t>(sign | 0x7fU);
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [0.5, 1)
  // Subnormals, zero among them, share the smallest exponent.
  exponent = magnitude == 0.0F || exponent - 1 < -6 ? -6 : exponent - 1;
  // Units of the last place at that exponent; nearbyint rounds ties to even, which is the even
  // code.
  const float units = std::nearbyint(std::ldexp(magnitude, 3 - exponent));
  const int code = static_cast<int>(units) + ((exponent + 6) << 3);
  return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(code));
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

// Nearest e2m1 code of |value| <= 6, ties to the even code.
[[nodiscard]] inline std::uint8_t to_e2m1(float value) {
  // Middles between neighbours; a tie above an odd code goes up to the even one.
  constexpr float kMiddles[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const float magnitude = std::fabs(value);
  std::uint8_t code = 0;
  for (int i = 0; i < 7; ++i) {
    code += static_cast<std::uint8_t>(magnitude > kMiddles[i] ||
                                      (magnitude == kMiddles[i] && i % 2 == 1));
  }
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 8U : 0U));
}

// Smallest power of two >= value, for positive normal values.
[[nodiscard]] inline float pow2_ceil(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> 23U) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
  return std::bit_cast<float>(exponent << 23U);
}

}  // namespace galley::kernels
