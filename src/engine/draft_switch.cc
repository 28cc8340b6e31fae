#include "engine/draft_switch.h"

#include <algorithm>
#include <bit>
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

DraftSwitch::Load& DraftSwitch::load_of(std::size_t rows) {
  GALLEY_ASSERT(rows > 0);
  const auto power = static_cast<std::size_t>(std::bit_width(rows)) - 1;
  return loads_[std::min(power, loads_.size() - 1)];
}

bool DraftSwitch::drafts(std::size_t rows) {
  Load& load = load_of(rows);
  const auto& [plain, drafting] = load.kinds;
  // What is not known yet comes first.
  if (drafting.last.size() < kTrial) {
    return true;
  }
  if (plain.last.size() < kTrial) {
    return false;
  }
  const bool better = drafting.rate() >= plain.rate();
  if (load.trial_left == 0 && --load.steps_until_trial == 0) {
    load.steps_until_trial = kTrialEvery;
    load.trial_left = kTrial + 1;  // the first of them is left out
  }
  if (load.trial_left == 0) {
    return better;
  }
  --load.trial_left;
  return !better;
}

void DraftSwitch::observe(std::size_t rows, bool drafted, std::int64_t tokens, Duration time) {
  Load& load = load_of(rows);
  if (std::exchange(load.last_seen, drafted) != drafted) {
    return;
  }
  Kind& kind = load.kinds[drafted ? 1 : 0];
  if (kind.last.size() < kRemembered) {
    kind.last.push_back({.tokens = tokens, .time = time});
    return;
  }
  kind.last[kind.next] = {.tokens = tokens, .time = time};
  kind.next = (kind.next + 1) % kRemembered;
}

}  // namespace galley::engine
