#include "recipe/image_size.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/ceil_div.h"

namespace galley::recipe {
namespace {

constexpr std::int64_t kPatchPixels = 14;
constexpr std::int64_t kDownsample = 3;
constexpr std::int64_t kCellPixels = kPatchPixels * kDownsample;  // one model token, each way
constexpr std::int64_t kTokensMax = 1024;
constexpr std::int64_t kPixelsMin = std::int64_t{544} * 544;
constexpr int kRoundsMax = 10;
// Far above any image (a side of 2^24 pixels); products of two sides stay exact in a double.
constexpr std::int64_t kSideMax = std::int64_t{1} << 24U;

std::int64_t truncated(double value) {
  return static_cast<std::int64_t>(value);
}

ImageGrid grid_of(std::int64_t width, std::int64_t height) {
  ImageGrid grid{.width = width, .height = height};
  grid.rows = ceil_div(height / kPatchPixels, kDownsample);
  grid.columns = ceil_div(width / kPatchPixels, kDownsample);
  grid.tokens = grid.rows * (grid.columns + 1) + 2;  // one newline a row, one start, one end
  return grid;
}

// The largest size of the image's shape that stays within kTokensMax.
ImageGrid shrink(std::int64_t width, std::int64_t height) {
  const double ratio = static_cast<double>(height) / static_cast<double>(width);
  const double columns = std::sqrt(static_cast<double>(kTokensMax - 2) / ratio + 0.25) - 0.5;
  const double rows = columns * ratio;
  if (columns < 1) {
    return grid_of(kCellPixels, (kTokensMax - 2) / 2 * kCellPixels);
  }
  if (rows < 1) {
    return grid_of((kTokensMax - 2 - 1) * kCellPixels, kCellPixels);
  }
  const double scale =
      std::min(std::trunc(columns) * static_cast<double>(kCellPixels) / static_cast<double>(width),
               std::trunc(rows) * static_cast<double>(kCellPixels) / static_cast<double>(height));
  const auto fitted = [&](std::int64_t side) {
    return truncated(static_cast<double>(side) * scale / static_cast<double>(kPatchPixels)) *
           kPatchPixels;
  };
  return grid_of(fitted(width), fitted(height));
}

ImageGrid resize_once(std::int64_t width, std::int64_t height) {
  const std::int64_t pixels = width * height;
  if (pixels > 0 && pixels < kPixelsMin) {
    const double factor = std::sqrt(static_cast<double>(kPixelsMin) / static_cast<double>(pixels));
    width = truncated(static_cast<double>(width) * factor);
    height = truncated(static_cast<double>(height) * factor);
  }
  const ImageGrid grid = grid_of(ceil_div(width, kPatchPixels) * kPatchPixels,
                                 ceil_div(height, kPatchPixels) * kPatchPixels);
  return grid.tokens <= kTokensMax ? grid : shrink(width, height);
}

}  // namespace

Result<ImageGrid> image_grid(std::int64_t width, std::int64_t height) {
  if (width < 1 || height < 1 || width > kSideMax || height > kSideMax) {
    return fail(Code::kInvalidArgument, "an image of " + std::to_string(width) + " x " +
                                            std::to_string(height) + " pixels is not possible");
  }
  ImageGrid grid = resize_once(width, height);
  for (int round = 1; round < kRoundsMax; ++round) {
    const ImageGrid next = resize_once(grid.width, grid.height);
    if (next.width == grid.width && next.height == grid.height) {
      return grid;
    }
    grid = next;
  }
  return fail(Code::kInvalidArgument, "the size of an image of " + std::to_string(width) + " x " +
                                          std::to_string(height) + " pixels did not converge");
}

}  // namespace galley::recipe
