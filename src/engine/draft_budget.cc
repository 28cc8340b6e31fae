#include "engine/draft_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace galley::engine {
namespace {

// Weights of the newest value: of a step's gain, a row's confidence, a row's accepted drafts.
constexpr double kGainStep = 0.125;
constexpr double kConfidenceStep = 0.01;
constexpr double kTrustStep = 0.01;
// More than this many times what was promised is a promise of nothing.
constexpr double kTrustMax = 4.0;

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

double DraftBudget::Fading::mean(double before_any) const {
  return weight > 0.0 ? value / weight : before_any;
}

DraftBudget::DraftBudget(std::size_t gamma)
    : gamma_(gamma), calibration_(gamma), confidence_(gamma) {}

std::size_t DraftBudget::load_of(std::size_t rows) {
  GALLEY_ASSERT(rows > 0);
  const auto power = static_cast<std::size_t>(std::bit_width(rows)) - 1;
  return std::min(power, std::tuple_size_v<decltype(loads_)> - 1);
}

// Best first, each with the chance that it will stand: a confidence that is not known yet is what
// such drafts were promised lately, and promises count for what they were worth lately.
std::vector<RankedDraft> DraftBudget::expected(std::span<const std::uint8_t> drafts,
                                               std::span<const float> logits) const {
  std::vector<float> confidences(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::size_t k = i % gamma_;
    const double known = confidence(logits[i], calibration_.temperatures()[k]);
    confidences[i] = static_cast<float>(std::isnan(known) ? confidence_[k].mean(1.0) : known);
  }
  std::vector<RankedDraft> out =
      rank({.gamma = gamma_, .confidences = confidences, .drafts = drafts});
  const double trust = std::min(trust_.mean(1.0), kTrustMax);
  for (RankedDraft& draft : out) {
    draft.survival = static_cast<float>(std::min(1.0, double{draft.survival} * trust));
  }
  return out;
}

DraftBudget::Order DraftBudget::choose(std::span<const std::uint8_t> drafts,
                                       std::span<const float> logits) {
  GALLEY_ASSERT(logits.size() == drafts.size() * gamma_);
  const std::size_t rows = std::max<std::size_t>(1, drafts.size());
  Load& load = loads_[load_of(rows)];
  Order order;
  const std::vector<RankedDraft> ranked = expected(drafts, logits);
  if (!ranked.empty() && cost_.measured()) {
    const Budget best = choose_budget(ranked, rows, cost_);
    if (!best.fixed) {
      // Trust moves by what is verified alone: a trial that verified nothing would find nothing
      // out.
      const bool judges = load.trial_left > 0 && !pays(load);
      order.budget = judges ? std::max(best.drafts, rows) : best.drafts;
    }
    double tokens = static_cast<double>(rows);
    for (std::size_t i = 0; i < best.drafts; ++i) {
      tokens += double{ranked[i].survival};
    }
    const auto count = static_cast<std::int64_t>(rows);
    const double with =
        tokens / cost_.seconds(count, count + static_cast<std::int64_t>(best.drafts));
    const double without =
        static_cast<double>(rows) / (cost_.forward_seconds(count) + plain_sampler_.value(count));
    if (std::isfinite(with / without)) {
      load.gain =
          load.gain ? *load.gain + kGainStep * (with / without - *load.gain) : with / without;
    }
  }
  order.drafts = DraftBudget::drafts(load);
  return order;
}

bool DraftBudget::pays(const Load& load) {
  return !load.gain || *load.gain >= 1.0;
}

bool DraftBudget::drafts(const Load& load) {
  // What is not known yet comes first.
  if (load.steps[1] < kTrial) {
    return true;
  }
  if (load.steps[0] < kTrial) {
    return false;
  }
  return load.trial_left > 0 ? !pays(load) : pays(load);
}

void DraftBudget::observe_row(std::span<const float> logits,
                              std::size_t verified,
                              std::size_t accepted) {
  double promised = 0.0;
  double survival = 1.0;
  for (std::size_t k = 0; k < gamma_; ++k) {
    const double known = logits.empty() ? std::numeric_limits<double>::quiet_NaN()
                                        : confidence(logits[k], calibration_.temperatures()[k]);
    if (!std::isnan(known)) {
      confidence_[k].value += kConfidenceStep * (known - confidence_[k].value);
      confidence_[k].weight += kConfidenceStep * (1.0 - confidence_[k].weight);
      survival *= known;
    }
    promised += k < verified ? survival : 0.0;
  }
  if (verified == 0) {
    return;
  }
  trust_.value += kTrustStep * (static_cast<double>(accepted) - trust_.value);
  trust_.weight += kTrustStep * (promised - trust_.weight);
  if (!logits.empty()) {
    calibration_.observe(logits, verified, accepted);
  }
}

void DraftBudget::observe_step(const StepFacts& facts) {
  Load& load = loads_[load_of(facts.rows)];
  cost_.observe_forward(facts.tokens, seconds(facts.forward));
  const auto rows = static_cast<std::int64_t>(facts.rows);
  if (facts.drafted) {
    cost_.observe_sampler(rows, seconds(facts.sampler));
  } else {
    plain_sampler_.observe(rows, seconds(facts.sampler));
    // What was seen before counts less beside what the next trial sees.
    trust_.value *= 1.0 - kTrustStep;
    trust_.weight *= 1.0 - kTrustStep;
  }
  std::size_t& known = load.steps[facts.drafted ? 1 : 0];
  known = std::min(known + 1, kTrial);
  if (load.trial_left > 0) {
    --load.trial_left;
  } else if (--load.steps_until_trial <= 0) {
    load.steps_until_trial = kTrialEvery;
    load.trial_left = kTrial;
  }
}

}  // namespace galley::engine
