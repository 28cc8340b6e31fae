#include "engine/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/core.h>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "recipe/json.h"

namespace galley::engine {
namespace {

using recipe::Json;

constexpr std::int64_t kFormat = 1;

// `sorted` is not empty.
double middle(std::span<const double> sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

bool is_duration(double seconds) {
  return std::isfinite(seconds) && seconds >= 0.0;
}

// The largest token count that shares a learnt point with `tokens`.
std::int64_t place_of(std::int64_t tokens) {
  if (tokens <= LearntCurve::kExactMax) {
    return tokens;
  }
  const auto last = static_cast<std::uint64_t>(tokens) - 1;
  const unsigned low = static_cast<unsigned>(std::bit_width(last)) - 3;
  return static_cast<std::int64_t>(((last >> low) + 1) << low);
}

std::optional<StepPoint> point_of(const Json& json) {
  const recipe::JsonArray* pair = json.array();
  if (pair == nullptr || pair->size() != 2) {
    return std::nullopt;
  }
  const std::int64_t* graph = pair->front().int64();
  const std::optional<double> seconds = pair->back().number();
  if (graph == nullptr || !seconds) {
    return std::nullopt;
  }
  return StepPoint{.graph = *graph, .seconds = *seconds};
}

}  // namespace

double trimmed_mean(std::span<const double> runs) {
  GALLEY_ASSERT(!runs.empty());
  double sum = std::reduce(runs.begin(), runs.end());
  auto count = static_cast<double>(runs.size());
  if (runs.size() > 2) {
    const auto [least, most] = std::ranges::minmax(runs);
    sum -= least + most;
    count -= 2;
  }
  return sum / count;
}

double median(std::vector<double> values) {
  GALLEY_ASSERT(!values.empty());
  std::ranges::sort(values);
  return middle(values);
}

std::string to_json(const StepCurve& curve, std::string_view key, std::int64_t unix_seconds) {
  recipe::JsonArray points;
  for (const StepPoint& point : curve.points) {
    points.emplace_back(recipe::JsonArray{point.graph, point.seconds});
  }
  recipe::JsonObject object;
  recipe::set_member(object, "format", kFormat);
  recipe::set_member(object, "key", key);
  recipe::set_member(object, "unix_seconds", unix_seconds);
  recipe::set_member(object, "budget_seconds", curve.budget_seconds);
  recipe::set_member(object, "points", std::move(points));
  return recipe::to_json(std::move(object));
}

Result<StepCurve> parse_step_curve(std::string_view text,
                                   std::string_view key,
                                   std::int64_t unix_seconds) {
  const auto malformed = [](std::string_view where) {
    return fail(Code::kCorruption, "not a measured step curve", std::string(where));
  };
  const Result<Json> json = recipe::parse_json(text);
  if (!json) {
    return malformed(json.error().where);
  }
  const Json* format = json->find("format");
  const Json* stored_key = json->find("key");
  const Json* measured_at = json->find("unix_seconds");
  if (format == nullptr || format->int64() == nullptr) {
    return malformed("format");
  }
  if (*format->int64() != kFormat) {
    return fail(Code::kNotFound, fmt::format("step curve of format {}", *format->int64()));
  }
  if (stored_key == nullptr || stored_key->string() == nullptr) {
    return malformed("key");
  }
  if (*stored_key->string() != key) {
    return fail(Code::kNotFound, "step curve of another model, machine or build");
  }
  if (measured_at == nullptr || measured_at->int64() == nullptr) {
    return malformed("unix_seconds");
  }
  // Compared so that no difference of strange numbers can overflow.
  const std::int64_t then = *measured_at->int64();
  if (then > unix_seconds || then < unix_seconds - kStepCurveSeconds) {
    return fail(Code::kNotFound,
                fmt::format("step curve measured at {}, now is {}", then, unix_seconds));
  }
  StepCurve curve;
  const Json* budget = json->find("budget_seconds");
  if (budget == nullptr || !budget->is_number()) {
    return malformed("budget_seconds");
  }
  curve.budget_seconds = *budget->number();
  const Json* points = json->find("points");
  if (points == nullptr || points->array() == nullptr) {
    return malformed("points");
  }
  for (const Json& element : *points->array()) {
    const std::optional<StepPoint> point = point_of(element);
    if (!point) {
      return malformed("points");
    }
    curve.points.push_back(*point);
  }
  // Numbers no measurement gives are a broken text, too.
  if (const Result<StepCost> usable = StepCost::create(curve); !usable) {
    return malformed(usable.error().where);
  }
  return curve;
}

Result<Theta> Theta::create(std::vector<StepPoint> points, bool padded) {
  std::ranges::sort(points, {}, &StepPoint::graph);
  double slowest = 0.0;
  std::int64_t before = 0;
  for (StepPoint& point : points) {
    if (point.graph <= before) {
      return fail(Code::kInvalidArgument,
                  fmt::format("graph of {} tokens after one of {}", point.graph, before), "points");
    }
    if (!is_duration(point.seconds)) {
      return fail(Code::kInvalidArgument, fmt::format("a forward of {} s", point.seconds),
                  "points");
    }
    before = point.graph;
    slowest = std::max(slowest, point.seconds);
    point.seconds = slowest;
  }
  Theta theta;
  theta.points_ = std::move(points);
  theta.padded_ = padded;
  return theta;
}

std::int64_t Theta::graph_of(std::int64_t tokens) const {
  const auto found = std::ranges::lower_bound(points_, tokens, {}, &StepPoint::graph);
  return !padded_ || found == points_.end() ? tokens : found->graph;
}

double Theta::seconds(std::int64_t graph) const {
  if (points_.empty()) {
    return 0.0;
  }
  const auto found = std::ranges::lower_bound(points_, graph, {}, &StepPoint::graph);
  if (found != points_.end()) {
    if (padded_ || found == points_.begin()) {
      return found->seconds;
    }
    const StepPoint& below = *(found - 1);
    const double share =
        static_cast<double>(graph - below.graph) / static_cast<double>(found->graph - below.graph);
    return below.seconds + share * (found->seconds - below.seconds);
  }
  // One point alone gives a line through the origin: more cannot be known.
  const StepPoint last = points_.back();
  const StepPoint left = points_.size() > 1 ? points_[points_.size() - 2] : StepPoint{};
  const double rise = (last.seconds - left.seconds) / static_cast<double>(last.graph - left.graph);
  return last.seconds + rise * static_cast<double>(graph - last.graph);
}

void LearntCurve::observe(std::int64_t tokens, double seconds) {
  GALLEY_ASSERT(tokens > 0);
  if (!is_duration(seconds)) {
    return;
  }
  ++steps_;
  std::erase_if(by_tokens_,
                [&](const auto& one) { return steps_ - one.second.newest > kForgotten; });
  Times& times = by_tokens_[place_of(tokens)];
  times.newest = steps_;
  const StepPoint here{.graph = tokens, .seconds = seconds};
  if (times.ring.size() < kRemembered) {
    times.ring.push_back(here);
  } else {
    times.ring[times.next] = here;
    times.next = (times.next + 1) % kRemembered;
  }
}

std::vector<StepPoint> LearntCurve::points() const {
  std::vector<StepPoint> out;
  for (const auto& [_, times] : by_tokens_) {
    if (times.ring.size() < kSamplesMin) {
      continue;
    }
    std::int64_t tokens = 0;
    std::vector<double> seconds;
    for (const StepPoint& one : times.ring) {
      tokens += one.graph;
      seconds.push_back(one.seconds);
    }
    out.push_back(
        {.graph = tokens / std::ssize(times.ring), .seconds = median(std::move(seconds))});
  }
  if (out.size() < 2) {
    out.clear();
  }
  return out;
}

void ContextSlope::observe(std::int64_t graph, double seconds_over) {
  GALLEY_ASSERT(graph > 0);
  const double slope = seconds_over / static_cast<double>(graph);
  if (!std::isfinite(slope)) {
    return;
  }
  if (samples_.size() < kSteps) {
    samples_.push_back({.graph = graph, .slope = slope});
  } else {
    const Sample old = std::exchange(samples_[oldest_], {.graph = graph, .slope = slope});
    oldest_ = (oldest_ + 1) % kSteps;
    const auto entry = by_graph_.find(old.graph);
    std::vector<double>& sorted = entry->second;
    sorted.erase(std::ranges::lower_bound(sorted, old.slope));
    if (sorted.empty()) {
      by_graph_.erase(entry);
    }
  }
  std::vector<double>& sorted = by_graph_[graph];
  sorted.insert(std::ranges::upper_bound(sorted, slope), slope);

  std::vector<double> medians;
  for (const auto& [_, slopes] : by_graph_) {
    if (slopes.size() >= kGraphSteps) {
      medians.push_back(middle(slopes));
    }
  }
  value_ = medians.empty() ? 0.0 : std::max(0.0, median(std::move(medians)));
}

void SamplerCost::observe(std::int64_t rows, double seconds) {
  if (!is_duration(seconds)) {
    return;
  }
  Times& times = by_rows_[rows];
  if (times.ring.size() < kRemembered) {
    times.ring.push_back(seconds);
  } else {
    times.ring[times.next] = seconds;
    times.next = (times.next + 1) % kRemembered;
  }
  times.median = median(times.ring);
  std::vector<double> medians;
  for (const auto& [_, other] : by_rows_) {
    if (other.ring.size() >= kSamplesMin) {
      medians.push_back(other.median);
    }
  }
  overall_ = medians.empty() ? 0.0 : median(std::move(medians));
}

double SamplerCost::value(std::int64_t rows) const {
  const auto found = by_rows_.find(rows);
  return found != by_rows_.end() && found->second.ring.size() >= kSamplesMin ? found->second.median
                                                                             : overall_;
}

Result<StepCost> StepCost::create(StepCurve curve) {
  if (!is_duration(curve.budget_seconds)) {
    return fail(Code::kInvalidArgument, fmt::format("{} s a budget", curve.budget_seconds),
                "budget_seconds");
  }
  StepCost cost;
  GALLEY_TRY(cost.theta_, Theta::create(std::move(curve.points), curve.padded));
  cost.budget_seconds_ = curve.budget_seconds;
  return cost;
}

StepCost StepCost::learning() {
  StepCost cost;
  cost.learnt_.emplace();
  return cost;
}

double StepCost::seconds(std::int64_t rows, std::int64_t tokens) const {
  return forward_seconds(tokens) + sampler_.value(rows);
}

double StepCost::forward_seconds(std::int64_t tokens) const {
  const std::int64_t graph = graph_of(tokens);
  return theta_.seconds(graph) + slope_.value() * static_cast<double>(graph);
}

void StepCost::observe_forward(std::int64_t tokens, double seconds) {
  if (learnt_) {
    learnt_->observe(tokens, seconds);
    theta_ = Theta::create(learnt_->points(), false).value();  // its points are never wrong
    return;
  }
  const std::int64_t graph = graph_of(tokens);
  slope_.observe(graph, seconds - theta_.seconds(graph));
}

}  // namespace galley::engine
