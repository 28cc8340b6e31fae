#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"

namespace galley::engine {

// The drafts that a device has for one row of a step: how many may be verified, and the
// confidences of those and maybe more, before the sigmoid; none where the drafter tells none.
struct RowDrafts {
  std::size_t count = 0;
  std::span<const float> confidences;
};

// Of a row in decoding with `made` drafts behind it, whose request may get `left` tokens more.
[[nodiscard]] RowDrafts drafts_of(const PlannedRow& row,
                                  std::size_t made,
                                  std::int64_t left,
                                  std::span<const float> confidences);

// How many of its drafts each row of the plan verifies, by the plan's budget: one way for every
// device. `drafts`: one a row, nothing for rows that do not decode.
[[nodiscard]] std::vector<std::uint8_t> verify_lengths(const StepPlan& plan,
                                                       std::size_t gamma,
                                                       std::span<const RowDrafts> drafts);

}  // namespace galley::engine
