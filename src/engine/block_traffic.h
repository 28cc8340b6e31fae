#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/block_key.h"
#include "cache/prefix_cache.h"
#include "engine/step.h"

// Blocks on their way between a device's pool and a store that outlives the process: what the
// scheduler asks for, and how far it got (spec runtime 8.3, 8.4).
namespace galley::engine {

// A device's blocks as bytes.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  // Bytes of each part of a block, in the order they are stored; together they are its first bytes.
  [[nodiscard]] virtual std::span<const std::size_t> block_parts() const = 0;
  // Of one block; stays there. A block that was never used gets memory. Any thread; who writes
  // there or reads has seen to it that nobody else writes. Error: kUnavailable, there is none.
  [[nodiscard]] virtual Result<std::span<std::byte>> block_bytes(cache::BlockId block) = 0;
};

struct FetchOrder {
  RequestId id;
  std::shared_ptr<const EngineRequest> request;  // whose namespace
  std::vector<cache::BlockKey> keys;             // of consecutive blocks
  std::vector<cache::BlockId> blocks;            // where they are to go: held by nobody else
  std::size_t least = 1;  // where the store promises fewer, none is read: they would not help
};

// Why a fetch got no further.
enum class FetchEnd : std::uint8_t {
  kWhole,    // it got all that was wanted
  kUnknown,  // the next one was never stored, or is gone
  kExpired,  // its life is over
  kForeign,  // of another layout, other sizes or arithmetic, or approximate where exactness was
             // asked for
  kDamaged,  // it did not verify
  kFailed,   // the disk, or whoever reads it
  kRefused,  // too many fetches are under way, or there is no memory for the next block
};

struct FetchState {
  bool begun{};            // somebody works on it; until then it waits for its turn
  std::size_t promised{};  // blocks that the store knows, from the first on; 0 until it was asked
  std::size_t fetched{};   // blocks that are in their places, verified, from the first on
  bool over{};             // nothing more comes
  FetchEnd end = FetchEnd::kWhole;  // once it is over
};

// A block that has become whole and settled.
struct WriteOrder {
  std::shared_ptr<const EngineRequest> request;  // whose namespace and retention
  cache::BlockKey key;
  cache::BlockKey parent;
  bool exact = true;
  cache::BlockId block;
};

// One thread calls it. Nothing here waits for a disk or another process.
class BlockTraffic {
 public:
  virtual ~BlockTraffic() = default;

  virtual void fetch(FetchOrder order) = 0;
  // Of a fetch that was ordered and not stopped.
  [[nodiscard]] virtual FetchState state(RequestId id) = 0;
  // Forgets it. Once this has returned, nothing is written to its blocks any more.
  virtual void stop(RequestId id) = 0;
  // Takes a copy of the block; or none, and counts it, when too many wait to be written.
  virtual void write(const WriteOrder& order) = 0;
};

}  // namespace galley::engine
