#include "cache/segments/segment_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace galley::cache {
namespace {

// Direct I/O wants memory that begins at a page.
PageBuffer aligned(std::span<const std::byte> bytes) {
  PageBuffer out(bytes.size());
  std::ranges::copy(bytes, out.data());
  return out;
}

}  // namespace

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::create(Disk& disk,
                                                             std::shared_ptr<Segment> segment,
                                                             StoreDefect defect) {
  const std::string stem = file_stem(segment->name);
  std::unique_ptr<SegmentWriter> out(new SegmentWriter(disk, std::move(segment), defect));
  GALLEY_TRY(out->file_, disk.create(stem + std::string(kSegmentSuffix)));
  const PageBuffer head = aligned(encode_segment_head(out->segment_->name));
  GALLEY_CHECK_OK(out->write(*out->file_, 0, head.bytes()));
  GALLEY_TRY(out->journal_, disk.create(stem + std::string(kJournalSuffix)));
  if (defect != StoreDefect::kSkipNameSync) {
    GALLEY_CHECK_OK(disk.sync_names());
  }
  out->contents_ = {.kind = TableKind::kFooter,
                    .data_begin = kDiskPage,
                    .data_end = kDiskPage,
                    .segment = out->segment_->name};
  out->segment_->set_file(out->file_);
  out->segment_->open = true;
  out->segment_->bytes = kDiskPage;
  return out;
}

Result<void> SegmentWriter::write(DiskFile& file,
                                  std::uint64_t offset,
                                  std::span<const std::byte> bytes) {
  GALLEY_CHECK_OK(file.write(offset, bytes));
  written_ += bytes.size();
  return {};
}

Result<void> SegmentWriter::commit(std::span<const std::byte> records,
                                   std::vector<TableScope> scopes,
                                   std::vector<TableRow> rows) {
  GALLEY_ASSERT(records.size() % kDiskPage == 0);
  const std::uint64_t data_end = end_ + records.size();
  const Table entry{.kind = TableKind::kJournal,
                    .number = groups_,
                    .data_begin = end_,
                    .data_end = data_end,
                    .segment = segment_->name,
                    .scopes = std::move(scopes),
                    .rows = std::move(rows)};
  const PageBuffer logged = aligned(encode_table(entry));
  const auto sync = [&](DiskFile& file) -> Result<void> {
    auto synced = file.sync();
    if (!synced && defect_ == StoreDefect::kRetrySync) {
      return file.sync();
    }
    return synced;
  };
  if (defect_ == StoreDefect::kJournalFirst) {
    GALLEY_CHECK_OK(write(*journal_, journal_end_, logged.bytes()));
    GALLEY_CHECK_OK(sync(*journal_));
    GALLEY_CHECK_OK(write(*file_, end_, records));
  } else {
    GALLEY_CHECK_OK(write(*file_, end_, records));
    if (defect_ != StoreDefect::kPublishBeforeSync) {
      GALLEY_CHECK_OK(sync(*file_));
    }
    GALLEY_CHECK_OK(write(*journal_, journal_end_, logged.bytes()));
    if (defect_ != StoreDefect::kPublishBeforeSync) {
      GALLEY_CHECK_OK(sync(*journal_));
    }
  }
  std::vector<std::uint16_t> numbers;  // of the group's scopes in the footer
  for (const TableScope& scope : entry.scopes) {
    auto it = std::ranges::find(contents_.scopes, scope);
    if (it == contents_.scopes.end()) {
      it = contents_.scopes.insert(it, scope);
    }
    numbers.push_back(static_cast<std::uint16_t>(it - contents_.scopes.begin()));
  }
  for (TableRow row : entry.rows) {
    row.scope = numbers.at(row.scope);
    contents_.rows.push_back(row);
  }
  contents_.data_end = data_end;
  end_ = data_end;
  journal_end_ += logged.size();
  ++groups_;
  segment_->bytes = data_end + journal_end_;
  return {};
}

Result<void> SegmentWriter::close() {
  GALLEY_TRY(const std::uint64_t bytes, write_footer(disk_, *file_, end_, contents_));
  written_ += bytes;
  segment_->bytes = end_ + bytes;
  segment_->open = false;
  journal_.reset();
  return {};
}

Result<std::uint64_t> write_footer(Disk& disk,
                                   DiskFile& file,
                                   std::uint64_t offset,
                                   const Table& contents) {
  PageBuffer bytes = aligned(encode_table(contents));
  const std::uint64_t footer_bytes = bytes.size();
  std::ranges::copy(
      encode_segment_end(
          {.segment = contents.segment, .footer_offset = offset, .footer_bytes = footer_bytes}),
      bytes.extend(kDiskPage).begin());
  GALLEY_CHECK_OK(file.write(offset, bytes.bytes()));
  GALLEY_CHECK_OK(file.sync());
  const auto removed = disk.remove(file_stem(contents.segment) + std::string(kJournalSuffix));
  if (!removed && removed.error().code != Code::kNotFound) {
    return std::unexpected(removed.error());
  }
  return bytes.size();
}

}  // namespace galley::cache
