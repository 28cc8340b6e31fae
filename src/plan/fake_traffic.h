#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "base/virtual_loop.h"
#include "engine/block_traffic.h"
#include "plan/hash_device.h"

namespace galley::plan {

// How a store behaves in a simulation; chances are of 256.
struct FakeTrafficOptions {
  bool there = false;
  Duration match_max{};  // until a fetch knows what it gets, and then for each block; uniform
  Duration block_max{};
  Duration write_max{};   // until what was written is known
  unsigned hangs = 4;     // fetches that stop at some block without a word
  unsigned failures = 4;  // blocks: the disk fails
  unsigned damages = 4;   // blocks: what is read is none, and it lands in its place all the same
  unsigned drops = 16;    // writes: too many wait
  unsigned forgets = 8;   // blocks that are gone when they are asked for
};

// A store of blocks of the hash model, in virtual time: what it has comes late, not at all, or
// damaged. It checks what it is given: equal keys, equal rows.
class FakeTraffic final : public engine::BlockTraffic {
 public:
  // All outlive it.
  FakeTraffic(const FakeTrafficOptions& options,
              HashDevice& device,
              VirtualLoop& loop,
              Random random,
              Violations& violations)
      : options_(options), device_(device), loop_(loop), random_(random), violations_(violations) {}

  void fetch(engine::FetchOrder order) override;
  [[nodiscard]] engine::FetchState state(engine::RequestId id) override;
  void stop(engine::RequestId id) override;
  void write(const engine::WriteOrder& order) override;

 private:
  struct Fetch {
    engine::FetchOrder order;
    engine::FetchState state;
    bool stopped = false;
  };
  using Rows = std::vector<std::uint64_t>;

  void match(const std::shared_ptr<Fetch>& fetch);
  void read_next(const std::shared_ptr<Fetch>& fetch);
  [[nodiscard]] bool chance(unsigned of_256) { return random_.next_below(256) < of_256; }
  [[nodiscard]] Duration within(Duration most);

  const FakeTrafficOptions options_;
  HashDevice& device_;
  VirtualLoop& loop_;
  Random random_;
  Violations& violations_;
  std::unordered_map<cache::BlockKey, Rows> known_;
  std::unordered_map<engine::RequestId, std::shared_ptr<Fetch>> fetches_;
};

}  // namespace galley::plan
