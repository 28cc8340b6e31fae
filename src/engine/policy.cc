#include "engine/policy.h"

#include <algorithm>
#include <tuple>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/ids.h"

namespace galley::engine {
namespace {

std::int64_t aged(const WaitingView& one, TimeNs now) {
  const std::int64_t steps = (now - one.waiting_since) / kAgeStep;
  const std::int64_t priority = static_cast<std::int64_t>(one.priority) - steps;
  // Below the highest class only waiting counts, and not whose turn it would be.
  return priority > -kPriorities ? std::max<std::int64_t>(0, priority) : priority;
}

auto rank(const VictimView& one) {
  return std::tuple(one.blocks_now > 0, !one.spared, one.priority, one.blocks_now, -one.answered,
                    one.order);
}

}  // namespace

std::optional<std::size_t> next_waiting(std::span<const WaitingView> waiting, TimeNs now) {
  std::optional<std::size_t> best;
  const auto key = [&](const WaitingView& one) {
    return std::tuple(aged(one, now), one.tenant_served, one.order);
  };
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (!waiting[i].tenant_full && (!best || key(waiting[i]) < key(waiting[*best]))) {
      best = i;
    }
  }
  return best;
}

std::optional<std::size_t> choose_victim(std::span<const VictimView> running) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (!best || rank(running[i]) > rank(running[*best])) {
      best = i;
    }
  }
  return best;
}

bool starts_with_what_came(const FetchView& view, const FetchLimits& limits) {
  if (view.over || view.waited >= limits.wait_max || view.quiet >= limits.quiet_max) {
    return true;
  }
  if (view.fetched == 0 || view.tokens_per_second <= 0) {
    return false;  // nothing to judge by
  }
  const auto left = static_cast<double>(view.promised - view.fetched);
  const double fetching =
      left * std::chrono::duration<double>(view.worked).count() / static_cast<double>(view.fetched);
  const double computing = left * kBlockTokens / view.tokens_per_second;
  return computing < fetching;
}

std::int64_t chunk_tokens(std::int64_t begin,
                          std::int64_t left,
                          std::int64_t budget,
                          bool whole_blocks_apart) {
  GALLEY_ASSERT(left > 0);
  const std::int64_t whole = (begin + left) / kBlockTokens * kBlockTokens - begin;
  if (left <= budget) {
    return whole_blocks_apart && whole > 0 ? whole : left;
  }
  const std::int64_t end = (begin + budget) / kBlockTokens * kBlockTokens;
  const std::int64_t next_end = (begin / kBlockTokens + 1) * kBlockTokens;
  return std::min(left, std::max(end, next_end) - begin);
}

std::size_t blocks_for(std::int64_t tokens) {
  return static_cast<std::size_t>(ceil_div<std::int64_t>(tokens, kBlockTokens));
}

}  // namespace galley::engine
