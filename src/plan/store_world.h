#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/virtual_disk.h"
#include "cache/segments/store_defect.h"

namespace galley::plan {

struct StoreWorldOptions {
  Seed seed;
  int lives = 12;        // of the store, each ended by a crash, a kill or a close
  int operations = 120;  // of each
  cache::StoreDefect defect = cache::StoreDefect::kNone;
};

struct StoreReport {
  // What was done to it.
  std::array<std::int64_t, kDiskOps> crashes{};   // the power went, by what was under way
  std::array<std::int64_t, kDiskOps> failures{};  // operations of the disk that failed
  std::int64_t kills{};
  std::int64_t flips{};
  std::int64_t cuts{};     // files that lost their end
  std::int64_t foreign{};  // files that are not the store's
  std::int64_t jumps{};    // of the date
  std::int64_t sectors_lost{};
  // What it did.
  std::int64_t puts{};
  std::int64_t acknowledged{};
  std::int64_t matches{};
  std::int64_t reads{};
  std::int64_t damaged{};     // reads that did not verify
  std::int64_t recoveries{};  // acknowledged blocks that had to be there after a life, and were
  std::int64_t expired{};     // segments
  std::int64_t evicted{};
  std::int64_t purges{};
  // What must not be.
  std::int64_t wrong_bytes{};
  std::int64_t ghosts{};  // hits of what was never put, is purged, over or cannot be read
  std::int64_t lost{};    // acknowledged blocks that had to be there
  std::int64_t broken_leases{};
  std::int64_t other{};                 // budgets, refusals to open
  std::vector<std::string> violations;  // the first ones, in words

  [[nodiscard]] std::int64_t injected() const;
  [[nodiscard]] std::int64_t violated() const {
    return wrong_bytes + ghosts + lost + broken_leases + other;
  }
  void add(const StoreReport& other_report);
};

// The real store on a virtual disk, under random puts, commits, matches, reads, purges and upkeep,
// with crashes, failures, flipped bits, cut and foreign files, a full disk and a date that jumps,
// all from one seed. Beside it runs a plain model of what it acknowledged: no hit without it, no
// byte but the right one, and everything acknowledged is there until its time, its namespace's
// purge, or damage to its own bytes.
[[nodiscard]] StoreReport run_store_world(const StoreWorldOptions& options);

}  // namespace galley::plan
