#include "model/sequence.h"

#include <algorithm>

#include "base/check.h"

namespace galley::model {
namespace {

float* floats(kernels::Buffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}

}  // namespace

BlockPool::BlockPool(const ModelPlan& plan, kernels::Device& device, bool packed)
    : device_(device), rows_(plan.layers.size()), keys_(plan.layers.size()) {
  for (const CacheSource& source : plan.cache.sources) {
    const auto place = [&](const kernels::RowFormat& format) {
      Place out{block_bytes_, format};
      if (!packed) {
        out.format.codec = kernels::RowCodec::kF32;
      }
      block_bytes_ += static_cast<std::size_t>(source.rows_per_block) * out.format.bytes();
      return out;
    };
    const auto layer = static_cast<std::size_t>(source.layer);
    const std::size_t begin = block_bytes_;
    rows_[layer] = place(source.row);
    if (source.key.width > 0) {
      keys_[layer] = place(source.key);
    }
    parts_.push_back(block_bytes_ - begin);
  }
  if (packed) {
    GALLEY_ASSERT(block_bytes_ == plan.cache.block_bytes);
    block_bytes_ = plan.cache.block_stride;
  }
}

std::shared_ptr<kernels::Buffer> BlockPool::allocate() {
  return device_.try_allocate(block_bytes_);
}

Sequence::Sequence(const ModelPlan& plan, kernels::Device& device, BlockPool& pool)
    : plan_(plan), pool_(pool), raw_(plan.layers.size()) {
  const std::size_t ring = static_cast<std::size_t>(plan.cache.ring_rows) *
                           static_cast<std::size_t>(plan.config.head_dim);
  const std::size_t ring_count = plan.layers.size() + static_cast<std::size_t>(plan.draft_stages);
  pending_floats_ = plan.drafts_by(DraftKind::kMtp) ? plan.feature_width() : 0;
  windows_ = device.allocate((ring_count * ring + pending_floats_) * sizeof(float));
  const int drafts = plan.config.draft ? plan.config.draft->block : 0;
  for (const CacheSource& source : plan.cache.sources) {
    const LayerPlan& layer = plan.layers[static_cast<std::size_t>(source.layer)];
    if (layer.ratio == 1) {
      continue;
    }
    RawRings& rings = raw_[static_cast<std::size_t>(source.layer)];
    const std::size_t wide = layer.role == LayerRole::kCsa ? 2 : 1;
    rings.rows = wide * static_cast<std::size_t>(layer.ratio) + static_cast<std::size_t>(drafts);
    rings.width = wide * static_cast<std::size_t>(plan.config.head_dim);
    rings.index_width = layer.role == LayerRole::kCsa
                            ? wide * static_cast<std::size_t>(plan.config.index_head_dim)
                            : 0;
    rings.data =
        device.allocate(2 * rings.rows * (rings.width + rings.index_width) * sizeof(float));
  }
}

void Sequence::truncate(std::int64_t length) {
  GALLEY_ASSERT(length <= length_);
  const int drafts = plan_.config.draft ? plan_.config.draft->block : 0;
  GALLEY_ASSERT(length == 0 || length_ - length <= drafts + 1);
  length_ = length;
  if (!history_.empty()) {
    history_.resize(static_cast<std::size_t>(length));
  }
}

void Sequence::adopt(std::span<const std::shared_ptr<kernels::Buffer>> blocks,
                     std::span<const std::int32_t> history,
                     std::int64_t length) {
  GALLEY_ASSERT(length_ == 0);
  GALLEY_ASSERT(length <= std::ssize(blocks) * kBlockTokens);
  blocks_.clear();
  block_data_.clear();
  add_blocks(blocks);
  history_.assign(history.begin(), history.end());
  length_ = length;
}

void Sequence::add_blocks(std::span<const std::shared_ptr<kernels::Buffer>> blocks) {
  for (const auto& block : blocks) {
    blocks_.push_back(block);
    block_data_.push_back(block->data());
  }
}

std::vector<kernels::Buffer*> Sequence::state_buffers() {
  std::vector<kernels::Buffer*> buffers{windows_.get()};
  for (RawRings& rings : raw_) {
    if (rings.data != nullptr) {
      buffers.push_back(rings.data.get());
    }
  }
  return buffers;
}

std::vector<float> Sequence::save_state() {
  std::vector<float> state;
  for (kernels::Buffer* const buffer : state_buffers()) {
    const float* const data = floats(*buffer);
    state.insert(state.end(), data, data + buffer->size() / sizeof(float));
  }
  return state;
}

void Sequence::restore_state(std::span<const float> state) {
  for (kernels::Buffer* const buffer : state_buffers()) {
    const std::size_t count = buffer->size() / sizeof(float);
    GALLEY_ASSERT(count <= state.size());
    std::ranges::copy(state.first(count), floats(*buffer));
    state = state.subspan(count);
  }
  GALLEY_ASSERT(state.empty());
}

void Sequence::reserve(std::int64_t length) {
  while (std::ssize(blocks_) * kBlockTokens < length) {
    const std::shared_ptr<kernels::Buffer> block = pool_.allocate();
    GALLEY_ASSERT(block != nullptr);
    add_blocks({{block}});
  }
}

void Sequence::append_history(std::span<const std::int32_t> ids) {
  history_.resize(static_cast<std::size_t>(length_));
  history_.insert(history_.end(), ids.begin(), ids.end());
}

kernels::RingView Sequence::window(int layer) {
  const auto rows = static_cast<std::size_t>(plan_.cache.ring_rows);
  const auto width = static_cast<std::size_t>(plan_.config.head_dim);
  return {floats(*windows_) + static_cast<std::size_t>(layer) * rows * width, rows, width};
}

kernels::RingView Sequence::draft_window(int stage) {
  return window(plan_.config.layers + stage);
}

std::span<float> Sequence::draft_pending() {
  float* const end = floats(*windows_) + windows_->size() / sizeof(float);
  return {end - pending_floats_, pending_floats_};
}

kernels::RingView Sequence::raw(int layer, Raw kind) {
  RawRings& rings = raw_[static_cast<std::size_t>(layer)];
  float* const data = floats(*rings.data);
  switch (kind) {
    case Raw::kValue:
      return {data, rings.rows, rings.width};
    case Raw::kGate:
      return {data + rings.rows * rings.width, rings.rows, rings.width};
    case Raw::kIndexValue:
      return {data + 2 * rings.rows * rings.width, rings.rows, rings.index_width};
    case Raw::kIndexGate:
      return {data + rings.rows * (2 * rings.width + rings.index_width), rings.rows,
              rings.index_width};
  }
  return {};
}

kernels::PagedView Sequence::paged(int layer, const BlockPool::Place& place) const {
  const int ratio = plan_.layers[static_cast<std::size_t>(layer)].ratio;
  return {block_data_.data(), static_cast<std::size_t>(kBlockTokens / ratio), place.offset,
          place.format};
}

kernels::PagedView Sequence::rows(int layer) const {
  return paged(layer, pool_.rows(layer));
}

kernels::PagedView Sequence::keys(int layer) const {
  return paged(layer, pool_.keys(layer));
}

}  // namespace galley::model
