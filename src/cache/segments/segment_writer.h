#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/disk.h"
#include "base/page_buffer.h"
#include "base/result.h"
#include "cache/segments/format.h"
#include "cache/segments/segment.h"
#include "cache/segments/store_defect.h"

namespace galley::cache {

// The one who appends to an open segment and its journal. After any error it must not be used
// again: what its files hold since the last success is unknown. One thread.
class SegmentWriter {
 public:
  // Makes both files and their names durable. `segment` has no file yet.
  static Result<std::unique_ptr<SegmentWriter>> create(Disk& disk,
                                                       std::shared_ptr<Segment> segment,
                                                       StoreDefect defect);

  [[nodiscard]] const std::shared_ptr<Segment>& segment() const { return segment_; }
  // Where the next group begins.
  [[nodiscard]] std::uint64_t end() const { return end_; }
  // All there are.
  [[nodiscard]] const Table& contents() const { return contents_; }

  // Appends records (whole pages) and then, once they are durable, the journal's entry of them.
  // Durable when it returns well. Rows and scopes are of this group.
  Result<void> commit(std::span<const std::byte> records,
                      std::vector<TableScope> scopes,
                      std::vector<TableRow> rows);
  // Writes the footer; the journal goes.
  Result<void> close();

  // Bytes given to the disk so far, all files.
  [[nodiscard]] std::uint64_t written_bytes() const { return written_; }

 private:
  SegmentWriter(Disk& disk, std::shared_ptr<Segment> segment, StoreDefect defect)
      : disk_(disk), segment_(std::move(segment)), defect_(defect) {}

  Result<void> write(DiskFile& file, std::uint64_t offset, std::span<const std::byte> bytes);

  Disk& disk_;
  std::shared_ptr<Segment> segment_;
  StoreDefect defect_;
  std::shared_ptr<DiskFile> file_;
  std::unique_ptr<DiskFile> journal_;
  std::uint64_t end_ = kDiskPage;
  std::uint64_t journal_end_ = 0;
  std::uint32_t groups_ = 0;
  Table contents_;
  std::uint64_t written_ = 0;
};

// Footer and end page of `contents`, behind `offset`; the journal goes once they are durable.
// Returns the bytes that were written. For a segment that a crash left open, too.
Result<std::uint64_t> write_footer(Disk& disk,
                                   DiskFile& file,
                                   std::uint64_t offset,
                                   const Table& contents);

}  // namespace galley::cache
