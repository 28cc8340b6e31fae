// Goal: an answer is gone on from only where nothing but its tokens matters, and never for ever.
// Method: the pure functions, at and past each bound.
#include "gateway/sources/resume.h"

#include <chrono>
#include <gtest/gtest.h>

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;
using recipe::Constraint;
using recipe::Generation;

TEST(Resume, TokensAloneMustTellHowToGoOn) {
  Generation plain;
  EXPECT_TRUE(can_go_on(plain, 0));
  EXPECT_TRUE(can_go_on(plain, 5));

  Generation seeded;
  seeded.sampling.seed = 7;
  EXPECT_TRUE(can_go_on(seeded, 0));
  EXPECT_FALSE(can_go_on(seeded, 1));
  seeded.sampling.temperature = 0;
  EXPECT_TRUE(can_go_on(seeded, 1));

  Generation present;
  present.sampling.presence_penalty = 0.5F;
  EXPECT_FALSE(can_go_on(present, 1));
  Generation frequent;
  frequent.sampling.frequency_penalty = -0.5F;
  EXPECT_FALSE(can_go_on(frequent, 1));

  Generation json;
  json.constraint.kind = Constraint::Kind::kJson;
  EXPECT_TRUE(can_go_on(json, 0));
  EXPECT_FALSE(can_go_on(json, 1));
  json.constraint.kind = Constraint::Kind::kToolCall;
  EXPECT_TRUE(can_go_on(json, 1));
}

TEST(Resume, OnlyFailuresThatMayPassAreTriedAgainAndNotForEver) {
  EXPECT_TRUE(tries_again(Code::kUnavailable, {.made = 1, .fruitless = 1}));
  for (const Code code : {Code::kInvalidArgument, Code::kOverloaded, Code::kInternal,
                          Code::kTooLarge, Code::kDeadlineExceeded}) {
    EXPECT_FALSE(tries_again(code, {.made = 1, .fruitless = 1})) << name(code);
  }
  EXPECT_TRUE(tries_again(Code::kUnavailable, {.made = 5, .fruitless = kFruitlessMax - 1}));
  EXPECT_FALSE(tries_again(Code::kUnavailable, {.made = 5, .fruitless = kFruitlessMax}));
  EXPECT_TRUE(tries_again(Code::kUnavailable, {.made = kAttemptsMax - 1, .fruitless = 0}));
  EXPECT_FALSE(tries_again(Code::kUnavailable, {.made = kAttemptsMax, .fruitless = 0}));
}

TEST(Resume, WaitsGrowUpToABound) {
  EXPECT_EQ(wait_before({.made = 1, .fruitless = 0}), 100ms);
  EXPECT_EQ(wait_before({.made = 1, .fruitless = 1}), 100ms);
  EXPECT_EQ(wait_before({.made = 2, .fruitless = 2}), 200ms);
  EXPECT_EQ(wait_before({.made = 3, .fruitless = 3}), 400ms);
  EXPECT_EQ(wait_before({.made = 100, .fruitless = 100}), 2s);
}

}  // namespace
}  // namespace galley::gateway
