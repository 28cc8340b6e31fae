#include "base/metrics.h"

#include <algorithm>
#include <array>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace galley {
namespace {

// Base units only (seconds, not milliseconds), as Prometheus advises; counts name what they count.
constexpr std::array<std::string_view, 11> kMetricUnits{
    "_blocks",  "_bytes",     "_connections", "_generations",      "_info", "_ratio", "_requests",
    "_seconds", "_sequences", "_tokens",      "_timestamp_seconds"};

enum class Kind : std::uint8_t { kCounter, kGauge, kHistogram };

bool well_named(std::string_view name, Kind kind) {
  const bool plain = std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
  const bool has_unit =
      kind == Kind::kCounter
          ? name.ends_with("_total")
          : std::ranges::any_of(kMetricUnits, [&](auto unit) { return name.ends_with(unit); });
  return plain && has_unit && name.starts_with("galley_");
}

struct Family {
  Kind kind;
  std::set<MetricLabels> series;
};

}  // namespace

struct Metrics::State {
  // The labels to use for a series, after checking its name and bounding their number.
  MetricLabels admit(std::string_view name, Kind kind, const MetricLabels& labels)
      GALLEY_EXCLUDES(mutex) {
    GALLEY_ASSERT(well_named(name, kind));
    const MutexLock lock(mutex);
    Family& family = families.try_emplace(std::string(name), Family{kind, {}}).first->second;
    GALLEY_ASSERT(family.kind == kind);
    if (family.series.contains(labels)) {
      return labels;
    }
    if (family.series.size() < kSeriesPerNameMax) {
      family.series.insert(labels);
      return labels;
    }
    MetricLabels other = labels;
    for (auto& [label, value] : other) {
      value = "other";
    }
    return other;
  }

  prometheus::Registry registry;
  Mutex mutex;
  std::map<std::string, Family> families GALLEY_GUARDED_BY(mutex);
};

Metrics::Metrics() : state_(std::make_unique<State>()) {}
Metrics::~Metrics() = default;

Counter Metrics::counter(std::string_view name, std::string_view help, const MetricLabels& labels) {
  const MetricLabels admitted = state_->admit(name, Kind::kCounter, labels);
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(state_->registry);
  return Counter(family.Add(admitted));
}

Gauge Metrics::gauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  const MetricLabels admitted = state_->admit(name, Kind::kGauge, labels);
  auto& family = prometheus::BuildGauge()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(state_->registry);
  return Gauge(family.Add(admitted));
}

Histogram Metrics::histogram(std::string_view name,
                             std::string_view help,
                             std::span<const double> upper_bounds,
                             const MetricLabels& labels) {
  GALLEY_ASSERT(std::ranges::is_sorted(upper_bounds));
  const MetricLabels admitted = state_->admit(name, Kind::kHistogram, labels);
  auto& family = prometheus::BuildHistogram()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(state_->registry);
  return Histogram(
      family.Add(admitted, std::vector<double>(upper_bounds.begin(), upper_bounds.end())));
}

std::string Metrics::render() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

void Counter::add(double amount) {
  GALLEY_ASSERT(amount >= 0.0);
  counter_->Increment(amount);
}
void Gauge::set(double value) {
  gauge_->Set(value);
}
void Gauge::add(double amount) {
  gauge_->Increment(amount);
}
void Histogram::observe(double value) {
  histogram_->Observe(value);
}

}  // namespace galley
