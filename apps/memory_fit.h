#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

// What of a model's work fits into a machine's memory. Pure arithmetic.
namespace galley::apps {

struct MemoryDemand {
  std::size_t weights_bytes{};  // of the files; the system drops and reads them again where it must
  std::size_t block_bytes{};    // of kBlockTokens tokens
  std::size_t slot_bytes{};     // of one running request, beside its blocks
  std::size_t slots{};
  std::int64_t context_tokens{};  // prompt and answer
  std::size_t cache_bytes{};      // the most that blocks may take, but for one context
  std::size_t states_bytes{};     // of windows, for next turns
};

struct MemoryFit {
  std::size_t available_bytes{};
  std::size_t context_bytes{};    // blocks of one request of full length
  std::int64_t context_tokens{};  // the longest one request can have
  std::size_t full_requests{};    // of full length that fit at once, at most `slots`
  bool weights_stay{};            // with all that in use, the weights are still in memory
};

// `available_bytes` is what the process can still take; weights that are mapped count as available.
// Error: kInvalidArgument when not one request of full length fits: says how long one may be.
[[nodiscard]] Result<MemoryFit> memory_fit(const MemoryDemand& demand, std::size_t available_bytes);

// "4096 tokens; 3 requests of that length at once, of 8 (memory)", for people.
[[nodiscard]] std::string describe(const MemoryFit& fit, const MemoryDemand& demand);

}  // namespace galley::apps
