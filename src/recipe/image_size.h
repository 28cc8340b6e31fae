#pragma once

#include <cstdint>

#include "base/result.h"

namespace galley::recipe {

// V4.1 image arithmetic (spec recipe 1.5): what the vision tower will see and what the prompt is
// charged.
struct ImageGrid {
  std::int64_t width{};  // pixels after resizing, multiple of 14
  std::int64_t height{};
  std::int64_t rows{};  // model tokens
  std::int64_t columns{};
  std::int64_t tokens{};  // rows * (columns + 1) + 2
};

// Error: kInvalidArgument for sizes < 1 or when the rule does not converge in 10 rounds.
[[nodiscard]] Result<ImageGrid> image_grid(std::int64_t width, std::int64_t height);

}  // namespace galley::recipe
