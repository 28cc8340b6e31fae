// Goal: budgets are the best there are and allocations are fair prefixes (gates T3.2 and T3.3 of
// spec runtime 3.9). Method: random batches and staircases against plain sorting and exhaustion.
#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/random.h"

namespace galley::engine {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

struct Batch {
  std::size_t gamma{};
  std::vector<float> confidences;
  std::vector<std::uint8_t> drafts;

  [[nodiscard]] DraftBatch view() const {
    return {.gamma = gamma, .confidences = confidences, .drafts = drafts};
  }
};

// A quarter of the confidences from a few values, so that many are equal.
Batch random_batch(Random& random, std::size_t rows_max, std::size_t gamma_max) {
  Batch batch{.gamma = 1 + random.next_below(gamma_max)};
  const std::size_t rows = 1 + random.next_below(rows_max);
  for (std::size_t i = 0; i < rows * batch.gamma; ++i) {
    constexpr std::array kFew{0.0F, 0.5F, 1.0F, kMissing};
    batch.confidences.push_back(random.next_below(4) == 0 ? kFew[random.next_below(kFew.size())]
                                                          : random.next_float());
  }
  for (std::size_t row = 0; row < rows; ++row) {
    batch.drafts.push_back(static_cast<std::uint8_t>(
        random.next_below(3) == 0 ? random.next_below(batch.gamma + 1) : batch.gamma));
  }
  return batch;
}

// [rows, gamma]; -1 where there is no draft.
std::vector<float> survivals(const Batch& batch) {
  std::vector<float> out;
  for (std::size_t row = 0; row < batch.drafts.size(); ++row) {
    float survival = 1.0F;
    for (std::size_t k = 0; k < batch.gamma; ++k) {
      const float confidence = batch.confidences[row * batch.gamma + k];
      survival *= std::isnan(confidence) ? 1.0F : confidence;
      out.push_back(k < batch.drafts[row] ? survival : -1.0F);
    }
  }
  return out;
}

// The rule as it is written: the K largest, ties to the smaller position, then the lower row.
std::vector<std::uint8_t> allocate_plainly(const Batch& batch, std::size_t budget) {
  const std::vector<float> values = survivals(batch);
  std::vector<std::tuple<float, std::size_t, std::size_t>> order;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0.0F) {
      order.emplace_back(-values[i], i % batch.gamma, i / batch.gamma);
    }
  }
  std::ranges::sort(order);
  std::vector<std::uint8_t> lengths(batch.drafts.size());
  for (std::size_t i = 0; i < std::min(budget, order.size()); ++i) {
    // Prefixes: a position comes only behind the one before it.
    EXPECT_EQ(lengths[std::get<2>(order[i])]++, std::get<1>(order[i]));
  }
  return lengths;
}

StepCost cost_of(std::vector<StepPoint> points, double budget_seconds = 0.0) {
  auto cost = StepCost::create({.points = std::move(points), .budget_seconds = budget_seconds});
  EXPECT_TRUE(cost.has_value());
  return *std::move(cost);
}

// A few graphs, the largest perhaps below what the batch needs, each slower than the last by
// anything between nothing and much.
StepCost random_staircase(Random& random, std::size_t tokens) {
  std::vector<StepPoint> points;
  double seconds = 1.0;
  for (std::size_t graph = 1; graph <= tokens; ++graph) {
    if (graph == 1 || random.next_below(2) == 0) {
      seconds += 0.5 * double{random.next_float()} * double{random.next_float()};
      points.push_back({.graph = static_cast<std::int64_t>(graph), .seconds = seconds});
    }
  }
  return cost_of(std::move(points));
}

TEST(Allocation, IsTheRuleAsWritten) {
  Random random(Seed(1), 0);
  for (int round = 0; round < 3000; ++round) {
    // Small batches are sorted in another way than large ones.
    const Batch batch = random_batch(random, round % 2 == 0 ? 6 : 60, 6);
    const std::size_t rows = batch.drafts.size();
    const auto ranked = rank(batch.view());
    const std::size_t available =
        std::accumulate(batch.drafts.begin(), batch.drafts.end(), std::size_t{0});
    ASSERT_EQ(ranked.size(), available);
    const std::size_t budget = random.next_below(available + 3);
    const auto lengths = allocate(ranked, rows, budget);
    ASSERT_EQ(lengths, allocate_plainly(batch, budget));
    ASSERT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}),
              std::min(budget, available));
    for (std::size_t row = 0; row < rows; ++row) {
      ASSERT_LE(lengths[row], batch.drafts[row]);
    }
  }
}

TEST(Allocation, RowsMayStandInAnyOrder) {
  Random random(Seed(2), 0);
  for (int round = 0; round < 1000; ++round) {
    Batch batch = random_batch(random, 40, 5);
    for (float& confidence : batch.confidences) {
      confidence = 0.01F + 0.98F * random.next_float();  // no ties, or hardly any
    }
    std::vector<float> values = survivals(batch);
    std::erase(values, -1.0F);
    std::ranges::sort(values);
    if (std::ranges::adjacent_find(values) != values.end()) {
      continue;
    }
    const std::size_t rows = batch.drafts.size();
    std::vector<std::size_t> place(rows);
    std::iota(place.begin(), place.end(), std::size_t{0});
    for (std::size_t i = rows; i > 1; --i) {
      std::swap(place[i - 1], place[random.next_below(i)]);
    }
    Batch moved{.gamma = batch.gamma,
                .confidences = std::vector<float>(batch.confidences.size()),
                .drafts = std::vector<std::uint8_t>(rows)};
    for (std::size_t row = 0; row < rows; ++row) {
      moved.drafts[place[row]] = batch.drafts[row];
      std::copy_n(&batch.confidences[row * batch.gamma], batch.gamma,
                  &moved.confidences[place[row] * batch.gamma]);
    }
    const std::size_t budget = random.next_below(rows * batch.gamma + 1);
    const auto lengths = allocate(rank(batch.view()), rows, budget);
    const auto moved_lengths = allocate(rank(moved.view()), rows, budget);
    for (std::size_t row = 0; row < rows; ++row) {
      ASSERT_EQ(moved_lengths[place[row]], lengths[row]);
    }
  }
}

TEST(Allocation, EqualOnesGoToTheSmallerPositionThenToTheLowerRow) {
  const Batch batch{.gamma = 2, .confidences = {1, 1, 1, 1, 1, 1}, .drafts = {2, 2, 2}};
  const auto ranked = rank(batch.view());
  using Lengths = std::vector<std::uint8_t>;
  EXPECT_EQ(allocate(ranked, 3, 2), (Lengths{1, 1, 0}));
  EXPECT_EQ(allocate(ranked, 3, 4), (Lengths{2, 1, 1}));
  EXPECT_EQ(allocate(ranked, 3, 9), (Lengths{2, 2, 2}));
}

TEST(Allocation, AMissingConfidenceCountsAsOneWhereThereIsADraft) {
  const Batch batch{.gamma = 2,
                    .confidences = {0.9F, 0.9F, kMissing, kMissing, kMissing, 0.5F},
                    .drafts = {2, 1, 2}};
  const auto ranked = rank(batch.view());
  ASSERT_EQ(ranked.size(), 5U);
  EXPECT_EQ(ranked[0].row, 1U);
  EXPECT_EQ(ranked[0].survival, 1.0F);
  EXPECT_EQ(ranked[1].row, 2U);
  EXPECT_EQ(ranked[1].survival, 1.0F);
  EXPECT_EQ(ranked.back().survival, 0.5F);
}

TEST(Allocation, StrangeConfidencesStayBetweenZeroAndOne) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t rows : {1U, 20U}) {
    Batch batch{.gamma = 5};
    for (std::size_t row = 0; row < rows; ++row) {
      batch.confidences.insert(batch.confidences.end(), {7.0F, infinity, -0.0F, -3.0F, -infinity});
      batch.drafts.push_back(5);
    }
    const auto ranked = rank(batch.view());
    ASSERT_EQ(ranked.size(), 5 * rows);
    EXPECT_EQ(ranked.front().survival, 1.0F);
    EXPECT_EQ(ranked[2 * rows - 1].survival, 1.0F);
    EXPECT_EQ(ranked[2 * rows].survival, 0.0F);
    EXPECT_EQ(ranked.back().survival, 0.0F);
  }
}

// T3.3.
TEST(Budget, IsTheExhaustiveMaximum) {
  Random random(Seed(3), 0);
  int partial = 0;
  for (int round = 0; round < 5000; ++round) {
    const Batch batch = random_batch(random, 4, 3);
    const std::size_t rows = batch.drafts.size();
    const auto ranked = rank(batch.view());
    const std::size_t others = random.next_below(2) * random.next_below(6);
    const StepCost cost = random_staircase(random, rows + others + random.next_below(rows * 3 + 1));
    const auto objective = [&](std::size_t budget) {
      double tokens = static_cast<double>(rows);
      for (std::size_t i = 0; i < budget; ++i) {
        tokens += double{ranked[i].survival};
      }
      return tokens / cost.seconds(static_cast<std::int64_t>(rows),
                                   static_cast<std::int64_t>(rows + others + budget));
    };
    double most = 0.0;
    for (std::size_t budget = 0; budget <= ranked.size(); ++budget) {
      most = std::max(most, objective(budget));
    }
    const Budget budget =
        choose_budget(ranked, rows, cost, {.off_switch = false, .other_tokens = others});
    ASSERT_DOUBLE_EQ(objective(budget.drafts), most);
    ASSERT_EQ(budget.fixed, budget.drafts == ranked.size());
    // Nothing is left that would cost nothing.
    if (!budget.fixed) {
      ++partial;
      const auto tokens = static_cast<std::int64_t>(rows + others + budget.drafts);
      ASSERT_EQ(cost.graph_of(tokens), tokens);
    }
  }
  EXPECT_GT(partial, 1000);
}

// Two rows of two drafts; a second hill behind a step that does not pay by itself.
TEST(Budget, SearchesBehindTheFirstHillOnlyWhenGlobal) {
  const Batch batch{.gamma = 2, .confidences = {0.9F, 0.9F, 0.9F, 0.9F}, .drafts = {2, 2}};
  const auto ranked = rank(batch.view());
  const StepCost cost = cost_of({{2, 1.0}, {3, 1.3}, {4, 2.1}, {5, 2.1001}, {6, 2.1002}});
  // Tokens a second: 2, 2.23, 1.81, 2.19, 2.58.
  EXPECT_EQ(choose_budget(ranked, 2, cost).drafts, 4U);
  const Budget first = choose_budget(
      ranked, 2, cost, {.search = BudgetSearch::kFirstNonImprovement, .off_switch = false});
  EXPECT_EQ(first.drafts, 1U);
  EXPECT_FALSE(first.fixed);
}

TEST(Budget, FillsTheGraphThatIsPaidForAnyhow) {
  const Batch batch{.gamma = 3, .confidences = {0.9F, 0.1F, 0, 0.1F, 0, 0}, .drafts = {3, 3}};
  const auto ranked = rank(batch.view());
  const StepCost cost = cost_of({{4, 1.0}, {8, 3.0}});
  for (const auto search : {BudgetSearch::kGlobal, BudgetSearch::kFirstNonImprovement}) {
    EXPECT_EQ(choose_budget(ranked, 2, cost, {.search = search, .off_switch = false}).drafts, 2U);
  }
  // Also when what fills it has no chance at all.
  const Batch hopeless{.gamma = 3, .confidences = {0, 0, 0, 0, 0, 0}, .drafts = {3, 3}};
  for (const auto search : {BudgetSearch::kGlobal, BudgetSearch::kFirstNonImprovement}) {
    EXPECT_EQ(choose_budget(rank(hopeless.view()), 2, cost, {.search = search, .off_switch = false})
                  .drafts,
              2U);
  }
}

TEST(Budget, WithoutAMeasuredTableVerifiesEverything) {
  const Batch batch{.gamma = 2, .confidences = {0, 0, 0, 0}, .drafts = {2, 1}};
  const Budget budget = choose_budget(rank(batch.view()), 2, StepCost());
  EXPECT_EQ(budget.drafts, 3U);
  EXPECT_TRUE(budget.fixed);
  EXPECT_TRUE(choose_budget({}, 0, cost_of({{1, 1.0}})).fixed);
}

TEST(Budget, TakesTheFixedPathWhereABudgetDoesNotPay) {
  // Half of the drafts are hopeless; leaving them out saves `saved` of a step of 1.
  const Batch batch{.gamma = 2, .confidences = {1, 0, 1, 0}, .drafts = {2, 2}};
  const auto ranked = rank(batch.view());
  const auto choose = [&](double saved, double overhead) {
    return choose_budget(ranked, 2, cost_of({{2, 0.7}, {4, 1.0 - saved}, {6, 1.0}}, overhead));
  };
  EXPECT_EQ(choose(0.1, 0.0).drafts, 2U);
  EXPECT_FALSE(choose(0.1, 0.0).fixed);
  EXPECT_FALSE(choose(0.1, 0.08).fixed);
  EXPECT_TRUE(choose(0.1, 0.11).fixed);
  EXPECT_EQ(choose(0.1, 0.11).drafts, 4U);
  // A gain below kBudgetGainMin is none.
  EXPECT_TRUE(choose(0.1, 0.095).fixed);
  EXPECT_FALSE(
      choose_budget(ranked, 2, cost_of({{2, 0.7}, {4, 0.9}, {6, 1.0}}, 0.11), {.off_switch = false})
          .fixed);
}

}  // namespace
}  // namespace galley::engine
