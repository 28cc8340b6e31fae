#pragma once

#include <concepts>
#include <type_traits>

namespace galley {

// a / b, rounded up. `a` is at least 0 and `b` at least 1.
template <std::integral T>
[[nodiscard]] constexpr T ceil_div(T a, std::type_identity_t<T> b) {
  return static_cast<T>(a / b + (a % b != 0 ? 1 : 0));
}

}  // namespace galley
