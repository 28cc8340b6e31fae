#include "engine/draft_switch.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace galley::engine {

double DraftSwitch::Kind::rate() const {
  std::int64_t tokens = 0;
  Duration time{};
  for (const Step& step : last) {
    tokens += step.tokens;
    time += step.time;
  }
  return static_cast<double>(tokens) /
         static_cast<double>(std::max<Duration::rep>(1, time.count()));
}

std::size_t DraftSwitch::load_of(std::size_t rows) {
  GALLEY_ASSERT(rows > 0);
  const auto power = static_cast<std::size_t>(std::bit_width(rows)) - 1;
  return std::min(power, std::tuple_size_v<decltype(loads_)> - 1);
}

bool DraftSwitch::drafts(std::size_t rows) const {
  const Load& load = loads_[load_of(rows)];
  const auto& [plain, drafting] = load.kinds;
  // What is not known yet comes first.
  if (drafting.last.size() < kTrial) {
    return true;
  }
  if (plain.last.size() < kTrial) {
    return false;
  }
  const bool better = drafting.rate() >= plain.rate();
  return load.trial_left > 0 ? !better : better;
}

void DraftSwitch::observe(std::size_t rows, bool drafted, std::int64_t tokens, Duration time) {
  // The first drafting step has nothing to verify, and the first plain one is not better for that.
  if (std::exchange(last_drafted_, drafted) != drafted) {
    return;
  }
  Load& load = loads_[load_of(rows)];
  Kind& kind = load.kinds[drafted ? 1 : 0];
  if (kind.last.size() < kRemembered) {
    kind.last.push_back({.tokens = tokens, .time = time});
  } else {
    kind.last[kind.next] = {.tokens = tokens, .time = time};
    kind.next = (kind.next + 1) % kRemembered;
  }
  if (load.trial_left > 0) {
    --load.trial_left;
  } else if (--load.steps_until_trial <= 0) {
    load.steps_until_trial = kTrialEvery;
    load.trial_left = kTrial;
  }
}

}  // namespace galley::engine
