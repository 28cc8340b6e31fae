#include "engine/calibration.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace galley::engine {
namespace {

// What one row says about the position that is being fitted.
struct Case {
  double before{};  // product of the confidences left of it
  float logit{};
  bool accepted{};
};

// Keeps the logarithm finite where a prediction is certain and wrong.
constexpr double kChanceMin = 1e-9;

double log_loss(std::span<const Case> cases, double temperature) {
  double loss = 0.0;
  for (const Case& one : cases) {
    const double chance = one.before * confidence(one.logit, temperature);
    loss -= std::log(std::max(one.accepted ? chance : 1.0 - chance, kChanceMin));
  }
  return loss;
}

// The least of `loss` over log(temperature). A grid finds the valley, since the loss of a product
// need not have only one; golden sections then find its floor.
double best_temperature(const std::function<double(double)>& loss) {
  constexpr int kGrid = 24;
  constexpr int kSections = 18;  // of two grid steps: to 0.01 %
  const double low = std::log(kTemperatureMin);
  const double step = (std::log(kTemperatureMax) - low) / kGrid;
  int valley = 0;
  double least = loss(kTemperatureMin);
  for (int i = 1; i <= kGrid; ++i) {
    if (const double here = loss(std::exp(low + i * step)); here < least) {
      least = here;
      valley = i;
    }
  }
  double left = low + std::max(valley - 1, 0) * step;
  double right = low + std::min(valley + 1, kGrid) * step;
  constexpr double kShrink = 1.0 / std::numbers::phi;
  double a = right - kShrink * (right - left);
  double b = left + kShrink * (right - left);
  double loss_a = loss(std::exp(a));
  double loss_b = loss(std::exp(b));
  for (int i = 0; i < kSections; ++i) {
    if (loss_a < loss_b) {
      right = std::exchange(b, a);
      loss_b = loss_a;
      a = right - kShrink * (right - left);
      loss_a = loss(std::exp(a));
    } else {
      left = std::exchange(a, b);
      loss_a = loss_b;
      b = left + kShrink * (right - left);
      loss_b = loss(std::exp(b));
    }
  }
  return std::exp((left + right) / 2);
}

// A missing confidence says nothing about temperatures and is taken as 1, as the budget takes it.
double known_or_one(double chance) {
  return std::isnan(chance) ? 1.0 : chance;
}

}  // namespace

void note_confidence(std::span<ConfidenceBin, kConfidenceBins> bins, double chance, bool accepted) {
  if (std::isnan(chance)) {
    return;
  }
  const auto bin = static_cast<std::size_t>(chance * kConfidenceBins);
  ConfidenceBin& one = bins[std::min(bin, kConfidenceBins - 1)];
  ++one.drafts;
  one.accepted += accepted ? 1 : 0;
  one.predicted += chance;
}

double calibration_error(std::span<const ConfidenceBin> bins) {
  std::int64_t drafts = 0;
  double distance = 0;
  for (const ConfidenceBin& bin : bins) {
    drafts += bin.drafts;
    distance += std::fabs(static_cast<double>(bin.accepted) - bin.predicted);
  }
  return drafts == 0 ? 0.0 : distance / static_cast<double>(drafts);
}

double confidence(float logit, double temperature) {
  return 1.0 / (1.0 + std::exp(-double{logit} / temperature));
}

void VerifiedRows::add(std::span<const float> logits, std::size_t verified, std::size_t accepted) {
  GALLEY_ASSERT(logits.size() == gamma_);
  GALLEY_ASSERT(verified <= gamma_);
  GALLEY_ASSERT(accepted <= verified);
  logits_.insert(logits_.end(), logits.begin(), logits.end());
  outcomes_.push_back({.verified = static_cast<std::uint8_t>(verified),
                       .accepted = static_cast<std::uint8_t>(accepted)});
}

void VerifiedRows::clear() {
  logits_.clear();
  outcomes_.clear();
}

std::vector<double> fit_temperatures(const VerifiedRows& rows, std::span<const double> start) {
  GALLEY_ASSERT(start.size() == rows.gamma());
  std::vector<double> temperatures(start.begin(), start.end());
  std::vector<double> before(rows.size(), 1.0);
  std::vector<Case> cases;
  for (std::size_t k = 0; k < rows.gamma(); ++k) {
    cases.clear();
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const float logit = rows.logits(row)[k];
      if (rows.verified(row) > k && !std::isnan(logit)) {
        cases.push_back(
            {.before = before[row], .logit = logit, .accepted = rows.accepted(row) > k});
      }
    }
    if (cases.size() >= kFitRowsMin) {
      temperatures[k] =
          best_temperature([&cases](double temperature) { return log_loss(cases, temperature); });
    }
    for (std::size_t row = 0; row < rows.size(); ++row) {
      before[row] *= known_or_one(confidence(rows.logits(row)[k], temperatures[k]));
    }
  }
  return temperatures;
}

bool Calibration::observe(std::span<const float> logits,
                          std::size_t verified,
                          std::size_t accepted) {
  if (fit_due_) {
    return false;
  }
  if (rows_.size() == kCalibrationRows) {
    forget();
  }
  rows_.add(logits, verified, accepted);
  double survival = 1.0;
  for (std::size_t k = 0; k < verified; ++k) {
    survival *= known_or_one(confidence(logits[k], temperatures_[k]));
    predicted_[k] += survival;
    ++verified_[k];
    accepted_[k] += k < accepted ? 1 : 0;
  }
  fit_due_ = rows_.size() == kCalibrationRows && std::fabs(bias()) > kCalibrationBiasMax;
  return fit_due_;
}

double Calibration::bias() const {
  const double promised = std::reduce(predicted_.begin(), predicted_.end());
  const auto kept = static_cast<double>(std::reduce(accepted_.begin(), accepted_.end()));
  return promised > 0.0 ? (promised - kept) / promised : 0.0;
}

void Calibration::set_temperatures(std::vector<double> temperatures) {
  GALLEY_ASSERT(temperatures.size() == temperatures_.size());
  temperatures_ = std::move(temperatures);
  forget();
}

void Calibration::forget() {
  rows_.clear();
  std::ranges::fill(verified_, 0);
  std::ranges::fill(accepted_, 0);
  std::ranges::fill(predicted_, 0.0);
  fit_due_ = false;
}

}  // namespace galley::engine
