#include "apps/memory_fit.h"

#include <algorithm>
#include <fmt/core.h>

#include "base/ceil_div.h"
#include "base/ids.h"
#include "base/units.h"

namespace galley::apps {
namespace {

// Activations, the codec, connections: what a server takes beside what is counted.
constexpr std::size_t kReserveBytes = std::size_t{256} << 20U;

std::string mib(std::size_t bytes) {
  return fmt::format("{} MiB", bytes >> 20U);
}

}  // namespace

Result<MemoryFit> memory_fit(const MemoryDemand& demand, std::size_t available_bytes) {
  const auto blocks = static_cast<std::size_t>(
      ceil_div(demand.context_tokens, static_cast<std::int64_t>(kBlockTokens)));
  MemoryFit fit{.available_bytes = available_bytes,
                .context_bytes = blocks * demand.block_bytes,
                .context_tokens = demand.context_tokens,
                .full_requests = 0,
                .weights_stay = false};
  const std::size_t fixed = kReserveBytes + demand.slots * demand.slot_bytes + demand.states_bytes;
  const std::size_t left = available_bytes - std::min(available_bytes, fixed);
  if (fit.context_bytes > left) {
    const std::size_t most = left / std::max<std::size_t>(1, demand.block_bytes) *
                             static_cast<std::size_t>(kBlockTokens);
    return fail(
        Code::kInvalidArgument,
        fmt::format("one request of {} tokens takes {}, and of {} that are free {} go to {} "
                    "slots and the server itself: at most {} tokens fit",
                    demand.context_tokens, mib(fit.context_bytes), mib(available_bytes),
                    mib(std::min(fixed, available_bytes)), demand.slots, most),
        "context_tokens");
  }
  const std::size_t pool = std::min(left, std::max(demand.cache_bytes, fit.context_bytes));
  fit.full_requests = std::min(demand.slots, pool / std::max<std::size_t>(1, fit.context_bytes));
  fit.weights_stay = demand.weights_bytes <= left - pool;
  return fit;
}

std::string describe(const MemoryFit& fit, const MemoryDemand& demand) {
  std::string text = fmt::format("{} tokens; {} of {} requests of that length at once",
                                 fit.context_tokens, fit.full_requests, demand.slots);
  if (!fit.weights_stay) {
    text += "; with all memory in use, weights are read from disk again and again";
  }
  return text;
}

}  // namespace galley::apps
