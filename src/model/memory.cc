#include "model/memory.h"

#include <algorithm>
#include <cstdint>

#include "model/arithmetic.h"

namespace galley::model {
namespace {

// Floats a row that compressor and indexer of a layer leave behind (forward.cc, "compression and
// selection").
std::size_t compression_floats(const ModelConfig& config, const LayerPlan& layer, int index) {
  const std::size_t row = size(config.head_dim);
  const std::size_t key = size(config.index_head_dim);
  std::size_t floats = 0;
  if (layer.kv_source == index) {
    // Raw values and gates (one linear at ratio 1), what they are pooled into, its norm.
    const std::size_t wide = layer.role == LayerRole::kCsa ? 2 : 1;
    floats += layer.ratio == 1 ? 2 * row : (2 * wide + 2) * row;
    if (layer.list_source == index) {
      floats += config.family == Family::kV4 ? (2 * wide + 2) * key : 2 * key;
    }
  }
  if (layer.list_source == index) {
    floats += size(config.index_heads) * (key + 1);
  }
  return floats;
}

std::size_t engram_columns(const EngramConfig& engram) {
  return size((engram.ngram_max - 1) * engram.heads);
}

// Floats a row of scratch that a layer takes at one time: the larger of its two sub-layers, or its
// engram (results of operations, in the order of Step::run_block()).
std::size_t layer_floats(const ModelConfig& config, const LayerPlan& layer, int index) {
  const std::size_t n = size(config.streams);
  const std::size_t hidden = size(config.hidden);
  const std::size_t heads = size(config.heads) * size(config.head_dim);
  const std::size_t mixing = n + n * n + 2 * hidden;
  const std::size_t queries =
      2 * size(config.q_lora_rank) + (config.family == Family::kV4 ? 2 : 1) * heads;
  const std::size_t attention = queries + 2 * size(config.head_dim) + heads +
                                size(config.o_groups * config.o_lora_rank) + hidden +
                                compression_floats(config, layer, index);
  const std::size_t experts = size(config.experts) + 2 * size(config.experts_per_token) + hidden;
  std::size_t engram = 0;
  if (layer.engram) {
    // Rows widened; keys, value, gates.
    engram = engram_columns(*config.engram) * size(config.engram->head_dim) + (n + 1) * hidden + n;
  }
  return std::max(mixing + std::max(attention, experts), engram);
}

std::size_t step_bytes(const ModelPlan& plan, std::size_t rows) {
  const ModelConfig& config = plan.config;
  const std::size_t n = size(config.streams);
  const std::size_t hidden = size(config.hidden);
  // Tokens, positions, bounds; streams and mixing in and out; lists; draft features; logits.
  std::size_t floats = 8 + n * hidden + 2 * n + size(config.index_topk) + size(config.vocabulary);
  if (plan.drafts_by(DraftKind::kDspark)) {
    floats += plan.feature_width();
  }
  std::size_t scratch = 2 * hidden;  // collapse and norm in front of the head
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerPlan& role = plan.layers[size(layer)];
    scratch = std::max(scratch, layer_floats(config, role, layer));
    if (role.engram) {
      // Row ids and the rows as stored: a byte a value, and its scales.
      const std::size_t width = engram_columns(*config.engram) * size(config.engram->head_dim);
      floats += 2 * engram_columns(*config.engram) + (width + width / 32) / sizeof(float);
    }
  }
  return rows * (floats + scratch) * sizeof(float);
}

}  // namespace

MemoryNeeds memory_needs(const Checkpoint& checkpoint, std::size_t step_rows) {
  const ModelPlan& plan = checkpoint.plan();
  const CacheLayout& cache = plan.cache;
  constexpr std::size_t kThousand = 1000;
  constexpr auto kBlock = static_cast<std::size_t>(kBlockTokens);
  const Checkpoint::Sizes sizes = checkpoint.sizes();
  MemoryNeeds needs;
  needs.weights = sizes.weights;
  needs.copied = sizes.copied;
  needs.tables_on_disk = sizes.tables;
  needs.block = cache.block_stride;
  needs.thousand_tokens = (kThousand + kBlock - 1) / kBlock * cache.block_stride;
  // Rings hold float32 rows in memory; CacheLayout's slot is their packed form.
  needs.request = (plan.layers.size() + size(plan.draft_stages)) * size(cache.ring_rows) *
                      cache.window_row.width * sizeof(float) +
                  cache.raw_bytes +
                  (plan.drafts_by(DraftKind::kMtp) ? plan.feature_width() * sizeof(float) : 0);
  needs.step_rows = step_rows;
  needs.step = step_bytes(plan, step_rows);
  return needs;
}

}  // namespace galley::model
