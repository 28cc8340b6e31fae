#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// What a step will take (spec runtime 3.6): T(R, B) = theta(g) + slope * g + sampler(R) seconds for
// R rows and B tokens, g the captured graph that holds B tokens. A device that captures none runs
// any count as it is, and its theta is learnt from the steps it runs. Plain values without clock or
// thread: measured times come in as numbers.
namespace galley::engine {

// Mean of `runs` without the smallest and the largest; of one or two runs, the mean.
[[nodiscard]] double trimmed_mean(std::span<const double> runs);

// Mean of the two middle values where their count is even; `values` is not empty.
[[nodiscard]] double median(std::vector<double> values);

struct StepPoint {
  std::int64_t graph{};  // tokens a captured graph holds
  double seconds{};      // of its forward
  friend bool operator==(const StepPoint&, const StepPoint&) = default;
};

// What a forward takes, by its tokens.
struct StepCurve {
  std::vector<StepPoint> points;
  // A step is padded to the next point. Else it runs as it is, and its time lies on the line
  // between two points.
  bool padded = true;
  // What a step pays for being budgeted: the allocation on the device, and whatever else a step of
  // fixed verify lengths does without.
  double budget_seconds{};
  friend bool operator==(const StepCurve&, const StepCurve&) = default;
};

// A measured curve is good for an hour: clocks and neighbours of the machine change.
inline constexpr std::int64_t kStepCurveSeconds = 3600;

// {"format":1,"key":...,"unix_seconds":...,"budget_seconds":...,"points":[[graph,seconds],...]}, of
// a padded curve.
[[nodiscard]] std::string to_json(const StepCurve& curve,
                                  std::string_view key,
                                  std::int64_t unix_seconds);

// What to_json wrote. `key` says what was measured (weights, parallel sizes, graphs, hardware,
// build) and must be the same. Error: kNotFound when the text is of another key or format, older
// than kStepCurveSeconds or from the future; kCorruption when it is no such text.
[[nodiscard]] Result<StepCurve> parse_step_curve(std::string_view text,
                                                 std::string_view key,
                                                 std::int64_t unix_seconds);

// The forward's time by graph, before context lengths: a monotone staircase up to the largest
// captured graph, or lines where nothing is padded. Above the last point nothing is padded, and the
// line through the last two goes on; below the first, a step takes as long as that one.
class Theta {
 public:
  Theta() = default;  // nothing measured
  // Sorts by graph. A larger graph that was measured faster is taken to be as slow as the smaller:
  // otherwise noise would make padding look like a gain. Error: kInvalidArgument when a graph
  // holds no token or stands twice, or a time is negative or not finite.
  [[nodiscard]] static Result<Theta> create(std::vector<StepPoint> points, bool padded = true);

  [[nodiscard]] bool measured() const { return !points_.empty(); }
  [[nodiscard]] std::span<const StepPoint> points() const { return points_; }
  // Tokens the step computes, padding included; `tokens` itself where nothing is measured.
  [[nodiscard]] std::int64_t graph_of(std::int64_t tokens) const;
  // Of a graph_of() number. 0 where nothing is measured.
  [[nodiscard]] double seconds(std::int64_t graph) const;

 private:
  std::vector<StepPoint> points_;
  bool padded_ = true;
};

// A curve from the steps that are run, for a device that captures nothing: medians by about how
// many tokens they had.
class LearntCurve {
 public:
  static constexpr std::size_t kRemembered = 9;  // times of a point
  static constexpr std::size_t kSamplesMin = 5;  // before it counts
  // Counts up to here have a point each; above, four points lie between two powers of two.
  static constexpr std::int64_t kExactMax = 16;
  // A point that none of so many steps was at is forgotten: context lengths have changed since.
  static constexpr std::int64_t kForgotten = 2048;

  // Not finite or negative: left out.
  void observe(std::int64_t tokens, double seconds);
  // In ascending order; none as long as there would be one alone, which says nothing about what a
  // token more takes.
  [[nodiscard]] std::vector<StepPoint> points() const;

 private:
  struct Times {
    std::vector<StepPoint> ring;  // with the step's own count
    std::size_t next = 0;
    std::int64_t newest = 0;  // step
  };
  std::map<std::int64_t, Times> by_tokens_;
  std::int64_t steps_ = 0;
};

// What the curve cannot know: the context lengths of the day.
class ContextSlope {
 public:
  static constexpr std::size_t kSteps = 5000;     // remembered
  static constexpr std::size_t kGraphSteps = 10;  // before a graph counts

  // `seconds_over`: measured forward less theta(graph). Not finite: left out.
  void observe(std::int64_t graph, double seconds_over);
  // Seconds a token: the median of the graphs' medians, at least 0.
  [[nodiscard]] double value() const { return value_; }

 private:
  struct Sample {
    std::int64_t graph{};
    double slope{};
  };
  std::vector<Sample> samples_;  // a ring once kSteps are there
  std::size_t oldest_ = 0;
  std::map<std::int64_t, std::vector<double>> by_graph_;  // each sorted
  double value_ = 0.0;
};

// Sampling, acceptance and drafting, by number of rows.
class SamplerCost {
 public:
  static constexpr std::size_t kRemembered = 9;
  static constexpr std::size_t kSamplesMin = 5;

  // Not finite or negative: left out.
  void observe(std::int64_t rows, double seconds);
  // Median of the last kRemembered times of that row count. Where there are less than kSamplesMin,
  // the median of the medians of all row counts that have them, and 0 as long as there is none.
  [[nodiscard]] double value(std::int64_t rows) const;

 private:
  struct Times {
    std::vector<double> ring;
    std::size_t next = 0;
    double median = 0.0;  // of the ring
  };
  std::map<std::int64_t, Times> by_rows_;
  double overall_ = 0.0;
};

class StepCost {
 public:
  StepCost() = default;  // nothing measured: whoever asks verifies everything
  // Error: Theta::create's; kInvalidArgument when budget_seconds is negative or not finite.
  [[nodiscard]] static Result<StepCost> create(StepCurve curve);
  // Nothing is measured yet: the curve comes from the steps that are run.
  [[nodiscard]] static StepCost learning();

  [[nodiscard]] bool measured() const { return theta_.measured(); }
  [[nodiscard]] double budget_seconds() const { return budget_seconds_; }
  [[nodiscard]] std::int64_t graph_of(std::int64_t tokens) const { return theta_.graph_of(tokens); }
  // T(rows, tokens), without budget_seconds().
  [[nodiscard]] double seconds(std::int64_t rows, std::int64_t tokens) const;
  // The forward's part of it.
  [[nodiscard]] double forward_seconds(std::int64_t tokens) const;

  // Of a step that was run: its tokens before padding and how long its forward took.
  void observe_forward(std::int64_t tokens, double seconds);
  void observe_sampler(std::int64_t rows, double seconds) { sampler_.observe(rows, seconds); }

 private:
  Theta theta_;
  std::optional<LearntCurve> learnt_;  // or theta_ was measured
  ContextSlope slope_;
  SamplerCost sampler_;
  double budget_seconds_ = 0.0;
};

}  // namespace galley::engine
