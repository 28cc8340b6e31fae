// Goal: attention, index scores and long dot products of every instruction set are those of the
// reference within the rounding of their sums, and AVX2 and AVX-512 give the same bits.
// Method: random rows of every size around the tiles, against sums in double.
#include "kernels/row_kernels.h"

#include <algorithm>
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

TEST_F(RowKernelsTest, DotOfEveryLength) {
  for (std::size_t count = 0; count < 200; ++count) {
    const std::vector<float> a = random(count);
    const std::vector<float> b = random(count);
    double sum = 0;
    double magnitude = 0;
    for (std::size_t k = 0; k < count; ++k) {
      sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
      magnitude += std::fabs(static_cast<double>(a[k]) * static_cast<double>(b[k]));
    }
    for (const RowKernels* const kernels : every_kernel()) {
      ASSERT_NEAR(kernels->dot(a.data(), b.data(), count), sum,
                  magnitude * static_cast<double>(count + 2) * kUnit);
    }
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
      EXPECT_EQ(other->dot(c.q.data(), c.keys.data(), 77),
                kernels.front()->dot(c.q.data(), c.keys.data(), 77));
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
