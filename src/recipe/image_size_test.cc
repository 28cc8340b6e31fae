// Goal: an image costs exactly the tokens spec recipe 1.5 says. Method: the spec's table, the
// golden and vector records, and properties over many sizes.
#include "recipe/image_size.h"

#include <gtest/gtest.h>

#include "recipe/golden_for_test.h"

namespace galley::recipe {
namespace {

TEST(ImageSize, SpecTable) {
  struct Row {
    std::int64_t width, height, tokens, resized_width, resized_height, rows, columns;
  };
  constexpr Row kRows[] = {
      {978, 479, 302, 980, 490, 12, 24},     {272, 300, 198, 518, 574, 14, 13},
      {1091, 397, 272, 1092, 406, 10, 26},   {493, 243, 202, 784, 392, 10, 19},
      {1033, 141, 187, 1484, 210, 5, 36},    {125, 751, 226, 224, 1344, 32, 6},
      {2, 165, 356, 70, 4942, 118, 2},       {165, 2, 240, 4942, 70, 2, 118},
      {158, 10000, 762, 126, 7966, 190, 3},  {10000, 158, 962, 10010, 168, 4, 239},
      {1, 1, 184, 546, 546, 13, 13},         {16809, 11841, 990, 1540, 1092, 26, 37},
      {8192, 8192, 994, 1302, 1302, 31, 31}, {1920, 1080, 968, 1708, 966, 23, 41},
      {1080, 1920, 986, 966, 1708, 41, 23},  {3024, 4032, 1010, 1134, 1512, 36, 27},
      {640, 480, 206, 644, 490, 12, 16},     {40, 50, 197, 490, 616, 15, 12},
  };
  for (const Row& row : kRows) {
    const Result<ImageGrid> grid = image_grid(row.width, row.height);
    ASSERT_TRUE(grid) << row.width << "x" << row.height;
    EXPECT_EQ(grid->tokens, row.tokens) << row.width << "x" << row.height;
    EXPECT_EQ(grid->width, row.resized_width) << row.width << "x" << row.height;
    EXPECT_EQ(grid->height, row.resized_height) << row.width << "x" << row.height;
    EXPECT_EQ(grid->rows, row.rows) << row.width << "x" << row.height;
    EXPECT_EQ(grid->columns, row.columns) << row.width << "x" << row.height;
  }
}

TEST(ImageSize, Goldens) {
  for (const Json& record : golden_records("image")) {
    const Result<ImageGrid> grid =
        image_grid(*record.find("w")->int64(), *record.find("h")->int64());
    ASSERT_TRUE(grid);
    EXPECT_EQ(grid->tokens, *record.find("tokens")->int64()) << golden_string(record, "id");
  }
  const Json vectors = *parse_json(golden_text("recipe_vectors.json"));
  for (const Json& row : *vectors.find("image_tokens")->array()) {
    const Result<ImageGrid> grid =
        image_grid(*row.find("width")->int64(), *row.find("height")->int64());
    ASSERT_TRUE(grid);
    EXPECT_EQ(grid->tokens, *row.find("tokens")->int64());
    EXPECT_EQ(grid->width, *row.find("resized_width")->int64());
    EXPECT_EQ(grid->height, *row.find("resized_height")->int64());
    EXPECT_EQ(grid->rows, *row.find("grid_rows")->int64());
    EXPECT_EQ(grid->columns, *row.find("grid_cols")->int64());
  }
}

// A result is whole cells within the budget, and resizing it again changes nothing.
TEST(ImageSize, ResultIsAFixedPointWithinTheBudget) {
  for (std::int64_t width = 1; width <= (std::int64_t{1} << 24); width = width * 7 / 4 + 1) {
    for (std::int64_t height = 1; height <= (std::int64_t{1} << 24); height = height * 5 / 3 + 1) {
      const Result<ImageGrid> grid = image_grid(width, height);
      ASSERT_TRUE(grid) << width << "x" << height;
      EXPECT_GE(grid->width, 14);
      EXPECT_GE(grid->height, 14);
      EXPECT_EQ(grid->width % 14, 0);
      EXPECT_EQ(grid->height % 14, 0);
      EXPECT_LE(grid->tokens, 1024);
      EXPECT_EQ(grid->tokens, grid->rows * (grid->columns + 1) + 2);
      const Result<ImageGrid> again = image_grid(grid->width, grid->height);
      ASSERT_TRUE(again);
      EXPECT_EQ(again->width, grid->width);
      EXPECT_EQ(again->height, grid->height);
    }
  }
}

TEST(ImageSize, RefusesImpossibleSizes) {
  for (const std::int64_t side :
       {std::int64_t{0}, std::int64_t{-1}, (std::int64_t{1} << 24) + 1, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(image_grid(side, 100).error().code, Code::kInvalidArgument);
    EXPECT_EQ(image_grid(100, side).error().code, Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace galley::recipe
