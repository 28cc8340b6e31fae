#pragma once

#include <array>
#include <cstdint>

#include "base/metrics.h"
#include "engine/scheduler.h"

namespace galley::engine {

// What the engine tells the metrics registry, after every turn of its loop. One thread.
class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics& metrics);

  void update(const Scheduler& scheduler);

 private:
  // A count of SchedulerStats that only grows.
  struct Count {
    std::int64_t SchedulerStats::* source;
    Counter counter;
  };

  SchedulerStats told_;  // so far
  std::array<Count, 18> counts_;
  Gauge running_;
  Gauge waiting_;
  Gauge blocks_;
  Gauge held_blocks_;
  Gauge cached_blocks_;
};

}  // namespace galley::engine
