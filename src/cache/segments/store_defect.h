#pragma once

#include <cstdint>

namespace galley::cache {

// Deliberate defects, so that a simulation can prove that it would see them. Production code is
// built with all of them and runs with none.
enum class StoreDefect : std::uint8_t {
  kNone,
  kPublishBeforeSync,  // a group counts as durable once it is written
  kJournalFirst,       // the journal is written before the data is durable, and never synced alone
  kSkipChecksums,      // parts are served as they were read
  kTrustJournal,       // a torn entry of a journal is taken as it is
  kExpireEarly,        // a segment dies a bucket too soon
  kSkipNameSync,       // a new segment's name is not made durable
  kRetrySync,          // after a failed sync the same file is synced again
  kForgetPurge,        // a purge is not written down
  kNoNamespace,        // one tenant's key hits another's block
  kAnyNumerics,        // exactness is asked for and not looked at
  kNoScan,             // what neither footer nor journal tells is not looked for
  kCountFromZero,      // bytes of an earlier run are not counted
};

}  // namespace galley::cache
