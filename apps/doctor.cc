#include <algorithm>
#include <array>
#include <cstddef>
#include <fmt/core.h>
#include <memory>
#include <span>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/doctor_facts.h"
#include "apps/doctor_machine.h"
#include "apps/doctor_products.h"
#include "apps/doctor_report.h"
#include "apps/input.h"
#include "base/real_clock.h"
#include "base/worker_pool.h"
#include "kernels/isa.h"
#include "kernels/probe.h"

namespace galley::apps {
namespace {

// Beyond any cache; less where memory is short.
constexpr std::size_t kMemoryBytes = std::size_t{1} << 30U;
constexpr std::size_t kRounds = 5;  // medians of them

double median(std::array<double, kRounds> values) {
  std::ranges::sort(values);
  return values[kRounds / 2];
}

RateFacts measure_once(WorkerPool& pool,
                       kernels::Isa isa,
                       const ProductTimer* products,
                       std::span<const std::byte> memory,
                       const Clock& clock) {
  RateFacts out{.threads = pool.threads(),
                .limits = kernels::measure_limits(pool, clock, memory),
                .product_limit = kernels::product_limit(isa, pool, clock)};
  for (std::size_t format = 0; products != nullptr && format < out.products.size(); ++format) {
    out.products[format] = products->rate(format, pool, clock);
  }
  return out;
}

RateFacts medians(const std::array<RateFacts, kRounds>& rounds) {
  const auto of = [&](auto get) {
    std::array<double, kRounds> values{};
    std::ranges::transform(rounds, values.begin(), get);
    return median(values);
  };
  const auto limit = [&](double kernels::Limits::* member) {
    return of([&](const RateFacts& round) { return round.limits.*member; });
  };
  RateFacts out{
      .threads = rounds.front().threads,
      .limits = {.read_bytes_per_second = limit(&kernels::Limits::read_bytes_per_second),
                 .cached_bytes_per_second = limit(&kernels::Limits::cached_bytes_per_second),
                 .fma_flops = limit(&kernels::Limits::fma_flops),
                 .bf16_flops = limit(&kernels::Limits::bf16_flops),
                 .tile_flops = limit(&kernels::Limits::tile_flops)},
      .product_limit = of([](const RateFacts& round) { return round.product_limit; })};
  for (std::size_t format = 0; format < out.products.size(); ++format) {
    out.products[format] = of([&](const RateFacts& round) { return round.products[format]; });
  }
  return out;
}

// Probes take turns, so that a disturbance of some seconds does not meet all rounds of one.
void measure_rates(DoctorFacts& facts,
                   WorkerPool& all,
                   std::span<const std::byte> memory,
                   const Clock& clock) {
  WorkerPool one(1);
  std::unique_ptr<const ProductTimer> products;
  if (facts.cpu.chosen != kernels::Isa::kReference) {
    products = std::make_unique<const ProductTimer>(facts.cpu.chosen, all);
  }
  std::array<RateFacts, kRounds> of_one;
  std::array<RateFacts, kRounds> of_all;
  for (std::size_t round = 0; round < kRounds; ++round) {
    of_one[round] = measure_once(one, facts.cpu.chosen, products.get(), memory, clock);
    of_all[round] = measure_once(all, facts.cpu.chosen, products.get(), memory, clock);
  }
  facts.one = medians(of_one);
  facts.all = medians(of_all);
}

DoctorFacts examine(const std::string& directory, kernels::Isa isa) {
  const RealClock clock;
  DoctorFacts facts;
  facts.cpu = read_cpu();
  facts.cpu.chosen = isa;
  facts.cpu.wanted = kernels::wanted_isa();
  facts.memory = read_memory();
  facts.limits = read_limits();
  WorkerPool pool(facts.cpu.usable);
  facts.checks = check_products(pool);
  rlimit address_space{};
  getrlimit(RLIMIT_AS, &address_space);
  const auto bytes =
      std::max(std::min({kMemoryBytes, static_cast<std::size_t>(facts.memory.available_bytes / 4),
                         static_cast<std::size_t>(address_space.rlim_cur / 4)}),
               static_cast<std::size_t>(pool.threads()) * kernels::kCachedBytesMax);
  const kernels::ProbeMemory memory(pool, bytes);
  measure_rates(facts, pool, memory.bytes(), clock);
  facts.disk = measure_disk(directory, memory.bytes(), clock);
  return facts;
}

}  // namespace

void add_doctor(CLI::App& galley, int& exit_code) {
  struct Flags {
    bool json = false;
    std::string directory = ".";
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = galley.add_subcommand(
      "doctor",
      "Measures this machine and says what holds Galley back: processor, kernels (compared with "
      "exact sums), memory, disk, limits. Takes about 10 seconds; best when nothing else runs.");
  command->add_flag("--json", flags->json, "Prints one JSON object instead of a table.");
  command
      ->add_option("--dir", flags->directory,
                   "Folder whose disk is read, best that of the model. Without a large file in it "
                   "a temporary one of 256 MiB is written.")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  command->footer("Exit status: 0; 1 if a kernel computes wrong numbers; 2 for wrong usage.");
  command->callback([flags, &exit_code] {
    const auto isa = kernels::choose_isa(kernels::wanted_isa());
    if (!isa) {
      report(isa.error());
      exit_code = kExitUsage;
      return;
    }
    const std::vector<Finding> findings = judge(examine(flags->directory, *isa));
    fmt::print("{}", flags->json ? doctor_json(findings).dump(2) + "\n" : doctor_table(findings));
    exit_code = sound(findings) ? 0 : kExitFailure;
  });
}

}  // namespace galley::apps
