#pragma once

#include <cstdint>

namespace galley {

// a / b, rounded up. `a` is at least 0 and `b` at least 1.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace galley
