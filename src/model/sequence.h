#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/plan.h"

namespace galley::model {

// Blocks of kBlockTokens tokens' compressed rows and index keys. Packed, they are the bytes of the
// plan's CacheLayout, as the cache stores and shares them; not packed, they have its order with
// rows of float32, for numerics that packing would change. Grows on demand; blocks stay where they
// are. Not thread-safe.
class BlockPool {
 public:
  BlockPool(const ModelPlan& plan, kernels::Device& device, bool packed);

  // Null when the device has no memory for it.
  [[nodiscard]] std::shared_ptr<kernels::Buffer> allocate();
  // Bytes of each source's part of a block, in order, from its beginning on.
  [[nodiscard]] std::span<const std::size_t> parts() const { return parts_; }
  // Where in a block the compressed rows and the index keys of a source layer are, and how.
  struct Place {
    std::size_t offset{};
    kernels::RowFormat format;
  };
  [[nodiscard]] const Place& rows(int layer) const {
    return rows_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] const Place& keys(int layer) const {
    return keys_[static_cast<std::size_t>(layer)];
  }

 private:
  kernels::Device& device_;
  std::vector<Place> rows_;  // by layer
  std::vector<Place> keys_;
  std::vector<std::size_t> parts_;
  std::size_t block_bytes_ = 0;
};

// Everything the network remembers of one token timeline, all of it indexed by position: feeding a
// position again overwrites what an earlier attempt left, so rollback is setting the length back.
// Going back is possible by up to gamma + 1 positions (spec model 8.1); further only to 0.
class Sequence {
 public:
  Sequence(const ModelPlan& plan, kernels::Device& device, BlockPool& pool);

  [[nodiscard]] std::int64_t length() const { return length_; }
  // Forgets positions >= length.
  void truncate(std::int64_t length);

  // Starts from stored blocks: compressed rows and index keys of positions [0, blocks * 128) exist,
  // windows do not. The next position fed is `length`, at most their end; `history` are the
  // compressed token ids (engram) below the end.
  void adopt(std::span<const std::shared_ptr<kernels::Buffer>> blocks,
             std::span<const std::int32_t> history,
             std::int64_t length);
  // More blocks behind those it has, for positions to come. Without them it takes its own.
  void add_blocks(std::span<const std::shared_ptr<kernels::Buffer>> blocks);
  // Everything of the sequence but blocks and history: windows of the layers, then of the draft
  // stages, then the compressors' unfinished groups. With blocks and history adopted at the same
  // length it continues as if it had never been away: a parked request, or a hit whose windows are
  // stored. After such a hit, windows above the cut may hold anything (spec model 8.1).
  [[nodiscard]] std::vector<float> save_state();
  void restore_state(std::span<const float> state);

  [[nodiscard]] const std::vector<std::shared_ptr<kernels::Buffer>>& blocks() const {
    return blocks_;
  }
  // By position: compressed token ids, -1 for an image (engram), or token ids (MTP); else empty.
  [[nodiscard]] std::span<const std::int32_t> history() const { return history_; }

  // For the forward pass.
  void reserve(std::int64_t length);  // blocks and history up to there
  void append_history(std::span<const std::int32_t> ids);
  void advance(std::int64_t tokens) { length_ += tokens; }
  [[nodiscard]] kernels::RingView window(int layer);
  [[nodiscard]] kernels::RingView draft_window(int stage);
  // MTP: the final streams of the last position told to the drafter; its context row needs the
  // token behind it.
  [[nodiscard]] std::span<float> draft_pending();
  enum class Raw : std::uint8_t { kValue, kGate, kIndexValue, kIndexGate };
  [[nodiscard]] kernels::RingView raw(int layer, Raw kind);
  [[nodiscard]] kernels::PagedView rows(int layer) const;
  [[nodiscard]] kernels::PagedView keys(int layer) const;

 private:
  [[nodiscard]] std::vector<kernels::Buffer*> state_buffers();

  struct RawRings {
    std::size_t rows{};
    std::size_t width{};
    std::size_t index_width{};
    std::unique_ptr<kernels::Buffer>
        data;  // value, gate, index value, index gate, one after the other
  };

  [[nodiscard]] kernels::PagedView paged(int layer, const BlockPool::Place& place) const;

  const ModelPlan& plan_;
  BlockPool& pool_;
  std::int64_t length_ = 0;
  std::unique_ptr<kernels::Buffer> windows_;  // layers, then draft stages, then draft_pending()
  std::size_t pending_floats_ = 0;
  std::vector<RawRings> raw_;  // by layer
  std::vector<std::shared_ptr<kernels::Buffer>> blocks_;
  std::vector<std::byte*> block_data_;
  std::vector<std::int32_t> history_;
};

}  // namespace galley::model
