#include "cache/segments/retention.h"

#include <algorithm>

#include "base/check.h"

namespace galley::cache {

std::int64_t bucket_of(std::int64_t now_s, std::int64_t bucket_s) {
  return now_s - now_s % bucket_s;
}

std::int64_t expiry_of(std::int64_t bucket_begin_s, std::int64_t bucket_s, std::int64_t life_s) {
  return bucket_begin_s + bucket_s + life_s;
}

bool refresh_due(std::int64_t now_s, std::int64_t expires_s, std::int64_t life_s) {
  constexpr std::int64_t kLastPart = 10;
  return expires_s - now_s <= life_s / kLastPart;
}

std::size_t coldest(std::span<const EvictionCandidate> candidates) {
  GALLEY_ASSERT(!candidates.empty());
  const auto found =
      std::ranges::min_element(candidates, std::less{}, &EvictionCandidate::mean_touched_s);
  return static_cast<std::size_t>(found - candidates.begin());
}

std::vector<std::size_t> copy_forward(std::span<const CopyCandidate> candidates,
                                      std::uint64_t budget) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].touched_s > candidates[i].written_s) {
      order.push_back(i);
    }
  }
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::size_t i) { return candidates[i].touched_s; });
  std::size_t kept = 0;
  while (kept < order.size() && candidates[order[kept]].bytes <= budget) {
    budget -= candidates[order[kept]].bytes;
    ++kept;
  }
  order.resize(kept);
  return order;
}

}  // namespace galley::cache
