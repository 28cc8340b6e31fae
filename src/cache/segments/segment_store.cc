#include "cache/segments/segment_store.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "cache/crc32c.h"
#include "cache/segments/store_counts.h"

namespace galley::cache {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;
constexpr std::size_t kNameBytesShown = 64;

Result<void> check_options(const StoreOptions& options) {
  const auto wrong = [](std::string what) { return fail(Code::kInvalidArgument, std::move(what)); };
  if (options.classes.empty()) {
    return wrong("a store has at least one class");
  }
  std::set<std::string> names;
  for (const RetentionClass& one : options.classes) {
    if (!is_class_name(one.name) || !names.insert(one.name).second) {
      return wrong(fmt::format("class {}: a name is 1 to {} of [a-z0-9_] and used once",
                               quoted(one.name, kNameBytesShown), kClassNameBytesMax));
    }
    if (one.life < std::chrono::seconds(1)) {
      return wrong(fmt::format("class {}: a life is at least 1s", one.name));
    }
  }
  if (options.bucket < std::chrono::seconds(1)) {
    return wrong("a time bucket is at least 1s");
  }
  if (options.segment_bytes < 2 * kDiskPage || options.staged_bytes_max < options.group_bytes) {
    return wrong("a segment is at least 8 KiB, and what may be staged at least a group");
  }
  return {};
}

// Anything that a store would leave in its folder.
Result<void> check_is_store(Disk& disk) {
  GALLEY_TRY(const std::vector<DiskEntry> entries, disk.list());
  for (const DiskEntry& entry : entries) {
    const std::string_view name = entry.name;
    for (const std::string_view suffix : {kSegmentSuffix, kJournalSuffix}) {
      if (name.ends_with(suffix) && parse_file_stem(name.substr(0, name.size() - suffix.size()))) {
        return {};
      }
    }
    if (name == kLockFile || std::ranges::find(kPurgeFiles, name) != kPurgeFiles.end()) {
      return {};
    }
  }
  return fail(Code::kNotFound, "the folder holds no store: neither segments, lock nor purges");
}

std::int64_t seconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

}  // namespace

// Everything a read needs, so that the store may forget it meanwhile.
class SegmentStore::Lease final : public BlockLease {
 public:
  [[nodiscard]] std::size_t size() const override { return entries.size(); }
  [[nodiscard]] MissReason miss() const override { return reason; }
  [[nodiscard]] TimeNs until() const override { return end; }
  [[nodiscard]] std::size_t read_bytes(std::size_t index) const override {
    return std::size_t{entries.at(index).place.pages} * kDiskPage;
  }

  std::string space;
  std::vector<BlockKey> keys;
  std::vector<IndexEntry> entries;
  std::map<std::uint32_t, std::shared_ptr<Segment>> held;
  MissReason reason = MissReason::kNone;
  TimeNs end;
};

SegmentStore::SegmentStore(Disk& disk, const Clock& clock, StoreOptions options)
    : disk_(disk),
      clock_(clock),
      options_(std::move(options)),
      writer_id_(Random(options_.seed, 1).next_u64()),
      opened_(clock.now()),
      index_(scopes_, options_.seed),
      counts_(std::make_unique<Counts>()) {
  const MutexLock commit(commit_mutex_);
  const MutexLock stage(stage_mutex_);
  staged_.resize(options_.classes.size());
  writers_.resize(options_.classes.size());
  writers_counted_.resize(options_.classes.size());
  retry_at_ = opened_;
  if (options_.read_only) {
    read_only_because_ = "opened for reading only";
  }
}

SegmentStore::~SegmentStore() = default;

Result<std::unique_ptr<SegmentStore>> SegmentStore::open(Disk& disk,
                                                         const Clock& clock,
                                                         StoreOptions options) {
  GALLEY_CHECK_OK(check_options(options));
  if (options.must_exist) {
    GALLEY_CHECK_OK(check_is_store(disk));
  }
  std::unique_ptr<SegmentStore> out(new SegmentStore(disk, clock, std::move(options)));
  if (!out->options_.read_only) {
    GALLEY_TRY(out->lock_, disk.lock(std::string(kLockFile)));
  }
  GALLEY_CHECK_OK(out->read_purges());
  GALLEY_CHECK_OK(out->list_files());
  while ((out->options_.load || out->to_load_.empty()) && out->load_some()) {
  }
  return out;
}

std::int64_t SegmentStore::now_s() const {
  return (opened_unix_ns_ + (clock_.now() - opened_).count()) / kNsPerSecond;
}

// ---- What is there ------------------------------------------------------------------------------

Result<void> SegmentStore::list_files() {
  GALLEY_TRY(const std::vector<DiskEntry> entries, disk_.list());
  std::map<std::string, std::uint64_t> journals;
  std::map<std::string, std::uint64_t> found;
  std::vector<std::string> useless;
  for (const DiskEntry& entry : entries) {
    const std::string_view file = entry.name;
    if (!entry.regular) {
      if (file.ends_with(kSegmentSuffix)) {
        trouble({.file = entry.name, .what = "is no regular file"});
      }
      continue;
    }
    if (file.ends_with(kSegmentSuffix)) {
      found.emplace(file.substr(0, file.size() - kSegmentSuffix.size()), entry.bytes);
    } else if (file.ends_with(kJournalSuffix)) {
      journals.emplace(file.substr(0, file.size() - kJournalSuffix.size()), entry.bytes);
    } else if (file.ends_with(".part")) {
      useless.push_back(entry.name);  // of a process that was killed
    }
  }
  opened_unix_ns_ = clock_.unix_time().time_since_epoch().count();
  std::vector<SegmentName> names;
  for (const auto& [stem, bytes] : found) {
    if (auto parsed = parse_file_stem(stem)) {
      names.push_back(std::move(*parsed));
    } else {
      trouble({.file = stem + std::string(kSegmentSuffix),
               .what = "has no segment's name",
               .foreign = true});
    }
  }
  for (const auto& [stem, bytes] : journals) {
    if (!found.contains(stem) && parse_file_stem(stem)) {
      useless.push_back(stem + std::string(kJournalSuffix));
    }
  }
  // A clock that was set back must not make new buckets older than those there are. A name alone
  // could be anybody's.
  for (const SegmentName& name : names) {
    const std::int64_t begin_ns =
        name.bucket_s > std::numeric_limits<std::int64_t>::max() / kNsPerSecond
            ? std::numeric_limits<std::int64_t>::max()
            : name.bucket_s * kNsPerSecond;
    if (begin_ns <= opened_unix_ns_) {
      continue;
    }
    const auto file = disk_.open(file_stem(name) + std::string(kSegmentSuffix), false);
    PageBuffer page(kDiskPage);
    if (file && (*file)->read(0, page.bytes())) {
      const auto head = decode_segment_head(page.bytes());
      if (head && *head == name) {
        opened_unix_ns_ = begin_ns;
      }
    }
  }
  std::ranges::sort(names, std::less{},
                    [](const SegmentName& name) { return std::tuple(name.bucket_s, name.number); });
  for (SegmentName& name : names) {
    const std::string stem = file_stem(name);
    const auto segment = add_segment(std::move(name));
    segment->bytes = found.at(stem) + (journals.contains(stem) ? journals.at(stem) : 0);
    to_load_.push_back(segment);
  }
  if (!options_.read_only) {
    for (const std::string& file : useless) {
      (void)disk_.remove(file);  // tried again when the store is opened next
    }
    const MutexLock commit(commit_mutex_);
    expire();
  }
  return {};
}

void SegmentStore::trouble(StoreTrouble met) {
  ++(met.foreign ? counts_->foreign_files : counts_->damaged_segments);
  const MutexLock lock(segments_mutex_);
  troubles_.push_back(std::move(met));
}

std::shared_ptr<Segment> SegmentStore::add_segment(SegmentName name) {
  const MutexLock lock(segments_mutex_);
  auto out =
      std::make_shared<Segment>(std::move(name), static_cast<std::uint32_t>(segments_.size()));
  segments_.push_back(out);
  return out;
}

std::shared_ptr<Segment> SegmentStore::segment(std::uint32_t id) const {
  const MutexLock lock(segments_mutex_);
  return id < segments_.size() ? segments_[id] : nullptr;
}

std::vector<std::shared_ptr<Segment>> SegmentStore::live_segments() const {
  const MutexLock lock(segments_mutex_);
  std::vector<std::shared_ptr<Segment>> out;
  std::ranges::copy_if(segments_, std::back_inserter(out),
                       [](const auto& it) { return it != nullptr; });
  return out;
}

bool SegmentStore::load_some() {
  const MutexLock commit(commit_mutex_);
  if (!to_load_.empty()) {
    const std::shared_ptr<Segment> next = std::move(to_load_.back());
    to_load_.pop_back();
    if (segment(next->id) == next) {  // it may have expired meanwhile
      load(*next);
    }
  }
  if (to_load_.empty() && !loaded_) {
    loaded_ = true;
    finish_purges();
  }
  return !to_load_.empty();
}

void SegmentStore::load(Segment& segment) {
  const auto file = segment.file(disk_, !options_.read_only);
  const std::string file_name = file_stem(segment.name) + std::string(kSegmentSuffix);
  if (!file) {
    ++counts_->read_errors;
    trouble({.file = file_name, .what = file.error().what});
    return;
  }
  auto contents = read_contents(disk_, **file, segment.name, options_.defect);
  if (!contents) {
    const bool foreign = contents.error().code == Code::kInvalidArgument;
    trouble({.file = file_name, .what = contents.error().what, .foreign = foreign});
    if (foreign) {  // a copy under another name, say: nothing here may erase or remove it
      const MutexLock lock(segments_mutex_);
      segments_[segment.id] = nullptr;
    }
    return;
  }
  if (!contents->from_footer && !contents->from_journal) {
    // Or a crash in the moment when it was begun: nobody can tell.
    trouble({.file = file_name,
             .what = fmt::format("has neither footer nor journal, so its end was cut off or is "
                                 "damaged; {} blocks were found by their headers",
                                 contents->scanned_rows),
             .looked_into = true});
  }
  counts_->damaged_tables += contents->damaged_tables;
  counts_->scanned_blocks += contents->scanned_rows;
  std::vector<std::optional<std::uint16_t>> scopes;
  std::vector<std::uint64_t> purged_to;
  for (const TableScope& scope : contents->table.scopes) {
    scopes.push_back(scopes_.number(scope));
    std::uint64_t to = 0;
    const MutexLock lock(purges_mutex_);
    for (const Purge& purge : purges_) {
      to = purge.space == scope.space ? std::max(to, purge.sequence) : to;
    }
    purged_to.push_back(to);
  }
  std::uint64_t newest = 0;
  std::map<std::uint16_t, Segment::Use> use;
  IndexEntry entry;
  std::uint64_t sequence = 0;
  // What was put last is the best there is: exact over approximate, whole over damaged, refreshed
  // over old. An entry does not hold its sequence, but its seconds, unless it was hit already.
  const std::function<bool(const IndexEntry&)> replaces = [&](const IndexEntry& old) {
    if (old.place.segment == segment.id || old.touched_s != entry.touched_s) {
      return old.touched_s <= entry.touched_s;
    }
    return sequence_at(old.place) < sequence;
  };
  for (const TableRow& row : contents->table.rows) {
    newest = std::max(newest, row.sequence);
    const auto& scope = scopes[row.scope];
    if (!scope || row.pages > 0xffff || row.sequence <= purged_to[row.scope]) {
      continue;
    }
    entry = {.place = {.segment = segment.id,
                       .page = row.page,
                       .pages = static_cast<std::uint16_t>(row.pages)},
             .scope = *scope,
             .exact = row.exact,
             .touched_s = static_cast<std::uint32_t>(row.sequence / kNsPerSecond)};
    sequence = row.sequence;
    const std::uint16_t space = scopes_.at(*scope).space;
    index_.insert(space, row.key, entry, replaces);
    Segment::Use& its = use[space];
    ++its.blocks;
    its.bytes += row.pages * kDiskPage;
  }
  {
    const MutexLock lock(segment.mutex);
    segment.use = use;
  }
  {
    const MutexLock lock(segments_mutex_);
    for (const auto& [space, its] : use) {
      space_use_[space].blocks += its.blocks;
      space_use_[space].bytes += its.bytes;
    }
  }
  {
    const MutexLock lock(stage_mutex_);
    sequence_ = std::max(sequence_, newest);
  }
  segment.last_hit_s = static_cast<std::uint32_t>(newest / kNsPerSecond);
  segment.loaded = true;
  if (contents->from_footer || options_.read_only) {
    return;
  }
  // A crash left it open: close it, so that next time is quick.
  ++counts_->recovered_segments;
  if (const auto size = (*file)->size()) {
    const std::uint64_t end = std::max<std::uint64_t>(kDiskPage, page_ceil(*size));
    const auto rewritten =
        rewrite(**file, std::span(contents->table.rows).last(contents->scanned_rows));
    const auto footer = rewritten ? write_footer(disk_, **file, end, contents->table)
                                  : Result<std::uint64_t>(std::unexpected(rewritten.error()));
    if (footer) {
      counts_->written_bytes += *footer;
      segment.bytes = end + *footer;
    } else {
      ++counts_->write_errors;
    }
  }
}

// Records that no journal told of may have been read from the system's memory only: a sync of
// theirs that failed leaves them there, and no later one writes them. A footer may name them after
// this.
Result<void> SegmentStore::rewrite(DiskFile& file, std::span<const TableRow> rows) {
  PageBuffer record;
  for (const TableRow& row : rows) {
    record.resize(std::size_t{row.pages} * kDiskPage);
    const std::uint64_t offset = std::uint64_t{row.page} * kDiskPage;
    GALLEY_CHECK_OK(file.read(offset, record.bytes()));
    GALLEY_CHECK_OK(file.write(offset, record.bytes()));
    counts_->written_bytes += record.size();
  }
  // Before the footer: of two writes that wait, a crash may keep the second alone.
  return rows.empty() ? Result<void>{} : file.sync();
}

// Of the record there; 0 when there is none.
std::uint64_t SegmentStore::sequence_at(const BlockPlace& place) const {
  const auto where = segment(place.segment);
  if (!where) {
    return 0;
  }
  const auto file = where->file(disk_, !options_.read_only);
  PageBuffer record(std::size_t{place.pages} * kDiskPage);
  if (!file || !(*file)->read(std::uint64_t{place.page} * kDiskPage, record.bytes())) {
    return 0;
  }
  const auto head = decode_record_head(record.bytes());
  return head ? head->sequence : 0;
}

// ---- Putting ------------------------------------------------------------------------------------

// Nanoseconds of the store's date, but always more than before: comparable among the runs of a
// store whatever its clocks did.
std::uint64_t SegmentStore::next_sequence() {
  const auto now_ns =
      static_cast<std::uint64_t>(opened_unix_ns_ + (clock_.now() - opened_).count());
  sequence_ = std::max(sequence_ + 1, now_ns);
  return sequence_;
}

Result<void> SegmentStore::check(const NewBlock& block) const {
  const auto wrong = [](std::string what, std::string where) {
    return fail(Code::kInvalidArgument, std::move(what), std::move(where));
  };
  if (block.facts.space.size() > kNamespaceBytesMax) {
    return wrong(fmt::format("a namespace has at most {} bytes, this one {}", kNamespaceBytesMax,
                             block.facts.space.size()),
                 "namespace");
  }
  if (block.retention >= options_.classes.size()) {
    return wrong(fmt::format("no class {}, there are {}", block.retention, options_.classes.size()),
                 "class");
  }
  if (block.parts.size() > kBlockPartsMax) {
    return wrong(fmt::format("a block has at most {} parts, this one {}", kBlockPartsMax,
                             block.parts.size()),
                 "parts");
  }
  std::uint64_t bytes = 0;
  for (const auto& part : block.parts) {
    bytes += part.size();
    if (bytes > kBlockBytesMax) {
      return fail(Code::kTooLarge, fmt::format("a block has at most {} bytes", kBlockBytesMax),
                  "parts");
    }
  }
  return {};
}

Result<void> SegmentStore::check_budget(std::string_view space,
                                        std::uint16_t number,
                                        std::uint64_t bytes) {
  const auto it = options_.space_budgets.find(space);
  const std::uint64_t limit =
      it == options_.space_budgets.end() ? options_.space_bytes_max : it->second;
  if (limit == 0) {
    return {};
  }
  std::uint64_t used = bytes;
  if (const auto staged = staged_space_bytes_.find(number); staged != staged_space_bytes_.end()) {
    used += staged->second;
  }
  {
    const MutexLock lock(segments_mutex_);
    if (const auto use = space_use_.find(number); use != space_use_.end()) {
      used += use->second.bytes;
    }
  }
  if (used > limit) {
    return fail(Code::kOverloaded,
                fmt::format("namespace {} would use {} bytes of its {}",
                            quoted(space, kNameBytesShown), used, limit),
                "namespace", kBudgetUsedUp);
  }
  return {};
}

void SegmentStore::stage(Group& group,
                         const RecordHead& head,
                         std::span<const std::span<const std::byte>> parts,
                         StagedBlock block) {
  block.offset = group.bytes.size();
  const std::uint64_t head_bytes = record_head_bytes(head.parts.size());
  const std::uint64_t payload = payload_bytes(head.parts);
  block.bytes = page_ceil(head_bytes + payload);
  block.head = head;
  group.bytes.resize(block.offset + block.bytes);
  const auto record = group.bytes.bytes().subspan(block.offset);
  std::size_t at = head_bytes;
  for (const auto& part : parts) {
    std::ranges::copy(part, record.subspan(at).begin());
    at += part.size();
  }
  std::ranges::fill(record.subspan(at), std::byte{0});
  group.blocks.push_back(std::move(block));
}

Result<PutOutcome> SegmentStore::put(const NewBlock& block) {
  GALLEY_CHECK_OK(check(block));
  BlockFacts facts = block.facts;
  if (options_.defect == StoreDefect::kNoNamespace) {
    facts.space = "";
  }
  const auto scope = scopes_.number(
      {.space = std::string(facts.space), .layout = facts.layout, .numerics = facts.numerics});
  if (!scope) {
    ++counts_->puts_refused;
    return fail(Code::kOverloaded,
                fmt::format("a store knows {} combinations of namespace, layout and numerics",
                            ScopeTable::kScopesMax),
                "namespace");
  }
  const std::uint16_t space = scopes_.at(*scope).space;
  // Whoever puts a block needs it: behind a gap in its chain no match would tell.
  if (const auto old = index_.find(space, facts.key, static_cast<std::uint32_t>(now_s()))) {
    const auto where = segment(old->place.segment);
    const bool better = facts.exact && !old->exact;
    const bool worse = !facts.exact && old->exact;
    const bool other = scopes_.at(old->scope).layout != facts.layout;
    if (where && !better && !other &&
        (worse || !refresh_due(now_s(), where->name.expires_s, life_of(*where)))) {
      where->last_hit_s.store(static_cast<std::uint32_t>(now_s()), std::memory_order_relaxed);
      ++counts_->puts_known;
      return PutOutcome::kKnown;
    }
  }
  RecordHead head{.space = std::string(facts.space),
                  .key = facts.key,
                  .parent = facts.parent,
                  .layout = facts.layout,
                  .numerics = facts.numerics,
                  .exact = facts.exact};
  head.parts.reserve(block.parts.size());
  for (const auto& part : block.parts) {  // outside of the lock: it takes the longest
    head.parts.push_back({.bytes = static_cast<std::uint32_t>(part.size()), .crc = crc32c(part)});
  }
  const std::uint64_t bytes = record_bytes(head.parts);
  bool full = false;
  {
    const MutexLock lock(stage_mutex_);
    if (!read_only_because_.empty()) {
      ++counts_->puts_refused;
      return fail(Code::kUnavailable, "the store is read-only: " + read_only_because_, {},
                  kReadOnly);
    }
    if (staged_keys_.contains({space, facts.key})) {
      ++counts_->puts_known;
      return PutOutcome::kKnown;
    }
    if (staged_bytes_ + bytes > options_.staged_bytes_max) {
      ++counts_->puts_refused;
      return fail(Code::kOverloaded, fmt::format("{} bytes wait to be written, of {}",
                                                 staged_bytes_, options_.staged_bytes_max));
    }
    if (auto fits = check_budget(facts.space, space, bytes); !fits) {
      ++counts_->puts_refused;
      return std::unexpected(std::move(fits).error());
    }
    head.sequence = next_sequence();
    stage(staged_[block.retention], head, block.parts,
          {.space = space, .scope = *scope, .touched_s = static_cast<std::uint32_t>(now_s())});
    staged_keys_.emplace(SpaceKey{space, facts.key}, true);
    staged_bytes_ += bytes;
    staged_space_bytes_[space] += bytes;
    ++counts_->puts;
    full = options_.group_bytes > 0 && staged_bytes_ >= options_.group_bytes;
  }
  if (full) {
    GALLEY_CHECK_OK(commit());
  }
  return PutOutcome::kStaged;
}

// ---- Committing ---------------------------------------------------------------------------------

Result<void> SegmentStore::commit() {
  const MutexLock lock(commit_mutex_);
  return commit_locked();
}

Result<void> SegmentStore::commit_locked() {
  std::vector<Group> groups(options_.classes.size());
  {
    const MutexLock lock(stage_mutex_);
    std::swap(groups, staged_);
  }
  std::optional<Error> failed;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Group& group = groups[i];
    if (group.blocks.empty()) {
      continue;
    }
    Result<void> written = make_room(i, group.bytes.size());
    if (written) {
      written = write_group(i, group);
    }
    if (!written) {
      counts_->lost_blocks += group.blocks.size();
      failed = written.error();
    } else {
      for (const StagedBlock& block : group.blocks) {
        counts_->put_bytes += payload_bytes(block.head.parts);
      }
    }
    forget_staged(group);
    // Its memory serves the next group: fresh pages of so much would cost as much as copying into
    // them.
    group.bytes.clear();
    group.blocks.clear();
    const MutexLock lock(stage_mutex_);
    if (staged_[i].blocks.empty()) {
      std::swap(staged_[i], group);
    }
  }
  if (failed) {
    return std::unexpected(std::move(*failed));
  }
  return {};
}

void SegmentStore::forget_staged(const Group& group) {
  const MutexLock lock(stage_mutex_);
  for (const StagedBlock& block : group.blocks) {
    staged_keys_.erase({block.space, block.head.key});
    staged_bytes_ -= block.bytes;
    staged_space_bytes_[block.space] -= block.bytes;
  }
}

Result<SegmentWriter*> SegmentStore::writer(std::size_t retention) {
  const std::int64_t bucket_s = seconds(options_.bucket);
  const std::int64_t begin = bucket_of(now_s(), bucket_s);
  std::unique_ptr<SegmentWriter>& open = writers_[retention];
  if (open && open->segment()->name.bucket_s != begin) {
    GALLEY_CHECK_OK(close_writer(retention));
  }
  if (!open) {
    const RetentionClass& its = options_.classes[retention];
    auto segment = add_segment({.writer = writer_id_,
                                .number = next_number_++,
                                .retention = its.name,
                                .bucket_s = begin,
                                .expires_s = expiry_of(begin, bucket_s, seconds(its.life))});
    segment->loaded = true;
    auto created = SegmentWriter::create(disk_, segment, options_.defect);
    if (!created) {
      {
        const MutexLock lock(segments_mutex_);
        segments_[segment->id] = nullptr;
      }
      const std::string stem = file_stem(segment->name);
      to_remove_.push_back(stem + std::string(kSegmentSuffix));
      to_remove_.push_back(stem + std::string(kJournalSuffix));
      return std::unexpected(std::move(created).error());
    }
    open = std::move(*created);
    writers_counted_[retention] = 0;
    count_written(retention);
  }
  return open.get();
}

void SegmentStore::count_written(std::size_t retention) {
  if (writers_[retention]) {
    const std::uint64_t written = writers_[retention]->written_bytes();
    counts_->written_bytes += written - writers_counted_[retention];
    writers_counted_[retention] = written;
  }
}

Result<void> SegmentStore::close_writer(std::size_t retention) {
  const auto closed = writers_[retention]->close();
  count_written(retention);
  writers_[retention]->segment()->open = false;
  writers_[retention].reset();  // also when it failed: the journal tells what there is
  return closed;
}

Result<void> SegmentStore::write_group(std::size_t retention, Group& group) {
  const auto opened = writer(retention);
  if (!opened) {
    writing_failed(opened.error());
    return std::unexpected(opened.error());
  }
  SegmentWriter& open = **opened;
  const std::uint64_t begin = open.end();
  std::vector<TableScope> scopes;
  std::map<std::uint16_t, std::uint16_t> numbers;
  std::vector<TableRow> rows;
  rows.reserve(group.blocks.size());
  for (StagedBlock& block : group.blocks) {
    block.head.segment = open.segment()->name;
    encode_record_head(block.head, group.bytes.bytes().subspan(
                                       block.offset, record_head_bytes(block.head.parts.size())));
    const auto [number, fresh] =
        numbers.try_emplace(block.scope, static_cast<std::uint16_t>(scopes.size()));
    if (fresh) {
      scopes.push_back(scopes_.full(block.scope));
    }
    rows.push_back({.key = block.head.key,
                    .sequence = block.head.sequence,
                    .page = static_cast<std::uint32_t>((begin + block.offset) / kDiskPage),
                    .pages = static_cast<std::uint32_t>(block.bytes / kDiskPage),
                    .scope = number->second,
                    .exact = block.head.exact});
  }
  const auto committed = open.commit(group.bytes.bytes(), std::move(scopes), std::move(rows));
  count_written(retention);
  if (!committed) {
    // What its files hold behind the last group is unknown now; the next group begins anew.
    open.segment()->open = false;
    writers_[retention].reset();
    writing_failed(committed.error());
    return committed;
  }
  ++counts_->groups;
  publish(*open.segment(), group, begin);
  if (open.end() >= options_.segment_bytes) {
    if (const auto closed = close_writer(retention); !closed) {
      writing_failed(closed.error());  // what was committed is durable all the same
    }
  }
  return {};
}

void SegmentStore::publish(const Segment& segment, const Group& group, std::uint64_t begin) {
  std::map<std::uint16_t, Segment::Use> use;
  for (const StagedBlock& block : group.blocks) {
    const IndexEntry entry{
        .place = {.segment = segment.id,
                  .page = static_cast<std::uint32_t>((begin + block.offset) / kDiskPage),
                  .pages = static_cast<std::uint16_t>(block.bytes / kDiskPage)},
        .scope = block.scope,
        .exact = block.head.exact,
        .touched_s = block.touched_s};
    index_.insert(block.space, block.head.key, entry,
                  [&](const IndexEntry& old) { return !block.from || old.place == *block.from; });
    ++use[block.space].blocks;
    use[block.space].bytes += block.bytes;
  }
  const auto shared = this->segment(segment.id);
  shared->last_hit_s = static_cast<std::uint32_t>(now_s());  // young is not cold
  {
    const MutexLock lock(shared->mutex);
    for (const auto& [space, its] : use) {
      shared->use[space].blocks += its.blocks;
      shared->use[space].bytes += its.bytes;
    }
  }
  const MutexLock lock(segments_mutex_);
  for (const auto& [space, its] : use) {
    space_use_[space].blocks += its.blocks;
    space_use_[space].bytes += its.bytes;
  }
}

void SegmentStore::writing_failed(const Error& error) {
  ++counts_->write_errors;
  retry_at_ = clock_.now() + options_.retry_writing;
  const MutexLock lock(stage_mutex_);
  read_only_because_ = error.what;
}

// ---- Matching and reading -----------------------------------------------------------------------

std::unique_ptr<BlockLease> SegmentStore::match(const BlockQuery& query) {
  auto out = std::make_unique<Lease>();
  out->end = clock_.now() + options_.lease;
  out->space = options_.defect == StoreDefect::kNoNamespace ? "" : std::string(query.space);
  ++counts_->matches;
  counts_->keys_asked += query.keys.size();
  const auto space = scopes_.space(out->space);
  const std::int64_t now = now_s();
  if (space) {
    out->entries.reserve(query.keys.size());
    index_.match(*space, query.keys, static_cast<std::uint32_t>(now), out->entries);
  }
  out->reason = out->entries.size() < query.keys.size() ? MissReason::kUnknown : MissReason::kNone;
  const bool any_numerics = !query.exact_only || options_.defect == StoreDefect::kAnyNumerics;
  const Segment* last = nullptr;
  for (std::size_t i = 0; i < out->entries.size(); ++i) {
    const IndexEntry& entry = out->entries[i];
    const ScopeTable::Scope& scope = scopes_.at(entry.scope);
    MissReason reason = MissReason::kNone;
    if (scope.layout != query.layout) {
      reason = MissReason::kLayout;
    } else if (!any_numerics && (!entry.exact || scope.numerics != query.numerics)) {
      reason = MissReason::kNumerics;
    } else if (last == nullptr || last->id != entry.place.segment) {
      auto it = out->held.find(entry.place.segment);
      if (it == out->held.end()) {
        auto found = segment(entry.place.segment);
        // Its file is opened now: a lease holds also when the name goes.
        if (!found || !found->file(disk_, !options_.read_only)) {
          reason = MissReason::kUnknown;
        } else {
          it = out->held.emplace(entry.place.segment, std::move(found)).first;
          it->second->last_hit_s.store(static_cast<std::uint32_t>(now), std::memory_order_relaxed);
        }
      }
      last = reason == MissReason::kNone ? it->second.get() : nullptr;
    }
    if (reason == MissReason::kNone && now >= last->name.expires_s) {
      reason = MissReason::kExpired;
    }
    if (reason != MissReason::kNone) {
      out->entries.resize(i);
      out->reason = reason;
      break;
    }
    if (refresh_due(now, last->name.expires_s, life_of(*last)) && !options_.read_only) {
      const MutexLock lock(stage_mutex_);
      if (refreshes_.size() < kRefreshQueueMax) {
        refreshes_.push_back({.space = *space, .key = query.keys[i], .place = entry.place});
      }
    }
  }
  out->keys.assign(query.keys.begin(),
                   query.keys.begin() + static_cast<std::ptrdiff_t>(out->entries.size()));
  counts_->keys_hit += out->entries.size();
  return out;
}

Result<BlockView> SegmentStore::view(const Result<void>& was_read,
                                     const Segment& segment,
                                     const BlockPlace& place,
                                     std::string_view space,
                                     const BlockKey& key,
                                     std::span<const std::byte> record) {
  ++counts_->reads;
  counts_->read_bytes += record.size();
  if (!was_read && was_read.error().code != Code::kCorruption) {
    ++counts_->read_errors;
    return std::unexpected(was_read.error());
  }
  const auto damaged = [&](std::string_view what) {
    ++counts_->damaged_blocks;
    if (const auto number = scopes_.space(space)) {
      index_.erase(*number, key, place);  // whoever asks next computes it again
    }
    return fail(Code::kCorruption, fmt::format("block {}: {}", to_string(key), what),
                fmt::format("{}, page {}", file_stem(segment.name), place.page));
  };
  if (!was_read) {
    return damaged(was_read.error().what);
  }
  const bool verify = options_.defect != StoreDefect::kSkipChecksums;
  const auto head = decode_record_head(record);
  if (!head) {
    return damaged(head.error().what);
  }
  // A whole record, but of another block: the disk gave another place, or an old one.
  if (head->segment != segment.name || head->key != key || head->space != space) {
    return damaged("another block is there");
  }
  auto parts = record_parts(*head, record, verify);
  if (!parts) {
    return damaged(parts.error().what);
  }
  return BlockView{.parent = head->parent,
                   .numerics = head->numerics,
                   .exact = head->exact,
                   .parts = std::move(*parts)};
}

Result<BlockView> SegmentStore::read_into(const BlockLease& lease,
                                          std::size_t index,
                                          std::span<std::byte> memory) {
  std::optional<Result<BlockView>> out;
  read_all(lease, index, {&memory, 1},
           [&](std::size_t, Result<BlockView> view) { out = std::move(view); });
  return std::move(*out);
}

void SegmentStore::read_all(const BlockLease& lease,
                            std::size_t first,
                            std::span<const std::span<std::byte>> memory,
                            const std::function<void(std::size_t, Result<BlockView>)>& done) {
  const auto& its = static_cast<const Lease&>(lease);
  GALLEY_ASSERT(first + memory.size() <= its.size());
  std::vector<DiskRead> reads;
  std::vector<std::shared_ptr<DiskFile>> files;  // held open
  std::vector<std::size_t> index_of;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const std::size_t index = first + i;
    if (clock_.now() > its.end) {
      done(index, fail(Code::kDeadlineExceeded, "the lease is over"));
      continue;
    }
    const BlockPlace& place = its.entries[index].place;
    auto file = its.held.at(place.segment)->file(disk_, !options_.read_only);
    if (!file) {
      ++counts_->read_errors;
      done(index, std::unexpected(std::move(file).error()));
      continue;
    }
    const std::size_t bytes = std::size_t{place.pages} * kDiskPage;
    if (memory[i].size() < bytes ||
        reinterpret_cast<std::uintptr_t>(memory[i].data()) % kDiskPage != 0) {
      done(index, fail(Code::kInvalidArgument,
                       fmt::format("block {} needs {} bytes that begin at a page", index, bytes),
                       "memory"));
      continue;
    }
    reads.push_back({.file = file->get(),
                     .offset = std::uint64_t{place.page} * kDiskPage,
                     .out = memory[i].first(bytes)});
    files.push_back(std::move(*file));
    index_of.push_back(index);
  }
  disk_.read_all(reads, [&](std::size_t i) {
    const std::size_t index = index_of[i];
    const BlockPlace& place = its.entries[index].place;
    done(index, view(reads[i].result, *its.held.at(place.segment), place, its.space,
                     its.keys[index], reads[i].out));
  });
}

std::int64_t SegmentStore::life_of(const Segment& segment) const {
  return segment.name.expires_s - segment.name.bucket_s - seconds(options_.bucket);
}

}  // namespace galley::cache
