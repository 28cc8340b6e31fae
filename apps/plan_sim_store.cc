#include <algorithm>
#include <cstdint>
#include <fmt/core.h>
#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/number_flag.h"
#include "apps/progress_bar.h"
#include "plan/store_gates.h"

namespace galley::apps {
namespace {

struct Flags {
  std::int64_t seeds = 300;
  std::uint64_t first = 1;
};

plan::StoreSweep sweep(const Flags& flags) {
  constexpr std::int64_t kAtOnce = 10;
  ProgressBar bar;
  plan::StoreSweep sum;
  while (sum.worlds < flags.seeds) {
    const plan::StoreSweep part =
        plan::sweep_stores(flags.first + static_cast<std::uint64_t>(sum.worlds),
                           std::min(kAtOnce, flags.seeds - sum.worlds));
    sum.worlds += part.worlds;
    sum.failed += part.failed;
    sum.sum.add(part.sum);
    if (!sum.first_failed) {
      sum.first_failed = part.first_failed;
    }
    bar.show(static_cast<std::uint64_t>(sum.worlds), static_cast<std::uint64_t>(flags.seeds));
  }
  return sum;
}

// "create 12, write 30": those there are.
std::string by_operation(const std::array<std::int64_t, kDiskOps>& counts, std::string_view reads) {
  std::string out;
  for (std::size_t i = 0; i < kDiskOps; ++i) {
    if (counts.at(i) > 0) {
      out += fmt::format(
          "{}{} {}", out.empty() ? "" : ", ",
          i == static_cast<std::size_t>(DiskOp::kRead) ? reads : name(static_cast<DiskOp>(i)),
          counts.at(i));
    }
  }
  return out.empty() ? "none" : out;
}

int simulate(const Flags& flags) {
  int passed = 0;
  int failed = 0;
  const auto say = [&](bool good, const std::string& what) {
    ++(good ? passed : failed);
    fmt::print("{:<6} {}\n", good ? "pass" : "FAIL", what);
  };
  const plan::StoreSweep result = sweep(flags);
  const plan::StoreReport& sum = result.sum;
  fmt::print("{} stores: {} puts, {} acknowledged, {} matches, {} reads, {} purges\n",
             result.worlds, sum.puts, sum.acknowledged, sum.matches, sum.reads, sum.purges);
  fmt::print("power cuts within: {}; {} sectors lost\n", by_operation(sum.crashes, "between two"),
             sum.sectors_lost);
  fmt::print("operations that failed: {}\n", by_operation(sum.failures, "read"));
  fmt::print("kills {}, flipped bits {}, cut files {}, foreign files {}, jumps of the date {}\n",
             sum.kills, sum.flips, sum.cuts, sum.foreign, sum.jumps);
  say(sum.injected() > 0, fmt::format("{} crashes and faults injected", sum.injected()));
  say(sum.wrong_bytes == 0, fmt::format("{} wrong bytes served, {} reads of damaged blocks refused",
                                        sum.wrong_bytes, sum.damaged));
  say(sum.ghosts == 0, fmt::format("{} ghost hits", sum.ghosts));
  const std::int64_t due = sum.recoveries + sum.lost;
  say(sum.lost == 0 && due > 0,
      fmt::format("{} of {} acknowledged blocks there after a crash ({:.2f} %)", sum.recoveries,
                  due,
                  100.0 * static_cast<double>(sum.recoveries) /
                      static_cast<double>(std::max<std::int64_t>(due, 1))));
  say(sum.broken_leases == 0, fmt::format("{} leases broken", sum.broken_leases));
  say(sum.other == 0, fmt::format("{} budgets overrun or stores that did not open", sum.other));
  if (result.first_failed) {
    fmt::print("{:<6} again with --first {} --seeds 1\n", "", result.first_failed->value());
  }
  for (const std::string& one : sum.violations) {
    fmt::print("{:<6} {}\n", "", one);
  }
  for (const plan::StoreMutation& one : plan::try_store_mutations()) {
    say(one.caught,
        one.caught
            ? fmt::format("mutation: {}: caught in store {}: {}", one.name, one.worlds, one.seen_as)
            : fmt::format("mutation: {}: not seen in {} stores", one.name, one.worlds));
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 ? 0 : kExitFailure;
}

}  // namespace

void add_plan_sim_store(CLI::App& sim, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = sim.add_subcommand(
      "store",
      "Runs the real block store on a disk that loses, tears, flips and refuses, with crashes at "
      "every kind of point, and checks every hit and every acknowledged block against a model; "
      "then with deliberate defects, which it has to see. The last line counts the gates.");
  command->add_option("--seeds", flags->seeds, "Stores, each with a history of its own.")
      ->check(integer_in(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--first", flags->first, "The first seed.")
      ->check(integer_in(0, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  command->callback([flags, &exit_code] { exit_code = simulate(*flags); });
}

}  // namespace galley::apps
