#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "engine/scheduler.h"
#include "engine/step_loop.h"
#include "plan/fake_traffic.h"
#include "plan/hash_device.h"

namespace galley::plan {

// What happens to an engine in a simulation.
struct EngineLoad {
  int tenants = 3;       // with equally many requests each
  bool unequal = false;  // prompts of every second tenant are a tenth as long
  unsigned batch = 85;   // of 256 requests are of class batch, and as many of agent
  int documents = 4;     // prompts begin with a part of one of so many texts
  std::int64_t prompt_max = 600;
  std::int64_t answer_max = 120;
  int stop_every = 96;  // tokens, in the mean
  // Requests that have come and not ended, at most; new ones come as others end, after a pause.
  std::size_t at_once = 16;
  Duration pause{};          // mean
  unsigned twins = 30;       // of 256 requests ask what the one before asked
  unsigned cancels = 10;     // of 256 requests, at a random time
  unsigned deadlines = 8;    // likewise
  unsigned preemptions = 4;  // of 256 turns: one running request is preempted
  unsigned grammars = 0;     // of 256 requests have one of grammar_pool()'s
};

struct EngineWorldOptions {
  Seed seed;
  std::int64_t rows = 0;  // ends when the device has run so many
  engine::SchedulerOptions scheduler;
  engine::LaunchMode launch;
  engine::Defect defect = engine::Defect::kNone;
  HashDeviceOptions device;  // slots, blocks and drafts are the scheduler's
  EngineLoad load;
  FakeTrafficOptions store;
  Duration host_cost{};              // virtual time that a turn takes on the host
  const Clock* stopwatch = nullptr;  // real: measures what a turn costs
};

struct EngineReport {
  std::int64_t rows{};
  std::int64_t requests{};  // that ended
  std::int64_t finished{};
  engine::SchedulerStats scheduler;
  Violations violations;
  Duration busy{};
  Duration idle{};
  double occupancy{};  // mean share of blocks that running requests hold, but for the first and
                       // last steps
  std::vector<Duration> host;                                // one a turn, with a stopwatch
  std::vector<double> tenant_served;                         // weighted tokens, by tenant
  std::array<Duration, engine::kPriorities> longest_wait{};  // until admitted, by class
};

// The real scheduler and the real loop on a hash device, under random requests, cancels, deadlines
// and preemptions, in virtual time and with one seed. Checked all along: every answer is the one
// the request gets alone, every request ends once, lengths stay between their bounds, and in the
// end every block and slot is back (spec runtime T1.1, T2.1). With a store, blocks go there and
// come back, late, damaged or never.
[[nodiscard]] EngineReport run_engine_world(const EngineWorldOptions& options);

// The scheduler and loop of a random small machine: few blocks and slots, any way to launch.
[[nodiscard]] EngineWorldOptions random_engine_world(Seed seed, std::int64_t rows);

// The same, and most answers have a grammar (spec runtime T10.1).
[[nodiscard]] EngineWorldOptions random_grammar_world(Seed seed, std::int64_t rows);

}  // namespace galley::plan
