#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/mutex.h"
#include "cache/segments/format.h"
#include "cache/segments/store_defect.h"

namespace galley::cache {

// A segment that a store knows. Whoever shares it can read its records, also after its files were
// removed. Owners: the store and the leases on its blocks.
struct Segment {
  Segment(SegmentName its_name, std::uint32_t its_id) : name(std::move(its_name)), id(its_id) {}

  const SegmentName name;
  const std::uint32_t id;  // in the store's table
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::uint32_t> last_hit_s = 0;
  std::atomic<bool> open = false;    // being written
  std::atomic<bool> loaded = false;  // its rows are in the index

  // Opened when it is needed first.
  [[nodiscard]] Result<std::shared_ptr<DiskFile>> file(Disk& disk, bool writable)
      GALLEY_EXCLUDES(mutex);
  void set_file(std::shared_ptr<DiskFile> opened) GALLEY_EXCLUDES(mutex);

  struct Use {
    std::uint64_t blocks{};
    std::uint64_t bytes{};
  };
  Mutex mutex;
  std::map<std::uint16_t, Use> use GALLEY_GUARDED_BY(mutex);  // by namespace's number

 private:
  std::shared_ptr<DiskFile> file_ GALLEY_GUARDED_BY(mutex);
};

// Bytes, whole pages.
struct PageRange {
  std::uint64_t begin{};
  std::uint64_t end{};
};

// How the rows of a segment were found.
struct SegmentContents {
  Table table;  // every row there is
  bool from_footer = false;
  std::uint32_t groups = 0;          // of the journal
  std::uint64_t damaged_tables = 0;  // footer, or pages of the journal, that did not verify
  std::uint64_t scanned_rows = 0;    // found by their headers
  std::uint64_t data_end = 0;        // nothing that is known lies behind
  bool from_journal = false;         // there is one
  // Pages that neither head, footer nor any row owns: what a damaged header or a cut left. They can
  // be anybody's.
  std::vector<PageRange> unowned;
};

// Reads footer, or journal and, for what it does not tell, the headers of records, whose payload is
// verified then. Damage anywhere costs what it hit and nothing else. Errors: kNotFound, or
// kInvalidArgument for a file of another segment.
[[nodiscard]] Result<SegmentContents> read_contents(Disk& disk,
                                                    const DiskFile& file,
                                                    const SegmentName& name,
                                                    StoreDefect defect);

}  // namespace galley::cache
