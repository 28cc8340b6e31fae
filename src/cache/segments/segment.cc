#include "cache/segments/segment.h"

#include <algorithm>
#include <utility>

#include "base/page_buffer.h"
#include "cache/block_store.h"

namespace galley::cache {
namespace {

constexpr std::size_t kReadAtOnce = std::size_t{1} << 20U;
// A footer or journal larger than this is none of ours: 64 TiB of blocks of 112 KiB.
constexpr std::uint64_t kTableBytesMax = std::uint64_t{24} << 30U;

// Adds scopes by value.
class TableBuilder {
 public:
  explicit TableBuilder(Table& table) : table_(table) {
    for (std::size_t i = 0; i < table.scopes.size(); ++i) {
      numbers_.emplace(table.scopes[i], static_cast<std::uint16_t>(i));
    }
  }

  // False when there are too many scopes.
  bool add(const TableScope& scope, TableRow row) {
    auto it = numbers_.find(scope);
    if (it == numbers_.end()) {
      if (table_.scopes.size() == kTableScopesMax) {
        return false;
      }
      it = numbers_.emplace(scope, static_cast<std::uint16_t>(table_.scopes.size())).first;
      table_.scopes.push_back(scope);
    }
    row.scope = it->second;
    table_.rows.push_back(row);
    return true;
  }

 private:
  Table& table_;
  std::map<TableScope, std::uint16_t> numbers_;
};

struct Footer {
  Table table;
  PageRange where;
};

std::optional<Footer> read_footer(const DiskFile& file,
                                  const SegmentName& name,
                                  std::uint64_t size) {
  if (size < 3 * kDiskPage) {
    return std::nullopt;
  }
  PageBuffer page(kDiskPage);
  if (!file.read(size - kDiskPage, page.bytes())) {
    return std::nullopt;
  }
  const auto end = decode_segment_end(page.bytes());
  if (!end || end->segment != name || end->footer_bytes > kTableBytesMax ||
      end->footer_offset % kDiskPage != 0 || end->footer_bytes % kDiskPage != 0 ||
      end->footer_bytes == 0 || end->footer_offset + end->footer_bytes > size) {
    return std::nullopt;
  }
  PageBuffer bytes(end->footer_bytes);
  if (!file.read(end->footer_offset, bytes.bytes())) {
    return std::nullopt;
  }
  auto table = decode_table(bytes.bytes());
  if (!table || table->kind != TableKind::kFooter || table->segment != name) {
    return std::nullopt;
  }
  return Footer{.table = std::move(*table),
                .where = {end->footer_offset, end->footer_offset + end->footer_bytes}};
}

// What is left of [kDiskPage, end) without `owned`.
std::vector<PageRange> without(std::vector<PageRange> owned, std::uint64_t end) {
  std::ranges::sort(owned, std::less{}, &PageRange::begin);
  std::vector<PageRange> out;
  std::uint64_t at = kDiskPage;
  for (const PageRange& one : owned) {
    if (one.begin > at) {
      out.push_back({at, std::min(one.begin, end)});
    }
    at = std::max(at, one.end);
    if (at >= end) {
      return out;
    }
  }
  if (at < end) {
    out.push_back({at, end});
  }
  return out;
}

std::vector<PageRange> pages_of(const Table& table) {
  std::vector<PageRange> out;
  out.reserve(table.rows.size());
  for (const TableRow& row : table.rows) {
    out.push_back(
        {std::uint64_t{row.page} * kDiskPage, (std::uint64_t{row.page} + row.pages) * kDiskPage});
  }
  return out;
}

// A whole file, with what cannot be read as zeros.
PageBuffer read_whole(const DiskFile& file, std::uint64_t size) {
  PageBuffer out;
  out.extend(size);
  for (std::uint64_t at = 0; at < size; at += kReadAtOnce) {
    const std::size_t count = std::min<std::uint64_t>(kReadAtOnce, size - at);
    if (file.read(at, out.bytes().subspan(at, count))) {
      continue;
    }
    for (std::uint64_t page = at; page < at + count; page += kDiskPage) {
      if (!file.read(page, out.bytes().subspan(page, kDiskPage))) {
        std::ranges::fill(out.bytes().subspan(page, kDiskPage), std::byte{0});
      }
    }
  }
  return out;
}

// Entries of the journal that verify, wherever they stand; what lies between is passed over.
void read_journal(const PageBuffer& journal,
                  const SegmentName& name,
                  std::uint64_t segment_bytes,
                  StoreDefect defect,
                  SegmentContents& out,
                  std::vector<PageRange>& told) {
  const bool verify = defect != StoreDefect::kTrustJournal;
  TableBuilder builder(out.table);
  std::optional<std::uint32_t> newest;
  for (std::uint64_t at = 0; at < journal.size();) {
    const auto rest = journal.bytes().subspan(at);
    const auto table = decode_table(rest, verify);
    if (!table || table->kind != TableKind::kJournal || table->segment != name ||
        (newest && table->number <= *newest)) {
      const bool empty = std::ranges::all_of(rest.first(kDiskPage),
                                             [](std::byte byte) { return byte == std::byte{0}; });
      out.damaged_tables += empty ? 0 : 1;
      at += kDiskPage;
      continue;
    }
    newest = table->number;
    ++out.groups;
    bool whole = true;
    for (const TableRow& row : table->rows) {
      // A file that was cut has fewer records than its journal says.
      if ((std::uint64_t{row.page} + row.pages) * kDiskPage <= segment_bytes) {
        whole = builder.add(table->scopes.at(row.scope), row) && whole;
      }
    }
    if (whole) {
      told.push_back({table->data_begin, table->data_end});
      out.data_end = std::max(out.data_end, std::min(table->data_end, segment_bytes));
    }
    at += *table_bytes(rest);
  }
}

// Records between the ranges that the journal told of, by their headers.
void scan(const DiskFile& file,
          const SegmentName& name,
          std::uint64_t size,
          std::vector<PageRange> told,
          SegmentContents& out) {
  std::ranges::sort(told, std::less{}, &PageRange::begin);
  TableBuilder builder(out.table);
  PageBuffer window;
  std::uint64_t window_begin = 0;
  const auto page_at = [&](std::uint64_t at) -> std::span<const std::byte> {
    if (at < window_begin || at + kDiskPage > window_begin + window.size()) {
      window_begin = at;
      window.resize(std::min<std::uint64_t>(kReadAtOnce, size - at));
      if (!file.read(at, window.bytes())) {
        window.resize(kDiskPage);
        if (!file.read(at, window.bytes())) {
          std::ranges::fill(window.bytes(), std::byte{0});
        }
      }
    }
    return window.bytes().subspan(at - window_begin, kDiskPage);
  };
  PageBuffer record;
  auto next = told.begin();
  for (std::uint64_t at = kDiskPage; at + kDiskPage <= size;) {
    while (next != told.end() && next->end <= at) {
      ++next;
    }
    if (next != told.end() && next->begin <= at) {
      at = next->end;
      continue;
    }
    const std::uint64_t step = at + kDiskPage;
    const auto page = page_at(at);
    if (!begins_like_record(page)) {
      at = step;
      continue;
    }
    // The head may be longer than a page, so it is read with as much of the record as may be.
    const std::uint64_t head_bytes =
        std::min<std::uint64_t>(size - at, page_ceil(record_head_bytes(kBlockPartsMax)));
    record.resize(head_bytes);
    if (!file.read(at, record.bytes())) {
      at = step;
      continue;
    }
    const auto head = decode_record_head(record.bytes());
    if (!head || head->segment != name) {
      at = step;
      continue;
    }
    const std::uint64_t bytes = record_bytes(head->parts);
    if (at + bytes > size || bytes / kDiskPage > 0xffff) {
      at = step;
      continue;
    }
    record.resize(bytes);
    if (!file.read(at, record.bytes()) || !record_parts(*head, record.bytes())) {
      at = step;
      continue;
    }
    const bool known =
        builder.add({.space = head->space, .layout = head->layout, .numerics = head->numerics},
                    {.key = head->key,
                     .sequence = head->sequence,
                     .page = static_cast<std::uint32_t>(at / kDiskPage),
                     .pages = static_cast<std::uint32_t>(bytes / kDiskPage),
                     .exact = head->exact});
    out.scanned_rows += known ? 1 : 0;
    at += bytes;
    out.data_end = std::max(out.data_end, at);
  }
}

}  // namespace

Result<std::shared_ptr<DiskFile>> Segment::file(Disk& disk, bool writable) {
  const MutexLock lock(mutex);
  if (!file_) {
    GALLEY_TRY(file_, disk.open(file_stem(name) + std::string(kSegmentSuffix), writable));
  }
  return file_;
}

void Segment::set_file(std::shared_ptr<DiskFile> opened) {
  const MutexLock lock(mutex);
  file_ = std::move(opened);
}

Result<SegmentContents> read_contents(Disk& disk,
                                      const DiskFile& file,
                                      const SegmentName& name,
                                      StoreDefect defect) {
  GALLEY_TRY(std::uint64_t file_bytes, file.size());
  std::uint64_t size = file_bytes / kDiskPage * kDiskPage;
  SegmentContents out{.table = {.kind = TableKind::kFooter, .segment = name},
                      .data_end = kDiskPage};
  PageBuffer page(kDiskPage);
  if (size >= kDiskPage && file.read(0, page.bytes())) {
    const auto head = decode_segment_head(page.bytes());
    if (head && *head != name) {
      return fail(Code::kInvalidArgument, "another segment's file", file_stem(name));
    }
  }  // a damaged head says nothing that the file's name does not
  auto footer = read_footer(file, name, size);
  std::unique_ptr<DiskFile> journal_file;
  if (!footer) {
    if (auto opened = disk.open(file_stem(name) + std::string(kJournalSuffix), false)) {
      journal_file = std::move(*opened);
      out.from_journal = true;
    } else {  // its writer may have closed it since we looked
      GALLEY_TRY(file_bytes, file.size());
      size = file_bytes / kDiskPage * kDiskPage;
      footer = read_footer(file, name, size);
    }
  }
  if (footer) {
    std::erase_if(footer->table.rows, [&](const TableRow& row) {
      return (std::uint64_t{row.page} + row.pages) * kDiskPage > size;
    });
    out.data_end = footer->table.data_end;
    out.table = std::move(footer->table);
    out.from_footer = true;
    auto owned = pages_of(out.table);
    owned.push_back(footer->where);
    owned.push_back({size - kDiskPage, size});
    out.unowned = without(std::move(owned), page_ceil(file_bytes));
    return out;
  }
  std::vector<PageRange> told;
  if (journal_file) {
    const auto journal_bytes = journal_file->size();
    if (journal_bytes && *journal_bytes <= kTableBytesMax) {
      const PageBuffer journal = read_whole(*journal_file, *journal_bytes / kDiskPage * kDiskPage);
      read_journal(journal, name, size, defect, out, told);
    }
  }
  if (defect != StoreDefect::kNoScan) {
    scan(file, name, size, std::move(told), out);
  }
  out.table.data_begin = kDiskPage;
  out.table.data_end = out.data_end;
  out.unowned = without(pages_of(out.table), page_ceil(file_bytes));
  return out;
}

}  // namespace galley::cache
