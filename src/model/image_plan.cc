#include "model/image_plan.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>

#include "base/ceil_div.h"
#include "model/image.h"

namespace galley::model {
namespace {

std::int64_t truncated(double value) {
  return static_cast<std::int64_t>(value);
}

struct Box {
  std::int64_t width{};
  std::int64_t height{};
};

class Planner {
 public:
  explicit Planner(const VisionConfig& config)
      : config_(config),
        cell_(std::int64_t{config.patch} * config.downsample),
        pairs_(config.layout == ImageLayout::kRowPairs) {}

  [[nodiscard]] std::int64_t rows(const Box& box) const {
    return ceil_div(box.height / config_.patch, config_.downsample);
  }
  [[nodiscard]] std::int64_t columns(const Box& box) const {
    return ceil_div(box.width / config_.patch, config_.downsample);
  }
  [[nodiscard]] std::int64_t tokens(const Box& box) const {
    const std::int64_t row = columns(box) + 1;
    if (!pairs_) {
      return rows(box) * row + 2;
    }
    const std::int64_t pairs = ceil_div(rows(box), 2);
    return 2 * pairs * row + 2 + (pairs * row % 2) * 2;
  }
  // Pads in front of START take from the budget, whatever the position.
  [[nodiscard]] std::int64_t budget() const {
    return config_.tokens_max - (pairs_ ? kPairAlignment - 1 : 0);
  }

  [[nodiscard]] Box covering(double width, double height) const {
    const auto up = [&](double side) {
      return static_cast<std::int64_t>(std::ceil(side / config_.patch)) * config_.patch;
    };
    return {up(width), up(height)};
  }

  // The largest box of this shape whose grid has about `budget` tokens.
  [[nodiscard]] Box shrink(double width, double height, std::int64_t budget) const {
    const double ratio = height / width;
    const double wide = std::sqrt(static_cast<double>(budget - 2) / ratio + 0.25) - 0.5;
    const double high = wide * ratio;
    const std::int64_t rows_min = pairs_ ? 2 : 1;
    const auto whole = [&](std::int64_t count) { return count - count % rows_min; };
    if (wide < 1.0) {
      return {cell_, whole((budget - 2) / 2) * cell_};
    }
    if (high < static_cast<double>(rows_min)) {
      return {((budget - 2) / rows_min - 1) * cell_, rows_min * cell_};
    }
    const auto side = static_cast<double>(cell_);
    const double scale = std::min(static_cast<double>(truncated(wide)) * side / width,
                                  static_cast<double>(whole(truncated(high))) * side / height);
    const auto fitted = [&](double length) {
      return truncated(length * scale / config_.patch) * config_.patch;
    };
    return {fitted(width), fitted(height)};
  }

 private:
  const VisionConfig& config_;
  std::int64_t cell_;  // pixels of a token, each way
  bool pairs_;
};

}  // namespace

Result<ImagePlan> plan_image(const VisionConfig& config, std::int64_t width, std::int64_t height) {
  const Planner planner(config);
  double wide = static_cast<double>(width);
  double high = static_cast<double>(height);
  const bool limited = config.ratio_max > 0;
  if (limited && wide > high * config.ratio_max) {
    wide = high * config.ratio_max;
  }
  const auto pixels_min = static_cast<double>(config.pixels_min);
  if (const double pixels = wide * high; pixels > 0 && pixels < pixels_min) {
    const double factor = std::sqrt(pixels_min / pixels);
    wide = std::trunc(wide * factor);
    high = std::trunc(high * factor);
  }
  Box box = planner.covering(wide, high);
  std::int64_t budget = planner.budget();
  while (planner.tokens(box) > planner.budget() && budget > 3) {
    box = planner.shrink(wide, high, budget);
    // Only the pair layout counts tokens that the solution does not know of.
    budget = config.layout == ImageLayout::kRowPairs ? budget - 1 : 0;
  }
  if (box.width <= 0 || box.height <= 0 || planner.tokens(box) > planner.budget() ||
      box.width > kImageSideMax || box.height > kImageSideMax ||
      box.width * box.height > kImagePixelsMax) {
    return fail(Code::kInvalidArgument,
                fmt::format("an image of {} x {} pixels needs more than {} tokens or {} pixels",
                            width, height, config.tokens_max, kImagePixelsMax));
  }
  return ImagePlan{.width = static_cast<int>(box.width),
                   .height = static_cast<int>(box.height),
                   .patch_columns = static_cast<int>(box.width / config.patch),
                   .patch_rows = static_cast<int>(box.height / config.patch),
                   .columns = static_cast<int>(planner.columns(box)),
                   .rows = static_cast<int>(planner.rows(box)),
                   .tokens = static_cast<int>(planner.tokens(box)),
                   .stretch = limited && static_cast<double>(width) >=
                                             config.ratio_max * static_cast<double>(height)};
}

std::vector<ImagePlace> lay_out_image(const VisionConfig& config,
                                      const ImagePlan& plan,
                                      std::int64_t first_position) {
  std::vector<ImagePlace> places;
  const auto at = [&](int row, int column) -> ImagePlace {
    if (row >= plan.rows) {
      return {ImageRole::kPad};
    }
    return column == plan.columns ? ImagePlace{ImageRole::kNewline}
                                  : ImagePlace{ImageRole::kToken, row * plan.columns + column};
  };
  if (config.layout == ImageLayout::kRows) {
    places.push_back({ImageRole::kStart});
    for (int row = 0; row < plan.rows; ++row) {
      for (int column = 0; column <= plan.columns; ++column) {
        places.push_back(at(row, column));
      }
    }
    places.push_back({ImageRole::kEnd});
    return places;
  }
  const std::int64_t front = kPairAlignment - 1 - first_position % kPairAlignment;
  places.assign(static_cast<std::size_t>(front), {ImageRole::kPad});
  places.push_back({ImageRole::kStart});
  const std::size_t body = places.size();
  for (int row = 0; row < plan.rows; row += 2) {
    for (int column = 0; column <= plan.columns; ++column) {
      places.push_back(at(row, column));
      places.push_back(at(row + 1, column));
    }
  }
  while ((places.size() - body) % static_cast<std::size_t>(kPairAlignment) != 0) {
    places.push_back({ImageRole::kPad});
  }
  places.push_back({ImageRole::kEnd});
  return places;
}

}  // namespace galley::model
