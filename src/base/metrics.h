#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

// What a running Galley counts, in the Prometheus text format. Names are
// galley_<subject>_<unit>: a counter ends in _total, everything else in a unit of
// kMetricUnits (base/metrics.cc), so a number is never read in the wrong scale.
namespace galley {

// Handles are small values. Any thread may use them, without a lock; they live as long as their
// Metrics.
class Counter {
 public:
  explicit Counter(prometheus::Counter& counter) : counter_(&counter) {}
  void add(double amount = 1.0);  // not below 0

 private:
  prometheus::Counter* counter_;  // owned by Metrics
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge& gauge) : gauge_(&gauge) {}
  void set(double value);
  void add(double amount);  // negative to take away

 private:
  prometheus::Gauge* gauge_;  // owned by Metrics
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram& histogram) : histogram_(&histogram) {}
  void observe(double value);

 private:
  prometheus::Histogram* histogram_;  // owned by Metrics
};

using MetricLabels = std::map<std::string, std::string>;

// The registry. Any thread may call it. Asking again for the same name and labels gives the same
// series; the same name as another kind, or a name without a unit, is a bug and asserts.
class Metrics {
 public:
  // Label values can come from outside (a model's name), so series are bounded: beyond this many
  // label sets of one name, further ones share a series whose label values are all "other".
  static constexpr std::size_t kSeriesPerNameMax = 200;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  [[nodiscard]] Counter counter(std::string_view name,
                                std::string_view help,
                                const MetricLabels& labels = {});
  [[nodiscard]] Gauge gauge(std::string_view name,
                            std::string_view help,
                            const MetricLabels& labels = {});
  // `upper_bounds` ascend; values above the last fall into +Inf.
  [[nodiscard]] Histogram histogram(std::string_view name,
                                    std::string_view help,
                                    std::span<const double> upper_bounds,
                                    const MetricLabels& labels = {});

  // Everything in the text exposition format 0.0.4 (media type "text/plain; version=0.0.4").
  [[nodiscard]] std::string render() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
