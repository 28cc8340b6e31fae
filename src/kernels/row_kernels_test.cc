// Goal: attention, index scores, long dot products and gates of every instruction set are those of
// the reference within the rounding of their sums, and AVX2 and AVX-512 give the same bits. Method:
// random rows of every size around the tiles, against sums in double.
#include "kernels/row_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace galley::kernels {
namespace {

constexpr double kUnit = 0x1p-24;  // rounding of float32

std::vector<const RowKernels*> every_kernel() {
  std::vector<const RowKernels*> out = {&kAvx2Rows};
  if (std::ranges::count(supported_isas(), Isa::kAvx512) > 0) {
    out.push_back(&kAvx512Rows);
  }
  return out;
}

class RowKernelsTest : public testing::Test {
 protected:
  std::vector<float> random(std::size_t count, float size = 1.0F) {
    std::normal_distribution<float> normal(0.0F, size);
    std::vector<float> out(count);
    std::ranges::generate(out, [&] { return normal(random_); });
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
  Case make(std::size_t heads, std::size_t width, std::size_t count, float size) {
    return {heads,
            width,
            count,
            random(heads * width, size),
            random(count * width, size),
            random(heads),
            1.0F / std::sqrt(static_cast<float>(width))};
  }

  static std::vector<float> attend(const RowKernels& kernels, const Case& c) {
    std::vector<const float*> keys;
    for (std::size_t j = 0; j < c.count; ++j) {
      keys.push_back(c.keys.data() + j * c.width);
    }
    std::vector<float> out(c.heads * c.width, -1.0F);
    std::vector<float> scores(c.heads * ((c.count + 15) / 16 * 16));
    kernels.attend({.q = c.q.data(),
                    .heads = c.heads,
                    .width = c.width,
                    .keys = keys.data(),
                    .count = c.count,
                    .scale = c.scale,
                    .sinks = c.sinks.data(),
                    .out = out.data(),
                    .scores = scores.data()});
    return out;
  }

 private:
  std::mt19937_64 random_{1};  // NOLINT(cert-msc51-cpp): a fixed seed
};

// A score s carries (width + 2) u sum |q k| scale of error, e^s that much relative error and its
// own 4 u (exponential's docstring); numerator and denominator both, and the sums of `count` terms.
TEST_F(RowKernelsTest, AttentionIsTheSoftMaxWithSink) {
  for (const std::size_t heads : {1UL, 3UL, 4UL, 5UL, 8UL}) {
    for (const std::size_t count : {0UL, 1UL, 2UL, 3UL, 4UL, 5UL, 15UL, 16UL, 17UL, 40UL}) {
      for (const std::size_t width : {16UL, 48UL, 64UL, 80UL, 512UL}) {
        const Case c = make(heads, width, count, 1.0F);
        for (const RowKernels* const kernels : every_kernel()) {
          const std::vector<float> out = attend(*kernels, c);
          for (std::size_t h = 0; h < heads; ++h) {
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
              score_error =
                  std::max(score_error, magnitude * static_cast<double>(width + 2) * kUnit);
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
                                                static_cast<double>(2 * count + 8) * kUnit);
              ASSERT_NEAR(out[h * width + k], value, bound + 1e-30)
                  << heads << " heads, " << count << " keys, width " << width;
            }
          }
        }
      }
    }
  }
}

TEST_F(RowKernelsTest, TheTailOfTheSoftMaxVanishesAndDoesNotOverflow) {
  Case c = make(4, 16, 20, 1.0F);
  std::ranges::fill(c.q, 1.0F);
  std::ranges::fill(c.keys, -1000.0F);
  std::fill_n(c.keys.begin() + 7 * 16, 16, 1000.0F);
  std::ranges::fill(c.sinks, -1.0e30F);
  for (const RowKernels* const kernels : every_kernel()) {
    for (const float value : attend(*kernels, c)) {
      EXPECT_EQ(value, 1000.0F);
    }
  }
}

TEST_F(RowKernelsTest, NotANumberComesThrough) {
  Case c = make(5, 32, 6, 1.0F);
  c.q[2 * 32 + 5] = std::numeric_limits<float>::quiet_NaN();
  for (const RowKernels* const kernels : every_kernel()) {
    const std::vector<float> out = attend(*kernels, c);
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), i / 32 == 2) << i;
    }
  }
}

TEST_F(RowKernelsTest, IndexScoresAreWeightedPositiveParts) {
  for (const std::size_t heads : {1UL, 4UL, 6UL, 32UL}) {
    for (const std::size_t count : {1UL, 3UL, 4UL, 5UL, 8UL, 19UL}) {
      for (const std::size_t width : {32UL, 128UL}) {
        const Case c = make(heads, width, count, 1.0F);
        for (const RowKernels* const kernels : every_kernel()) {
          std::vector<float> scores(count, -1.0F);
          kernels->index_scores({.q = c.q.data(),
                                 .weights = c.sinks.data(),
                                 .heads = heads,
                                 .width = width,
                                 .keys = c.keys.data(),
                                 .count = count,
                                 .scores = scores.data()});
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
            ASSERT_NEAR(scores[j], score,
                        magnitude * static_cast<double>(width + heads + 2) * kUnit);
          }
        }
      }
    }
  }
}

// Of every length, for every number of rows on both sides; a product's bits do not depend on how
// many others are asked for.
TEST_F(RowKernelsTest, DotsOfEveryLength) {
  constexpr std::size_t kRows = 3;
  for (std::size_t width = 0; width < 200; ++width) {
    const std::vector<float> a = random(kRows * width);
    const std::vector<float> b = random(kRows * width);
    for (const RowKernels* const kernels : every_kernel()) {
      std::array<float, kRows * kRows> all{};
      kernels->dots({a.data(), kRows, b.data(), kRows, width, all.data(), kRows});
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::size_t j = 0; j < kRows; ++j) {
          double sum = 0;
          double magnitude = 0;
          for (std::size_t k = 0; k < width; ++k) {
            const double product =
                static_cast<double>(a[i * width + k]) * static_cast<double>(b[j * width + k]);
            sum += product;
            magnitude += std::fabs(product);
          }
          ASSERT_NEAR(all[j * kRows + i], sum, magnitude * static_cast<double>(width + 2) * kUnit);
          float alone = -1.0F;
          kernels->dots({a.data() + i * width, 1, b.data() + j * width, 1, width, &alone, 1});
          ASSERT_EQ(alone, all[j * kRows + i]) << i << " " << j;
        }
      }
    }
  }
}

// e^-|g| has 4 u of error and the few operations behind it one each; below -87 the result is 0.
TEST_F(RowKernelsTest, SwigluOfEveryCount) {
  for (const std::size_t count : {1UL, 15UL, 16UL, 17UL, 40UL}) {
    std::vector<float> gate = random(count, 20.0F);
    const std::vector<float> up = random(count, 8.0F);
    gate.front() = -200.0F;
    gate.back() = 200.0F;
    for (const float limit : {10.0F, std::numeric_limits<float>::infinity()}) {
      for (const RowKernels* const kernels : every_kernel()) {
        std::vector<float> h(count);
        kernels->swiglu({gate.data(), up.data(), count, limit, 0.75F, h.data()});
        for (std::size_t i = 0; i < count; ++i) {
          const double g = std::min(gate[i], limit);
          const double want = g / (1.0 + std::exp(-g)) *
                              static_cast<double>(std::clamp(up[i], -limit, limit)) * 0.75;
          ASSERT_NEAR(h[i], want, std::fabs(want) * 12 * kUnit + 1e-34) << gate[i];
        }
      }
    }
  }
}

TEST_F(RowKernelsTest, SwigluKeepsWhatIsNotANumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate = {kNan, 1.0F, 1.0F};
  const std::vector<float> up = {1.0F, kNan, 1.0F};
  for (const RowKernels* const kernels : every_kernel()) {
    std::vector<float> h(3);
    kernels->swiglu({gate.data(), up.data(), 3, 10.0F, 1.0F, h.data()});
    EXPECT_TRUE(std::isnan(h[0]));
    EXPECT_TRUE(std::isnan(h[1]));
    EXPECT_FALSE(std::isnan(h[2]));
  }
}

// Where the exponential leaves the normal numbers it is zero, and just above it is not.
TEST_F(RowKernelsTest, TheSoftMaxEndsAt87BelowTheLargest) {
  for (const float below : {86.9F, 87.0F, 87.1F}) {
    Case c = make(1, 16, 2, 1.0F);
    std::ranges::fill(c.q, 0.0F);
    std::ranges::fill(c.keys, 0.0F);
    c.q[0] = 1.0F;
    c.scale = 1.0F;
    c.keys[16] = -below;  // the score of the second key; the first scores 0
    c.keys[17] = 0x1p120F;
    c.sinks[0] = -200.0F;
    for (const RowKernels* const kernels : every_kernel()) {
      const float want = below > 87.0F
                             ? 0.0F
                             : static_cast<float>(std::exp(-static_cast<double>(below)) * 0x1p120);
      EXPECT_NEAR(attend(*kernels, c)[1], want, want * 1e-6F) << below;
    }
  }
}

TEST_F(RowKernelsTest, InstructionSetsGiveTheSameBits) {
  const std::vector<const RowKernels*> kernels = every_kernel();
  if (kernels.size() < 2) {
    GTEST_SKIP() << "this machine has no AVX-512 to compare with";
  }
  for (const std::size_t count : {1UL, 18UL, 33UL}) {
    const Case c = make(7, 80, count, 2.0F);
    for (const RowKernels* const other : kernels) {
      EXPECT_EQ(attend(*other, c), attend(*kernels.front(), c));
      const auto dot_and_gate = [&](const RowKernels& of) {
        std::array<float, 78> out{};
        of.dots({c.q.data(), 1, c.keys.data(), 1, 77, out.data(), 1});
        of.swiglu({c.q.data(), c.keys.data(), 77, 3.0F, 0.5F, out.data() + 1});
        return out;
      };
      EXPECT_EQ(dot_and_gate(*other), dot_and_gate(*kernels.front()));
      const auto scores = [&](const RowKernels& of) {
        std::vector<float> out(count);
        of.index_scores({.q = c.q.data(),
                         .weights = c.sinks.data(),
                         .heads = c.heads,
                         .width = c.width,
                         .keys = c.keys.data(),
                         .count = count,
                         .scores = out.data()});
        return out;
      };
      EXPECT_EQ(scores(*other), scores(*kernels.front()));
    }
  }
}

}  // namespace
}  // namespace galley::kernels
