#include "plan/speculation_gates.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "engine/acceptance.h"
#include "engine/calibration.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "plan/normal.h"

namespace galley::plan {
namespace {

using engine::RankedDraft;

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// One row of the toy: how many drafts survive and how sure the drafter is of them.
struct ToyRow {
  double request{};  // what the request adds to every logit
  std::size_t survivors{};
};

// How long a request of the toy lives: long enough for a lag of two steps to matter little, short
// enough that a run sees many.
constexpr double kStepsPerRequest = 50;

class Toy {
 public:
  explicit Toy(const PolicyExperiment& experiment)
      : experiment_(experiment), random_(experiment.seed, 0), rows_(experiment.rows) {
    for (ToyRow& row : rows_) {
      begin(row);
    }
  }

  // Draws the next step's drafts; returns their ranking by confidence.
  std::vector<RankedDraft> draft() {
    std::vector<float> confidences;
    for (ToyRow& row : rows_) {
      if (next_unit(random_) < 1.0 / kStepsPerRequest) {
        begin(row);
      }
      bool stands = true;
      row.survivors = 0;
      for (std::size_t k = 0; k < kFittedGamma; ++k) {
        const double logit =
            experiment_.profile.mean + row.request + kPositionDeviation * next_normal(random_);
        confidences.push_back(
            static_cast<float>(sigmoid(logit + kConfidenceNoise * next_normal(random_))));
        stands = stands && next_unit(random_) < sigmoid(logit);
        row.survivors += stands ? 1 : 0;
      }
    }
    const std::vector<std::uint8_t> counts(rows_.size(), kFittedGamma);
    return engine::rank({.gamma = kFittedGamma, .confidences = confidences, .drafts = counts});
  }

  // Tokens of the step if so many drafts of each row are verified.
  [[nodiscard]] double tokens(std::span<const std::uint8_t> lengths) const {
    double sum = 0.0;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      sum += 1.0 + static_cast<double>(std::min<std::size_t>(lengths[row], rows_[row].survivors));
    }
    return sum;
  }

 private:
  void begin(ToyRow& row) { row.request = kRequestDeviation * next_normal(random_); }

  const PolicyExperiment& experiment_;
  Random random_;
  std::vector<ToyRow> rows_;
};

// Over-sure confidences for calibration: the true logit times a factor that grows along the draft,
// as a drafter's trust in its own drafts does.
constexpr std::array kOverSure{1.2, 1.35, 1.5, 1.65, 1.8};
constexpr double kSyntheticMean = 1.0;
constexpr double kSyntheticDeviation = 1.0;
constexpr double kSyntheticNoise = 0.3;
// While rows are collected the budget leaves drafts of less survival out, as it would in service.
constexpr double kSyntheticCut = 0.2;

engine::VerifiedRows synthetic_rows(std::size_t rows, bool cut, Random& random) {
  engine::VerifiedRows out(kOverSure.size());
  for (std::size_t row = 0; row < rows; ++row) {
    std::array<float, kOverSure.size()> logits{};
    const double request = kSyntheticDeviation * next_normal(random);
    std::size_t verified = 0;
    std::size_t accepted = 0;
    double survival = 1.0;
    bool stands = true;
    for (std::size_t k = 0; k < logits.size(); ++k) {
      const double truth = kSyntheticMean + request + kSyntheticDeviation * next_normal(random);
      logits[k] = static_cast<float>(kOverSure[k] * truth + kSyntheticNoise * next_normal(random));
      survival *= engine::confidence(logits[k], 1.0);
      verified += !cut || survival >= kSyntheticCut ? 1 : 0;
      stands = stands && next_unit(random) < sigmoid(truth);
      accepted += stands ? 1 : 0;
    }
    out.add(logits, verified, std::min(accepted, verified));
  }
  return out;
}

struct CalibrationErrors {
  double survival{};
  double confidence{};
};

// Of rows that verified everything.
CalibrationErrors errors_of(const engine::VerifiedRows& rows,
                            std::span<const double> temperatures) {
  using Bins = std::array<engine::ConfidenceBin, engine::kConfidenceBins>;
  std::vector<Bins> survivals(rows.gamma());
  Bins confidences{};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    double survival = 1.0;
    for (std::size_t k = 0; k < rows.gamma(); ++k) {
      const double chance = engine::confidence(rows.logits(row)[k], temperatures[k]);
      survival *= chance;
      engine::note_confidence(survivals[k], survival, rows.accepted(row) > k);
      if (rows.accepted(row) >= k) {
        engine::note_confidence(confidences, chance, rows.accepted(row) > k);
      }
    }
  }
  CalibrationErrors errors{.confidence = engine::calibration_error(confidences)};
  for (const Bins& bins : survivals) {
    errors.survival = std::max(errors.survival, engine::calibration_error(bins));
  }
  return errors;
}

std::vector<float> softmax(std::span<const float> logits) {
  double total = 0.0;
  for (const float logit : logits) {
    total += std::exp(double{logit});
  }
  std::vector<float> law;
  for (const float logit : logits) {
    law.push_back(static_cast<float>(std::exp(double{logit}) / total));
  }
  return law;
}

}  // namespace

engine::StepCost fitted_cost() {
  // Two points: the line through them goes on.
  auto cost = engine::StepCost::create(
      {.points = {{.graph = 1, .seconds = 1.0 + kFittedSecondsPerToken},
                  {.graph = 2, .seconds = 1.0 + 2 * kFittedSecondsPerToken}},
       .budget_seconds = kFittedBudgetSeconds});
  GALLEY_ASSERT(cost);
  return *std::move(cost);
}

double forced_cut_gain(const engine::StepCost& cost, std::int64_t rows, double cut) {
  const auto drafts = static_cast<double>(rows * static_cast<std::int64_t>(kFittedGamma));
  const auto kept = static_cast<std::int64_t>(std::llround(drafts * (1.0 - cut)));
  const double fixed = cost.seconds(rows, rows + std::llround(drafts));
  return fixed / (cost.seconds(rows, rows + kept) + cost.budget_seconds()) - 1.0;
}

std::int64_t break_even_rows(const engine::StepCost& cost, double cut, std::int64_t rows_max) {
  std::int64_t rows = rows_max + 1;
  while (rows > 1 && forced_cut_gain(cost, rows - 1, cut) >= 0.0) {
    --rows;
  }
  return rows;
}

PolicyFigures run_policy(const PolicyExperiment& experiment) {
  const engine::StepCost cost = fitted_cost();
  const std::size_t rows = experiment.rows;
  const auto row_count = static_cast<std::int64_t>(rows);
  const std::vector<std::uint8_t> whole(rows, kFittedGamma);
  Toy toy(experiment);
  std::vector<RankedDraft> older = toy.draft();
  std::vector<RankedDraft> newer = toy.draft();
  double tokens = 0.0;
  double seconds = 0.0;
  double fixed_tokens = 0.0;
  double fixed_seconds = 0.0;
  double kept = 0.0;
  double fixed_steps = 0.0;
  for (std::size_t step = 0; step < experiment.steps; ++step) {
    std::vector<RankedDraft> ranked = toy.draft();
    engine::Budget budget;
    if (experiment.forced_cut > 0.0) {
      budget.drafts = static_cast<std::size_t>(
          std::llround(static_cast<double>(ranked.size()) * (1.0 - experiment.forced_cut)));
    } else {
      budget = engine::choose_budget(older, rows, cost, {.off_switch = experiment.off_switch});
    }
    tokens += toy.tokens(engine::allocate(ranked, rows, budget.drafts));
    seconds += cost.seconds(row_count, row_count + static_cast<std::int64_t>(budget.drafts)) +
               (budget.fixed ? 0.0 : cost.budget_seconds());
    fixed_tokens += toy.tokens(whole);
    fixed_seconds += cost.seconds(row_count, row_count + static_cast<std::int64_t>(ranked.size()));
    kept += static_cast<double>(budget.drafts) / static_cast<double>(ranked.size());
    fixed_steps += budget.fixed ? 1.0 : 0.0;
    older = std::exchange(newer, std::move(ranked));
  }
  const auto steps = static_cast<double>(experiment.steps);
  return {.gain = tokens / seconds / (fixed_tokens / fixed_seconds) - 1.0,
          .cut = 1.0 - kept / steps,
          .accepted_change = tokens / fixed_tokens - 1.0,
          .fixed_share = fixed_steps / steps};
}

CalibrationFigures measure_calibration(std::size_t rows, Seed seed) {
  Random random(seed, 0);
  const engine::VerifiedRows seen = synthetic_rows(rows, true, random);
  const engine::VerifiedRows held_out = synthetic_rows(rows, false, random);
  const std::vector<double> ones(seen.gamma(), 1.0);
  std::vector<double> temperatures = engine::fit_temperatures(seen, ones);
  const CalibrationErrors before = errors_of(held_out, ones);
  const CalibrationErrors after = errors_of(held_out, temperatures);
  return {.survival_before = before.survival,
          .survival_after = after.survival,
          .confidence_before = before.confidence,
          .confidence_after = after.confidence,
          .temperatures = std::move(temperatures)};
}

double allocation_us(const Clock& clock, std::size_t rows, std::size_t gamma, std::size_t repeats) {
  Random random(Seed(1), 0);
  std::vector<float> confidences(rows * gamma);
  for (float& confidence : confidences) {
    confidence = random.next_float();
  }
  const std::vector<std::uint8_t> counts(rows, static_cast<std::uint8_t>(gamma));
  std::vector<double> times;
  for (std::size_t i = 0; i < repeats; ++i) {
    const TimeNs start = clock.now();
    const auto ranked =
        engine::rank({.gamma = gamma, .confidences = confidences, .drafts = counts});
    const auto lengths = engine::allocate(ranked, rows, ranked.size() / 2);
    const TimeNs end = clock.now();
    GALLEY_ASSERT(lengths.size() == rows);
    times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  return engine::median(std::move(times));
}

double ratio_acceptance(std::span<const float> p, std::span<const float> q) {
  double common = 0.0;
  for (std::size_t id = 0; id < p.size(); ++id) {
    common += std::min(double{p[id]}, double{q[id]});
  }
  return common;
}

double coupled_acceptance(std::span<const float> p, std::span<const float> q) {
  // Token v wins under both laws when its arrival, of rate 1, is before every other token w's that
  // would beat it under either: the sum of their rates against that of v.
  double acceptance = 0.0;
  for (std::size_t v = 0; v < p.size(); ++v) {
    if (p[v] > 0.0F && q[v] > 0.0F) {
      double rates = 0.0;
      for (std::size_t w = 0; w < p.size(); ++w) {
        rates += std::max(double{p[w]} / double{p[v]}, double{q[w]} / double{q[v]});
      }
      acceptance += 1.0 / rates;
    }
  }
  return acceptance;
}

CoupledFigures measure_coupling(double draft_noise,
                                std::size_t pairs,
                                std::int64_t draws_per_pair,
                                Seed seed) {
  constexpr std::size_t kVocabulary = 32;
  constexpr double kLogitDeviation = 2.0;
  Random random(seed, 0);
  CoupledFigures figures{.bound_margin = 1.0};
  double variance = 0.0;
  std::int64_t accepted = 0;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    std::vector<float> target;
    std::vector<float> drafter;
    for (std::size_t id = 0; id < kVocabulary; ++id) {
      const double logit = kLogitDeviation * next_normal(random);
      target.push_back(static_cast<float>(logit));
      drafter.push_back(static_cast<float>(logit + draft_noise * next_normal(random)));
    }
    const std::vector<float> p = softmax(target);
    const std::vector<float> q = softmax(drafter);
    const double ratio = ratio_acceptance(p, q);
    const double formula = coupled_acceptance(p, q);
    const double bound = ratio / (2.0 - ratio);  // (1 - TV) / (1 + TV)
    figures.total_variation += 1.0 - ratio;
    figures.ratio += ratio;
    figures.formula += formula;
    figures.bound += bound;
    figures.bound_margin = std::min(figures.bound_margin, formula - bound);
    variance += formula * (1.0 - formula) * static_cast<double>(draws_per_pair);
    for (std::int64_t position = 0; position < draws_per_pair; ++position) {
      const engine::Draw draw{.seed = Seed(seed.value() + pair), .position = position};
      const auto drafted = engine::sample(drafter, {}, {}, draw);
      const auto wanted = engine::sample(target, {}, {}, draw);
      GALLEY_ASSERT(drafted);
      GALLEY_ASSERT(wanted);
      const std::array drafts{drafted->token};
      const std::array targets{wanted->token, TokenId{0}};
      accepted += static_cast<std::int64_t>(engine::verify_exact(drafts, targets).accepted);
    }
  }
  const auto count = static_cast<double>(pairs);
  const double draws = count * static_cast<double>(draws_per_pair);
  figures.total_variation /= count;
  figures.ratio /= count;
  figures.formula /= count;
  figures.bound /= count;
  figures.measured = static_cast<double>(accepted) / draws;
  figures.standard_error = std::sqrt(variance) / draws;
  return figures;
}

}  // namespace galley::plan
