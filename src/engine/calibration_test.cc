// Goal: temperatures are found again, and a fit is asked for when promises are broken. Method:
// synthetic drafts of known chances.
#include "engine/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "base/random.h"

namespace galley::engine {
namespace {

constexpr std::array kOverSure{1.5, 0.8, 2.0};
constexpr std::size_t kGamma = kOverSure.size();
const std::vector<double> kOnes(kGamma, 1.0);

struct Row {
  std::array<float, kGamma> logits{};
  std::size_t verified = kGamma;
  std::size_t accepted = 0;
};

// Logits are the true ones, evenly between these, times kOverSure.
struct Truth {
  double low = -3.0;
  double high = 5.0;
};

Row random_row(Random& random, std::size_t verified = kGamma, Truth range = {}) {
  Row row{.verified = verified};
  bool stands = true;
  for (std::size_t k = 0; k < kGamma; ++k) {
    const double truth = std::lerp(range.low, range.high, double{random.next_float()});
    row.logits[k] = static_cast<float>(truth * kOverSure[k]);
    stands = stands && double{random.next_float()} < 1.0 / (1.0 + std::exp(-truth));
    row.accepted += stands && k < verified ? 1 : 0;
  }
  return row;
}

TEST(ConfidenceBins, CountByChance) {
  std::array<ConfidenceBin, kConfidenceBins> bins{};
  note_confidence(bins, 0.0, false);
  note_confidence(bins, 0.95, true);
  note_confidence(bins, 1.0, true);
  note_confidence(bins, std::numeric_limits<double>::quiet_NaN(), true);
  EXPECT_EQ(bins[0].drafts, 1);
  EXPECT_EQ(bins[9].drafts, 2);
  EXPECT_EQ(bins[9].accepted, 2);
  EXPECT_DOUBLE_EQ(bins[9].predicted, 1.95);
}

TEST(CalibrationError, IsTheDistanceWeightedByDrafts) {
  EXPECT_EQ(calibration_error({}), 0.0);
  const std::array bins{ConfidenceBin{.drafts = 30, .accepted = 10, .predicted = 4.0},
                        ConfidenceBin{},
                        ConfidenceBin{.drafts = 10, .accepted = 8, .predicted = 10.0}};
  EXPECT_DOUBLE_EQ(calibration_error(bins), (6.0 + 2.0) / 40);
}

TEST(Confidence, IsTheSigmoidAtTheTemperature) {
  EXPECT_DOUBLE_EQ(confidence(0.0F, 3.0), 0.5);
  EXPECT_DOUBLE_EQ(confidence(2.0F, 1.0), 1.0 / (1.0 + std::exp(-2.0)));
  EXPECT_DOUBLE_EQ(confidence(2.0F, 4.0), confidence(0.5F, 1.0));
  EXPECT_TRUE(std::isnan(confidence(std::numeric_limits<float>::quiet_NaN(), 1.0)));
}

TEST(FitTemperatures, FindsWhatMadeTheConfidencesOverSure) {
  Random random(Seed(1), 0);
  VerifiedRows rows(kGamma);
  for (int i = 0; i < 20'000; ++i) {
    const Row row = random_row(random);
    rows.add(row.logits, row.verified, row.accepted);
  }
  const std::vector<double> temperatures = fit_temperatures(rows, kOnes);
  for (std::size_t k = 0; k < kGamma; ++k) {
    EXPECT_NEAR(temperatures[k], kOverSure[k], 0.1 * kOverSure[k]) << k;
  }
}

// A row says nothing about a position it did not verify. If such rows counted as rejected, the
// temperature would rise without end.
TEST(FitTemperatures, CountsTheRowsThatVerifiedThePosition) {
  Random random(Seed(2), 0);
  VerifiedRows rows(kGamma);
  for (int i = 0; i < 30'000; ++i) {
    const Row row = random_row(random, random.next_below(kGamma + 1));
    rows.add(row.logits, row.verified, row.accepted);
  }
  const std::vector<double> temperatures = fit_temperatures(rows, kOnes);
  for (std::size_t k = 0; k < kGamma; ++k) {
    EXPECT_NEAR(temperatures[k], kOverSure[k], 0.15 * kOverSure[k]) << k;
  }
}

TEST(FitTemperatures, LeavesAPositionAloneThatFewRowsVerified) {
  Random random(Seed(3), 0);
  VerifiedRows rows(kGamma);
  for (std::size_t i = 0; i < 2000; ++i) {
    Row row = random_row(random, i < kFitRowsMin - 1 ? kGamma : 1);
    row.logits[1] = std::numeric_limits<float>::quiet_NaN();
    rows.add(row.logits, row.verified, row.accepted);
  }
  const std::vector<double> temperatures =
      fit_temperatures(rows, std::vector<double>{1.0, 3.0, 5.0});
  EXPECT_NE(temperatures[0], 1.0);
  EXPECT_EQ(temperatures[1], 3.0);
  EXPECT_EQ(temperatures[2], 5.0);
}

TEST(FitTemperatures, StaysBetweenItsBounds) {
  VerifiedRows rows(1);
  for (int i = 0; i < 1000; ++i) {
    rows.add(std::array{4.0F}, 1, 0);  // sure, and always wrong
  }
  EXPECT_NEAR(fit_temperatures(rows, std::array{1.0})[0], kTemperatureMax, 0.01);
  rows.clear();
  for (int i = 0; i < 1000; ++i) {
    rows.add(std::array{0.5F}, 1, 1);
  }
  const double sharp = fit_temperatures(rows, std::array{1.0})[0];
  EXPECT_GE(sharp, kTemperatureMin);
  EXPECT_LT(sharp, 0.1);
}

TEST(Calibration, AsksForAFitWhenPromisesAreBroken) {
  // Most are likely to be right, so that sharpening them promises too much.
  constexpr Truth kLikely{.low = -1.0, .high = 3.0};
  Random random(Seed(4), 0);
  Calibration calibration(kGamma);
  for (std::size_t i = 1; i < kCalibrationRows; ++i) {
    const Row row = random_row(random, kGamma, kLikely);
    ASSERT_FALSE(calibration.observe(row.logits, row.verified, row.accepted));
  }
  Row row = random_row(random, kGamma, kLikely);
  ASSERT_TRUE(calibration.observe(row.logits, row.verified, row.accepted));
  EXPECT_TRUE(calibration.fit_due());
  EXPECT_GT(calibration.bias(), kCalibrationBiasMax);
  EXPECT_EQ(calibration.window().size(), kCalibrationRows);
  EXPECT_EQ(calibration.verified(2), static_cast<std::int64_t>(kCalibrationRows));
  EXPECT_GT(calibration.predicted(0), static_cast<double>(calibration.accepted(0)));
  // What comes before the fit is not noted.
  EXPECT_FALSE(calibration.observe(row.logits, row.verified, row.accepted));
  EXPECT_EQ(calibration.window().size(), kCalibrationRows);

  calibration.set_temperatures(fit_temperatures(calibration.window(), calibration.temperatures()));
  EXPECT_NE(calibration.temperatures()[0], 1.0);
  EXPECT_EQ(calibration.window().size(), 0U);
  // From then on the promises hold, and full windows are forgotten.
  for (std::size_t i = 0; i < 3 * kCalibrationRows; ++i) {
    row = random_row(random, kGamma, kLikely);
    ASSERT_FALSE(calibration.observe(row.logits, row.verified, row.accepted));
  }
  EXPECT_LT(std::fabs(calibration.bias()), kCalibrationBiasMax);
  EXPECT_EQ(calibration.window().size(), kCalibrationRows);
}

// Certain promises of which exactly `broken` in a thousand are broken.
bool fit_due_after(std::size_t broken) {
  Calibration calibration(1);
  for (std::size_t i = 0; i < kCalibrationRows; ++i) {
    calibration.observe(std::array{100.0F}, 1, i % 1000 < broken ? 0 : 1);
  }
  return calibration.fit_due();
}

TEST(Calibration, ThreePercentAreAllowed) {
  EXPECT_FALSE(fit_due_after(29));
  EXPECT_TRUE(fit_due_after(31));
}

TEST(Calibration, CountsVerifiedPositionsOnlyAndMissingOnesAsOne) {
  Calibration calibration(2);
  calibration.observe(std::array{0.0F, 0.0F}, 1, 1);
  EXPECT_DOUBLE_EQ(calibration.predicted(0), 0.5);
  EXPECT_DOUBLE_EQ(calibration.predicted(1), 0.0);
  EXPECT_EQ(calibration.verified(1), 0);
  calibration.observe(std::array{std::numeric_limits<float>::quiet_NaN(), 0.0F}, 2, 0);
  EXPECT_DOUBLE_EQ(calibration.predicted(0), 1.5);
  EXPECT_DOUBLE_EQ(calibration.predicted(1), 0.5);
  EXPECT_DOUBLE_EQ(calibration.bias(), 0.5);
}

}  // namespace
}  // namespace galley::engine
