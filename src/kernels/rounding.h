#pragma once

#include <span>

#include "kernels/device.h"
#include "kernels/formats.h"

namespace galley::kernels {

[[nodiscard]] inline float rounded(float value, Round round) {
  return round == Round::kBf16 ? round_to_bf16(value) : value;
}

inline void round_all(std::span<float> values, Round round) {
  if (round == Round::kBf16) {
    for (float& value : values) {
      value = round_to_bf16(value);
    }
  }
}

}  // namespace galley::kernels
