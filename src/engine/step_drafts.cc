#include "engine/step_drafts.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/calibration.h"
#include "engine/speculation.h"

namespace galley::engine {

RowDrafts drafts_of(const PlannedRow& row,
                    std::size_t made,
                    std::int64_t left,
                    std::span<const float> confidences) {
  // The last token of an answer is drawn, not drafted.
  const std::int64_t count =
      std::min({static_cast<std::int64_t>(made), std::int64_t{row.drafts_max}, left - 1});
  return {.count = static_cast<std::size_t>(std::max<std::int64_t>(0, count)),
          .confidences = confidences};
}

std::vector<std::uint8_t> verify_lengths(const StepPlan& plan,
                                         std::size_t gamma,
                                         std::span<const RowDrafts> drafts) {
  GALLEY_ASSERT(drafts.size() == plan.rows.size());
  std::vector<std::uint8_t> counts;
  std::vector<float> confidences(drafts.size() * gamma, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    counts.push_back(static_cast<std::uint8_t>(drafts[i].count));
    for (std::size_t k = 0; plan.budget && k < drafts[i].confidences.size(); ++k) {
      confidences[i * gamma + k] =
          static_cast<float>(confidence(drafts[i].confidences[k], plan.temperatures[k]));
    }
  }
  return verify_lengths({.gamma = gamma, .confidences = confidences, .drafts = counts},
                        plan.budget);
}

}  // namespace galley::engine
