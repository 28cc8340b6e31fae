#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// How far a drafter's confidences can be trusted, and what makes them trustworthy: one temperature
// per draft position (spec runtime 3.5). Plain values without clock or thread; whoever owns one
// calls it from one thread.
namespace galley::engine {

// Drafts whose predicted chance to be right lies in one tenth of 0 to 1, and how many were.
struct ConfidenceBin {
  std::int64_t drafts{};
  std::int64_t accepted{};
  double predicted{};  // sum of the chances
};
inline constexpr std::size_t kConfidenceBins = 10;

// Counts one draft of that predicted chance. A chance that is not a number is left out: it is the
// checkpoint's fault.
void note_confidence(std::span<ConfidenceBin, kConfidenceBins> bins, double chance, bool accepted);

// Expected calibration error, 0 to 1: how far the share of right drafts is from the mean predicted
// chance, averaged over the bins by their drafts. 0 without drafts.
[[nodiscard]] double calibration_error(std::span<const ConfidenceBin> bins);

// Chance that a draft is right given that those before it are: sigmoid(logit / temperature).
// NaN, a missing confidence, stays one.
[[nodiscard]] double confidence(float logit, double temperature);

// What verifications told about a drafter: for every row the logits of its confidences, how many of
// its drafts were verified, and how many of those were accepted.
class VerifiedRows {
 public:
  explicit VerifiedRows(std::size_t gamma) : gamma_(gamma) {}

  // `logits`: [gamma]. accepted <= verified <= gamma.
  void add(std::span<const float> logits, std::size_t verified, std::size_t accepted);
  void clear();

  [[nodiscard]] std::size_t gamma() const { return gamma_; }
  [[nodiscard]] std::size_t size() const { return outcomes_.size(); }
  [[nodiscard]] std::span<const float> logits(std::size_t row) const {
    return std::span(logits_).subspan(row * gamma_, gamma_);
  }
  [[nodiscard]] std::size_t verified(std::size_t row) const { return outcomes_[row].verified; }
  [[nodiscard]] std::size_t accepted(std::size_t row) const { return outcomes_[row].accepted; }

 private:
  struct Outcome {
    std::uint8_t verified{};
    std::uint8_t accepted{};
  };
  std::size_t gamma_;
  std::vector<float> logits_;  // [size, gamma]
  std::vector<Outcome> outcomes_;
};

inline constexpr double kTemperatureMin = 1.0 / 16;
inline constexpr double kTemperatureMax = 16;
// Fewer rows that verified a position say too little to move its temperature.
inline constexpr std::size_t kFitRowsMin = 200;

// Sequential temperature scaling (spec runtime 3.5): left to right, the temperature of a position
// is the one under which the product of the confidences up to it best predicts (least log loss)
// that all drafts up to it were accepted, those before being fitted already. A position counts the
// rows that verified it: which those are depends on predictions alone, so they are a fair sample.
// `start`: [gamma], kept where kFitRowsMin rows are missing. Takes about 0.1 s for 10,000 rows of
// 5: no work for the thread that runs steps.
[[nodiscard]] std::vector<double> fit_temperatures(const VerifiedRows& rows,
                                                   std::span<const double> start);

inline constexpr std::size_t kCalibrationRows = 10'000;
inline constexpr double kCalibrationBiasMax = 0.03;

// Watches the predictions of a running engine and says when they need a new fit. The two modes of
// acceptance need one each, since their labels differ (spec runtime 3.4, 3.5).
class Calibration {
 public:
  explicit Calibration(std::size_t gamma)
      : temperatures_(gamma, 1.0),
        verified_(gamma),
        accepted_(gamma),
        predicted_(gamma),
        rows_(gamma) {}

  // [gamma], all 1 before the first fit.
  [[nodiscard]] std::span<const double> temperatures() const { return temperatures_; }

  // Notes a verified row. True when the window of kCalibrationRows rows is full and the survivals
  // promised for its verified drafts differ from the accepted ones by more than
  // kCalibrationBiasMax: then window() is what to fit, and set_temperatures() ends the matter.
  // While a fit is due nothing is noted; a full window without fault is forgotten.
  bool observe(std::span<const float> logits, std::size_t verified, std::size_t accepted);
  [[nodiscard]] bool fit_due() const { return fit_due_; }
  [[nodiscard]] const VerifiedRows& window() const { return rows_; }
  void set_temperatures(std::vector<double> temperatures);

  // (promised - accepted) / promised over the window; 0 while nothing was promised.
  [[nodiscard]] double bias() const;
  // Of draft position `k` (from 0) in the window: rows that verified it, rows that accepted it, and
  // the accepted ones that were promised.
  [[nodiscard]] std::int64_t verified(std::size_t k) const { return verified_[k]; }
  [[nodiscard]] std::int64_t accepted(std::size_t k) const { return accepted_[k]; }
  [[nodiscard]] double predicted(std::size_t k) const { return predicted_[k]; }

 private:
  void forget();

  std::vector<double> temperatures_;
  std::vector<std::int64_t> verified_;
  std::vector<std::int64_t> accepted_;
  std::vector<double> predicted_;
  VerifiedRows rows_;
  bool fit_due_ = false;
};

}  // namespace galley::engine
