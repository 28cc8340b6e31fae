#pragma once

#include <cstddef>
#include <cstdint>

namespace galley::model {

// Blocks of `b` that `a` things take; a >= 0, b > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// A size of the configuration as a count of memory; never negative there.
[[nodiscard]] constexpr std::size_t size(int value) {
  return static_cast<std::size_t>(value);
}

}  // namespace galley::model
