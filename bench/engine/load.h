#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/real_clock.h"
#include "base/units.h"
#include "engine/network_device.h"
#include "engine/scheduler.h"
#include "engine/step_loop.h"
#include "model/network.h"
#include "recipe/tokenizer.h"

// The engine's loop under a load of one's choice, in the thread of whoever measures.
namespace galley::bench {

// How a loop is to run.
struct LoopOptions {
  std::size_t slots = 1;
  std::int64_t context_tokens = 0;
  std::size_t blocks = 0;
  bool drafts = false;
  Bytes states;                      // memory for windows where requests go on
  bool budgets = true;               // else every draft there is is verified
  std::optional<double> acceptance;  // of a draft, whatever the model says
};

// What was seen of a request. Times are on the clock of the loop.
struct Seen {
  TimeNs submitted;
  std::int64_t prompt_tokens{};
  std::int64_t cached_tokens{};
  std::vector<TimeNs> times;         // of deliveries
  std::vector<std::int64_t> tokens;  // in each
  bool ended = false;
};

// What the steps took since the last asking.
struct StepTotals {
  std::int64_t steps{};
  Duration device{};  // forwards and samplers
};

class Loop {
 public:
  // `network` is used by one loop at a time; both outlive it.
  Loop(model::Network& network,
       const std::shared_ptr<const recipe::Tokenizer>& tokenizer,
       const LoopOptions& options);
  ~Loop();

  // Greedy, without stop tokens.
  [[nodiscard]] engine::RequestId submit(std::vector<TokenId> prompt, std::int64_t answer_tokens);
  // One turn. False when there was nothing to do.
  bool turn();
  // Until every request has ended.
  void run();
  [[nodiscard]] const Seen& seen(engine::RequestId request) const { return seen_.at(request); }
  [[nodiscard]] StepTotals take_totals();
  [[nodiscard]] const engine::SchedulerStats& stats() const { return scheduler_.stats(); }
  [[nodiscard]] TimeNs now() const { return clock_.now(); }

 private:
  class CountingDevice;

  RealClock clock_;
  const cache::BlockKey root_;
  engine::Scheduler scheduler_;
  std::unique_ptr<CountingDevice> device_;
  engine::StepLoop loop_;
  std::map<engine::RequestId, Seen> seen_;
};

}  // namespace galley::bench
