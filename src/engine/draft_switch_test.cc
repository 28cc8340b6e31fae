// Goal: rows draft where that is faster, at no more cost than a few trials. Method: a machine whose
// steps take known times.
#include "engine/draft_switch.h"

#include <gtest/gtest.h>

namespace galley::engine {
namespace {

struct Machine {
  Duration plain;
  Duration drafting;
  std::int64_t accepted{};  // a row and step
};

struct Outcome {
  std::int64_t tokens{};
  Duration time{};
  int drafted = 0;
  [[nodiscard]] double rate() const {
    return static_cast<double>(tokens) / static_cast<double>(time.count());
  }
};

// As the engine: the drafts of a step are verified by the one behind it.
Outcome simulate(DraftSwitch& drafts, const Machine& machine, std::size_t rows, int steps) {
  Outcome out;
  bool have_drafts = false;
  for (int i = 0; i < steps; ++i) {
    const bool on = drafts.drafts(rows);
    const auto each = have_drafts && on ? 1 + machine.accepted : 1;
    const Duration time = on ? machine.drafting : machine.plain;
    drafts.observe(rows, on, each * static_cast<std::int64_t>(rows), time);
    have_drafts = on;
    out.tokens += each * static_cast<std::int64_t>(rows);
    out.time += time;
    out.drafted += on ? 1 : 0;
  }
  return out;
}

constexpr Machine kGood{.plain = std::chrono::milliseconds(10),
                        .drafting = std::chrono::milliseconds(15),
                        .accepted = 2};
constexpr Machine kBad{.plain = std::chrono::milliseconds(10),
                       .drafting = std::chrono::milliseconds(15),
                       .accepted = 0};

TEST(DraftSwitch, LosesLittleAgainstTheBetterWay) {
  constexpr int kSteps = 5000;
  DraftSwitch good;
  EXPECT_GT(simulate(good, kGood, 4, kSteps).drafted, kSteps * 98 / 100);
  DraftSwitch bad;
  const Outcome plain = simulate(bad, kBad, 4, kSteps);
  EXPECT_LT(plain.drafted, kSteps * 3 / 100);
  EXPECT_GT(plain.rate(), 0.98 * 4 / 1e7);  // 4 rows, 10 ms
}

TEST(DraftSwitch, FollowsAChangeWithinItsTrials) {
  DraftSwitch drafts;
  simulate(drafts, kBad, 4, 2000);
  simulate(drafts, kGood, 4, 2 * DraftSwitch::kTrialEvery);
  EXPECT_GT(simulate(drafts, kGood, 4, 400).drafted, 380);
}

TEST(DraftSwitch, LearnsForEachLoadAlone) {
  DraftSwitch drafts;
  simulate(drafts, kGood, 1, 1000);
  simulate(drafts, kBad, 32, 1000);
  EXPECT_GT(simulate(drafts, kGood, 1, 200).drafted, 180);
  EXPECT_LT(simulate(drafts, kBad, 32, 200).drafted, 20);
}

}  // namespace
}  // namespace galley::engine
