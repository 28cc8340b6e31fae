#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "engine/step_cost.h"

// The experiments behind the gates of speculation (spec runtime 3.9), as functions that return
// figures. They run the engine's own budget, allocation, acceptance and calibration on tabular laws
// and on a toy of drafters; what is random comes from the seed. Tests assert the figures, the
// planner prints them.
namespace galley::plan {

enum class BudgetPolicy : std::uint8_t {
  kEverything,     // fixed verify lengths
  kLagged,         // what ships: global search on the confidences of two steps ago, off switch
  kEarlyStop,      // same step, first non-improvement
  kRetrospective,  // same step, global search: loses the law under the ratio test
};
inline constexpr std::array kBudgetPolicies{BudgetPolicy::kEverything, BudgetPolicy::kLagged,
                                            BudgetPolicy::kEarlyStop, BudgetPolicy::kRetrospective};
[[nodiscard]] std::string_view name(BudgetPolicy policy);

enum class Acceptance : std::uint8_t { kRatio, kExact };

// T3.1. How far a law of samples is from the exact one.
struct LawFigures {
  std::int64_t draws{};
  std::size_t outcomes{};
  double total_variation{};
  // Of the total variation of that many draws from the exact law: half the sum over the outcomes of
  // the standard deviations of their shares.
  double standard_error{};
  double verified_share{};  // of the drafts there were

  [[nodiscard]] double distance() const { return total_variation / standard_error; }
};

// Random tables: the target's law of a token given the one before it, a drafter's that errs, and
// its confidences, which know how much. Rows of `rows` requests are stepped together until each
// has two tokens; the figure is about their joint law.
struct LawExperiment {
  std::size_t vocabulary = 4;
  std::size_t gamma = 3;
  std::size_t rows = 2;
  std::int64_t draws = 400'000;  // a multiple of rows
  Seed seed;
};
[[nodiscard]] LawFigures measure_law(const LawExperiment& experiment,
                                     BudgetPolicy policy,
                                     Acceptance acceptance);

// The paper's two-token example (spec runtime 3.3): one row, p = (.7, .3), q = (.5, .5), and a
// second draft that is worth verifying behind one of the two first drafts only. `total_variation`
// is that of the first token.
struct ExampleFigures {
  double first_share{};  // of the token of probability .7
  LawFigures law;
};
[[nodiscard]] ExampleFigures paper_example(BudgetPolicy policy,
                                           Acceptance acceptance,
                                           std::int64_t draws,
                                           Seed seed);

// A trap behind the two clocks: positions that were drafted before, in a step that did not reach
// them. One row, four drafts, p = (.7, .3), q = (.5, .5); a budget pays only when all drafts of two
// steps ago were token 0. If a position's drafts shared their noise, those of today would often be
// the ones that bought today's budget. Joint law of three tokens, lagged policy, ratio test.
[[nodiscard]] LawFigures repeated_drafts(std::int64_t draws, Seed seed);

// The cost model fitted to the two public points of DSpark (spec runtime 3.6), in units of a step
// without tokens: T = 1 + b * tokens, and o for a budget. Graphs of every size.
inline constexpr double kFittedSecondsPerToken = 0.00186;
inline constexpr double kFittedBudgetSeconds = 0.0625;
inline constexpr std::size_t kFittedGamma = 5;
[[nodiscard]] engine::StepCost fitted_cost();

// T3.4 (i). Tokens a second of verifying `1 - cut` of the drafts against all of them, less 1, at an
// equal accepted length.
[[nodiscard]] double forced_cut_gain(const engine::StepCost& cost, std::int64_t rows, double cut);
// Fewest rows from which on such a cut pays, up to `rows_max`; rows_max + 1 where it never does.
[[nodiscard]] std::int64_t break_even_rows(const engine::StepCost& cost,
                                           double cut,
                                           std::int64_t rows_max);

// T3.4 (ii). A drafter whose drafts survive with chance sigmoid(x), x = mean + what the request
// brings + what the position brings, both normal; its confidence is sigmoid(x + noise). The two
// deviations and the means were fitted to the published figures of the three toy profiles, whose
// own parameters were not.
struct DraftProfile {
  std::string_view name;
  double mean{};
};
inline constexpr std::array kDraftProfiles{DraftProfile{.name = "chat", .mean = 0.50},
                                           DraftProfile{.name = "mixed", .mean = 1.30},
                                           DraftProfile{.name = "high", .mean = 2.25}};
inline constexpr double kRequestDeviation = 1.5;
inline constexpr double kPositionDeviation = 1.5;
inline constexpr double kConfidenceNoise = 0.6;

struct PolicyExperiment {
  DraftProfile profile;
  std::size_t rows = 96;
  std::size_t steps = 400;
  bool off_switch = true;
  double forced_cut = 0.0;  // of the drafts; above 0 no budget is searched
  Seed seed;
};
struct PolicyFigures {
  double gain{};             // of tokens a second over verifying everything
  double cut{};              // share of drafts not verified
  double accepted_change{};  // of the tokens a row gets from a step
  double fixed_share{};      // of steps that took the fixed path
};
[[nodiscard]] PolicyFigures run_policy(const PolicyExperiment& experiment);

// T3.5. Over-sure synthetic confidences, fitted on `rows` rows and judged on as many others.
struct CalibrationFigures {
  // Expected calibration errors: of the survival of each position, the worst one, and of all
  // confidences behind accepted drafts.
  double survival_before{};
  double survival_after{};
  double confidence_before{};
  double confidence_after{};
  std::vector<double> temperatures;
};
[[nodiscard]] CalibrationFigures measure_calibration(std::size_t rows, Seed seed);

// T3.5. Microseconds of ranking and allocating one step: the median of `repeats`.
[[nodiscard]] double allocation_us(const Clock& clock,
                                   std::size_t rows,
                                   std::size_t gamma,
                                   std::size_t repeats);

// T3.6 (i). Batches of 1 to 8 rows, decoded in exact mode under every fixed verify length 0..gamma,
// under random budgets and under each policy, against plain sampling.
struct ExactFigures {
  std::int64_t runs{};    // rows decoded
  std::int64_t tokens{};  // compared
  std::int64_t wrong{};   // differing ones
};
[[nodiscard]] ExactFigures compare_exact(std::size_t batches, Seed seed);

// 1 - TV(p, q): how often the ratio test accepts.
[[nodiscard]] double ratio_acceptance(std::span<const float> p, std::span<const float> q);
// How often one noise gives the same token under both laws (spec runtime 3.4).
[[nodiscard]] double coupled_acceptance(std::span<const float> p, std::span<const float> q);

// T3.6 (i). Pairs of random laws over 32 tokens, logits of deviation 2 with this noise in the
// draft's, one coupled draw of each pair after another.
struct CoupledFigures {
  double total_variation{};  // mean over the pairs
  double ratio{};            // mean acceptance of the ratio test, 1 - TV
  double formula{};          // mean coupled acceptance
  double measured{};
  double standard_error{};  // of `measured`
  double bound_margin{};    // least of formula - (1 - TV) / (1 + TV) over the pairs
  double bound{};           // mean of (1 - TV) / (1 + TV)
};
[[nodiscard]] CoupledFigures measure_coupling(double draft_noise,
                                              std::size_t pairs,
                                              std::int64_t draws_per_pair,
                                              Seed seed);

}  // namespace galley::plan
