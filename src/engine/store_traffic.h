#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/page_buffer.h"
#include "base/serial_executor.h"
#include "base/task_pool.h"
#include "base/units.h"
#include "cache/block_store.h"
#include "engine/block_traffic.h"

namespace galley::engine {

struct StoreTrafficOptions {
  std::uint64_t layout = 0;
  std::uint64_t numerics = 0;
  bool exact_only = true;                        // what is fetched
  std::size_t agent_class = 0;                   // of the store: blocks of requests with tools
  std::size_t chat_class = 0;                    // blocks of all others
  Bytes queue{std::uint64_t{64} << 20U};         // copies that wait to be written, at most
  std::size_t readers = 2;                       // threads: fetches under way at a time
  std::size_t waiting_max = 256;                 // fetches that wait for one of them
  std::size_t credits = 16;                      // blocks that one fetch has under way, at most
  Duration close_max = std::chrono::seconds(5);  // what waits to be written at the end gets
};

// Since the beginning.
struct StoreTrafficStats {
  std::uint64_t written_blocks{};  // durable, or about to be
  std::uint64_t written_bytes{};   // payload of these
  std::uint64_t known_blocks{};    // the store had them
  std::uint64_t dropped_blocks{};  // too many waited, or the end came
  std::uint64_t refused_blocks{};  // by the store: a budget is used up, it is read-only
  std::uint64_t fetched_blocks{};  // verified and in their places
  std::uint64_t fetched_bytes{};
};

// Traffic with a real store: one thread writes, some read. Copies what is to be written, so a disk
// that hangs holds no block of the pool; what is read lands in buffers of its own first, so a fetch
// can be stopped at any time.
class StoreTraffic final : public BlockTraffic {
 public:
  // `store`, `memory` and `clock` outlive it. `on_progress` is called when state() says something
  // new: a reader took it, the store knows what it has, some blocks came, nothing more will. From
  // its threads, and from whoever orders a fetch that is refused.
  StoreTraffic(cache::BlockStore& store,
               BlockMemory& memory,
               const Clock& clock,
               const StoreTrafficOptions& options,
               std::function<void()> on_progress);
  // Writes what waits to be written, and drops what is not durable after `close_max`. Reads and
  // writes that a disk has under way then are waited for: nobody can take them back.
  ~StoreTraffic() override;

  void fetch(FetchOrder order) override;
  [[nodiscard]] FetchState state(RequestId id) override;
  void stop(RequestId id) override;
  void write(const WriteOrder& order) override;

  // Any thread.
  [[nodiscard]] StoreTrafficStats stats() const;

 private:
  struct Fetch;
  struct Copy {
    WriteOrder order;
    PageBuffer bytes;
  };
  struct Counts {
    std::atomic<std::uint64_t> written_blocks{};
    std::atomic<std::uint64_t> written_bytes{};
    std::atomic<std::uint64_t> known_blocks{};
    std::atomic<std::uint64_t> dropped_blocks{};
    std::atomic<std::uint64_t> refused_blocks{};
    std::atomic<std::uint64_t> fetched_blocks{};
    std::atomic<std::uint64_t> fetched_bytes{};
  };

  // On threads of their own.
  void put(const Copy& copy);
  void commit();
  [[nodiscard]] bool too_late() GALLEY_EXCLUDES(mutex_);
  void run(Fetch& fetch);
  void read(Fetch& fetch, const cache::BlockLease& lease);
  [[nodiscard]] FetchEnd place(Fetch& fetch, std::size_t index, const cache::BlockView& view);

  cache::BlockStore& store_;
  BlockMemory& memory_;
  const Clock& clock_;
  const StoreTrafficOptions options_;
  const std::function<void()> on_progress_;
  std::size_t block_bytes_ = 0;
  std::size_t queue_max_;  // copies

  std::unordered_map<RequestId, std::shared_ptr<Fetch>> fetches_;  // of the calling thread
  std::vector<std::size_t> ends_;                                  // of parts, in a block
  Counts counts_;
  std::atomic<std::size_t> queued_ = 0;  // copies
  std::size_t staged_ = 0;               // blocks since the last commit; of the writing thread
  Mutex mutex_;
  std::vector<PageBuffer> spare_ GALLEY_GUARDED_BY(mutex_);      // of copies that were written
  std::optional<TimeNs> write_until_ GALLEY_GUARDED_BY(mutex_);  // once it ends
  TaskPool readers_;
  SerialExecutor writer_;  // last: their threads use the above
};

}  // namespace galley::engine
