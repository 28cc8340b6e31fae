#include "apps/block_disk.h"

#include <algorithm>
#include <string>
#include <utility>

#include "apps/kept_data.h"
#include "base/entropy.h"

namespace galley::apps {
namespace {

constexpr Duration kMaintainEvery = std::chrono::seconds(5);
// Small stores give back room in small pieces.
constexpr std::uint64_t kSegmentBytesMin = std::uint64_t{16} << 20U;
constexpr Duration kTellEvery = std::chrono::seconds(1);
// A start waits so long for the index; what is not read by then is read beside requests, newest
// first.
constexpr Duration kLoadAtStart = std::chrono::seconds(1);

std::string folder_of(const Config& config) {
  const std::string& own = config.string("cache.dir");
  const std::string& data = config.string("server.data");
  return !own.empty() ? own : data.empty() ? "" : data + "/blocks";
}

}  // namespace

Result<std::unique_ptr<BlockDisk>> BlockDisk::open(const Config& config,
                                                   const Clock& clock,
                                                   Metrics& metrics,
                                                   Log& log) {
  const std::string folder = folder_of(config);
  const std::uint64_t bytes = config.size("cache.bytes").value();
  if (folder.empty() || bytes == 0) {
    return nullptr;
  }
  const char* const setting = config.string("cache.dir").empty() ? "server.data" : "cache.dir";
  GALLEY_CHECK_OK(make_private_folder(folder, setting));
  auto disk = cache::PosixDisk::open_folder(folder, false);
  if (!disk) {
    return in_step(setting, std::move(disk).error());
  }
  auto store = cache::SegmentStore::open(
      **disk, clock,
      {.classes = {{.name = "agent", .life = config.duration("cache.agent_life")},
                   {.name = "chat", .life = config.duration("cache.chat_life")}},
       .bytes_max = bytes,
       .segment_bytes = std::min(std::uint64_t{1} << 30U, std::max(kSegmentBytesMin, bytes / 16)),
       .load = false,
       .seed = entropy_seed()});
  if (!store) {
    return in_step("kept blocks", std::move(store).error());
  }
  const TimeNs begin = clock.now();
  while ((*store)->load_some() && clock.now() - begin < kLoadAtStart) {
  }
  const cache::StoreStats stats = (*store)->stats();
  log.info("blocks on disk", {{"path", folder}, {"blocks", stats.keys}, {"bytes", stats.bytes}});
  for (const cache::StoreTrouble& trouble : (*store)->troubles()) {
    log.warn("a file of the cache is not what it should be",
             {{"path", trouble.file}, {"reason", trouble.what}});
  }
  return std::unique_ptr<BlockDisk>(
      new BlockDisk(std::move(*disk), std::move(*store), metrics, log));
}

BlockDisk::BlockDisk(std::unique_ptr<cache::PosixDisk> disk,
                     std::unique_ptr<cache::SegmentStore> store,
                     Metrics& metrics,
                     Log& log)
    : log_(log),
      disk_(std::move(disk)),
      store_(std::move(store)),
      counts_{
          {&cache::StoreStats::written_bytes,
           metrics.counter("galley_store_written_bytes_total",
                           "Given to the disk of the cache: its wear.")},
          {&cache::StoreStats::read_bytes,
           metrics.counter("galley_store_read_bytes_total", "Read from the disk of the cache.")},
          {&cache::StoreStats::damaged_blocks,
           metrics.counter("galley_store_damaged_blocks_total",
                           "Blocks on the disk of the cache that did not verify.")},
          {&cache::StoreStats::read_errors,
           metrics.counter("galley_store_read_errors_total",
                           "Reads that the disk of the cache refused.")},
          {&cache::StoreStats::write_errors,
           metrics.counter("galley_store_write_errors_total",
                           "Writes that the disk of the cache refused.")},
          {&cache::StoreStats::expired_segments,
           metrics.counter("galley_store_expired_segments_total",
                           "Files of the cache whose life was over.")},
          {&cache::StoreStats::evicted_segments,
           metrics.counter("galley_store_evicted_segments_total",
                           "Files of the cache that made room for others.")},
      },
      bytes_(metrics.gauge("galley_store_bytes", "Of files of the cache on disk.")),
      keys_(metrics.gauge("galley_store_blocks", "Blocks that are known on disk.")) {
  tell();
  thread_.emplace();
  thread_->loop().post([this] { look_after(); });
}

BlockDisk::~BlockDisk() {
  thread_.reset();
  if (const auto closed = store_->close(); !closed) {
    log_.warn("blocks were not all written", {{"reason", to_string(closed.error())}});
  }
}

void BlockDisk::look_after() {
  Loop& loop = thread_->loop();
  if (store_->load_some()) {
    loop.post([this] { look_after(); });
    return;
  }
  if (loop.now() - maintained_ >= kMaintainEvery) {
    maintained_ = loop.now();
    const bool writable = store_->stats().read_only_because.empty();
    const auto maintained = store_->maintain();
    const std::string because = store_->stats().read_only_because;
    if (writable && !because.empty()) {
      log_.warn("nothing more is written to the cache's disk for now", {{"reason", because}});
    } else if (writable && !maintained) {
      log_.warn("the cache's disk", {{"reason", to_string(maintained.error())}});
    }
  }
  tell();
  loop.after(kTellEvery, [this] { look_after(); });
}

void BlockDisk::tell() {
  const cache::StoreStats now = store_->stats();
  for (Count& count : counts_) {
    if (const std::uint64_t more = now.*count.source - told_.*count.source; more > 0) {
      count.counter.add(static_cast<double>(more));
    }
  }
  bytes_.set(static_cast<double>(now.bytes));
  keys_.set(static_cast<double>(now.keys));
  told_ = now;
}

}  // namespace galley::apps
