#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "cache/segments/segment_store.h"

namespace galley::cache {

// Files of a store beside its segments and journals.
inline constexpr std::string_view kLockFile = "lock";
inline constexpr std::array<std::string_view, 2> kPurgeFiles{"purges.a", "purges.b"};

// What StoreStats counts since open(), by any thread.
struct SegmentStore::Counts {
  using Count = std::atomic<std::uint64_t>;
  Count puts{};
  Count puts_known{};
  Count puts_refused{};
  Count groups{};
  Count put_bytes{};
  Count written_bytes{};
  Count copied_bytes{};
  Count refreshed_bytes{};
  Count lost_blocks{};
  Count expired_segments{};
  Count evicted_segments{};
  Count purged_blocks{};
  Count matches{};
  Count keys_asked{};
  Count keys_hit{};
  Count reads{};
  Count read_bytes{};
  Count damaged_blocks{};
  Count read_errors{};
  Count write_errors{};
  Count recovered_segments{};
  Count scanned_blocks{};
  Count damaged_tables{};
  Count foreign_files{};
  Count damaged_segments{};
  Count unowned_pages_erased{};
};

}  // namespace galley::cache
