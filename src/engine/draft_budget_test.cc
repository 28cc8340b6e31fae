// Goal: rows draft and verify as much as makes them faster, at no more cost than a few trials.
// Method: a machine whose steps take known times, and drafts that stand with known chances.
#include "engine/draft_budget.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <vector>

#include "base/random.h"

namespace galley::engine {
namespace {

constexpr std::size_t kGamma = 5;

struct Machine {
  Duration step;                // of a step without tokens
  Duration token;               // of a token
  Duration drafter;             // of a step that drafts
  std::vector<double> chances;  // of a row's drafts, one after the other: [rows]
  double told = 1.0;            // the drafter's confidences are chance^told
  bool confident = true;        // there are confidences
  std::optional<double> says;   // the drafter's confidences are this, whatever the chance
};

struct Outcome {
  std::int64_t tokens = 0;
  Duration time{};
  int drafted = 0;
  int verified = 0;
  [[nodiscard]] double rate() const {
    return static_cast<double>(tokens) / static_cast<double>(time.count());
  }
};

float logit(double chance) {
  return static_cast<float>(std::log(chance / (1.0 - chance)));
}

// As the engine: a step's drafts are verified by the one behind it, and the budget knows the
// confidences of the step before.
Outcome simulate(DraftBudget* budget, const Machine& machine, int steps, bool drafts = true) {
  const std::size_t rows = machine.chances.size();
  Random random(Seed(7), 0);
  Outcome out;
  bool have = false;
  std::vector<float> known(rows * kGamma, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> told = known;
  for (std::size_t i = 0; machine.confident && i < told.size(); ++i) {
    told[i] = logit(machine.says.value_or(std::pow(machine.chances[i / kGamma], machine.told)));
  }
  for (int i = 0; i < steps; ++i) {
    const std::vector<std::uint8_t> there(rows, have ? kGamma : 0);
    const DraftBudget::Order order = budget != nullptr
                                         ? budget->choose(there, known)
                                         : DraftBudget::Order{.drafts = drafts, .budget = {}};
    const std::vector<std::uint8_t> lengths =
        verify_lengths({.gamma = kGamma,
                        .confidences =
                            [&] {
                              std::vector<float> out_of(told.size());
                              std::ranges::transform(told, out_of.begin(), [](float one) {
                                return static_cast<float>(confidence(one, 1.0));
                              });
                              return out_of;
                            }(),
                        .drafts = there},
                       order.budget);
    std::int64_t fed = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      std::size_t accepted = 0;
      while (accepted < lengths[row] && random.next_float() < machine.chances[row]) {
        ++accepted;
      }
      fed += 1 + lengths[row];
      out.verified += lengths[row];
      out.tokens += 1 + static_cast<std::int64_t>(accepted);
      if (budget != nullptr && have) {
        const auto logits = std::span(told).subspan(row * kGamma, kGamma);
        budget->observe_row(machine.confident ? logits : std::span<const float>(), lengths[row],
                            accepted);
      }
    }
    const Duration forward = machine.step + machine.token * fed;
    const Duration sampler = order.drafts ? machine.drafter : Duration();
    out.time += forward + sampler;
    out.drafted += order.drafts ? 1 : 0;
    if (budget != nullptr) {
      budget->observe_step({.rows = rows,
                            .tokens = fed,
                            .drafted = order.drafts,
                            .forward = forward,
                            .sampler = sampler});
    }
    known = have ? told : known;
    have = order.drafts;
  }
  return out;
}

using std::chrono::microseconds;

// What is lost at most against the better of always and never drafting: trials.
void expect_no_worse(const Machine& machine, int steps) {
  DraftBudget budget(kGamma);
  const Outcome chosen = simulate(&budget, machine, steps);
  const double plain = simulate(nullptr, machine, steps, false).rate();
  const double full = simulate(nullptr, machine, steps, true).rate();
  EXPECT_GT(chosen.rate(), std::max(plain, full) * 0.98)
      << "plain " << plain << ", all drafts " << full << ", drafted in " << chosen.drafted;
}

TEST(DraftBudgetTest, DraftsWhereThatIsFaster) {
  const Machine machine{.step = microseconds(1000),
                        .token = microseconds(10),
                        .drafter = microseconds(100),
                        .chances = {0.8}};
  DraftBudget budget(kGamma);
  EXPECT_GT(simulate(&budget, machine, 4000).drafted, 3900);
  expect_no_worse(machine, 4000);
}

TEST(DraftBudgetTest, StopsDraftingWhereThatIsSlower) {
  const Machine machine{.step = microseconds(100),
                        .token = microseconds(300),
                        .drafter = microseconds(300),
                        .chances = std::vector(8, 0.3)};
  DraftBudget budget(kGamma);
  EXPECT_LT(simulate(&budget, machine, 4000).drafted, 80);
  expect_no_worse(machine, 4000);
}

TEST(DraftBudgetTest, VerifiesThePromisingDraftsWhereTokensCost) {
  const Machine machine{.step = microseconds(1000),
                        .token = microseconds(120),
                        .drafter = microseconds(50),
                        .chances = {0.95, 0.95, 0.3, 0.3, 0.3, 0.3, 0.1, 0.1}};
  DraftBudget budget(kGamma);
  const Outcome chosen = simulate(&budget, machine, 4000);
  const double best = std::max(simulate(nullptr, machine, 4000, true).rate(),
                               simulate(nullptr, machine, 4000, false).rate());
  EXPECT_GT(chosen.rate(), 1.08 * best);
  EXPECT_LT(chosen.verified, 4000 * 20);
}

TEST(DraftBudgetTest, KnowsWhatBraggingConfidencesAreWorth) {
  const Machine bragging{.step = microseconds(500),
                         .token = microseconds(200),
                         .drafter = microseconds(100),
                         .chances = std::vector(4, 0.2),
                         .told = 0.05};
  DraftBudget budget(kGamma);
  EXPECT_LT(simulate(&budget, bragging, 4000).drafted, 200);
  expect_no_worse(bragging, 4000);
}

TEST(DraftBudgetTest, DoesWithoutConfidences) {
  for (const double chance : {0.2, 0.85}) {
    expect_no_worse({.step = microseconds(500),
                     .token = microseconds(100),
                     .drafter = microseconds(100),
                     .chances = std::vector(4, chance),
                     .confident = false},
                    4000);
  }
}

TEST(DraftBudgetTest, NoticesWhenDraftsGetBetter) {
  Machine machine{.step = microseconds(1000),
                  .token = microseconds(100),
                  .drafter = microseconds(100),
                  .chances = {0.05}};
  DraftBudget budget(kGamma);
  EXPECT_LT(simulate(&budget, machine, 3000).drafted, 200);
  machine.chances = {0.9};
  EXPECT_GT(simulate(&budget, machine, 3000).drafted, 1500);
  machine.chances = {0.05};
  simulate(&budget, machine, 200);
  EXPECT_LT(simulate(&budget, machine, 1000).drafted, 100);
}

// Its confidences show nothing: only what is verified does. However long it was trusted before.
TEST(DraftBudgetTest, ADrafterThatBraggedIsJudgedAnew) {
  for (const int good_before : {0, 3000}) {
    Machine machine{.step = microseconds(1000),
                    .token = microseconds(100),
                    .drafter = microseconds(100),
                    .chances = {0.9},
                    .says = 0.9};
    DraftBudget budget(kGamma);
    simulate(&budget, machine, good_before);
    machine.chances = {0.03};
    EXPECT_LT(simulate(&budget, machine, 3000).drafted, 400);
    machine.chances = {0.9};
    constexpr int kOneTrial = static_cast<int>(DraftBudget::kTrialEvery + 2 * DraftBudget::kTrial);
    simulate(&budget, machine, kOneTrial);
    const Outcome after = simulate(&budget, machine, 100);
    EXPECT_GT(after.drafted, 90);  // all but a trial
    EXPECT_GT(after.verified, 300);
    machine.chances = {0.03};
    simulate(&budget, machine, 400);
    EXPECT_LT(simulate(&budget, machine, 1200).drafted, 100);
  }
}

TEST(DraftBudgetTest, EachLoadHasItsOwnOpinion) {
  Machine alone{.step = microseconds(1000),
                .token = microseconds(60),
                .drafter = microseconds(60),
                .chances = {0.6}};
  Machine crowd = alone;
  crowd.step = microseconds(10);
  crowd.chances = std::vector(32, 0.1);
  DraftBudget budget(kGamma);
  int drafted_alone = 0;
  int drafted_in_crowd = 0;
  for (int i = 0; i < 20; ++i) {
    drafted_alone += simulate(&budget, alone, 50).drafted;
    drafted_in_crowd += simulate(&budget, crowd, 50).drafted;
  }
  EXPECT_GT(drafted_alone, 900);
  EXPECT_LT(drafted_in_crowd, 300);
}

// One of them counts for all: 0 drafts there, as behind a step that drafted nothing.
TEST(DraftBudgetTest, NothingToVerifyHasNoBudget) {
  DraftBudget budget(kGamma);
  const std::vector<std::uint8_t> none(3, 0);
  const std::vector<float> unknown(3 * kGamma, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(budget.choose(none, unknown).budget);
  EXPECT_FALSE(budget.choose({}, {}).budget);
}

}  // namespace
}  // namespace galley::engine
