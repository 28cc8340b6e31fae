#include "engine/store_traffic.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "engine/block_names.h"

namespace galley::engine {
namespace {

FetchEnd end_of(cache::MissReason reason) {
  switch (reason) {
    case cache::MissReason::kNone:
      return FetchEnd::kWhole;
    case cache::MissReason::kUnknown:
      return FetchEnd::kUnknown;
    case cache::MissReason::kLayout:
    case cache::MissReason::kNumerics:
      return FetchEnd::kForeign;
    case cache::MissReason::kExpired:
      return FetchEnd::kExpired;
  }
  return FetchEnd::kUnknown;
}

FetchEnd end_of(const Error& error) {
  return error.code == Code::kCorruption         ? FetchEnd::kDamaged
         : error.code == Code::kDeadlineExceeded ? FetchEnd::kExpired
                                                 : FetchEnd::kFailed;
}

}  // namespace

// Shared by whoever ordered it and the thread that works on it.
struct StoreTraffic::Fetch {
  FetchOrder order;
  Mutex mutex;
  FetchState state GALLEY_GUARDED_BY(mutex);
  bool stopped GALLEY_GUARDED_BY(mutex) = false;
};

StoreTraffic::StoreTraffic(cache::BlockStore& store,
                           BlockMemory& memory,
                           const Clock& clock,
                           const StoreTrafficOptions& options,
                           std::function<void()> on_progress)
    : store_(store),
      memory_(memory),
      clock_(clock),
      options_(options),
      on_progress_(std::move(on_progress)),
      readers_(options.readers, options.waiting_max) {
  GALLEY_ASSERT(options.credits > 0);
  for (const std::size_t bytes : memory.block_parts()) {
    block_bytes_ += bytes;
    ends_.push_back(block_bytes_);
  }
  GALLEY_ASSERT(block_bytes_ > 0);
  queue_max_ = std::min(SerialExecutor::kPendingMax - 1,
                        std::max<std::size_t>(1, options.queue.value() / block_bytes_));
}

StoreTraffic::~StoreTraffic() {
  {
    const MutexLock lock(mutex_);
    write_until_ = clock_.now() + options_.close_max;
  }
  for (const auto& [id, fetch] : fetches_) {
    const MutexLock lock(fetch->mutex);
    fetch->stopped = true;
  }
}

StoreTrafficStats StoreTraffic::stats() const {
  return {.written_blocks = counts_.written_blocks,
          .written_bytes = counts_.written_bytes,
          .known_blocks = counts_.known_blocks,
          .dropped_blocks = counts_.dropped_blocks,
          .refused_blocks = counts_.refused_blocks,
          .fetched_blocks = counts_.fetched_blocks,
          .fetched_bytes = counts_.fetched_bytes};
}

// ---- writing --------------------------------------------------------------------------------

void StoreTraffic::write(const WriteOrder& order) {
  const auto bytes = memory_.block_bytes(order.block);
  if (!bytes || queued_.load(std::memory_order_relaxed) >= queue_max_) {
    ++counts_.dropped_blocks;
    return;
  }
  Copy copy{.order = order, .bytes = {}};
  {
    const MutexLock lock(mutex_);
    if (!spare_.empty()) {
      copy.bytes = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  copy.bytes.resize(block_bytes_);
  std::memcpy(copy.bytes.data(), bytes->data(), block_bytes_);
  ++queued_;
  writer_.post([this, copy = std::move(copy)]() mutable {
    if (too_late()) {
      ++counts_.dropped_blocks;
    } else {
      put(copy);
    }
    {
      const MutexLock lock(mutex_);
      spare_.push_back(std::move(copy.bytes));
    }
    // What came meanwhile becomes durable together.
    if (--queued_ == 0) {
      commit();
      const MutexLock lock(mutex_);
      spare_.clear();
    }
  });
}

bool StoreTraffic::too_late() {
  const MutexLock lock(mutex_);
  return write_until_ && clock_.now() >= *write_until_;
}

void StoreTraffic::commit() {
  if (too_late()) {
    counts_.written_blocks -= staged_;
    counts_.written_bytes -= staged_ * block_bytes_;
    counts_.dropped_blocks += staged_;
  } else {
    (void)store_.commit();  // what it lost is a miss, and the store counts it
  }
  staged_ = 0;
}

void StoreTraffic::put(const Copy& copy) {
  const WriteOrder& order = copy.order;
  const recipe::Generation& generation = order.request->generation;
  const std::string space = block_space(generation);
  std::vector<std::span<const std::byte>> parts;
  parts.reserve(ends_.size());
  std::size_t begin = 0;
  for (const std::size_t end : ends_) {
    parts.push_back(copy.bytes.bytes().subspan(begin, end - begin));
    begin = end;
  }
  const cache::NewBlock block{
      .facts = {.space = space,
                .key = order.key,
                .parent = order.parent,
                .layout = options_.layout,
                .numerics = options_.numerics,
                .exact = order.exact},
      .retention = generation.has_tools ? options_.agent_class : options_.chat_class,
      .parts = parts};
  auto outcome = store_.put(block);
  if (!outcome && outcome.error().code == Code::kOverloaded && outcome.error().where.empty()) {
    if (store_.commit()) {  // too much was staged
      staged_ = 0;
      outcome = store_.put(block);
    }
  }
  if (!outcome) {
    ++counts_.refused_blocks;
  } else if (*outcome == cache::PutOutcome::kKnown) {
    ++counts_.known_blocks;
  } else {
    ++staged_;
    ++counts_.written_blocks;
    counts_.written_bytes += block_bytes_;
  }
}

// ---- fetching -------------------------------------------------------------------------------

void StoreTraffic::fetch(FetchOrder order) {
  GALLEY_ASSERT(order.keys.size() == order.blocks.size());
  auto fetch = std::make_shared<Fetch>();
  const RequestId id = order.id;
  fetch->order = std::move(order);
  const bool added = fetches_.emplace(id, fetch).second;
  GALLEY_ASSERT(added);
  if (!readers_.try_post([this, fetch] { run(*fetch); })) {
    {
      const MutexLock lock(fetch->mutex);
      fetch->state.over = true;
      fetch->state.end = FetchEnd::kRefused;
    }
    on_progress_();
  }
}

FetchState StoreTraffic::state(RequestId id) {
  Fetch& fetch = *fetches_.at(id);
  const MutexLock lock(fetch.mutex);
  return fetch.state;
}

void StoreTraffic::stop(RequestId id) {
  const auto found = fetches_.find(id);
  GALLEY_ASSERT(found != fetches_.end());
  {
    const MutexLock lock(found->second->mutex);
    found->second->stopped = true;
  }
  fetches_.erase(found);
}

void StoreTraffic::run(Fetch& fetch) {
  {
    const MutexLock lock(fetch.mutex);
    if (fetch.stopped) {
      return;
    }
    fetch.state.begun = true;
  }
  on_progress_();
  const std::string space = block_space(fetch.order.request->generation);
  const auto lease = store_.match({.space = space,
                                   .layout = options_.layout,
                                   .keys = fetch.order.keys,
                                   .exact_only = options_.exact_only,
                                   .numerics = options_.numerics});
  bool helps = false;
  {
    const MutexLock lock(fetch.mutex);
    fetch.state.promised = lease->size();
    fetch.state.end = end_of(lease->miss());
    fetch.state.over = lease->size() < std::max<std::size_t>(1, fetch.order.least);
    helps = !fetch.state.over;
  }
  on_progress_();
  if (helps) {
    read(fetch, *lease);
  }
}

void StoreTraffic::read(Fetch& fetch, const cache::BlockLease& lease) {
  const std::size_t size = lease.size();
  std::vector<PageBuffer> buffers(std::min(options_.credits, size));
  bool goes_on = true;
  for (std::size_t first = 0; first < size && goes_on; first += buffers.size()) {
    const std::size_t count = std::min(buffers.size(), size - first);
    std::vector<std::span<std::byte>> memory;
    for (std::size_t i = 0; i < count; ++i) {
      buffers[i].resize(lease.read_bytes(first + i));
      memory.push_back(buffers[i].bytes());
    }
    // They come in any order, and count in theirs.
    std::vector<FetchEnd> ends(count, FetchEnd::kFailed);
    std::size_t next = 0;
    store_.read_all(lease, first, memory, [&](std::size_t index, Result<cache::BlockView> view) {
      ends[index - first] = view ? place(fetch, index, *view) : end_of(view.error());
      const MutexLock lock(fetch.mutex);
      for (; next < count && ends[next] == FetchEnd::kWhole; ++next) {
        ++fetch.state.fetched;
        ++counts_.fetched_blocks;
        counts_.fetched_bytes += block_bytes_;
      }
    });
    goes_on = next == count;
    {
      const MutexLock lock(fetch.mutex);
      if (!goes_on) {
        fetch.state.end = ends[next];
      }
      fetch.state.over = !goes_on || first + count == size;
    }
    on_progress_();
  }
}

// kWhole when it is in its place. Else what is on disk is as it should be: it is no block of this
// device, there is no memory for it, or it is not wanted any more.
FetchEnd StoreTraffic::place(Fetch& fetch, std::size_t index, const cache::BlockView& view) {
  if (view.parts.size() != ends_.size()) {
    return FetchEnd::kForeign;
  }
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (view.parts[i].size() != ends_[i] - begin) {
      return FetchEnd::kForeign;
    }
    begin = ends_[i];
  }
  const MutexLock lock(fetch.mutex);
  if (fetch.stopped) {
    return FetchEnd::kRefused;
  }
  const auto bytes = memory_.block_bytes(fetch.order.blocks[index]);
  if (!bytes) {
    return FetchEnd::kRefused;
  }
  begin = 0;
  for (const std::span<const std::byte> part : view.parts) {
    std::memcpy(bytes->data() + begin, part.data(), part.size());
    begin += part.size();
  }
  return FetchEnd::kWhole;
}

}  // namespace galley::engine
