#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/mutex.h"
#include "base/page_buffer.h"
#include "base/random.h"
#include "cache/block_store.h"
#include "cache/segments/block_index.h"
#include "cache/segments/format.h"
#include "cache/segments/retention.h"
#include "cache/segments/scope_table.h"
#include "cache/segments/segment.h"
#include "cache/segments/segment_writer.h"
#include "cache/segments/store_defect.h"

namespace galley::cache {

struct StoreOptions {
  std::vector<RetentionClass> classes = {
      {.name = "agent", .life = std::chrono::hours(3 * 24)},
      {.name = "chat", .life = std::chrono::hours(7 * 24)},
  };
  Duration bucket = std::chrono::hours(1);
  std::uint64_t bytes_max = 0;  // of all files; 0: what the disk has
  std::uint64_t space_bytes_max =
      0;  // of a namespace that space_budgets does not name; 0: no limit
  std::map<std::string, std::uint64_t, std::less<>> space_budgets;
  std::uint64_t segment_bytes = std::uint64_t{1} << 30U;  // it is closed when it has so many
  // put() commits by itself when so many bytes are staged; 0: only commit() does.
  std::uint64_t group_bytes = std::uint64_t{8} << 20U;
  std::uint64_t staged_bytes_max = std::uint64_t{64} << 20U;
  double copy_forward_max = 0.24;  // bytes copied out of coldest segments, of bytes put
  Duration lease = std::chrono::seconds(30);
  Duration retry_writing = std::chrono::seconds(30);  // after a failure of the disk
  bool read_only = false;  // takes no lock and changes nothing: for looking at a store in use
  bool load = true;        // all of it in open(); else the owner calls load_some()
  bool must_exist =
      false;  // kNotFound for a folder that holds nothing of a store; it stays as it is
  Seed seed;  // a new one for each time it is opened: of entropy_seed()
  StoreDefect defect = StoreDefect::kNone;
};

// Counts since open(), and what there is now.
struct StoreStats {
  std::uint64_t keys{};
  std::uint64_t segments{};
  std::uint64_t bytes{};  // of files
  std::uint64_t index_bytes{};
  bool loaded{};
  std::string read_only_because;  // empty while it can be written

  std::uint64_t puts{};  // staged
  std::uint64_t puts_known{};
  std::uint64_t puts_refused{};
  std::uint64_t groups{};           // committed
  std::uint64_t put_bytes{};        // payload that was put and is durable
  std::uint64_t written_bytes{};    // given to the disk: endurance
  std::uint64_t copied_bytes{};     // of them, copied forward under pressure
  std::uint64_t refreshed_bytes{};  // of them, written again near the end of life
  std::uint64_t lost_blocks{};      // staged and not written, as the disk failed
  std::uint64_t expired_segments{};
  std::uint64_t evicted_segments{};
  std::uint64_t purged_blocks{};

  std::uint64_t matches{};
  std::uint64_t keys_asked{};
  std::uint64_t keys_hit{};
  std::uint64_t reads{};
  std::uint64_t read_bytes{};
  std::uint64_t damaged_blocks{};  // did not verify when they were read: misses
  std::uint64_t read_errors{};
  std::uint64_t write_errors{};

  std::uint64_t recovered_segments{};  // that a crash left open
  std::uint64_t scanned_blocks{};      // found by their headers
  std::uint64_t damaged_tables{};
  std::uint64_t foreign_files{};
  std::uint64_t damaged_segments{};      // troubles() that are not foreign
  std::uint64_t unowned_pages_erased{};  // by purges: of no block that is known, so perhaps theirs
};

// A file that is not what its name says.
struct StoreTrouble {
  std::string file;
  std::string what;
  bool foreign = false;      // not of this store and left alone; else a loss
  bool looked_into = false;  // so purges erase in it
};

struct SegmentInfo {
  SegmentName name;
  std::uint64_t bytes{};
  std::uint64_t blocks{};
  bool open{};
  std::int64_t last_hit_s{};
};

struct SpaceInfo {
  std::string space;
  std::uint64_t blocks{};
  std::uint64_t bytes{};
};

// One row of the store, for tools.
struct StoredBlock {
  std::string space;
  BlockKey key;
  std::uint64_t layout{};
  std::uint64_t numerics{};
  bool exact{};
  std::string retention;
  BlockPlace place;
};

// Blocks in append-only segments on a disk (docs/formats/segment.md). A block is known only after
// it is durable; a torn or changed one is a miss; a whole segment dies at once. Any thread may call
// it; writing, commit() and maintain() take turns. It starts no thread and never waits but for the
// disk: the owner calls maintain() every few seconds.
class SegmentStore final : public BlockStore {
 public:
  static constexpr std::string_view kBudgetUsedUp = "budget";
  static constexpr std::string_view kReadOnly = "read_only";
  static constexpr std::size_t kRefreshQueueMax = 65'536;

  // `disk` and `clock` outlive it. Errors: kOverloaded when another writes there, kInvalidArgument
  // for options, or the disk's.
  static Result<std::unique_ptr<SegmentStore>> open(Disk& disk,
                                                    const Clock& clock,
                                                    StoreOptions options);
  // Commits nothing: call close() first.
  ~SegmentStore() override;
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  Result<PutOutcome> put(const NewBlock& block) override;
  Result<void> commit() override;
  [[nodiscard]] std::unique_ptr<BlockLease> match(const BlockQuery& query) override;
  Result<BlockView> read_into(const BlockLease& lease,
                              std::size_t index,
                              std::span<std::byte> memory) override;
  using BlockStore::read;
  void read_all(const BlockLease& lease,
                std::size_t first,
                std::span<const std::span<std::byte>> memory,
                const std::function<void(std::size_t, Result<BlockView>)>& done) override;

  // Puts the rows of some more segments into the index, newest first; false when all are. One
  // thread.
  bool load_some();
  // Expiry, refreshes, budgets, closing of old segments, and after a failure another try to write.
  Result<void> maintain();
  // Forgets and erases every block of a namespace, now and for all restarts, and every page that no
  // block known owns, as it could be the namespace's. How many blocks. Errors: the first file that
  // could not be erased in; the others were, and the next start tries again.
  Result<std::uint64_t> purge(std::string_view space);
  // Commits and closes what is open. The store can be read on, but not written.
  Result<void> close();

  [[nodiscard]] StoreStats stats() const;
  [[nodiscard]] std::vector<SegmentInfo> segments() const;
  [[nodiscard]] std::vector<SpaceInfo> spaces() const;
  // What was met while loading.
  [[nodiscard]] std::vector<StoreTrouble> troubles() const;
  // Of a segment, as footer, journal and headers tell; `name` is of segments(). Rows that are no
  // longer known are not in it.
  Result<std::vector<StoredBlock>> blocks(const SegmentName& name);
  // Reads a block of blocks(), verified. Errors as read().
  Result<BlockView> read(const StoredBlock& block, PageBuffer& buffer);
  // Store time: the date when it was opened, or the newest one in the store, and on from there
  // without jumps.
  [[nodiscard]] std::int64_t now_s() const;
  [[nodiscard]] const StoreOptions& options() const { return options_; }

 private:
  class Lease;
  struct StagedBlock {
    RecordHead head;  // its segment is known when it is written
    std::uint64_t offset{};
    std::uint64_t bytes{};  // of the record
    std::uint16_t space{};
    std::uint16_t scope{};
    enum class Origin : std::uint8_t { kPut, kRefresh, kCopy } origin = Origin::kPut;
    std::optional<BlockPlace> from;  // written again: counts only while it is still there
    std::uint32_t touched_s{};
  };
  struct Group {
    PageBuffer bytes;
    std::vector<StagedBlock> blocks;
  };
  struct SpaceKey {
    std::uint16_t space{};
    BlockKey key;
    friend bool operator==(const SpaceKey&, const SpaceKey&) = default;
  };
  struct SpaceKeyHash {
    std::size_t operator()(const SpaceKey& it) const noexcept {
      return std::hash<BlockKey>{}(it.key) ^ (std::size_t{it.space} << 48U);
    }
  };
  struct Purge {
    std::string space;
    std::uint64_t sequence{};  // blocks up to it are gone
    bool erased = false;       // their bytes, too
  };
  struct Refresh {
    std::uint16_t space{};
    BlockKey key;
    BlockPlace place;
  };
  // Fields of StoreStats that many threads count.
  struct Counts;

  SegmentStore(Disk& disk, const Clock& clock, StoreOptions options);

  Result<void> list_files();
  void trouble(StoreTrouble met);
  void load(Segment& segment);
  Result<void> rewrite(DiskFile& file, std::span<const TableRow> rows);
  [[nodiscard]] std::uint64_t sequence_at(const BlockPlace& place) const;
  Result<void> read_purges();
  Result<void> write_purges() GALLEY_REQUIRES(commit_mutex_);
  [[nodiscard]] bool is_purged(std::string_view space, std::uint64_t sequence) const;

  [[nodiscard]] std::uint64_t next_sequence() GALLEY_REQUIRES(stage_mutex_);
  [[nodiscard]] Result<void> check(const NewBlock& block) const;
  Result<void> check_budget(std::string_view space, std::uint16_t number, std::uint64_t bytes)
      GALLEY_REQUIRES(stage_mutex_);
  void stage(Group& group,
             const RecordHead& head,
             std::span<const std::span<const std::byte>> parts,
             StagedBlock block);

  Result<void> commit_locked() GALLEY_REQUIRES(commit_mutex_);
  Result<void> write_group(std::size_t retention, Group& group) GALLEY_REQUIRES(commit_mutex_);
  Result<SegmentWriter*> writer(std::size_t retention) GALLEY_REQUIRES(commit_mutex_);
  Result<void> close_writer(std::size_t retention) GALLEY_REQUIRES(commit_mutex_);
  void publish(const Segment& segment, const Group& group, std::uint64_t begin)
      GALLEY_REQUIRES(commit_mutex_);
  void forget_staged(const Group& group) GALLEY_EXCLUDES(stage_mutex_);
  void writing_failed(const Error& error) GALLEY_REQUIRES(commit_mutex_);
  void count_written(std::size_t retention) GALLEY_REQUIRES(commit_mutex_);

  void drop(const std::vector<std::shared_ptr<Segment>>& gone) GALLEY_REQUIRES(commit_mutex_);
  void expire() GALLEY_REQUIRES(commit_mutex_);
  Result<void> refresh() GALLEY_REQUIRES(commit_mutex_);
  // Room for `bytes` more of a class, or an error.
  Result<void> make_room(std::size_t retention, std::uint64_t bytes) GALLEY_REQUIRES(commit_mutex_);
  bool evict(std::optional<std::size_t> retention) GALLEY_REQUIRES(commit_mutex_);
  Result<SegmentContents> contents_of(Segment& segment) GALLEY_REQUIRES(commit_mutex_);
  // The record at a place, verified to be this key's.
  Result<RecordHead> read_record(Segment& segment,
                                 const BlockPlace& place,
                                 std::string_view space,
                                 const BlockKey& key,
                                 PageBuffer& buffer,
                                 std::vector<std::span<const std::byte>>& parts);
  Result<BlockView> view(const Result<void>& was_read,
                         const Segment& segment,
                         const BlockPlace& place,
                         std::string_view space,
                         const BlockKey& key,
                         std::span<const std::byte> record);
  bool restage(std::uint16_t space,
               const BlockKey& key,
               const BlockPlace& place,
               std::size_t retention,
               StagedBlock::Origin origin,
               std::uint32_t touched_s,
               Group& group) GALLEY_REQUIRES(commit_mutex_);
  // Erases what a crash left of a purge.
  void finish_purges() GALLEY_REQUIRES(commit_mutex_);
  Result<void> erase_purged(const std::set<std::string, std::less<>>& spaces)
      GALLEY_REQUIRES(commit_mutex_);
  Result<void> erase_purged_in(Segment& segment, const std::set<std::string, std::less<>>& spaces)
      GALLEY_REQUIRES(commit_mutex_);
  Result<void> erase_unowned(DiskFile& file, const PageRange& range);

  [[nodiscard]] std::shared_ptr<Segment> segment(std::uint32_t id) const;
  [[nodiscard]] std::vector<std::shared_ptr<Segment>> live_segments() const;
  [[nodiscard]] std::shared_ptr<Segment> add_segment(SegmentName name);
  [[nodiscard]] std::uint64_t used_bytes(std::optional<std::size_t> retention) const;
  [[nodiscard]] std::optional<std::size_t> class_of(const Segment& segment) const;
  [[nodiscard]] std::int64_t life_of(const Segment& segment) const;

  Disk& disk_;
  const Clock& clock_;
  const StoreOptions options_;
  std::uint64_t writer_id_;
  std::unique_ptr<DiskLock> lock_;
  TimeNs opened_;
  std::int64_t opened_unix_ns_ = 0;

  ScopeTable scopes_;
  BlockIndex index_;

  mutable Mutex segments_mutex_;
  // By id; an id is never used again.
  std::vector<std::shared_ptr<Segment>> segments_ GALLEY_GUARDED_BY(segments_mutex_);
  std::map<std::uint16_t, Segment::Use> space_use_ GALLEY_GUARDED_BY(segments_mutex_);
  std::vector<StoreTrouble> troubles_ GALLEY_GUARDED_BY(segments_mutex_);
  std::vector<std::shared_ptr<Segment>> to_load_;  // oldest first; load_some()'s thread
  std::atomic<bool> loaded_ = false;

  mutable Mutex stage_mutex_;
  std::vector<Group> staged_ GALLEY_GUARDED_BY(stage_mutex_);  // by class
  std::unordered_map<SpaceKey, bool, SpaceKeyHash> staged_keys_ GALLEY_GUARDED_BY(stage_mutex_);
  std::uint64_t staged_bytes_ GALLEY_GUARDED_BY(stage_mutex_) = 0;
  std::map<std::uint16_t, std::uint64_t> staged_space_bytes_ GALLEY_GUARDED_BY(stage_mutex_);
  std::uint64_t sequence_ GALLEY_GUARDED_BY(stage_mutex_) = 0;
  std::string read_only_because_ GALLEY_GUARDED_BY(stage_mutex_);
  std::deque<Refresh> refreshes_ GALLEY_GUARDED_BY(stage_mutex_);

  Mutex commit_mutex_;  // taken before the two above
  std::vector<std::unique_ptr<SegmentWriter>> writers_ GALLEY_GUARDED_BY(commit_mutex_);
  std::vector<std::uint64_t> writers_counted_ GALLEY_GUARDED_BY(commit_mutex_);
  std::uint32_t next_number_ GALLEY_GUARDED_BY(commit_mutex_) = 0;
  TimeNs retry_at_ GALLEY_GUARDED_BY(commit_mutex_);
  std::vector<std::string> to_remove_ GALLEY_GUARDED_BY(commit_mutex_);  // files the disk kept

  mutable Mutex purges_mutex_;
  std::vector<Purge> purges_ GALLEY_GUARDED_BY(purges_mutex_);

  std::unique_ptr<Counts> counts_;
};

}  // namespace galley::cache
