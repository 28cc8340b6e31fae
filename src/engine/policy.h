#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/units.h"

// What the scheduler decides by: pure functions of plain structs (spec runtime 2).
namespace galley::engine {

// Classes of requests, the first served first.
enum class Priority : std::uint8_t { kInteractive, kAgent, kBatch };
inline constexpr std::int64_t kPriorities = 3;

// A class higher for every so long that a request has waited, so no class starves another. Who has
// waited for long after that goes before everybody, so no tenant starves another.
inline constexpr Duration kAgeStep = std::chrono::seconds(2);

// A tenant's share is counted in weighted tokens: the prices of an input token computed, an input
// token from the cache, and an output token, to each other (spec runtime 2.4).
inline constexpr double kComputedWeight = 1.0;
inline constexpr double kCachedWeight = 0.02;
inline constexpr double kAnsweredWeight = 4.0;

struct WaitingView {
  Priority priority{};
  TimeNs waiting_since{};
  double tenant_served{};  // weighted tokens
  bool tenant_full{};      // has as many rows as one tenant may have
  std::uint64_t order{};   // of arrival
};
// The one to admit next: the highest class after ageing, then the tenant served least, then the
// earliest. Nothing when every tenant is full.
[[nodiscard]] std::optional<std::size_t> next_waiting(std::span<const WaitingView> waiting,
                                                      TimeNs now);

struct VictimView {
  Priority priority{};
  std::size_t blocks_now{};  // freed at once: held by no other request, in no launched step
  std::int64_t answered{};   // tokens
  std::uint64_t order{};
  bool spared{};  // preempted a short time ago
};
// The one to preempt when no row can run: one that frees a block, not a spared one, of the lowest
// class, that frees most, has answered least, came last; in this order as far as there is a choice.
// Nothing of nothing.
[[nodiscard]] std::optional<std::size_t> choose_victim(std::span<const VictimView> running);

// How far the blocks of a hit have come that a store has promised.
struct FetchView {
  std::size_t promised{};      // blocks; 0: the store has not answered
  std::size_t fetched{};       // of them
  bool over{};                 // no more will come
  Duration waited{};           // since it was ordered
  Duration worked{};           // since its turn came
  Duration quiet{};            // since the newest block came, or its turn
  double tokens_per_second{};  // that computing them instead would get; 0: not known
};
// How long it is waited for at most, its turn included and whatever it promises, and without a sign
// of life once it had its turn.
struct FetchLimits {
  Duration wait_max = std::chrono::seconds(2);
  Duration quiet_max = std::chrono::milliseconds(250);
};
// Whether the request goes on with what has come: nothing more will, its time is up, or computing
// the rest is expected to be quicker (spec runtime 8.3, the deadline rule).
[[nodiscard]] bool starts_with_what_came(const FetchView& view, const FetchLimits& limits);

// Tokens of a prompt's next chunk: `left` of them are to be fed from position `begin` on, and the
// step has room for `budget`. Chunks end at the prompt's end or at a block's, and are not empty.
// `whole_blocks_apart`: what is behind the prompt's last whole block comes in a chunk of its own.
[[nodiscard]] std::int64_t chunk_tokens(std::int64_t begin,
                                        std::int64_t left,
                                        std::int64_t budget,
                                        bool whole_blocks_apart = false);

// Blocks behind `tokens` positions.
[[nodiscard]] std::size_t blocks_for(std::int64_t tokens);

}  // namespace galley::engine
