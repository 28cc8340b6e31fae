#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <optional>
#include <string>
#include <utility>

#include "model/engram.h"

namespace galley::model {
namespace {

// Binds tensors below one prefix ("layers.3."). Values that are copied anyway are checked on the
// way; the first bad one is left in `error`.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, std::string prefix, std::optional<Error>& error)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)), error_(error) {}

  [[nodiscard]] kernels::Weight matrix(const std::string& tensor) const {
    return checkpoint_.matrix(prefix_ + tensor + ".weight");
  }
  [[nodiscard]] std::vector<float> vector(const std::string& tensor) const {
    std::vector<float> values = checkpoint_.vector(prefix_ + tensor);
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
      reject(tensor, "holds a value that is not finite");
    }
    return values;
  }
  [[nodiscard]] std::vector<std::int64_t> ids(const std::string& tensor, int limit) const {
    std::vector<std::int64_t> values = checkpoint_.ids(prefix_ + tensor);
    if (!std::ranges::all_of(values, [limit](std::int64_t id) { return id >= 0 && id < limit; })) {
      reject(tensor, fmt::format("holds an expert id outside [0, {})", limit));
    }
    return values;
  }

  [[nodiscard]] MixWeights mix(const std::string& site) const {
    return {vector(site + "_fn"), vector(site + "_base"), vector(site + "_scale")};
  }
  [[nodiscard]] kernels::ExpertWeights expert(const std::string& name) const {
    return {matrix(name + ".w1"), matrix(name + ".w2"), matrix(name + ".w3")};
  }
  [[nodiscard]] CompressorWeights compressor(const std::string& name,
                                             int ratio,
                                             Family family) const {
    CompressorWeights out;
    out.wkv = matrix(name + ".wkv");
    out.norm = vector(name + ".norm.weight");
    if (ratio > 1) {
      out.wgate = matrix(name + ".wgate");
    }
    if (family == Family::kV4) {
      out.ape = vector(name + ".ape");
    }
    return out;
  }

  [[nodiscard]] BlockWeights block(int experts, bool hash_routing, bool image_routing) const {
    BlockWeights out;
    out.attention_mix = mix("hc_attn");
    out.ffn_mix = mix("hc_ffn");
    out.attention_norm = vector("attn_norm.weight");
    out.ffn_norm = vector("ffn_norm.weight");
    out.wq_a = matrix("attn.wq_a");
    out.q_norm = vector("attn.q_norm.weight");
    out.wq_b = matrix("attn.wq_b");
    out.wkv = matrix("attn.wkv");
    out.kv_norm = vector("attn.kv_norm.weight");
    out.wo_a = matrix("attn.wo_a");
    out.wo_b = matrix("attn.wo_b");
    out.sinks = vector("attn.attn_sink");
    out.gate = matrix("ffn.gate");
    if (hash_routing) {
      out.gate_table = ids("ffn.gate.tid2eid", experts);
    } else {
      out.gate_bias = vector("ffn.gate.bias");
    }
    if (image_routing) {
      out.gate_bias_image = vector("ffn.gate.bias_vl");
    }
    for (int e = 0; e < experts; ++e) {
      out.experts.push_back(expert(fmt::format("ffn.experts.{}", e)));
    }
    out.shared = expert("ffn.shared_experts");
    return out;
  }

 private:
  void reject(const std::string& tensor, std::string what) const {
    if (!error_) {
      error_ = Error{Code::kCorruption, std::move(what), checkpoint_.locate(prefix_ + tensor)};
    }
  }

  const Checkpoint& checkpoint_;
  std::string prefix_;
  std::optional<Error>& error_;
};

void bind_compression(
    const Binder& binder, const LayerPlan& layer, int index, Family family, BlockWeights& out) {
  if (layer.kv_source == index) {
    out.compressor = binder.compressor("attn.compressor", layer.ratio, family);
  }
  if (layer.list_source != index) {
    return;
  }
  out.indexer.wq_b = binder.matrix("attn.indexer.wq_b");
  out.indexer.weights_proj = binder.matrix("attn.indexer.weights_proj");
  if (family == Family::kV4) {
    out.indexer.compressor = binder.compressor("attn.indexer.compressor", layer.ratio, family);
  } else if (layer.kv_source == index) {
    out.indexer.wk = binder.matrix("attn.indexer.wk");
    out.indexer.k_norm = binder.vector("attn.indexer.k_norm.weight");
  }
}

Result<void> bind_engram(const Checkpoint& checkpoint,
                         ModelWeights& weights,
                         std::optional<Error>& error) {
  const EngramConfig& engram = *checkpoint.plan().config.engram;
  GALLEY_TRY(std::vector<kernels::EngramLayout> layouts, hash_layouts(checkpoint.plan().config));
  for (std::size_t i = 0; i < engram.layers.size(); ++i) {
    const Binder binder(checkpoint, fmt::format("layers.{}.engram.", engram.layers[i]), error);
    EngramWeights& out =
        weights.layers[static_cast<std::size_t>(engram.layers[i])].engram.emplace();
    GALLEY_TRY(out.table, checkpoint.disk_table(
                              fmt::format("layers.{}.engram.embed.weight", engram.layers[i])));
    out.wkv = binder.matrix("wkv");
    out.q_weight = binder.vector("q_weight");
    out.k_weight = binder.vector("k_weight");
    out.layout = std::move(layouts[i]);
  }
  GALLEY_TRY(weights.token_map, read_token_map(checkpoint.directory(), checkpoint.plan().config));
  return {};
}

DraftWeights bind_draft(const Checkpoint& checkpoint, std::optional<Error>& error) {
  const ModelPlan& plan = checkpoint.plan();
  const Family family = plan.config.family;
  DraftWeights out;
  for (int stage = 0; stage < plan.draft_stages; ++stage) {
    const Binder binder(checkpoint, fmt::format("mtp.{}.", stage), error);
    out.stages.push_back(
        binder.block(plan.config.draft->experts, false, plan.config.image_routing()));
  }
  const Binder first(checkpoint, "mtp.0.", error);
  const Binder last(checkpoint, fmt::format("mtp.{}.", plan.draft_stages - 1), error);
  out.norm = last.vector("norm.weight");
  const bool v4 = family == Family::kV4;
  if (v4) {
    out.head_mix = last.mix("hc_head");
  }
  if (plan.drafts_by(DraftKind::kMtp)) {
    out.embed_norm = first.vector("enorm.weight");
    out.hidden_norm = first.vector("hnorm.weight");
    out.embed_proj = first.matrix("e_proj");
    out.hidden_proj = first.matrix("h_proj");
    return out;
  }
  out.main_proj = first.matrix("main_proj");
  out.main_norm = first.vector("main_norm.weight");
  out.markov_embed = last.matrix(v4 ? "markov_head.markov_w1" : "markov_head.embed");
  out.markov_head = last.matrix(v4 ? "markov_head.markov_w2" : "markov_head.head");
  out.confidence = last.matrix("confidence_head.proj");
  return out;
}

}  // namespace

Result<ModelWeights> bind_weights(const Checkpoint& checkpoint) {
  const ModelPlan& plan = checkpoint.plan();
  const ModelConfig& config = plan.config;
  std::optional<Error> error;
  const Binder global(checkpoint, "", error);
  ModelWeights weights;
  weights.embed = global.matrix("embed");
  weights.head = global.matrix("head");
  weights.norm = global.vector("norm.weight");
  if (config.family == Family::kV4) {
    weights.head_mix = global.mix("hc_head");
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerPlan& role = plan.layers[static_cast<std::size_t>(layer)];
    const Binder binder(checkpoint, fmt::format("layers.{}.", layer), error);
    weights.layers.push_back(
        binder.block(config.experts, role.hash_routing, config.image_routing()));
    bind_compression(binder, role, layer, config.family, weights.layers.back());
  }
  if (config.engram) {
    GALLEY_CHECK_OK(bind_engram(checkpoint, weights, error));
  }
  if (config.draft && plan.draft_stages > 0) {
    weights.draft = bind_draft(checkpoint, error);
  }
  if (error) {
    return std::unexpected(std::move(*error));
  }
  return weights;
}

}  // namespace galley::model
