#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"

// How long blocks stay and which go first: pure functions of plain numbers. Seconds are the
// store's, since 1970.
namespace galley::cache {

struct RetentionClass {
  std::string name;             // as is_class_name()
  Duration life{};              // at least so long after the last write or refresh
  std::uint64_t bytes_max = 0;  // of segments of this class; 0: only the store's own limit
};

// Begin of the time bucket of a moment.
[[nodiscard]] std::int64_t bucket_of(std::int64_t now_s, std::int64_t bucket_s);
// When a segment of a bucket dies: what was written last in it has had its whole life then.
[[nodiscard]] std::int64_t expiry_of(std::int64_t bucket_begin_s,
                                     std::int64_t bucket_s,
                                     std::int64_t life_s);
// A hit so near the end is a reason to write the block again: the last tenth of its life.
[[nodiscard]] bool refresh_due(std::int64_t now_s, std::int64_t expires_s, std::int64_t life_s);

// A segment that could go.
struct EvictionCandidate {
  std::uint64_t bytes{};
  double mean_touched_s{};  // of the blocks it still holds, by bytes; 0 when there is none
};
// The coldest one: its mean touch is longest ago. There is at least one.
[[nodiscard]] std::size_t coldest(std::span<const EvictionCandidate> candidates);

// A block of a segment that goes.
struct CopyCandidate {
  std::uint64_t bytes{};
  std::int64_t written_s{};
  std::int64_t touched_s{};
};
// Which of them are written again elsewhere, most recently hit first: those that were hit since
// they were written, as far as `budget` bytes reach.
[[nodiscard]] std::vector<std::size_t> copy_forward(std::span<const CopyCandidate> candidates,
                                                    std::uint64_t budget);

}  // namespace galley::cache
