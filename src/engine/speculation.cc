#include "engine/speculation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"

namespace galley::engine {
namespace {

// Radix sort by the bits of a float, which order as numbers where none is negative. 1.0 has 30
// bits.
constexpr unsigned kRadixBits = 10;
constexpr unsigned kPasses = 3;
constexpr std::size_t kBuckets = std::size_t{1} << kRadixBits;
// Below, counting buckets takes longer than comparing.
constexpr std::size_t kRadixDraftsMin = 64;

std::size_t bucket(float survival, unsigned pass) {
  // From the complement, so that the largest comes first.
  const std::uint32_t key =
      std::bit_cast<std::uint32_t>(1.0F) - std::bit_cast<std::uint32_t>(survival);
  return (key >> (pass * kRadixBits)) & (kBuckets - 1);
}

// Stable: of equal ones the first stays first.
void sort_descending(std::vector<RankedDraft>& drafts) {
  if (drafts.size() < kRadixDraftsMin) {
    std::ranges::stable_sort(drafts, std::ranges::greater(), &RankedDraft::survival);
    return;
  }
  std::array<std::array<std::uint32_t, kBuckets>, kPasses> place{};
  for (const RankedDraft& draft : drafts) {
    for (unsigned pass = 0; pass < kPasses; ++pass) {
      ++place[pass][bucket(draft.survival, pass)];
    }
  }
  std::vector<RankedDraft> other(drafts.size());
  for (unsigned pass = 0; pass < kPasses; ++pass) {
    std::uint32_t before = 0;
    for (std::uint32_t& count : place[pass]) {
      before += std::exchange(count, before);
    }
    for (const RankedDraft& draft : drafts) {
      other[place[pass][bucket(draft.survival, pass)]++] = draft;
    }
    drafts.swap(other);
  }
}

// Missing is 1; nothing that a checkpoint may give leaves 0 to 1, where -0 would sort as a giant.
float known(float confidence) {
  return confidence > 0.0F ? std::min(confidence, 1.0F) : confidence <= 0.0F ? 0.0F : 1.0F;
}

// tau / T over budgets.
class Objective {
 public:
  Objective(std::span<const RankedDraft> ranked,
            std::size_t rows,
            std::size_t other_tokens,
            const StepCost& cost)
      : rows_(rows), undrafted_(rows + other_tokens), cost_(cost), tokens_(ranked.size() + 1) {
    tokens_[0] = static_cast<double>(rows);
    for (std::size_t k = 0; k < ranked.size(); ++k) {
      tokens_[k + 1] = tokens_[k] + double{ranked[k].survival};
    }
  }

  [[nodiscard]] std::size_t drafts() const { return tokens_.size() - 1; }
  // Expected tokens a second with the `budget` best drafts.
  [[nodiscard]] double budgeted(std::size_t budget) const {
    return tokens_[budget] / (seconds(budget) + cost_.budget_seconds());
  }
  [[nodiscard]] double fixed() const { return tokens_.back() / seconds(drafts()); }
  // The largest budget that costs no more than this one.
  [[nodiscard]] std::size_t filled(std::size_t budget) const {
    const std::int64_t graph = cost_.graph_of(static_cast<std::int64_t>(undrafted_ + budget));
    return std::min(static_cast<std::size_t>(graph) - undrafted_, drafts());
  }

 private:
  [[nodiscard]] double seconds(std::size_t budget) const {
    return cost_.seconds(static_cast<std::int64_t>(rows_),
                         static_cast<std::int64_t>(undrafted_ + budget));
  }

  std::size_t rows_;
  std::size_t undrafted_;  // tokens of the step before any draft
  const StepCost& cost_;
  std::vector<double> tokens_;  // [drafts + 1]: by budget
};

// Within a graph more drafts never hurt, so only full ones are weighed. Of equal ones the smallest.
std::size_t best_of_all(const Objective& objective) {
  std::size_t best = objective.filled(0);
  double most = objective.budgeted(best);
  for (std::size_t k = best; k < objective.drafts();) {
    k = objective.filled(k + 1);
    if (const double here = objective.budgeted(k); here > most) {
      most = here;
      best = k;
    }
  }
  return best;
}

std::size_t first_hill(const Objective& objective) {
  std::size_t k = 0;
  double here = objective.budgeted(k);
  while (k < objective.drafts()) {
    const double next = objective.budgeted(k + 1);
    if (next <= here) {
      break;
    }
    here = next;
    ++k;
  }
  // What is added depends on K alone, so it brings in no knowledge of later drafts.
  return objective.filled(k);
}

}  // namespace

std::vector<RankedDraft> rank(const DraftBatch& batch) {
  const std::size_t rows = batch.rows();
  GALLEY_ASSERT(batch.confidences.size() == rows * batch.gamma);
  std::vector<float> survival(rows, 1.0F);
  std::vector<RankedDraft> ranked;
  ranked.reserve(rows * batch.gamma);
  // Positions outside, rows inside: the order in which equal ones are to stand.
  for (std::size_t k = 0; k < batch.gamma; ++k) {
    for (std::size_t row = 0; row < rows; ++row) {
      GALLEY_ASSERT(batch.drafts[row] <= batch.gamma);
      if (k < batch.drafts[row]) {
        survival[row] *= known(batch.confidences[row * batch.gamma + k]);
        ranked.push_back({.survival = survival[row], .row = static_cast<std::uint32_t>(row)});
      }
    }
  }
  sort_descending(ranked);
  return ranked;
}

std::vector<std::uint8_t> allocate(std::span<const RankedDraft> ranked,
                                   std::size_t rows,
                                   std::size_t budget) {
  std::vector<std::uint8_t> lengths(rows);
  for (const RankedDraft& draft : ranked.first(std::min(budget, ranked.size()))) {
    ++lengths[draft.row];
  }
  return lengths;
}

std::vector<std::uint8_t> verify_lengths(const DraftBatch& batch,
                                         std::optional<std::size_t> budget) {
  if (!budget) {
    return {batch.drafts.begin(), batch.drafts.end()};
  }
  return allocate(rank(batch), batch.rows(), *budget);
}

Budget choose_budget(std::span<const RankedDraft> ranked,
                     std::size_t rows,
                     const StepCost& cost,
                     const BudgetOptions& options) {
  const Budget everything{.drafts = ranked.size(), .fixed = true};
  if (rows == 0 || !cost.measured()) {
    return everything;
  }
  const Objective objective(ranked, rows, options.other_tokens, cost);
  const std::size_t best =
      options.search == BudgetSearch::kGlobal ? best_of_all(objective) : first_hill(objective);
  if (best == ranked.size() ||
      (options.off_switch &&
       objective.budgeted(best) < objective.fixed() * (1.0 + kBudgetGainMin))) {
    return everything;
  }
  return {.drafts = best, .fixed = false};
}

}  // namespace galley::engine
