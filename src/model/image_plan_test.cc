// Goal: an image of any size gets the box, grid and token order of its family. Method: values of
// spec model 10.1 and 10.5, and invariants over many sizes. (More plans: the golden set.)
#include "model/image_plan.h"

#include <gtest/gtest.h>
#include <string>

#include "model/image.h"

namespace galley::model {
namespace {

VisionConfig released_v41() {
  return {.patch = 14, .downsample = 3, .tokens_max = 1024, .pixels_min = 295'936};
}

VisionConfig released_v4() {
  return {.patch = 14,
          .downsample = 3,
          .tokens_max = 384,
          .pixels_min = 147'456,
          .ratio_max = 8,
          .layout = ImageLayout::kRowPairs};
}

std::string letters(const std::vector<ImagePlace>& places) {
  std::string out;
  for (const ImagePlace& place : places) {
    out += "SP*NE"[static_cast<std::size_t>(place.role)];
    if (place.role == ImageRole::kToken) {
      out.back() = static_cast<char>('a' + place.token);
    }
  }
  return out;
}

TEST(ImagePlan, Released) {
  const auto plan = plan_image(released_v41(), 1920, 1080);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->width, 1708);
  EXPECT_EQ(plan->height, 966);
  EXPECT_EQ(plan->patch_columns, 122);
  EXPECT_EQ(plan->patch_rows, 69);
  EXPECT_EQ(plan->columns, 41);
  EXPECT_EQ(plan->rows, 23);
  EXPECT_EQ(plan->tokens, 968);
  EXPECT_FALSE(plan->stretch);
}

TEST(ImagePlan, EverySizeFitsItsBudget) {
  for (const VisionConfig& config : {released_v41(), released_v4()}) {
    for (std::int64_t width = 1; width <= kImageSideMax; width = width * 9 / 7 + 1) {
      for (std::int64_t height = 1; height <= kImageSideMax; height = height * 9 / 7 + 1) {
        const auto plan = plan_image(config, width, height);
        ASSERT_TRUE(plan) << width << " x " << height << ": " << to_string(plan.error());
        EXPECT_EQ(plan->width, plan->patch_columns * config.patch);
        EXPECT_EQ(plan->height, plan->patch_rows * config.patch);
        EXPECT_EQ(plan->columns, (plan->patch_columns + 2) / 3);
        EXPECT_EQ(plan->rows, (plan->patch_rows + 2) / 3);
        const auto places = lay_out_image(config, *plan, 3);  // 3: no padding in front
        EXPECT_EQ(static_cast<int>(places.size()), plan->tokens) << width << " x " << height;
        EXPECT_LE(plan->tokens,
                  config.tokens_max - (config.layout == ImageLayout::kRowPairs ? 3 : 0));
      }
    }
  }
}

TEST(ImagePlan, V4LimitsTheRatioAndStretches) {
  const auto wide = plan_image(released_v4(), 4000, 400);
  ASSERT_TRUE(wide);
  EXPECT_TRUE(wide->stretch);
  EXPECT_LE(wide->width, wide->height * 8 + 14);
  const auto just = plan_image(released_v4(), 3200, 400);
  ASSERT_TRUE(just);
  EXPECT_TRUE(just->stretch);  // at the ratio itself too
  EXPECT_FALSE(plan_image(released_v4(), 3199, 400)->stretch);
  EXPECT_FALSE(plan_image(released_v4(), 400, 4000)->stretch);  // tall is not wide
}

TEST(ImagePlan, RowsThenNewlines) {
  const ImagePlan plan = {.columns = 3, .rows = 2, .tokens = 10};
  for (const std::int64_t position : {0, 1, 2, 3}) {
    EXPECT_EQ(letters(lay_out_image(released_v41(), plan, position)), "SabcNdefNE");
  }
}

// Upper, lower, column by column; the newline column likewise.
TEST(ImagePlan, PairsOfRows) {
  const VisionConfig config = released_v4();
  EXPECT_EQ(letters(lay_out_image(config, {.columns = 3, .rows = 2}, 3)), "SadbecfNNE");
  EXPECT_EQ(letters(lay_out_image(config, {.columns = 1, .rows = 4}, 3)), "SabNNcdNNE");
  // An odd row is paired with padding; an odd number of pairs of places is filled up.
  EXPECT_EQ(letters(lay_out_image(config, {.columns = 1, .rows = 3}, 3)), "SabNNcPNPE");
  EXPECT_EQ(letters(lay_out_image(config, {.columns = 2, .rows = 1}, 3)), "SaPbPNPPPE");
}

TEST(ImagePlan, PaddingPutsStartBeforeAGroup) {
  const VisionConfig config = released_v4();
  for (std::int64_t position = 0; position < 9; ++position) {
    const std::string places = letters(lay_out_image(config, {.columns = 1, .rows = 2}, position));
    const auto start = static_cast<std::int64_t>(places.find('S'));
    EXPECT_EQ((position + start) % 4, 3);
    EXPECT_LT(start, 4);
    EXPECT_EQ(places.substr(0, static_cast<std::size_t>(start)),
              std::string(static_cast<std::size_t>(start), 'P'));
  }
}

TEST(ImagePlan, RefusesWhatNoSizeFits) {
  VisionConfig config = released_v41();
  config.tokens_max = 1 << 20;
  config.pixels_min = std::int64_t{1} << 40;
  const auto plan = plan_image(config, 1, 60'000);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kInvalidArgument);
  EXPECT_EQ(plan.error().what,
            "an image of 1 x 60000 pixels needs more than 1048576 tokens or 67108864 pixels");
}

}  // namespace
}  // namespace galley::model
