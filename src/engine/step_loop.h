#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/defect.h"
#include "engine/scheduler.h"
#include "engine/step.h"

namespace galley::engine {

// How a step is launched (spec runtime 1.5).
struct LaunchMode {
  // The forward is launched before the step before is settled, its sampler after that: the device
  // never waits for the host, and the sampler sees settled state only. Else both at once, which
  // leaves room for steps so short that settling one does not fit under the next.
  bool split = true;
  std::size_t depth = 1;  // steps launched whole and not settled; more than 1 only when not split
};

// The engine's loop around a scheduler and a device, turn by turn, with no thread of its own.
class StepLoop {
 public:
  StepLoop(Scheduler& scheduler,
           StepDevice& device,
           const Clock& clock,
           LaunchMode mode,
           Defect defect = Defect::kNone);

  // One step is planned and launched, and one is settled; either may be missing. False when there
  // was nothing to do: no request is there. Error kInternal: the device broke the protocol, and
  // nothing can be served any more.
  [[nodiscard]] Result<bool> turn();

 private:
  // Lets only so many steps be unsettled.
  [[nodiscard]] Result<void> settle_down_to(std::size_t launched);
  void launch_sampler(StepId step);

  Scheduler& scheduler_;
  StepDevice& device_;
  const Clock& clock_;
  const LaunchMode mode_;
  const Defect defect_;
  std::vector<StepId> launched_;  // whole, oldest first
};

}  // namespace galley::engine
