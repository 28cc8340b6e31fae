// Goal: metrics render in the Prometheus text format, are named with units, and stay bounded.
// Method: the whole rendered text of a small registry; the bound and one past it.
#include "base/metrics.h"

#include <array>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace galley {
namespace {

constexpr std::array kBounds{0.1, 1.0};

TEST(Metrics, RendersTextFormat) {
  Metrics metrics;
  const MetricLabels chat{{"route", "chat"}};
  metrics.counter("galley_requests_total", "Requests.", chat).add();
  metrics.counter("galley_requests_total", "Requests.", chat).add(2);
  Gauge gauge = metrics.gauge("galley_queue_requests", "Waiting.");
  gauge.set(5);
  gauge.add(-2);
  Histogram histogram = metrics.histogram("galley_ttft_seconds", "First token.", kBounds);
  histogram.observe(0.05);
  histogram.observe(0.5);
  histogram.observe(7);
  const std::string text = metrics.render();
  for (const char* line :
       {"# HELP galley_requests_total Requests.\n", "# TYPE galley_requests_total counter\n",
        "galley_requests_total{route=\"chat\"} 3\n", "# TYPE galley_queue_requests gauge\n",
        "galley_queue_requests 3\n", "# TYPE galley_ttft_seconds histogram\n",
        "galley_ttft_seconds_bucket{le=\"1\"} 2\n", "galley_ttft_seconds_bucket{le=\"+Inf\"} 3\n",
        "galley_ttft_seconds_count 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
}

TEST(Metrics, LabelValuesAreEscaped) {
  Metrics metrics;
  metrics.counter("galley_requests_total", "Requests.", {{"model", "a\"b\nc\\"}}).add();
  EXPECT_NE(metrics.render().find(R"({model="a\"b\nc\\"} 1)"), std::string::npos)
      << metrics.render();
}

TEST(Metrics, SeriesAreBounded) {
  Metrics metrics;
  const auto count = [&](std::size_t model) {
    metrics.counter("galley_requests_total", "R.", {{"model", std::to_string(model)}}).add();
  };
  for (std::size_t i = 0; i < Metrics::kSeriesPerNameMax + 2; ++i) {
    count(i);
  }
  count(0);  // known series stay reachable
  const std::string text = metrics.render();
  const std::string last = std::to_string(Metrics::kSeriesPerNameMax - 1);
  EXPECT_NE(text.find("{model=\"0\"} 2\n"), std::string::npos);
  EXPECT_NE(text.find("{model=\"" + last + "\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("{model=\"other\"} 2\n"), std::string::npos) << text;
}

TEST(Metrics, ThreadsCountTogether) {
  Metrics metrics;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&metrics] {
        for (int n = 0; n < 100; ++n) {
          metrics.counter("galley_requests_total", "R.", {{"n", std::to_string(n % 3)}}).add();
        }
      });
    }
  }
  EXPECT_NE(metrics.render().find("{n=\"0\"} 136\n"), std::string::npos) << metrics.render();
}

TEST(MetricsDeathTest, BadNamesAreBugs) {
  Metrics metrics;
  EXPECT_DEATH((void)metrics.counter("galley_requests", "R."), "well_named");
  EXPECT_DEATH((void)metrics.gauge("galley_latency_ms", "L."), "well_named");
  EXPECT_DEATH((void)metrics.gauge("requests_seconds", "L."), "well_named");
  EXPECT_DEATH((void)metrics.gauge("galley_A_seconds", "L."), "well_named");
  (void)metrics.gauge("galley_wait_seconds", "W.");
  EXPECT_DEATH((void)metrics.histogram("galley_wait_seconds", "W.", kBounds), "kind");
  EXPECT_DEATH(metrics.counter("galley_x_total", "X.").add(-1), "amount");
}

}  // namespace
}  // namespace galley
