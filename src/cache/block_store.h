#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/page_buffer.h"
#include "base/result.h"
#include "base/units.h"
#include "cache/block_key.h"

// Blocks that outlive the process: the seam between whoever computes or uses them and wherever
// they are kept. It knows keys and bytes, and nothing of models.
namespace galley::cache {

// What a namespace, a class or a set of parts may be.
inline constexpr std::size_t kNamespaceBytesMax = 63;
inline constexpr std::size_t kClassNameBytesMax = 15;
inline constexpr std::size_t kBlockPartsMax = 1024;
inline constexpr std::uint64_t kBlockBytesMax = std::uint64_t{64} << 20U;

// What is true of a block beside its bytes.
struct BlockFacts {
  std::string_view space;      // namespace: blocks of different ones never meet
  BlockKey key;                // names the bytes: equal keys in a namespace, equal bytes
  BlockKey parent;             // the block in front; zero for the first. For tools, never looked up
  std::uint64_t layout = 0;    // how the bytes are to be read; another layout never hits
  std::uint64_t numerics = 0;  // whose arithmetic made them
  bool exact = true;           // lineage: no block of the chain was made behind an approximation
};

struct NewBlock {
  BlockFacts facts;
  std::size_t retention = 0;  // class: index in the store's list
  // In the order they are to be read; each has its own checksum and can be used as it arrives.
  std::span<const std::span<const std::byte>> parts;
};

enum class PutOutcome : std::uint8_t {
  kStaged,  // durable, and known, once commit() has returned well
  kKnown,   // the store has it, or is about to: nothing was written
};

struct BlockQuery {
  std::string_view space;
  std::uint64_t layout = 0;
  std::span<const BlockKey> keys;  // a chain, from its beginning
  // Only blocks of this arithmetic and of exact lineage.
  bool exact_only = false;
  std::uint64_t numerics = 0;
};

// Why a match ends where it ends.
enum class MissReason : std::uint8_t {
  kNone,      // it does not: all keys hit
  kUnknown,   // never stored, or gone
  kLayout,    // another layout
  kNumerics,  // approximate, or of another arithmetic, and exactness was asked for
  kExpired,
};

// The blocks of a hit. Until `until` they can be read whatever the store does meanwhile, but for a
// purge and a broken disk.
class BlockLease {
 public:
  virtual ~BlockLease() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual MissReason miss() const = 0;
  [[nodiscard]] virtual TimeNs until() const = 0;
  // Memory that reading this block needs: whole pages, and more than its parts.
  [[nodiscard]] virtual std::size_t read_bytes(std::size_t index) const = 0;
};

// A block in the reader's buffer, verified.
struct BlockView {
  BlockKey parent;
  std::uint64_t numerics{};
  bool exact{};
  std::vector<std::span<const std::byte>> parts;
};

// Any thread may call it.
class BlockStore {
 public:
  virtual ~BlockStore() = default;

  // Copies the block. Errors: kInvalidArgument for facts or parts above the limits, kOverloaded
  // when too much is staged or a budget is used up, kUnavailable while nothing can be written.
  virtual Result<PutOutcome> put(const NewBlock& block) = 0;
  // Makes durable what was put before. On an error none of it is known.
  virtual Result<void> commit() = 0;
  // The longest run of known keys from the first on. Never reads the disk.
  [[nodiscard]] virtual std::unique_ptr<BlockLease> match(const BlockQuery& query) = 0;
  // Reads block `index` of a lease of this store into `memory` and verifies all of it; the view's
  // parts lie in there. `memory` begins at a page and has at least read_bytes(index). It may be
  // pinned: nothing but the block's record is written to it. Errors: kDeadlineExceeded when the
  // lease is over; kCorruption: the block is damaged and no longer known (a miss); kUnavailable:
  // the disk failed, it may work later; kInvalidArgument for the memory.
  virtual Result<BlockView> read_into(const BlockLease& lease,
                                      std::size_t index,
                                      std::span<std::byte> memory) = 0;
  // Blocks [first, first + memory.size()) of a lease, together where the store can, each as
  // read_into(); `done` gets each as it comes, on this thread.
  virtual void read_all(const BlockLease& lease,
                        std::size_t first,
                        std::span<const std::span<std::byte>> memory,
                        const std::function<void(std::size_t, Result<BlockView>)>& done) {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      done(first + i, read_into(lease, first + i, memory[i]));
    }
  }
  // read_into() a buffer that is made large enough.
  Result<BlockView> read(const BlockLease& lease, std::size_t index, PageBuffer& buffer) {
    buffer.resize(lease.read_bytes(index));
    return read_into(lease, index, buffer.bytes());
  }
};

}  // namespace galley::cache
