// Goal: attention and index scores by tiles are those of the definitions within the rounding of
// their sums, whatever is computed with them. Method: random rows of bfloat16 and of every size
// around the tiles, against sums in double; each head once more alone.
#include "kernels/tile_kernels.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/formats.h"
#include "kernels/fp4_row.h"
#include "kernels/isa.h"
#include "kernels/matmul_input.h"
#include "kernels/reference/pack.h"

namespace galley::kernels {
namespace {

constexpr double kUnit = 0x1p-24;  // rounding of float32

class TileKernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::ranges::count(supported_isas(), Isa::kAmx) == 0) {
      GTEST_SKIP() << "this machine has no tiles";
    }
  }

  std::vector<float> random(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    std::ranges::generate(out, [&] { return round_to_bf16(normal(random_)); });
    return out;
  }

  static std::vector<std::uint16_t> narrowed(const std::vector<float>& values) {
    std::vector<std::uint16_t> out(values.size());
    kAmxTiles.narrow(values.data(), values.size(), out.data());
    return out;
  }

  struct Case {
    std::size_t heads;
    std::size_t width;
    std::size_t count;
    std::vector<float> q;
    std::vector<float> keys;
    std::vector<float> sinks;
    float scale;
  };
  Case make(std::size_t heads, std::size_t width, std::size_t count) {
    return {heads,
            width,
            count,
            random(heads * width),
            random(count * width),
            random(heads),
            1.0F / std::sqrt(static_cast<float>(width))};
  }

  // Heads [first, first + heads).
  static std::vector<float> attend(const Case& c, std::size_t first, std::size_t heads) {
    const std::vector<std::uint16_t> narrow = narrowed(c.keys);
    std::vector<const std::uint16_t*> keys;
    for (std::size_t j = 0; j < c.count; ++j) {
      keys.push_back(narrow.data() + j * c.width);
    }
    std::vector<float> out(heads * c.width, -1.0F);
    AlignedBytes scratch;
    kAmxTiles.attend({.q = c.q.data() + first * c.width,
                      .heads = heads,
                      .width = c.width,
                      .keys = keys.data(),
                      .count = c.count,
                      .scale = c.scale,
                      .sinks = c.sinks.data() + first,
                      .out = out.data(),
                      .scratch = scratch.reserve(tile_attend_scratch(heads, c.width, c.count))});
    return out;
  }

  static std::vector<float> index_scores(const Case& c) {
    const std::vector<std::uint16_t> narrow = narrowed(c.keys);
    const std::size_t tiles = (c.count + kTileKeys - 1) / kTileKeys;
    const std::size_t tile_bytes = kTileKeys * c.width * sizeof(std::uint16_t);
    AlignedBytes arranged;
    AlignedBytes scratch;
    std::byte* const keys = arranged.reserve(tiles * tile_bytes);
    for (std::size_t i = 0; i < tiles; ++i) {
      kAmxTiles.arrange_keys(narrow.data() + i * kTileKeys * c.width,
                             std::min(kTileKeys, c.count - i * kTileKeys), c.width,
                             keys + i * tile_bytes);
    }
    std::vector<float> scores(tiles * kTileKeys);
    kAmxTiles.index_scores({.q = c.q.data(),
                            .weights = c.sinks.data(),
                            .heads = c.heads,
                            .width = c.width,
                            .keys = keys,
                            .count = c.count,
                            .scores = scores.data(),
                            .scratch = scratch.reserve(kTileScoresScratch)});
    scores.resize(c.count);
    return scores;
  }

 private:
  std::mt19937_64 random_{1};  // NOLINT(cert-msc51-cpp): a fixed seed
};

// Bounds as in row_kernels_test.cc; a sum of three terms a key has three roundings a key.
TEST_F(TileKernelsTest, AttentionIsTheSoftMaxWithSink) {
  for (const std::size_t heads : {1UL, 5UL, 16UL, 17UL, 64UL}) {
    for (const std::size_t count : {0UL, 1UL, 15UL, 16UL, 17UL, 31UL, 33UL, 128UL, 129UL, 300UL}) {
      for (const std::size_t width : {64UL, 192UL, 512UL}) {
        const Case c = make(heads, width, count);
        const std::vector<float> out = attend(c, 0, heads);
        for (std::size_t h = 0; h < heads; h += heads > 16 ? 7 : 1) {
          ASSERT_EQ(attend(c, h, 1),
                    std::vector<float>(out.begin() + static_cast<std::ptrdiff_t>(h * width),
                                       out.begin() + static_cast<std::ptrdiff_t>((h + 1) * width)));
          std::vector<double> scores(count);
          double largest = c.sinks[h];
          double score_error = 0;
          for (std::size_t j = 0; j < count; ++j) {
            double magnitude = 0;
            for (std::size_t k = 0; k < width; ++k) {
              const double product = static_cast<double>(c.q[h * width + k]) *
                                     static_cast<double>(c.keys[j * width + k]) *
                                     static_cast<double>(c.scale);
              scores[j] += product;
              magnitude += std::fabs(product);
            }
            largest = std::max(largest, scores[j]);
            score_error = std::max(score_error, magnitude * static_cast<double>(width + 2) * kUnit);
          }
          double sum = std::exp(static_cast<double>(c.sinks[h]) - largest);
          for (double& score : scores) {
            score = std::exp(score - largest);
            sum += score;
          }
          for (std::size_t k = 0; k < width; ++k) {
            double value = 0;
            double magnitude = 0;
            for (std::size_t j = 0; j < count; ++j) {
              const double part = scores[j] / sum * static_cast<double>(c.keys[j * width + k]);
              value += part;
              magnitude += std::fabs(part);
            }
            const double bound = magnitude * (2 * (score_error + 4 * kUnit) +
                                              static_cast<double>(4 * count + 8) * kUnit);
            ASSERT_NEAR(out[h * width + k], value, bound + 1e-30)
                << heads << " heads, " << count << " keys, width " << width;
          }
        }
      }
    }
  }
}

// A weight cut to one bfloat16 number would be off by up to 2^-8, to two by 2^-16: all three count.
TEST_F(TileKernelsTest, WeightsKeepTheirLastBits) {
  Case c = make(1, 64, 2);
  std::ranges::fill(c.q, 0.0F);
  std::ranges::fill(c.keys, 0.0F);
  c.q[0] = 1.0F;
  c.scale = 1.0F;
  c.keys[0] = -0.30078125F;  // e^-0.30078125 = 0.7402...: no bfloat16 number
  c.keys[1] = 1.0F;
  c.sinks[0] = 0.0F;  // the second key's score is 0, too
  const double weight = std::exp(-0.30078125);
  EXPECT_NEAR(attend(c, 0, 1)[1], weight / (weight + 2), 0x1p-22);
}

TEST_F(TileKernelsTest, TheTailOfTheSoftMaxVanishesAndDoesNotOverflow) {
  Case c = make(4, 64, 20);
  std::ranges::fill(c.q, 1.0F);
  std::ranges::fill(c.keys, -1000.0F);
  std::fill_n(c.keys.begin() + 7 * 64, 64, 1000.0F);
  std::ranges::fill(c.sinks, -1.0e30F);
  for (const float value : attend(c, 0, 4)) {
    EXPECT_EQ(value, 1000.0F);
  }
}

TEST_F(TileKernelsTest, NotANumberComesThrough) {
  Case c = make(5, 64, 6);
  c.q[2 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = attend(c, 0, 5);
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(std::isnan(out[i]), i / 64 == 2) << i;
  }
}

TEST_F(TileKernelsTest, IndexScoresAreWeightedPositiveParts) {
  for (const std::size_t heads : {1UL, 6UL, 16UL, 33UL, 64UL}) {
    for (const std::size_t count : {1UL, 15UL, 16UL, 19UL, 64UL}) {
      for (const std::size_t width : {32UL, 128UL}) {
        const Case c = make(heads, width, count);
        const std::vector<float> scores = index_scores(c);
        for (std::size_t j = 0; j < count; ++j) {
          double score = 0;
          double magnitude = 0;
          for (std::size_t h = 0; h < heads; ++h) {
            double dot = 0;
            double size = 0;
            for (std::size_t k = 0; k < width; ++k) {
              const double product = static_cast<double>(c.q[h * width + k]) *
                                     static_cast<double>(c.keys[j * width + k]);
              dot += product;
              size += std::fabs(product);
            }
            score += std::max(0.0, dot) * static_cast<double>(c.sinks[h]);
            magnitude += size * std::fabs(static_cast<double>(c.sinks[h]));
          }
          ASSERT_NEAR(scores[j], score, magnitude * static_cast<double>(width + heads + 2) * kUnit);
        }
      }
    }
  }
}

TEST_F(TileKernelsTest, UnpacksWhatThePackerWrote) {
  for (const RowFormat format :
       {RowFormat{.codec = RowCodec::kFp4, .width = 128, .plain = 128, .block = 32},
        RowFormat{.codec = RowCodec::kFp4, .width = 192, .plain = 192, .block = 64},
        RowFormat{.codec = RowCodec::kFp4E4m3, .width = 512, .plain = 512, .block = 16}}) {
    ASSERT_TRUE(unpacks_by_tiles(format));
    for (int round = 0; round < 50; ++round) {
      std::vector<float> row = random(format.width);
      for (float& value : row) {
        value *= std::exp2(static_cast<float>(round - 25));
      }
      std::vector<std::byte> packed(format.bytes());
      reference::pack_row(format, row, packed.data());
      std::vector<float> want(format.width);
      reference::unpack_row(format, packed.data(), want);
      std::vector<std::uint16_t> got(format.width);
      kAmxTiles.unpack_fp4(fp4_row(format, packed.data()), got.data());
      for (std::size_t c = 0; c < format.width; ++c) {
        ASSERT_EQ(from_bf16(got[c]), want[c]) << c;
      }
    }
  }
  EXPECT_FALSE(
      unpacks_by_tiles({.codec = RowCodec::kFp8, .width = 512, .plain = 448, .block = 64}));
  EXPECT_FALSE(unpacks_by_tiles({.codec = RowCodec::kFp4, .width = 48, .plain = 48, .block = 16}));
}

}  // namespace
}  // namespace galley::kernels
