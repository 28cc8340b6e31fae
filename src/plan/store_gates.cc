#include "plan/store_gates.h"

#include <array>
#include <utility>

namespace galley::plan {
namespace {

using cache::StoreDefect;

constexpr std::array<std::pair<StoreDefect, std::string_view>, 12> kMutations{{
    {StoreDefect::kPublishBeforeSync, "publish before the sync"},
    {StoreDefect::kJournalFirst, "journal before the data"},
    {StoreDefect::kSkipChecksums, "parts served unverified"},
    {StoreDefect::kTrustJournal, "a damaged entry of the journal taken as it is"},
    {StoreDefect::kExpireEarly, "expire a bucket early"},
    {StoreDefect::kSkipNameSync, "names of new segments not synced"},
    {StoreDefect::kRetrySync, "a failed sync tried again"},
    {StoreDefect::kForgetPurge, "a purge not written down"},
    {StoreDefect::kNoNamespace, "namespaces left out of the key"},
    {StoreDefect::kAnyNumerics, "exactness asked for and not looked at"},
    {StoreDefect::kNoScan, "no scan where journal and footer are silent"},
    {StoreDefect::kCountFromZero, "bytes counted from zero after a restart"},
}};

}  // namespace

StoreSweep sweep_stores(std::uint64_t first_seed, std::int64_t worlds) {
  StoreSweep out{.worlds = worlds};
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(worlds);
       ++seed) {
    const StoreReport report = run_store_world({.seed = Seed(seed)});
    if (report.violated() > 0) {
      ++out.failed;
      if (!out.first_failed) {
        out.first_failed = Seed(seed);
      }
    }
    out.sum.add(report);
  }
  return out;
}

std::vector<StoreMutation> try_store_mutations() {
  std::vector<StoreMutation> out;
  for (const auto& [defect, name] : kMutations) {
    StoreMutation one{.name = name};
    while (!one.caught && one.worlds < kStoreMutationWorldsMax) {
      ++one.worlds;
      const StoreReport report =
          run_store_world({.seed = Seed(static_cast<std::uint64_t>(one.worlds)), .defect = defect});
      one.caught = report.violated() > 0;
      one.seen_as = one.caught ? report.violations.front() : "";
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace galley::plan
