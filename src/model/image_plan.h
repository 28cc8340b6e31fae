#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace galley::model {

// How an image of some size enters the network (spec model 10.1). Computed from the checkpoint's
// configuration in one pass, as the processors of both families do. The codec's own arithmetic
// (recipe/image_size.h) is a separate rule on purpose: it charges a prompt as the hosted API does,
// with constants of the release and a second pass until the size settles.
struct ImagePlan {
  int width{};  // pixels after resizing, whole patches
  int height{};
  int patch_columns{};
  int patch_rows{};
  int columns{};  // tokens of the grid
  int rows{};
  int tokens{};          // of the span, START to END; padding in front of START not counted
  bool stretch = false;  // to the box instead of fitting into it: ratio_max or wider
};

// Errors: kInvalidArgument when no size of this shape keeps the span within tokens_max and the
// pixels within the limits of an image.
[[nodiscard]] Result<ImagePlan> plan_image(const VisionConfig& config,
                                           std::int64_t width,
                                           std::int64_t height);

// What stands at one place of an image's span (spec model 10.4, 10.5).
enum class ImageRole : std::uint8_t { kStart, kPad, kToken, kNewline, kEnd };
struct ImagePlace {
  ImageRole role{};
  int token = -1;  // kToken: index in the grid, row-major
};

// kRows: START, then each row and a NEWLINE, END. kRowPairs: the grid with its newline column is
// read in pairs of rows, column by column, upper then lower, an odd last row paired with padding;
// the body is padded to groups of kPairAlignment, and padding in front puts it on such a boundary,
// which is where the compressor's groups begin. `first_position`: of the span's first row in the
// sequence.
inline constexpr std::int64_t kPairAlignment = 4;
[[nodiscard]] std::vector<ImagePlace> lay_out_image(const VisionConfig& config,
                                                    const ImagePlan& plan,
                                                    std::int64_t first_position);

}  // namespace galley::model
