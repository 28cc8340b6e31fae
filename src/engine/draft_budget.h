#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "engine/calibration.h"
#include "engine/speculation.h"
#include "engine/step_cost.h"

namespace galley::engine {

// What a running engine remembers of its drafts, and what it makes of that: how many of them the
// next step verifies, and whether it drafts at all (spec runtime 3). The budget comes from the
// confidences that the host knows, those of the drafts before the ones it cuts; what a step takes
// is learnt from those that are run. Where no budget beats a step without drafter, rows are
// without, but for a few steps now and then that tell whether that is still so: these verify a
// draft a row, whatever is thought of it. A plain value: times come in as numbers.
class DraftBudget {
 public:
  // Steps that an opinion needs, and that a trial takes.
  static constexpr std::size_t kTrial = 6;
  // A trial costs at most kTrial steps in so many.
  static constexpr std::int64_t kTrialEvery = 600;

  explicit DraftBudget(std::size_t gamma);

  struct Order {
    bool drafts{};                      // its sampler drafts for the step behind it
    std::optional<std::size_t> budget;  // drafts it verifies, of all rows; nothing: all there are
  };
  // The next step's, of these rows in decoding. `drafts` [rows]: how many each may have; `logits`
  // [rows, gamma]: the newest known confidences of each, before the sigmoid, NaN where there are
  // none.
  [[nodiscard]] Order choose(std::span<const std::uint8_t> drafts, std::span<const float> logits);

  // Of a settled row that goes on: the confidences behind its drafts, empty where the drafter gives
  // none, and what became of them.
  void observe_row(std::span<const float> logits, std::size_t verified, std::size_t accepted);
  // Of a settled step that did nothing but decode.
  struct StepFacts {
    std::size_t rows{};
    std::int64_t tokens{};  // fed
    bool drafted{};
    Duration forward{};
    Duration sampler{};
  };
  void observe_step(const StepFacts& facts);

  // How far confidences are trusted; see there when a fit is due.
  [[nodiscard]] const Calibration& calibration() const { return calibration_; }
  void set_temperatures(std::vector<double> temperatures) {
    calibration_.set_temperatures(std::move(temperatures));
  }

 private:
  // Of row counts between two powers of two.
  struct Load {
    std::array<std::size_t, 2> steps{};  // plain, drafting; up to kTrial
    // Tokens a second with drafts, over those without.
    std::optional<double> gain;
    std::int64_t steps_until_trial = kTrialEvery;
    std::size_t trial_left = 0;
  };
  // What counts for a while and then less and less.
  struct Fading {
    double value = 0.0;
    double weight = 0.0;
    [[nodiscard]] double mean(double before_any) const;
  };

  [[nodiscard]] static std::size_t load_of(std::size_t rows);
  [[nodiscard]] std::vector<RankedDraft> expected(std::span<const std::uint8_t> drafts,
                                                  std::span<const float> logits) const;
  [[nodiscard]] static bool pays(const Load& load);  // as far as is known
  [[nodiscard]] static bool drafts(const Load& load);

  std::size_t gamma_;
  StepCost cost_ = StepCost::learning();  // its sampler drafts
  SamplerCost plain_sampler_;
  Calibration calibration_;
  std::vector<Fading> confidence_;  // [gamma]: what drafts at this position were promised lately
  Fading trust_;                    // accepted over promised, of drafts verified lately
  std::array<Load, 16> loads_;
};

}  // namespace galley::engine
