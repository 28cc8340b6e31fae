#pragma once

#include <array>

#include "kernels/formats.h"

namespace galley::kernels {

// Value of every code: one load instead of a call in the innermost loops.
struct CodeTables {
  std::array<float, 256> e4m3{};
  std::array<float, 256> e8m0{};
  std::array<std::array<float, 2>, 256> e2m1{};  // of a byte: low nibble, high nibble

  CodeTables() {
    for (unsigned code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      e4m3[code] = from_e4m3(byte);
      e8m0[code] = from_e8m0(byte);
      e2m1[code] = {from_e2m1(byte & 15U), from_e2m1(static_cast<std::uint8_t>(code >> 4U))};
    }
  }
};
inline const CodeTables kCodes;

}  // namespace galley::kernels
