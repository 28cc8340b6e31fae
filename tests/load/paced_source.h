#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>

#include "base/ids.h"
#include "base/loop.h"
#include "base/mutex.h"
#include "recipe/token_source.h"

namespace galley::load {

// What the server's process and the clients' both see: how fast tokens come, and when each came.
struct Board {
  static constexpr std::size_t kRequests = 4096;  // then the places are used again
  static constexpr std::size_t kTokens = 256;     // of a request; later ones are not noted

  std::atomic<std::int64_t> pace_ns;
  std::atomic<bool> holds;               // after the first token nothing comes
  std::atomic<std::size_t> slots;        // requests at once
  std::atomic<std::size_t> waiting_max;  // more are refused
  std::atomic<std::size_t> under_way;
  std::array<std::array<std::atomic<std::int64_t>, kTokens>, kRequests> made_ns;
};

// A token every so often until max_tokens, and notes when: an engine whose cost is known. A request
// is called "N", its place on the board.
class PacedSource final : public recipe::TokenSource {
 public:
  // Both outlive the source, which outlives the loop's tasks.
  PacedSource(Loop& loop, Board& board, TokenId token)
      : loop_(loop), board_(board), token_(token) {}

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override;
  [[nodiscard]] bool ready() const override { return true; }
  [[nodiscard]] std::string_view description() const override { return "paced"; }

 private:
  class Run;
  class Handle;
  void begin(std::shared_ptr<Run> run);
  void tick(const std::shared_ptr<Run>& run);
  void leave() GALLEY_EXCLUDES(mutex_);

  Loop& loop_;
  Board& board_;
  const TokenId token_;
  Mutex mutex_;
  std::size_t running_ GALLEY_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Run>> waiting_ GALLEY_GUARDED_BY(mutex_);
};

}  // namespace galley::load
