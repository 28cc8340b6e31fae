#pragma once

#include <array>
#include <cstdint>

#include "base/metrics.h"
#include "engine/scheduler.h"
#include "engine/store_traffic.h"

namespace galley::engine {

// What the engine tells the metrics registry, after every turn of its loop. One thread.
class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics& metrics);

  void update(const Scheduler& scheduler);
  void update(const StoreTrafficStats& now);

 private:
  // A count of SchedulerStats that only grows.
  struct Count {
    std::int64_t SchedulerStats::* source;
    Counter counter;
  };

  struct StoreCount {
    std::uint64_t StoreTrafficStats::* source;
    Counter counter;
  };

  SchedulerStats told_;  // so far
  StoreTrafficStats store_told_;
  std::array<Count, 25> counts_;
  std::array<StoreCount, 6> store_counts_;
  Gauge running_;
  Gauge waiting_;
  Gauge blocks_;
  Gauge held_blocks_;
  Gauge cached_blocks_;
};

}  // namespace galley::engine
