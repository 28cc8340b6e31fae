#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/store_world.h"

// The gates of the block store (spec runtime T8.1), each measured by one function. What is measured
// is returned; who calls decides what is good enough.
namespace galley::plan {

struct StoreSweep {
  std::int64_t worlds{};
  std::int64_t failed{};  // worlds with a violation
  std::optional<Seed> first_failed;
  StoreReport sum;
};
[[nodiscard]] StoreSweep sweep_stores(std::uint64_t first_seed, std::int64_t worlds);

// A deliberate defect, on random worlds until it is seen.
struct StoreMutation {
  std::string_view name;
  bool caught{};
  std::int64_t worlds{};  // run until then
  std::string seen_as;
};
inline constexpr std::int64_t kStoreMutationWorldsMax = 200;
[[nodiscard]] std::vector<StoreMutation> try_store_mutations();

}  // namespace galley::plan
