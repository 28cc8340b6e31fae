#include "model/memory.h"

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

// Floats a row that one layer takes: results of its operations, in the order of run_block().
std::size_t layer_floats(const ModelConfig& config, const LayerPlan& layer, int index) {
  const std::size_t n = size(config.streams);
  const std::size_t hidden = size(config.hidden);
  const std::size_t heads = size(config.heads) * size(config.head_dim);
  const std::size_t mixing = n + n * n + 2 * n + 3 * hidden;
  const std::size_t queries =
      2 * size(config.q_lora_rank) + (config.family == Family::kV4 ? 2 : 1) * heads;
  const std::size_t attention = queries + 2 * size(config.head_dim) + heads +
                                size(config.o_groups * config.o_lora_rank) + hidden;
  const std::size_t experts = size(config.experts) + 2 * size(config.experts_per_token) + hidden;
  std::size_t floats = mixing + attention + experts + compression_floats(config, layer, index);
  if (layer.engram) {
    const std::size_t columns = size((config.engram->ngram_max - 1) * config.engram->heads);
    const std::size_t width = columns * size(config.engram->head_dim);
    // Row ids, the rows as stored (a byte a value and its scales) and widened; keys, value, gates.
    floats += 2 * columns + (width + width / 32) / sizeof(float) + width + (n + 1) * hidden + n;
  }
  return floats;
}

std::size_t step_bytes(const ModelPlan& plan, std::size_t rows) {
  const ModelConfig& config = plan.config;
  const std::size_t n = size(config.streams);
  const std::size_t hidden = size(config.hidden);
  // Tokens, positions, bounds; streams and mixing in; lists; draft features; final norm and logits.
  std::size_t floats =
      8 + n * hidden + n + size(config.index_topk) + 2 * hidden + size(config.vocabulary);
  if (plan.drafts_by(DraftKind::kDspark)) {
    floats += plan.feature_width();
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    floats += layer_floats(config, plan.layers[size(layer)], layer);
  }
  return rows * floats * sizeof(float);
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
