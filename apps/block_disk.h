#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/loop_thread.h"
#include "base/metrics.h"
#include "cache/posix_disk.h"
#include "cache/segments/segment_store.h"

namespace galley::apps {

// The blocks that `galley serve` keeps on a disk, in the folder that cache.dir or server.data
// names, and the thread that looks after them: it reads the rest of the index, expires, refreshes.
class BlockDisk {
 public:
  static constexpr std::size_t kAgentClass = 0;
  static constexpr std::size_t kChatClass = 1;

  // Null where the operator wants none. Error: the folder cannot be made or used, also while
  // another server uses it. What is given outlives it.
  [[nodiscard]] static Result<std::unique_ptr<BlockDisk>> open(const Config& config,
                                                               const Clock& clock,
                                                               Metrics& metrics,
                                                               Log& log);
  // Makes durable what is not. Nobody uses the store any more.
  ~BlockDisk();
  BlockDisk(const BlockDisk&) = delete;
  BlockDisk& operator=(const BlockDisk&) = delete;

  [[nodiscard]] cache::BlockStore& store() { return *store_; }

 private:
  // A count of StoreStats that only grows.
  struct Count {
    std::uint64_t cache::StoreStats::* source;
    Counter counter;
  };

  BlockDisk(std::unique_ptr<cache::PosixDisk> disk,
            std::unique_ptr<cache::SegmentStore> store,
            Metrics& metrics,
            Log& log);
  void look_after();
  void tell();

  Log& log_;
  std::unique_ptr<cache::PosixDisk> disk_;
  std::unique_ptr<cache::SegmentStore> store_;
  std::vector<Count> counts_;
  Gauge bytes_;
  Gauge keys_;
  cache::StoreStats told_;
  TimeNs maintained_{};
  std::optional<LoopThread> thread_;  // last: its tasks use the above
};

}  // namespace galley::apps
