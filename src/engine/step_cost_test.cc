// Goal: what a step is thought to take follows from what was measured, and nothing else. Method:
// tables and times by hand.
#include "engine/step_cost.h"

#include <array>
#include <gtest/gtest.h>
#include <limits>

namespace galley::engine {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Theta theta_of(std::vector<StepPoint> points) {
  auto theta = Theta::create(std::move(points));
  EXPECT_TRUE(theta.has_value());
  return *std::move(theta);
}

TEST(TrimmedMean, LeavesOutTheExtremes) {
  EXPECT_DOUBLE_EQ(trimmed_mean(std::array{9.0, 2.0, 3.0, 4.0, 0.0}), 3.0);
  EXPECT_DOUBLE_EQ(trimmed_mean(std::array{1.0, 4.0}), 2.5);
  EXPECT_DOUBLE_EQ(trimmed_mean(std::array{7.0}), 7.0);
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({5.0, 1.0, 3.0}), 3.0);
  EXPECT_EQ(median({5.0, 1.0, 3.0, 4.0}), 3.5);
}

TEST(ThetaTest, IsAStaircaseThenALine) {
  const Theta theta = theta_of({{16, 2.0}, {4, 1.0}, {8, 1.5}});
  EXPECT_EQ(theta.graph_of(1), 4);
  EXPECT_EQ(theta.graph_of(4), 4);
  EXPECT_EQ(theta.graph_of(5), 8);
  EXPECT_EQ(theta.graph_of(16), 16);
  EXPECT_EQ(theta.graph_of(17), 17);
  EXPECT_EQ(theta.seconds(8), 1.5);
  EXPECT_DOUBLE_EQ(theta.seconds(24), 2.5);
}

TEST(ThetaTest, OnePointGivesALineThroughTheOrigin) {
  EXPECT_DOUBLE_EQ(theta_of({{10, 2.0}}).seconds(15), 3.0);
}

TEST(ThetaTest, ALargerGraphIsNeverFaster) {
  const Theta theta = theta_of({{4, 1.0}, {8, 0.9}, {16, 1.2}, {32, 1.1}});
  EXPECT_EQ(theta.seconds(8), 1.0);
  EXPECT_EQ(theta.seconds(16), 1.2);
  EXPECT_EQ(theta.seconds(64), 1.2);
}

TEST(ThetaTest, RefusesWhatNoMeasurementGives) {
  for (const std::vector<StepPoint>& points :
       {std::vector<StepPoint>{{0, 1.0}}, {{4, 1.0}, {4, 2.0}}, {{4, -1.0}}, {{4, kInfinity}}}) {
    const auto theta = Theta::create(points);
    ASSERT_FALSE(theta.has_value());
    EXPECT_EQ(theta.error().code, Code::kInvalidArgument);
  }
  EXPECT_FALSE(StepCost::create({.points = {{1, 1.0}}, .budget_seconds = -1.0}).has_value());
}

TEST(ThetaTest, NothingMeasured) {
  EXPECT_FALSE(Theta().measured());
  EXPECT_EQ(Theta().graph_of(7), 7);
  EXPECT_EQ(Theta().seconds(7), 0.0);
}

TEST(ThetaTest, WithoutPaddingTimesLieOnLines) {
  const Theta theta = Theta::create({{2, 4.0}, {6, 8.0}}, false).value();
  EXPECT_EQ(theta.graph_of(3), 3);
  EXPECT_DOUBLE_EQ(theta.seconds(1), 4.0);
  EXPECT_DOUBLE_EQ(theta.seconds(2), 4.0);
  EXPECT_DOUBLE_EQ(theta.seconds(3), 5.0);
  EXPECT_DOUBLE_EQ(theta.seconds(6), 8.0);
  EXPECT_DOUBLE_EQ(theta.seconds(10), 12.0);
}

TEST(LearntCurveTest, HasThePointsThatStepsWereAt) {
  LearntCurve curve;
  const auto feed = [&](std::int64_t tokens, double seconds, std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      curve.observe(tokens, seconds);
    }
  };
  feed(1, 1.0, 100);
  EXPECT_TRUE(curve.points().empty());  // one says nothing of a token more
  feed(6, 2.0, LearntCurve::kSamplesMin - 1);
  curve.observe(6, kInfinity);
  curve.observe(6, -1.0);
  EXPECT_TRUE(curve.points().empty());
  feed(6, 2.0, 1);
  EXPECT_EQ(curve.points(), (std::vector<StepPoint>{{1, 1.0}, {6, 2.0}}));
  feed(6, 7.0, LearntCurve::kRemembered / 2 + 1);  // a median
  EXPECT_EQ(curve.points().back(), (StepPoint{6, 7.0}));
  // 21 to 24 share a point.
  for (const std::int64_t tokens : {21, 22, 23, 24, 20, 25}) {
    feed(tokens, static_cast<double>(tokens), 2);
  }
  EXPECT_EQ(curve.points().size(), 3U);
  EXPECT_EQ(curve.points().back().graph, 22);
}

TEST(LearntCurveTest, ForgetsWhatNoStepIsAt) {
  LearntCurve curve;
  for (std::size_t i = 0; i < LearntCurve::kSamplesMin; ++i) {
    curve.observe(3, 1.0);
    curve.observe(1, 1.0);
  }
  EXPECT_EQ(curve.points().size(), 2U);
  for (std::int64_t i = 0; i < LearntCurve::kForgotten; ++i) {
    curve.observe(1, 1.0);
  }
  EXPECT_TRUE(curve.points().empty());
}

TEST(StepCostTest, LearnsWithoutAMeasuredCurve) {
  StepCost cost = StepCost::learning();
  EXPECT_FALSE(cost.measured());
  for (int i = 0; i < 20; ++i) {
    cost.observe_forward(2, 1.0);
    cost.observe_forward(12, 2.0);
    cost.observe_sampler(2, 0.5);
  }
  EXPECT_TRUE(cost.measured());
  EXPECT_DOUBLE_EQ(cost.forward_seconds(7), 1.5);
  EXPECT_DOUBLE_EQ(cost.seconds(2, 7), 2.0);
  EXPECT_EQ(cost.graph_of(7), 7);
}

TEST(ContextSlopeTest, IsTheMedianOfTheGraphsMedians) {
  ContextSlope slope;
  const auto feed = [&](std::int64_t graph, double seconds_a_token, int times) {
    for (int i = 0; i < times; ++i) {
      slope.observe(graph, seconds_a_token * static_cast<double>(graph));
    }
  };
  feed(8, 2.0, 9);
  EXPECT_EQ(slope.value(), 0.0);  // too few
  feed(8, 2.0, 1);
  EXPECT_DOUBLE_EQ(slope.value(), 2.0);
  feed(16, 4.0, 100);
  EXPECT_DOUBLE_EQ(slope.value(), 3.0);
  feed(32, 100.0, 9);
  EXPECT_DOUBLE_EQ(slope.value(), 3.0);
  feed(32, 100.0, 1);
  EXPECT_DOUBLE_EQ(slope.value(), 4.0);
  slope.observe(8, kInfinity);
  EXPECT_DOUBLE_EQ(slope.value(), 4.0);
}

TEST(ContextSlopeTest, IsNeverNegative) {
  ContextSlope slope;
  for (int i = 0; i < 20; ++i) {
    slope.observe(4, -1.0);
  }
  EXPECT_EQ(slope.value(), 0.0);
}

TEST(ContextSlopeTest, ForgetsStepsLongAgo) {
  ContextSlope slope;
  for (std::size_t i = 0; i < 20; ++i) {
    slope.observe(8, 8.0);
  }
  for (std::size_t i = 20; i < ContextSlope::kSteps; ++i) {
    slope.observe(16, 48.0);
  }
  EXPECT_DOUBLE_EQ(slope.value(), 2.0);  // between 1 and 3
  for (std::size_t i = 0; i < 10; ++i) {
    slope.observe(16, 48.0);
  }
  EXPECT_DOUBLE_EQ(slope.value(), 2.0);  // ten of the first graph are left
  slope.observe(16, 48.0);
  EXPECT_DOUBLE_EQ(slope.value(), 3.0);
  for (std::size_t i = 0; i < 2 * ContextSlope::kSteps; ++i) {
    slope.observe(16, i % 2 == 0 ? 16.0 : 32.0);
  }
  EXPECT_DOUBLE_EQ(slope.value(), 1.5);
}

TEST(SamplerCostTest, IsTheMedianOfTheLastNineOrOfAllRowCounts) {
  SamplerCost cost;
  EXPECT_EQ(cost.value(4), 0.0);
  for (int i = 0; i < 4; ++i) {
    cost.observe(4, 1.0);
  }
  EXPECT_EQ(cost.value(4), 0.0);  // too few, and no other row count
  cost.observe(4, 3.0);
  EXPECT_EQ(cost.value(4), 1.0);
  EXPECT_EQ(cost.value(9), 1.0);  // unknown: what the others take
  for (int i = 0; i < 5; ++i) {
    cost.observe(8, 5.0);
  }
  EXPECT_EQ(cost.value(8), 5.0);
  EXPECT_EQ(cost.value(9), 3.0);
  for (int i = 0; i < 4; ++i) {
    cost.observe(4, 7.0);
  }
  EXPECT_EQ(cost.value(4), 3.0);  // 1 1 1 1 3 7 7 7 7
  cost.observe(4, 7.0);
  EXPECT_EQ(cost.value(4), 7.0);  // the oldest is gone
  cost.observe(4, -1.0);
  cost.observe(4, kInfinity);
  EXPECT_EQ(cost.value(4), 7.0);
}

TEST(StepCostTest, AddsUp) {
  auto cost = *StepCost::create({.points = {{4, 1.0}, {8, 2.0}}, .budget_seconds = 0.25});
  EXPECT_TRUE(cost.measured());
  EXPECT_EQ(cost.budget_seconds(), 0.25);
  EXPECT_DOUBLE_EQ(cost.seconds(2, 3), 1.0);
  for (int i = 0; i < 10; ++i) {
    cost.observe_forward(5, 2.8);  // 0.8 over theta(8): 0.1 a token of the graph
    cost.observe_sampler(2, 0.5);
  }
  EXPECT_DOUBLE_EQ(cost.seconds(2, 3), 1.0 + 0.4 + 0.5);
  EXPECT_DOUBLE_EQ(cost.seconds(2, 10), 2.5 + 1.0 + 0.5);
  EXPECT_FALSE(StepCost().measured());
}

TEST(StepCurveTest, IsReadBackWithinTheHour) {
  const StepCurve curve{.points = {{1, 0.1}, {256, 1.0 / 3.0}}, .budget_seconds = 1e-5};
  const std::string text = to_json(curve, "weights \"x\", build 7", 5000);
  const auto read = [&](std::string_view key, std::int64_t now) {
    return parse_step_curve(text, key, now);
  };
  const std::string_view key = "weights \"x\", build 7";
  ASSERT_TRUE(read(key, 5000).has_value());
  EXPECT_EQ(*read(key, 5000), curve);
  EXPECT_TRUE(read(key, 5000 + kStepCurveSeconds).has_value());
  EXPECT_EQ(read(key, 5001 + kStepCurveSeconds).error().code, Code::kNotFound);
  EXPECT_EQ(read(key, 4999).error().code, Code::kNotFound);
  EXPECT_EQ(read("another", 5000).error().code, Code::kNotFound);
}

TEST(StepCurveTest, BrokenTextsAreCorrupt) {
  EXPECT_EQ(parse_step_curve(R"({"format":2})", "k", 0).error().code, Code::kNotFound);
  for (const std::string_view text : {
           "",
           "[]",
           R"({"key":"k","unix_seconds":0,"budget_seconds":0,"points":[]})",
           R"({"format":1,"unix_seconds":0,"budget_seconds":0,"points":[]})",
           R"({"format":1,"key":"k","unix_seconds":0.5,"budget_seconds":0,"points":[]})",
           R"({"format":1,"key":"k","unix_seconds":0,"points":[]})",
           R"({"format":1,"key":"k","unix_seconds":0,"budget_seconds":-1,"points":[]})",
           R"({"format":1,"key":"k","unix_seconds":0,"budget_seconds":0})",
           R"({"format":1,"key":"k","unix_seconds":0,"budget_seconds":0,"points":[[1]]})",
           R"({"format":1,"key":"k","unix_seconds":0,"budget_seconds":0,"points":[[1.5,1]]})",
           R"({"format":1,"key":"k","unix_seconds":0,"budget_seconds":0,"points":[[0,1]]})",
           R"({"format":1,"key":"k","unix_seconds":0,"budget_seconds":0,"points":[[1,-1]]})",
       }) {
    const auto curve = parse_step_curve(text, "k", 0);
    ASSERT_FALSE(curve.has_value()) << text;
    EXPECT_EQ(curve.error().code, Code::kCorruption) << text;
  }
}

}  // namespace
}  // namespace galley::engine
