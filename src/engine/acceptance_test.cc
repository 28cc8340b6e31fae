// Goal: each rule of acceptance by itself; that whole answers keep their law is measured in
// plan/speculation_gates_test.cc. Method: laws of a few tokens whose shares are known.
#include "engine/acceptance.h"

#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace galley::engine {
namespace {

constexpr int kDraws = 40'000;

Draw at(std::int64_t position) {
  return {.seed = Seed(9), .choice = 1, .position = position};
}

// Five standard deviations of a binomial share.
double tolerance(double share) {
  return 5 * std::sqrt(share * (1 - share) / kDraws) + 1e-12;
}

TEST(Uniform, IsItsOwnForEverySeedPositionPurposeAndChoice) {
  const Draw draw = at(5);
  std::set<double> seen;
  for (const auto purpose :
       {DrawPurpose::kSample, DrawPurpose::kResidual, DrawPurpose::kAccept, DrawPurpose::kDraft}) {
    for (const std::size_t nth : {0U, 1U, 255U}) {
      const double value = uniform(draw, purpose, nth);
      EXPECT_GE(value, 0.0);
      EXPECT_LT(value, 1.0);
      EXPECT_EQ(value, uniform(draw, purpose, nth));
      seen.insert(value);
    }
  }
  seen.insert(uniform({.seed = Seed(10), .choice = 1, .position = 5}, DrawPurpose::kSample));
  seen.insert(uniform({.seed = Seed(9), .choice = 2, .position = 5}, DrawPurpose::kSample));
  seen.insert(uniform(at(6), DrawPurpose::kSample));
  EXPECT_EQ(seen.size(), 15U);
}

TEST(DrawFrom, InvertsTheDistributionFunction) {
  const std::array weights{0.0F, 1.0F, 0.0F, 2.0F, 1.0F, 0.0F};
  EXPECT_EQ(draw_from(weights, 0.0), 1U);
  EXPECT_EQ(draw_from(weights, 0.2499), 1U);
  EXPECT_EQ(draw_from(weights, 0.25), 3U);
  EXPECT_EQ(draw_from(weights, 0.7499), 3U);
  EXPECT_EQ(draw_from(weights, 0.75), 4U);
  EXPECT_EQ(draw_from(weights, 1.0 - 0x1p-53), 4U);
}

TEST(DrawResidual, IsWhatTheTargetHasMore) {
  const std::array p{0.5F, 0.3F, 0.2F};
  const std::array q{0.1F, 0.3F, 0.6F};
  for (const double u : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(draw_residual(p, q, u), 0U);
  }
}

TEST(DrawResidual, IsTheTargetWhereNothingIsLeft) {
  const std::array p{0.5F, 0.5F};
  EXPECT_EQ(draw_residual(p, p, 0.25), 0U);
  EXPECT_EQ(draw_residual(p, p, 0.75), 1U);
  // Mass of 5e-9 behind token 0 is rounding; of 2e-8 it is a law.
  EXPECT_EQ(draw_residual(std::array{5e-9F, 1.0F}, std::array{0.0F, 1.0F}, 0.5), 1U);
  EXPECT_EQ(draw_residual(std::array{2e-8F, 1.0F}, std::array{0.0F, 1.0F}, 0.5), 0U);
}

TEST(VerifyRatio, AcceptsWithTheRatioAndReplacesFromTheResidual) {
  const std::array p{0.2F, 0.5F, 0.3F, /* behind the draft: */ 0.0F, 0.0F, 1.0F};
  const std::array q{0.8F, 0.1F, 0.1F};
  const std::array drafts{TokenId{0}};
  std::array<int, 3> next{};
  int accepted = 0;
  for (int position = 0; position < kDraws; ++position) {
    const Verified verified =
        verify_ratio({.draw = at(position), .drafts = drafts, .vocabulary = 3, .p = p, .q = q});
    accepted += static_cast<int>(verified.accepted);
    if (verified.accepted == 0) {
      ++next[verified.next];
    } else {
      ASSERT_EQ(verified.next, 2U);
    }
  }
  EXPECT_NEAR(static_cast<double>(accepted) / kDraws, 0.25, tolerance(0.25));
  EXPECT_EQ(next[0], 0);
  // The residual is (0, .4, .2): two thirds of three quarters, and one third.
  EXPECT_NEAR(static_cast<double>(next[1]) / kDraws, 0.5, tolerance(0.5));
  EXPECT_NEAR(static_cast<double>(next[2]) / kDraws, 0.25, tolerance(0.25));
}

// T10.1, T10.4: a draft that a grammar forbids is a rejection where it stands. Drawn from p and not
// from what p has more than q, the answer would be 3 : 1.
TEST(VerifyRatio, AForbiddenDraftLeavesTheMaskedLawAsItIs) {
  const std::array p{0.5F, 0.5F, 0.0F, /* behind the draft: */ 0.0F, 1.0F, 0.0F};
  const std::array q{0.5F, 0.0F, 0.5F};
  std::array<int, 3> first{};
  for (int position = 0; position < kDraws; ++position) {
    const std::array drafts{draw_from(q, uniform(at(position), DrawPurpose::kDraft))};
    const Verified verified =
        verify_ratio({.draw = at(position), .drafts = drafts, .vocabulary = 3, .p = p, .q = q});
    ++first[verified.accepted == 1 ? drafts[0] : verified.next];
  }
  EXPECT_NEAR(first[0], kDraws / 2.0, 5 * std::sqrt(kDraws / 4.0));
  EXPECT_EQ(first[2], 0);
}

TEST(VerifyRatio, ADraftTheTargetLikesMoreAlwaysStands) {
  const std::array p{0.6F, 0.4F, 1.0F, 0.0F};
  const std::array q{0.5F, 0.5F};
  const std::array drafts{TokenId{0}};
  for (int position = 0; position < 2000; ++position) {
    const Verified verified =
        verify_ratio({.draw = at(position), .drafts = drafts, .vocabulary = 2, .p = p, .q = q});
    ASSERT_EQ(verified.accepted, 1U);
  }
}

// A row cut by the budget looks like one whose drafts all stood: its next token is the target's.
TEST(VerifyRatio, DrawsTheNextTokenFromTheTargetWhereNothingWasRejected) {
  const std::array p{0.7F, 0.3F};
  int first = 0;
  for (int position = 0; position < kDraws; ++position) {
    const Verified verified =
        verify_ratio({.draw = at(position), .drafts = {}, .vocabulary = 2, .p = p, .q = {}});
    EXPECT_EQ(verified.accepted, 0U);
    first += verified.next == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(first) / kDraws, 0.7, tolerance(0.7));
}

// Laws that are certain, as at temperature 0: the argmax decides alone.
TEST(VerifyRatio, GreedyAcceptsTheArgmaxOnly) {
  const std::array p{0.0F, 1.0F, 1.0F, 0.0F, 1.0F, 0.0F};
  const std::array q{0.0F, 1.0F, 0.0F, 1.0F};
  const std::array drafts{TokenId{1}, TokenId{1}};
  for (int position = 0; position < 500; ++position) {
    const Verified verified =
        verify_ratio({.draw = at(position), .drafts = drafts, .vocabulary = 2, .p = p, .q = q});
    ASSERT_EQ(verified.accepted, 1U);
    ASSERT_EQ(verified.next, 0U);
  }
}

// A draft that a grammar forbids (spec runtime 10.2): rejected, and replaced so that the law stays
// the masked one. Drawing from it directly would give (.75, .25).
TEST(VerifyRatio, AForbiddenDraftIsARejectionNotACut) {
  const std::array p{0.5F, 0.5F, 0.0F, 0.5F, 0.5F, 0.0F};
  const std::array q{0.5F, 0.0F, 0.5F};
  int first = 0;
  for (int position = 0; position < kDraws; ++position) {
    const std::array drafts{draw_from(q, uniform(at(position), DrawPurpose::kDraft))};
    const Verified verified =
        verify_ratio({.draw = at(position), .drafts = drafts, .vocabulary = 3, .p = p, .q = q});
    const TokenId token = verified.accepted == 1 ? drafts.front() : verified.next;
    ASSERT_NE(token, 2U);
    first += token == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(first) / kDraws, 0.5, tolerance(0.5));
}

TEST(VerifyExact, AcceptsUpToTheFirstDifference) {
  const std::array<TokenId, 3> drafts{4, 5, 6};
  const auto accepted = [&](std::array<TokenId, 4> targets) {
    return verify_exact(drafts, targets);
  };
  EXPECT_EQ(accepted({4, 5, 6, 7}).accepted, 3U);
  EXPECT_EQ(accepted({4, 5, 6, 7}).next, 7U);
  EXPECT_EQ(accepted({4, 9, 6, 7}).accepted, 1U);
  EXPECT_EQ(accepted({4, 9, 6, 7}).next, 9U);
  EXPECT_EQ(accepted({1, 5, 6, 7}).accepted, 0U);
  EXPECT_EQ(verify_exact({}, std::array{TokenId{3}}).next, 3U);
}

}  // namespace
}  // namespace galley::engine
