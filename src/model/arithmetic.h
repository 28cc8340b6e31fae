#pragma once

#include <cstddef>

namespace galley::model {

// A size of the configuration as a count of memory; never negative there.
[[nodiscard]] constexpr std::size_t size(int value) {
  return static_cast<std::size_t>(value);
}

}  // namespace galley::model
