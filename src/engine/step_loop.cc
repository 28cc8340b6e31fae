#include "engine/step_loop.h"

#include <optional>
#include <utility>

#include "base/check.h"

namespace galley::engine {

StepLoop::StepLoop(
    Scheduler& scheduler, StepDevice& device, const Clock& clock, LaunchMode mode, Defect defect)
    : scheduler_(scheduler), device_(device), clock_(clock), mode_(mode), defect_(defect) {
  GALLEY_ASSERT(mode.depth > 0);
  GALLEY_ASSERT(!mode.split || mode.depth == 1);
}

Result<bool> StepLoop::turn() {
  device_.set_launching(true);
  std::optional<StepPlan> plan = scheduler_.plan(clock_.now());
  if (!plan) {
    device_.set_launching(false);
    const bool settles = !launched_.empty();
    if (settles) {
      GALLEY_CHECK_OK(settle_down_to(launched_.size() - 1));
    }
    return scheduler_.reclaim() || settles;
  }
  const StepId id = plan->id;
  if (defect_ == Defect::kWaitInLaunch) {
    GALLEY_CHECK_OK(settle_down_to(0));
  }
  device_.launch_forward(*std::move(plan));
  device_.set_launching(false);
  // Masks are made from what was drawn before, so such a step is never launched whole.
  const bool waits = mode_.split
                         ? defect_ != Defect::kSamplerBeforeSettle
                         : defect_ != Defect::kMasksBeforeSettle && scheduler_.draws_by_grammar(id);
  if (waits) {
    GALLEY_CHECK_OK(settle_down_to(0));
  }
  launch_sampler(id);
  GALLEY_CHECK_OK(settle_down_to(mode_.depth));
  scheduler_.reclaim();
  return true;
}

void StepLoop::launch_sampler(StepId step) {
  device_.launch_sampler(scheduler_.sampler_plan(step, clock_));
  launched_.push_back(step);
}

Result<void> StepLoop::settle_down_to(std::size_t launched) {
  while (launched_.size() > launched) {
    const auto next =
        defect_ == Defect::kSettleOutOfOrder ? launched_.end() - 1 : launched_.begin();
    const StepId step = *next;
    launched_.erase(next);
    GALLEY_CHECK_OK(scheduler_.settle(device_.wait(step)));
  }
  return {};
}

}  // namespace galley::engine
