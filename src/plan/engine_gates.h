#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "engine/defect.h"
#include "plan/engine_world.h"

// The gates of the engine's loop and scheduler (spec runtime 1.10, 2.8), each measured by one
// function. What is measured is returned; who calls decides what is good enough.
namespace galley::plan {

// T1.1, T2.1: random machines, one a seed.
struct SweepResult {
  std::int64_t worlds{};
  std::int64_t rows{};
  std::int64_t requests{};
  std::int64_t preemptions{};
  std::int64_t hit_tokens{};
  std::int64_t stored_hit_tokens{};
  std::int64_t forks{};
  std::int64_t drafts{};
  std::int64_t drafts_verified{};  // the others were over a budget
  std::int64_t masks{};
  std::int64_t drafts_forbidden{};  // by a grammar
  std::int64_t failed{};            // worlds with a violation
  std::optional<Seed> first_failed;
  std::vector<std::string> violations;  // of that one
};
[[nodiscard]] SweepResult sweep_engines(std::uint64_t first_seed,
                                        std::int64_t worlds,
                                        std::int64_t rows_each);
// T10.1: the same, most answers with a grammar. That each is the oracle's, which is drawn token
// after token from masked laws, says that each is legal, too.
[[nodiscard]] SweepResult sweep_grammars(std::uint64_t first_seed,
                                         std::int64_t worlds,
                                         std::int64_t rows_each);

// T1.2, T10.4: a deliberate defect, on random machines until it is seen.
struct MutationResult {
  std::string_view name;
  bool caught{};
  std::int64_t rows{};  // run until then
  std::string seen_as;
};
inline constexpr std::int64_t kMutationRowsMax = 100'000;
[[nodiscard]] std::vector<MutationResult> try_engine_mutations();

// T1.3, T2.4: what a turn costs on the host, at so many rows, on `stopwatch`.
struct HostCost {
  std::size_t rows{};
  Duration median{};
  Duration p99{};
};
[[nodiscard]] HostCost measure_host_cost(std::size_t rows, const Clock& stopwatch);

// T1.4: share of virtual time in which the device has nothing to do, with steps of 5 to 30 ms and
// requests always waiting.
[[nodiscard]] double measure_idle(Duration host_cost);

// T2.2: Jain's index of what equal tenants got, with prompts of different lengths; and how long a
// request of the lowest class waits behind a stream of the highest.
struct FairnessResult {
  double jain{};
  std::int64_t steps{};
  Duration batch_wait{};  // longest
  Duration interactive_wait{};
};
[[nodiscard]] FairnessResult measure_fairness();

// T2.3: requests that lack a block, in a pool that is nearly full all the time; with blocks kept
// back for the growth of those that run, and without. A row that lacks one waits while any other
// runs, so the reserve shows in rows that wait; preemptions are what is left when none can run.
struct PressureResult {
  double occupancy{};
  double preemptions{};      // a request
  double stalled{};          // rows, of all
  double stalled_without{};  // reserve
  double preemptions_without{};
};
[[nodiscard]] PressureResult measure_pressure();

}  // namespace galley::plan
