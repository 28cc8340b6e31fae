#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/device.h"
#include "kernels/disk_table.h"
#include "kernels/operands.h"
#include "kernels/weight.h"
#include "model/checkpoint.h"
#include "model/plan.h"

namespace galley::model {

// Parameters of the network, bound by name once. Matrices stay mapped in their disk format; small
// vectors are widened; engram tables stay on disk. An empty Weight or vector: the layer has none.

struct MixWeights {
  std::vector<float> fn;
  std::vector<float> base;
  std::vector<float> scale;
  [[nodiscard]] kernels::MixWeights view() const { return {fn, base, scale}; }
};

struct CompressorWeights {
  kernels::Weight wkv;
  kernels::Weight wgate;   // ratio > 1
  std::vector<float> ape;  // V4: [ratio, channels]
  std::vector<float> norm;
};

struct IndexerWeights {
  kernels::Weight wq_b;
  kernels::Weight weights_proj;
  kernels::Weight wk;  // V4.1, layers that own keys
  std::vector<float> k_norm;
  CompressorWeights compressor;  // V4
};

struct EngramWeights {
  kernels::DiskTable table;
  kernels::Weight wkv;
  std::vector<float> q_weight;
  std::vector<float> k_weight;
  kernels::EngramLayout layout;
};

// One decoder block: a layer of the backbone or a draft stage.
struct BlockWeights {
  MixWeights attention_mix;
  MixWeights ffn_mix;
  std::vector<float> attention_norm;
  std::vector<float> ffn_norm;

  kernels::Weight wq_a;
  std::vector<float> q_norm;
  kernels::Weight wq_b;
  kernels::Weight wkv;
  std::vector<float> kv_norm;
  kernels::Weight wo_a;
  kernels::Weight wo_b;
  std::vector<float> sinks;
  CompressorWeights compressor;
  IndexerWeights indexer;

  kernels::Weight gate;
  std::vector<float> gate_bias;
  std::vector<float> gate_bias_image;
  std::vector<std::int64_t> gate_table;  // hash layers: [vocabulary, experts_per_token]
  std::vector<kernels::ExpertWeights> experts;
  kernels::ExpertWeights shared;

  std::optional<EngramWeights> engram;
};

struct DraftWeights {
  std::vector<BlockWeights> stages;
  std::vector<float> norm;
  MixWeights head_mix;  // V4
  // MTP
  std::vector<float> embed_norm;
  std::vector<float> hidden_norm;
  kernels::Weight embed_proj;
  kernels::Weight hidden_proj;
  // DSpark
  kernels::Weight main_proj;
  std::vector<float> main_norm;
  kernels::Weight markov_embed;
  kernels::Weight markov_head;
  kernels::Weight confidence;
};

struct ModelWeights {
  kernels::Weight embed;
  kernels::Weight head;
  std::vector<float> norm;
  MixWeights head_mix;  // V4
  std::vector<BlockWeights> layers;
  std::optional<DraftWeights> draft;
  std::vector<std::int32_t> token_map;  // token id -> compressed id, with engram
};

// Error: an engram token map (engram_token_map.bin) that is missing, or does not fit vocabulary or
// table; a small parameter that is not finite; an expert id out of range. Matrices are not read.
[[nodiscard]] Result<ModelWeights> bind_weights(const Checkpoint& checkpoint);

}  // namespace galley::model
