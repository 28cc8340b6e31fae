#include "plan/engine_gates.h"

#include <algorithm>
#include <array>

namespace galley::plan {
namespace {

using engine::Defect;

// Enough for everything, so that nothing but the question decides.
EngineWorldOptions large_world(std::size_t slots) {
  EngineWorldOptions out{.seed = Seed(1)};
  out.scheduler = {.slots = slots,
                   .blocks = slots * 8,
                   .context_tokens = 4096,
                   .drafts = 5,
                   .hit = {.replay_tokens = 16},
                   .prefill_tokens = 2048,
                   .prefill_tokens_beside = 512};
  out.device.ring_rows = out.device.window + out.scheduler.drafts;
  out.device.step_min = std::chrono::milliseconds(5);
  out.device.step_max = std::chrono::milliseconds(30);
  out.load.at_once = 2 * slots;
  out.load.cancels = out.load.deadlines = out.load.preemptions = 0;
  return out;
}

struct Mutation {
  std::string_view name;
  Defect defect{};
  int ring_rows_less = 0;
  engine::LaunchMode launch;
  bool grammars = false;
  bool slow_store = false;  // whose blocks come when what they hold has been computed
};

constexpr std::array kMutations{
    Mutation{.name = "publish at launch", .defect = Defect::kPublishAtLaunch},
    Mutation{.name = "free at the end, without a fence", .defect = Defect::kFreeAtEnd},
    Mutation{.name = "reserve behind the settled length", .defect = Defect::kReserveSettledOnly},
    Mutation{.name = "skip the generation check", .defect = Defect::kIgnoreGeneration},
    Mutation{.name = "settle out of order",
             .defect = Defect::kSettleOutOfOrder,
             .launch = {.split = false, .depth = 3}},
    Mutation{.name = "sampler's plan before settling", .defect = Defect::kSamplerBeforeSettle},
    Mutation{.name = "wait inside a launch", .defect = Defect::kWaitInLaunch},
    Mutation{.name = "a hit to the prompt's end", .defect = Defect::kHitToTheEnd},
    Mutation{.name = "no replay behind a hit", .defect = Defect::kNoReplay},
    Mutation{.name = "resume without the newest token", .defect = Defect::kForgetNewestToken},
    Mutation{.name = "a state under the block before", .defect = Defect::kStateOfBlockBefore},
    Mutation{.name = "ring one row too short", .ring_rows_less = 1},
    Mutation{.name = "a store's promise is a hit", .defect = Defect::kPromiseIsHit},
    Mutation{.name = "fetches go on into freed blocks",
             .defect = Defect::kFetchIntoFreed,
             .slow_store = true},
    Mutation{.name = "promises are waited for without a limit", .defect = Defect::kWaitForFetch},
    Mutation{.name = "fetched blocks are written again", .defect = Defect::kRewriteFetched},
    Mutation{.name = "masks before settling",
             .defect = Defect::kMasksBeforeSettle,
             .launch = {.split = false, .depth = 2},
             .grammars = true},
    Mutation{.name = "the walk over drafts stays", .defect = Defect::kKeepWalk, .grammars = true},
    Mutation{.name = "another row's masks", .defect = Defect::kMasksOfNeighbour, .grammars = true},
    Mutation{
        .name = "another row's masks, unchecked", .defect = Defect::kTrustMasks, .grammars = true},
};

double jain(const std::vector<double>& shares) {
  double sum = 0;
  double squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return sum * sum / (static_cast<double>(shares.size()) * squares);
}

}  // namespace

namespace {

SweepResult sweep(std::uint64_t first_seed,
                  std::int64_t worlds,
                  std::int64_t rows_each,
                  EngineWorldOptions (*world)(Seed, std::int64_t)) {
  SweepResult out{.worlds = worlds};
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(worlds);
       ++seed) {
    const EngineReport report = run_engine_world(world(Seed(seed), rows_each));
    out.rows += report.rows;
    out.requests += report.requests;
    out.preemptions += report.scheduler.preemptions;
    out.hit_tokens += report.scheduler.hit_tokens;
    out.stored_hit_tokens += report.scheduler.stored_hit_tokens;
    out.forks += report.scheduler.forks;
    out.drafts += report.scheduler.drafts;
    out.drafts_verified += report.scheduler.drafts_verified;
    out.masks += report.scheduler.masks;
    out.drafts_forbidden += report.scheduler.drafts_forbidden;
    if (report.violations.count() > 0) {
      ++out.failed;
      if (!out.first_failed) {
        out.first_failed = Seed(seed);
        out.violations = report.violations.first();
      }
    }
  }
  return out;
}

}  // namespace

SweepResult sweep_engines(std::uint64_t first_seed, std::int64_t worlds, std::int64_t rows_each) {
  return sweep(first_seed, worlds, rows_each, random_engine_world);
}

SweepResult sweep_grammars(std::uint64_t first_seed, std::int64_t worlds, std::int64_t rows_each) {
  return sweep(first_seed, worlds, rows_each, random_grammar_world);
}

std::vector<MutationResult> try_engine_mutations() {
  constexpr std::int64_t kRowsEach = 1000;
  std::vector<MutationResult> out;
  for (const Mutation& mutation : kMutations) {
    MutationResult result{.name = mutation.name};
    for (std::uint64_t seed = 1; !result.caught && result.rows < kMutationRowsMax; ++seed) {
      EngineWorldOptions world = mutation.grammars ? random_grammar_world(Seed(seed), kRowsEach)
                                                   : random_engine_world(Seed(seed), kRowsEach);
      world.defect = mutation.defect;
      world.launch = mutation.launch;
      world.device.failures = 1000;  // of 65,536 rows
      world.store.there = true;
      world.store.block_max = std::chrono::milliseconds(20);  // many come too late
      world.store.damages = 64;
      if (mutation.slow_store) {
        world.scheduler.blocks = std::min<std::size_t>(world.scheduler.blocks, 16);
        world.scheduler.fetch = {.wait_max = std::chrono::milliseconds(1),
                                 .quiet_max = std::chrono::milliseconds(1)};
        world.store.damages = 128;
        world.device.token = {};
        world.device.step_max = std::chrono::milliseconds(1);
      }
      world.scheduler.drafts = std::max(world.scheduler.drafts, 1);
      world.device.ring_rows =
          world.device.window + world.scheduler.drafts - mutation.ring_rows_less;
      const EngineReport report = run_engine_world(world);
      result.rows += report.rows;
      result.caught = report.violations.count() > 0;
      result.seen_as = result.caught ? report.violations.first().front() : "";
    }
    out.push_back(std::move(result));
  }
  return out;
}

HostCost measure_host_cost(std::size_t rows, const Clock& stopwatch) {
  constexpr std::int64_t kTurns = 600;
  EngineWorldOptions world = large_world(rows);
  world.rows = kTurns * static_cast<std::int64_t>(rows);
  world.stopwatch = &stopwatch;
  std::vector<Duration> host = run_engine_world(world).host;
  // While the first requests come in, and the last go, steps are not full.
  constexpr std::size_t kEdge = 50;
  host.erase(host.begin(), host.begin() + kEdge);
  host.resize(host.size() - std::min(host.size(), 4 * kEdge));
  std::ranges::sort(host);
  return {.rows = rows, .median = host[host.size() / 2], .p99 = host[host.size() * 99 / 100]};
}

double measure_idle(Duration host_cost) {
  EngineWorldOptions world = large_world(32);
  world.rows = 50'000;
  world.host_cost = host_cost;
  const EngineReport report = run_engine_world(world);
  return static_cast<double>(report.idle.count()) /
         static_cast<double>((report.busy + report.idle).count());
}

FairnessResult measure_fairness() {
  EngineWorldOptions shares = large_world(8);
  shares.rows = 40'000;  // 8 rows a step
  shares.load.tenants = 4;
  shares.load.unequal = true;
  shares.load.batch = 0;
  shares.load.at_once = 40;
  const EngineReport report = run_engine_world(shares);

  EngineWorldOptions classes = large_world(4);
  classes.rows = 40'000;
  classes.load.tenants = 1;
  classes.load.batch = 8;  // of 256
  classes.load.at_once = 12;
  classes.load.prompt_max = 200;
  classes.load.answer_max = 30;
  const EngineReport waits = run_engine_world(classes);
  return {.jain = jain(report.tenant_served),
          .steps = report.scheduler.steps,
          .batch_wait = waits.longest_wait[static_cast<std::size_t>(engine::Priority::kBatch)],
          .interactive_wait =
              waits.longest_wait[static_cast<std::size_t>(engine::Priority::kInteractive)]};
}

PressureResult measure_pressure() {
  constexpr std::size_t kSlots = 128;
  EngineWorldOptions world = large_world(kSlots);
  world.rows = kSlots * 800;
  world.scheduler.blocks = 2 * kSlots;
  world.scheduler.prefill_tokens = 8192;  // blocks are to be the limit, not the prompts
  world.scheduler.prefill_tokens_beside = 8192;
  world.load.prompt_max = 200;
  world.load.answer_max = 1000;
  world.load.stop_every = 600;
  const auto part = [](std::int64_t count, std::int64_t of) {
    return static_cast<double>(count) / static_cast<double>(of);
  };
  const EngineReport with = run_engine_world(world);
  world.scheduler.growth_tokens = 0;
  const EngineReport without = run_engine_world(world);
  return {.occupancy = with.occupancy,
          .preemptions = part(with.scheduler.preemptions, with.requests),
          .stalled = part(with.scheduler.stalled_rows, with.rows),
          .stalled_without = part(without.scheduler.stalled_rows, without.rows),
          .preemptions_without = part(without.scheduler.preemptions, without.requests)};
}

}  // namespace galley::plan
