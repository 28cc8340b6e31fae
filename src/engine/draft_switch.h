#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace galley::engine {

// Whether rows draft at all: what gave more tokens a second lately, by how many rows there were.
// Where drafts are seldom right, or rows are so many that each of them costs, a step is better off
// without. It learns from the steps that are run, and tries the other way for a few steps now and
// then. A plain value: times come in as numbers.
class DraftSwitch {
 public:
  // Steps that an opinion rests on, and that a trial takes; one step behind each change is of
  // neither kind and is left out.
  static constexpr std::size_t kRemembered = 16;
  static constexpr std::size_t kTrial = 8;
  // A trial costs at most kTrial steps in so many.
  static constexpr std::int64_t kTrialEvery = 512;

  // For the next step, of so many rows in decoding.
  [[nodiscard]] bool drafts(std::size_t rows) const;
  // What came of it. Steps come in the order in which they ran; skip() is for those that did more
  // than decode, whose time says nothing.
  void observe(std::size_t rows, bool drafted, std::int64_t tokens, Duration time);
  void skip(bool drafted) { last_drafted_ = drafted; }

 private:
  // Steps of one kind.
  struct Kind {
    struct Step {
      std::int64_t tokens{};
      Duration time{};
    };
    std::vector<Step> last;  // a ring once it is full
    std::size_t next = 0;

    [[nodiscard]] double rate() const;  // tokens a nanosecond
  };
  // Of row counts between two powers of two.
  struct Load {
    std::array<Kind, 2> kinds;  // plain, drafting
    std::int64_t steps_until_trial = kTrialEvery;
    std::size_t trial_left = 0;
  };

  [[nodiscard]] static std::size_t load_of(std::size_t rows);

  std::array<Load, 16> loads_;
  bool last_drafted_ = false;  // the step before
};

}  // namespace galley::engine
