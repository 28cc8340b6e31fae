#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace galley::bench {

// What a step can be repeated at most a second, and why.
struct Ceiling {
  double steps_per_second = 0;
  std::string why;
};

// One line of the table: medians of rounds, in steps a second.
struct Measured {
  double rate = 0;
  double ceiling = 0;
  std::string why;
  double share = 0;   // median of the rounds' own shares
  double bare = 0;    // without what belongs to every step but not to its arithmetic; 0: the same
  double peer = 0;    // 0: there is none
  double spread = 0;  // largest ceiling of the rounds over the smallest, less 1
};

// What the rounds of a line call. Empty: there is none.
struct Steps {
  std::function<Ceiling()> ceiling;
  std::function<void()> step;
  std::function<void()> bare;
  std::function<void()> peer;
};

// Collects rounds of one line. A round measures the ceiling, the step and the ceiling again, then
// the others, so that whatever slows the machine for seconds slows all of them.
class Rounds {
 public:
  Rounds(const Clock& clock, Steps steps) : clock_(clock), steps_(std::move(steps)) {}

  // Returns what one step took, in seconds. A round whose ceilings differ by more than a tenth met
  // another job and is taken again, a few times at most.
  double take();
  [[nodiscard]] Measured medians() const;

 private:
  const Clock& clock_;
  Steps steps_;
  std::vector<double> rates_;
  std::vector<double> ceilings_;
  std::vector<double> shares_;
  std::vector<double> bares_;
  std::vector<double> peers_;
  std::string why_;
};

// Calls a second of `step`, for a tenth of a second and at least once.
[[nodiscard]] double call_rate(const Clock& clock, const std::function<void()>& step);

[[nodiscard]] double median(std::vector<double> values);  // 0 of none

}  // namespace galley::bench
