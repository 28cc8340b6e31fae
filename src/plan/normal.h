#pragma once

#include <cmath>
#include <numbers>

#include "base/random.h"

namespace galley::plan {

// In [0, 1), a multiple of 2^-53.
[[nodiscard]] inline double next_unit(Random& random) {
  return static_cast<double>(random.next_u64() >> 11U) * 0x1p-53;
}

// A draw of the standard normal law, by Box and Muller.
[[nodiscard]] inline double next_normal(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log1p(-next_unit(random)));
  return radius * std::cos(2.0 * std::numbers::pi * next_unit(random));
}

}  // namespace galley::plan
