#pragma once

#include <cstdint>

namespace galley::engine {

// Deliberate defects, so that a simulation can prove that it would see them (spec runtime T1.2).
// Production code is built with all of them and runs with none.
enum class Defect : std::uint8_t {
  kNone,
  kPublishAtLaunch,      // blocks become known when they are planned, not when they are settled
  kFreeAtEnd,            // an ended request's blocks go back at once, launched steps or not
  kReserveSettledOnly,   // blocks are reserved behind the settled length, not the highest possible
  kIgnoreGeneration,     // results go to whoever has the slot now
  kSettleOutOfOrder,     // of several launched steps the newest is settled first
  kSamplerBeforeSettle,  // the sampler's plan is made before the step before is settled
  kWaitInLaunch,         // the step before is waited for before a forward is launched
  kHitToTheEnd,          // a hit may end within the tokens that are always computed
  kNoReplay,             // windows behind a hit are not rebuilt
  kMasksBeforeSettle,    // masks are filled before the step before is settled
  kKeepWalk,             // a grammar is left behind the drafts that masks were made for
  kMasksOfNeighbour,     // rows get each other's masks
  kTrustMasks,           // and whoever draws does not look whose they are
  kForgetNewestToken,    // a preempted request comes back without the token it drew last
  kStateOfBlockBefore,  // a state is kept under the key of the block before the one that ends there
  kPromiseIsHit,        // a hit is as long as a store has promised, whatever came
  kFetchIntoFreed,      // a fetch is not stopped when its blocks go back
  kWaitForFetch,        // a promise is waited for without a limit
  kRewriteFetched,      // blocks that were fetched are given to be written again
};

}  // namespace galley::engine
