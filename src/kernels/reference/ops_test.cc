// Goal: the tie rule, and what a selection always keeps. Method: scores with equal values. (The
// formulas themselves are compared with goldens by model's GoldenCheck.)
#include "kernels/reference/ops.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

namespace galley::kernels::reference {
namespace {

TEST(Selection, TheLowerIndexWinsATie) {
  EXPECT_EQ(top_k(std::vector<float>{1, 3, 3, 3, 2}, 2), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(top_k(std::vector<float>(9, 0.0F), 4), (std::vector<std::int32_t>{0, 1, 2, 3}));
  const std::vector<float> scores = {0.5F, 0.25F, 0.25F, 0.25F};
  std::vector<std::int32_t> experts(2);
  std::vector<float> weights(2);
  route(scores, std::vector<float>{0, 0.25F, 0.25F, 0.25F}, 1.0F, {experts, weights});
  EXPECT_EQ(experts, (std::vector<std::int32_t>{0, 1}));
}

TEST(Selection, ExpertsAreChosenAmongNanToo) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int32_t> experts(2, -7);
  std::vector<float> weights(2);
  route(std::vector<float>{kNan, 0.5F, kNan, kNan}, {}, 1.0F, {experts, weights});
  EXPECT_EQ(experts, (std::vector<std::int32_t>{0, 1}));
  EXPECT_TRUE(std::isnan(weights[0]));
}

TEST(Selection, LeavesOutWhatIsHidden) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(top_k(std::vector<float>{kHidden, -1, kHidden}, 2), (std::vector<std::int32_t>{1}));
}

TEST(Selection, CandidatesKeepTheNewestBlockAndTheLowerOfEqualOnes) {
  const std::vector<float> scores = {7, 7, 9, 0, 9, 0, -5};  // blocks of two: 7, 9, 9, newest
  std::vector<std::uint8_t> kept(scores.size());
  keep_candidates(scores, 2, 2, kept);
  EXPECT_EQ(kept, (std::vector<std::uint8_t>{0, 0, 1, 1, 0, 0, 1}));
}

}  // namespace
}  // namespace galley::kernels::reference
