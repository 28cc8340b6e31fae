#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/step_cost.h"

// How many draft tokens a step verifies, and whose (spec runtime 3.2, 3.3). Pure functions.
//
// Two clocks keep this lossless. The budget of step N comes from the confidences of step N-2, since
// it shapes the step; the allocation from those of step N-1, the drafts now verified. Whether a
// draft is verified then depends only on what was known before that draft was drawn. A budget
// searched over the same step's confidences breaks this: a confidence sees the drafts before it, so
// a draft would have a say in its own admission. Only exact mode (engine/acceptance.h) allows that.
namespace galley::engine {

// One value per draft position of each row; not owned.
struct DraftBatch {
  std::size_t gamma{};  // positions a row
  // [rows, gamma]: chance, 0 to 1, that a draft is right given that those before it are. NaN is a
  // missing confidence and counts as 1, so that nothing is cut for want of knowledge; whoever owns
  // the rows puts NaN where a slot changed hands since, and 0 where the row has ended.
  std::span<const float> confidences;
  std::span<const std::uint8_t> drafts;  // [rows]: how many drafts the row has, at most gamma

  [[nodiscard]] std::size_t rows() const { return drafts.size(); }
};

struct RankedDraft {
  float survival{};  // product of the confidences up to this position
  std::uint32_t row{};
};

// All drafts of the batch, the most likely to survive first; of equal ones the smaller position,
// then the lower row. Those of one row always come in the order of their positions. 256 rows of 5
// take some ten microseconds.
[[nodiscard]] std::vector<RankedDraft> rank(const DraftBatch& batch);

// Verify lengths: how many drafts of each of `rows` rows are among the first `budget` of `ranked`.
[[nodiscard]] std::vector<std::uint8_t> allocate(std::span<const RankedDraft> ranked,
                                                 std::size_t rows,
                                                 std::size_t budget);

// How many drafts of each row a step verifies: all, or the `budget` most likely to survive.
[[nodiscard]] std::vector<std::uint8_t> verify_lengths(const DraftBatch& batch,
                                                       std::optional<std::size_t> budget);

enum class BudgetSearch : std::uint8_t {
  // The best budget of all. Step times are a staircase, so the first hill need not be the highest.
  // In ratio mode for lagged confidences only.
  kGlobal,
  // Stops before the first draft that does not help. Allowed on the confidences of the same step.
  kFirstNonImprovement,
};

// A budget must promise this share more tokens a second than verifying everything. The promise is
// the best of many noisy ones, hence too good by about so much near the break-even.
inline constexpr double kBudgetGainMin = 0.01;

struct BudgetOptions {
  BudgetSearch search = BudgetSearch::kGlobal;
  // Lets a step take the fixed path where the measured table says that a budget does not pay. It
  // weighs the confidences of all positions, so it counts as a global search.
  bool off_switch = true;
  // Of prompts that the step computes beside its rows, where batches are mixed.
  std::size_t other_tokens = 0;
};

struct Budget {
  std::size_t drafts{};  // K, at most those there are
  // Every draft is verified: no allocation is needed, and nothing is paid for one.
  bool fixed{};
};

// The K that maximises expected tokens a second, (rows + sum of the K best survivals) / T(rows,
// rows + other_tokens + K), rounded up to what the padded graph holds anyway. The fixed path where
// `cost` has no measured table, where the off switch says so and where K is everything.
[[nodiscard]] Budget choose_budget(std::span<const RankedDraft> ranked,
                                   std::size_t rows,
                                   const StepCost& cost,
                                   const BudgetOptions& options = {});

}  // namespace galley::engine
