#include <algorithm>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "base/check.h"
#include "base/hex.h"
#include "cache/crc32c.h"
#include "cache/segments/segment_store.h"
#include "cache/segments/store_counts.h"

// What keeps a store in bounds: expiry, refreshes, budgets, purges; and what tools ask.
namespace galley::cache {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
// Segments whose blocks are looked at to find the coldest.
constexpr std::size_t kEvictionCandidates = 8;
// What is refreshed by one maintain(), so that others get their turn.
constexpr std::uint64_t kRefreshBytesAtOnce = std::uint64_t{64} << 20U;
constexpr std::string_view kPurgesMagic = "galley purges 1\n";
// A gap is looked at in steps of so many bytes.
constexpr std::uint64_t kGapAtOnce = std::uint64_t{1} << 20U;
constexpr std::uint64_t kPurgesBytesMax = std::uint64_t{64} << 20U;

std::int64_t seconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

// Memory for direct I/O is read whole pages; the text ends at its last line end.
Result<std::string> read_text(Disk& disk, std::string_view name) {
  GALLEY_TRY(const std::unique_ptr<DiskFile> file, disk.open(std::string(name), false));
  GALLEY_TRY(const std::uint64_t bytes, file->size());
  if (bytes > kPurgesBytesMax || bytes % kDiskPage != 0) {
    return fail(Code::kCorruption, "has a wrong size", std::string(name));
  }
  PageBuffer buffer(bytes);
  GALLEY_CHECK_OK(file->read(0, buffer.bytes()));
  std::string text(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  text.resize(text.find_last_of('\n') + 1);
  return text;
}

}  // namespace

std::optional<std::size_t> SegmentStore::class_of(const Segment& segment) const {
  const auto it =
      std::ranges::find(options_.classes, segment.name.retention, &RetentionClass::name);
  return it == options_.classes.end()
             ? std::nullopt
             : std::optional(static_cast<std::size_t>(it - options_.classes.begin()));
}

std::uint64_t SegmentStore::used_bytes(std::optional<std::size_t> retention) const {
  std::uint64_t sum = 0;
  for (const auto& one : live_segments()) {
    const bool counts =
        options_.defect != StoreDefect::kCountFromZero || one->name.writer == writer_id_;
    if (counts && (!retention || class_of(*one) == retention)) {
      sum += one->bytes;
    }
  }
  return sum;
}

// ---- Upkeep -------------------------------------------------------------------------------------

Result<void> SegmentStore::maintain() {
  if (options_.read_only) {
    return {};
  }
  const MutexLock commit(commit_mutex_);
  {
    const MutexLock lock(stage_mutex_);
    if (!read_only_because_.empty()) {
      if (clock_.now() < retry_at_) {
        return fail(Code::kUnavailable, "the store is read-only: " + read_only_because_, {},
                    kReadOnly);
      }
      read_only_because_.clear();  // whether it can be written again, the next group shows
    }
  }
  std::erase_if(to_remove_, [&](const std::string& name) {
    const auto removed = disk_.remove(name);
    return removed || removed.error().code == Code::kNotFound;
  });
  expire();
  const std::int64_t bucket = bucket_of(now_s(), seconds(options_.bucket));
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    if (writers_[i] && writers_[i]->segment()->name.bucket_s != bucket) {
      if (const auto closed = close_writer(i); !closed) {
        writing_failed(closed.error());
        return closed;
      }
    }
  }
  for (std::size_t i = 0; i < options_.classes.size(); ++i) {
    GALLEY_CHECK_OK(make_room(i, 0));
  }
  return refresh();
}

void SegmentStore::expire() {
  std::vector<std::shared_ptr<Segment>> gone;
  const std::int64_t early =
      options_.defect == StoreDefect::kExpireEarly ? seconds(options_.bucket) : 0;
  for (auto& one : live_segments()) {
    if (now_s() >= one->name.expires_s - early) {
      gone.push_back(std::move(one));
    }
  }
  for (auto& writer : writers_) {
    if (writer && std::ranges::find(gone, writer->segment()) != gone.end()) {
      writer.reset();
    }
  }
  counts_->expired_segments += gone.size();
  drop(gone);
  // A purge needs to be remembered as long as a block from before it could come back.
  // Its segment may be gone already: a crash can bring a removed file back.
  std::int64_t longest_s = 0;
  for (const RetentionClass& one : options_.classes) {
    longest_s = std::max(longest_s, seconds(one.life));
  }
  for (const auto& one : live_segments()) {
    longest_s = std::max(longest_s, life_of(*one));
  }
  const MutexLock lock(purges_mutex_);
  std::erase_if(purges_, [&](const Purge& purge) {
    const auto at_s = static_cast<std::int64_t>(purge.sequence / kNsPerSecond);
    return purge.erased && now_s() > at_s + longest_s + 2 * seconds(options_.bucket);
  });
}

void SegmentStore::drop(const std::vector<std::shared_ptr<Segment>>& gone) {
  if (gone.empty()) {
    return;
  }
  std::vector<bool> is_gone;
  {
    const MutexLock lock(segments_mutex_);
    is_gone.resize(segments_.size());
    for (const auto& one : gone) {
      is_gone[one->id] = true;
      segments_[one->id] = nullptr;  // from now on it never hits
      const MutexLock its(one->mutex);
      for (const auto& [space, use] : one->use) {
        space_use_[space].blocks -= use.blocks;
        space_use_[space].bytes -= use.bytes;
      }
    }
  }
  index_.erase_if([&](const IndexEntry& entry) {
    return entry.place.segment < is_gone.size() && is_gone[entry.place.segment];
  });
  for (const auto& one : gone) {
    for (const std::string_view suffix : {kSegmentSuffix, kJournalSuffix}) {
      const std::string name = file_stem(one->name) + std::string(suffix);
      const auto removed = disk_.remove(name);
      if (!removed && removed.error().code != Code::kNotFound) {
        to_remove_.push_back(name);
      }
    }
  }
}

Result<SegmentContents> SegmentStore::contents_of(Segment& segment) {
  for (const auto& writer : writers_) {
    if (writer && writer->segment().get() == &segment) {
      return SegmentContents{.table = writer->contents()};  // what it wrote has no gaps
    }
  }
  GALLEY_TRY(const auto file, segment.file(disk_, !options_.read_only));
  return read_contents(disk_, *file, segment.name, options_.defect);
}

Result<RecordHead> SegmentStore::read_record(Segment& segment,
                                             const BlockPlace& place,
                                             std::string_view space,
                                             const BlockKey& key,
                                             PageBuffer& buffer,
                                             std::vector<std::span<const std::byte>>& parts) {
  GALLEY_TRY(const auto file, segment.file(disk_, !options_.read_only));
  buffer.resize(std::size_t{place.pages} * kDiskPage);
  const auto was_read = file->read(std::uint64_t{place.page} * kDiskPage, buffer.bytes());
  GALLEY_TRY(BlockView seen, view(was_read, segment, place, space, key, buffer.bytes()));
  parts = std::move(seen.parts);
  return decode_record_head(buffer.bytes());
}

bool SegmentStore::restage(std::uint16_t space,
                           const BlockKey& key,
                           const BlockPlace& place,
                           std::size_t retention,
                           StagedBlock::Origin origin,
                           std::uint32_t touched_s,
                           Group& group) {
  const auto entry = index_.find(space, key);
  const auto from = segment(place.segment);
  if (!entry || entry->place != place || !from || retention >= options_.classes.size()) {
    return false;
  }
  PageBuffer buffer;
  std::vector<std::span<const std::byte>> parts;
  auto head = read_record(*from, place, scopes_.space_name(space), key, buffer, parts);
  if (!head) {
    return false;
  }
  {
    const MutexLock lock(stage_mutex_);
    head->sequence = next_sequence();
  }
  stage(group, *head, parts,
        {.space = space,
         .scope = entry->scope,
         .origin = origin,
         .from = place,
         .touched_s = touched_s});
  return true;
}

Result<void> SegmentStore::refresh() {
  std::vector<Group> groups(options_.classes.size());
  std::uint64_t bytes = 0;
  while (bytes < kRefreshBytesAtOnce) {
    Refresh next;
    {
      const MutexLock lock(stage_mutex_);
      if (refreshes_.empty()) {
        break;
      }
      next = refreshes_.front();
      refreshes_.pop_front();
    }
    const auto from = segment(next.place.segment);
    const auto retention = from ? class_of(*from) : std::nullopt;
    if (!retention) {
      continue;
    }
    Group& group = groups[*retention];
    // Asked for by several hits: once is enough.
    if (std::ranges::any_of(group.blocks, [&](const StagedBlock& block) {
          return block.space == next.space && block.head.key == next.key;
        })) {
      continue;
    }
    if (restage(next.space, next.key, next.place, *retention, StagedBlock::Origin::kRefresh,
                static_cast<std::uint32_t>(now_s()), group)) {
      bytes += group.blocks.back().bytes;
    }
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].blocks.empty()) {
      GALLEY_CHECK_OK(make_room(i, groups[i].bytes.size()));
      GALLEY_CHECK_OK(write_group(i, groups[i]));
      counts_->refreshed_bytes += groups[i].bytes.size();
    }
  }
  return {};
}

Result<void> SegmentStore::make_room(std::size_t retention, std::uint64_t bytes) {
  // What comes with a group: an entry of the journal, and perhaps a new segment and a footer.
  constexpr std::uint64_t kBeside = 8 * kDiskPage;
  const std::uint64_t needed = bytes == 0 ? 0 : bytes + bytes / 64 + kBeside;
  const auto fit = [&](std::uint64_t limit, std::optional<std::size_t> of)
                       GALLEY_REQUIRES(commit_mutex_) -> Result<void> {
    while (limit > 0 && used_bytes(of) + needed > limit) {
      if (!evict(of)) {
        return fail(Code::kOverloaded, fmt::format("{} bytes do not fit into {}", needed, limit),
                    {}, kBudgetUsedUp);
      }
    }
    return {};
  };
  GALLEY_CHECK_OK(fit(options_.classes[retention].bytes_max, retention));
  return fit(options_.bytes_max, std::nullopt);
}

bool SegmentStore::evict(std::optional<std::size_t> retention) {
  std::vector<std::shared_ptr<Segment>> closed;
  for (auto& one : live_segments()) {
    if (!one->open && (!retention || class_of(*one) == retention)) {
      closed.push_back(std::move(one));
    }
  }
  if (closed.empty()) {
    // Only what is being written is left: it becomes a segment like others.
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      if (writers_[i] && (!retention || i == *retention)) {
        (void)close_writer(i);
        return evict(retention);
      }
    }
    return false;
  }
  std::ranges::sort(closed, std::less{}, [](const auto& one) {
    return std::tuple(one->last_hit_s.load(), one->name.bucket_s, one->id);
  });
  closed.resize(std::min(closed.size(), kEvictionCandidates));
  struct Live {
    TableRow row;
    std::uint16_t space{};
    IndexEntry entry;
  };
  std::vector<std::vector<Live>> live(closed.size());
  std::vector<EvictionCandidate> candidates;
  for (std::size_t i = 0; i < closed.size(); ++i) {
    double weighted = 0;
    double bytes = 0;
    if (const auto contents = contents_of(*closed[i])) {
      const Table& table = contents->table;
      for (const TableRow& row : table.rows) {
        const double size = static_cast<double>(row.pages) * kDiskPage;
        const auto space = scopes_.space(table.scopes[row.scope].space);
        const auto entry = space ? index_.find(*space, row.key) : std::nullopt;
        if (entry && entry->place.segment == closed[i]->id && entry->place.page == row.page) {
          bytes += size;
          weighted += size * entry->touched_s;
          live[i].push_back({.row = row, .space = *space, .entry = *entry});
        }
      }
    }
    candidates.push_back(
        {.bytes = closed[i]->bytes, .mean_touched_s = bytes > 0 ? weighted / bytes : 0});
  }
  const std::size_t victim = coldest(candidates);
  const auto its_class = class_of(*closed[victim]);
  if (its_class) {
    std::vector<CopyCandidate> copies;
    for (const Live& one : live[victim]) {
      copies.push_back({.bytes = std::uint64_t{one.row.pages} * kDiskPage,
                        .written_s = static_cast<std::int64_t>(one.row.sequence / kNsPerSecond),
                        .touched_s = one.entry.touched_s});
    }
    const auto allowed = static_cast<std::uint64_t>(options_.copy_forward_max *
                                                    static_cast<double>(counts_->put_bytes.load()));
    const std::uint64_t copied = counts_->copied_bytes;
    Group group;
    const auto flush = [&]() GALLEY_REQUIRES(commit_mutex_) {
      if (!group.blocks.empty() && write_group(*its_class, group)) {
        counts_->copied_bytes += group.bytes.size();
      }
      group = {};
    };
    for (const std::size_t i : copy_forward(copies, allowed > copied ? allowed - copied : 0)) {
      const Live& one = live[victim][i];
      restage(one.space, one.row.key, one.entry.place, *its_class, StagedBlock::Origin::kCopy,
              one.entry.touched_s, group);
      if (group.bytes.size() >= std::max<std::uint64_t>(options_.group_bytes, kDiskPage)) {
        flush();
      }
    }
    flush();
  }
  ++counts_->evicted_segments;
  drop({closed[victim]});
  return true;
}

// ---- Purges -------------------------------------------------------------------------------------

Result<void> SegmentStore::read_purges() {
  std::optional<Error> error;
  bool found = false;
  for (const std::string_view name : kPurgeFiles) {
    const auto text = read_text(disk_, name);
    if (!text) {
      if (text.error().code != Code::kNotFound) {
        error = text.error();
      }
      continue;
    }
    // Lines "SEQUENCE ERASED NAMESPACE", in hex digits, between the magic and the checksum.
    const std::size_t last = text->size() < 9 ? std::string::npos : text->size() - 9;
    std::uint32_t crc = 0;
    if (last == std::string::npos || !text->starts_with(kPurgesMagic) ||
        std::from_chars(text->data() + last, text->data() + last + 8, crc, 16).ec != std::errc() ||
        crc != crc32c(std::as_bytes(std::span(*text).first(last)))) {
      error = Error{Code::kCorruption, "does not verify", std::string(name)};
      continue;
    }
    found = true;
    std::string_view rest = std::string_view(*text).substr(0, last).substr(kPurgesMagic.size());
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      Purge purge;
      if (line.size() < 19 ||
          std::from_chars(line.data(), line.data() + 16, purge.sequence, 16).ec != std::errc()) {
        return fail(Code::kCorruption, "has a wrong line", std::string(name));
      }
      purge.erased = line[17] == '1';
      for (std::size_t i = 19; i + 1 < line.size(); i += 2) {
        purge.space += static_cast<char>(hex_digit(line[i]) * 16 + hex_digit(line[i + 1]));
      }
      const MutexLock lock(stage_mutex_);
      sequence_ = std::max(sequence_, purge.sequence);
      const MutexLock purges(purges_mutex_);
      purges_.push_back(std::move(purge));
    }
  }
  // One whole copy is enough. With none, a purged tenant's blocks could come back: better no store.
  if (!found && error) {
    return std::unexpected(std::move(*error));
  }
  return {};
}

Result<void> SegmentStore::write_purges() {
  std::string text(kPurgesMagic);
  {
    const MutexLock lock(purges_mutex_);
    for (const Purge& purge : purges_) {
      text += fmt::format("{:016x} {} ", purge.sequence, purge.erased ? 1 : 0);
      for (const char c : purge.space) {
        text += fmt::format("{:02x}", static_cast<unsigned char>(c));
      }
      text += '\n';
    }
  }
  text += fmt::format("{:08x}\n", crc32c(std::as_bytes(std::span(text))));
  text.resize(page_ceil(text.size()), '\0');
  for (const std::string_view name : kPurgeFiles) {
    GALLEY_CHECK_OK(disk_.replace(std::string(name), std::as_bytes(std::span(text))));
    counts_->written_bytes += text.size();
  }
  return {};
}

Result<std::uint64_t> SegmentStore::purge(std::string_view space) {
  if (options_.read_only) {
    return fail(Code::kUnavailable, "the store is read-only", {}, kReadOnly);
  }
  const MutexLock commit(commit_mutex_);
  if (!loaded_) {
    return fail(Code::kUnavailable, "the store is still being loaded");
  }
  (void)commit_locked();  // nothing of the namespace is on its way now: written, or counted as lost
  Purge purge{.space = std::string(space)};
  {
    const MutexLock lock(stage_mutex_);
    purge.sequence = next_sequence();
  }
  {
    const MutexLock lock(purges_mutex_);
    std::erase_if(purges_, [&](const Purge& old) { return old.space == space; });
    purges_.push_back(std::move(purge));
  }
  if (options_.defect != StoreDefect::kForgetPurge) {
    GALLEY_CHECK_OK(write_purges());
  }
  std::uint64_t count = 0;
  if (const auto number = scopes_.space(space)) {
    count = index_.erase_if(
        [&](const IndexEntry& entry) { return scopes_.at(entry.scope).space == *number; });
  }
  counts_->purged_blocks += count;
  if (options_.defect != StoreDefect::kForgetPurge) {
    GALLEY_CHECK_OK(erase_purged({std::string(space)}));
  }
  return count;
}

void SegmentStore::finish_purges() {
  std::set<std::string, std::less<>> spaces;
  {
    const MutexLock lock(purges_mutex_);
    for (const Purge& purge : purges_) {
      if (!purge.erased) {
        spaces.insert(purge.space);
      }
    }
  }
  if (!spaces.empty() && !options_.read_only && !erase_purged(spaces)) {
    ++counts_->write_errors;  // they stay unknown; erasing is tried again at the next start
  }
}

// Their bytes go from the disk. Blocks put after the purge stay.
Result<void> SegmentStore::erase_purged(const std::set<std::string, std::less<>>& spaces) {
  Result<void> out;
  for (const auto& one : live_segments()) {
    if (auto erased = erase_purged_in(*one, spaces); !erased && out) {
      out = std::move(erased);  // one that cannot be read keeps nothing of the others
    }
  }
  if (!out) {
    return out;
  }
  {
    const MutexLock lock(purges_mutex_);
    for (Purge& purge : purges_) {
      purge.erased = purge.erased || spaces.contains(purge.space);
    }
  }
  return write_purges();
}

Result<void> SegmentStore::erase_purged_in(Segment& segment,
                                           const std::set<std::string, std::less<>>& spaces) {
  GALLEY_TRY(const SegmentContents contents, contents_of(segment));
  std::shared_ptr<DiskFile> file;
  for (const TableRow& row : contents.table.rows) {
    const std::string& space = contents.table.scopes[row.scope].space;
    if (!spaces.contains(space) || !is_purged(space, row.sequence)) {
      continue;
    }
    if (!file) {
      GALLEY_TRY(file, segment.file(disk_, true));
    }
    GALLEY_CHECK_OK(
        file->erase(std::uint64_t{row.page} * kDiskPage, std::uint64_t{row.pages} * kDiskPage));
  }
  for (const PageRange& range : contents.unowned) {
    if (!file) {
      GALLEY_TRY(file, segment.file(disk_, true));
    }
    GALLEY_CHECK_OK(erase_unowned(*file, range));
  }
  return file ? file->sync() : Result<void>{};
}

// Nothing can serve these pages, so nothing is lost but what may have to go.
Result<void> SegmentStore::erase_unowned(DiskFile& file, const PageRange& range) {
  PageBuffer bytes;
  for (std::uint64_t at = range.begin; at < range.end; at += kGapAtOnce) {
    const std::uint64_t count = std::min(kGapAtOnce, range.end - at);
    bytes.resize(count);
    // The last page may end before its end; then it is not read, and erased.
    const bool read = file.read(at, bytes.bytes()).has_value();
    std::uint64_t pages = 0;
    for (std::uint64_t page = 0; page < count; page += kDiskPage) {
      pages += !read || std::ranges::any_of(bytes.bytes().subspan(page, kDiskPage),
                                            [](std::byte byte) { return byte != std::byte{0}; })
                   ? 1
                   : 0;
    }
    if (pages > 0) {
      GALLEY_CHECK_OK(file.erase(at, count));
      counts_->unowned_pages_erased += pages;
    }
  }
  return {};
}

bool SegmentStore::is_purged(std::string_view space, std::uint64_t sequence) const {
  const MutexLock lock(purges_mutex_);
  return std::ranges::any_of(purges_, [&](const Purge& purge) {
    return purge.space == space && sequence <= purge.sequence;
  });
}

// ---- End, and what tools ask --------------------------------------------------------------------

Result<void> SegmentStore::close() {
  if (options_.read_only) {
    return {};
  }
  const MutexLock commit(commit_mutex_);
  Result<void> out = commit_locked();
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    if (writers_[i]) {
      if (auto closed = close_writer(i); !closed && out) {
        out = std::move(closed);
      }
    }
  }
  {
    const MutexLock lock(stage_mutex_);
    read_only_because_ = "closed";
  }
  retry_at_ = TimeNs::max();
  lock_.reset();
  return out;
}

StoreStats SegmentStore::stats() const {
  StoreStats out{.keys = index_.size(),
                 .segments = live_segments().size(),
                 .bytes = used_bytes(std::nullopt),
                 .index_bytes = index_.memory_bytes(),
                 .loaded = loaded_};
  {
    const MutexLock lock(stage_mutex_);
    out.read_only_because = read_only_because_;
  }
  const Counts& from = *counts_;
  out.puts = from.puts;
  out.puts_known = from.puts_known;
  out.puts_refused = from.puts_refused;
  out.groups = from.groups;
  out.put_bytes = from.put_bytes;
  out.written_bytes = from.written_bytes;
  out.copied_bytes = from.copied_bytes;
  out.refreshed_bytes = from.refreshed_bytes;
  out.lost_blocks = from.lost_blocks;
  out.expired_segments = from.expired_segments;
  out.evicted_segments = from.evicted_segments;
  out.purged_blocks = from.purged_blocks;
  out.matches = from.matches;
  out.keys_asked = from.keys_asked;
  out.keys_hit = from.keys_hit;
  out.reads = from.reads;
  out.read_bytes = from.read_bytes;
  out.damaged_blocks = from.damaged_blocks;
  out.read_errors = from.read_errors;
  out.write_errors = from.write_errors;
  out.recovered_segments = from.recovered_segments;
  out.scanned_blocks = from.scanned_blocks;
  out.damaged_tables = from.damaged_tables;
  out.foreign_files = from.foreign_files;
  out.damaged_segments = from.damaged_segments;
  out.unowned_pages_erased = from.unowned_pages_erased;
  return out;
}

std::vector<SegmentInfo> SegmentStore::segments() const {
  std::vector<SegmentInfo> out;
  for (const auto& one : live_segments()) {
    SegmentInfo info{
        .name = one->name, .bytes = one->bytes, .open = one->open, .last_hit_s = one->last_hit_s};
    const MutexLock lock(one->mutex);
    for (const auto& [space, use] : one->use) {
      info.blocks += use.blocks;
    }
    out.push_back(std::move(info));
  }
  return out;
}

std::vector<SpaceInfo> SegmentStore::spaces() const {
  std::vector<SpaceInfo> out;
  const MutexLock lock(segments_mutex_);
  for (const auto& [space, use] : space_use_) {
    if (use.blocks > 0) {
      out.push_back({.space = scopes_.space_name(space), .blocks = use.blocks, .bytes = use.bytes});
    }
  }
  return out;
}

std::vector<StoreTrouble> SegmentStore::troubles() const {
  const MutexLock lock(segments_mutex_);
  return troubles_;
}

Result<std::vector<StoredBlock>> SegmentStore::blocks(const SegmentName& name) {
  const MutexLock commit(commit_mutex_);
  std::vector<StoredBlock> out;
  for (const auto& one : live_segments()) {
    if (one->name != name) {
      continue;
    }
    GALLEY_TRY(const SegmentContents contents, contents_of(*one));
    const Table& table = contents.table;
    for (const TableRow& row : table.rows) {
      const TableScope& scope = table.scopes[row.scope];
      const auto space = scopes_.space(scope.space);
      const auto entry = space ? index_.find(*space, row.key) : std::nullopt;
      if (entry && entry->place.segment == one->id && entry->place.page == row.page) {
        out.push_back({.space = scope.space,
                       .key = row.key,
                       .layout = scope.layout,
                       .numerics = scope.numerics,
                       .exact = row.exact,
                       .retention = one->name.retention,
                       .place = entry->place});
      }
    }
  }
  return out;
}

Result<BlockView> SegmentStore::read(const StoredBlock& block, PageBuffer& buffer) {
  const auto from = segment(block.place.segment);
  if (!from) {
    return fail(Code::kNotFound, "the segment is gone");
  }
  GALLEY_TRY(const auto file, from->file(disk_, !options_.read_only));
  buffer.resize(std::size_t{block.place.pages} * kDiskPage);
  const auto was_read = file->read(std::uint64_t{block.place.page} * kDiskPage, buffer.bytes());
  return view(was_read, *from, block.place, block.space, block.key, buffer.bytes());
}

}  // namespace galley::cache
