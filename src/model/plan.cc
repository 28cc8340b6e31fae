#include "model/plan.h"

#include <algorithm>
#include <bit>
#include <fmt/core.h>
#include <functional>
#include <numeric>
#include <utility>
#include <xxhash.h>

#include "base/check.h"

namespace galley::model {
namespace {

// Ten times and more what released models have; they bound the list of tensors a configuration can
// ask for, and the search for engram's primes.
constexpr std::int64_t kExpertsMax = std::int64_t{1} << 18U;  // over all layers
constexpr std::int64_t kEngramPrimesMax = 4096;
constexpr int kDraftStagesMax = 16;

std::unexpected<Error> broken(std::string where, std::string what) {
  return fail(Code::kInvalidArgument, std::move(what), std::move(where));
}

bool contains(const std::vector<int>& values, int value) {
  return std::ranges::find(values, value) != values.end();
}

// Last entry <= layer of an ascending list, or -1.
int last_at_or_before(const std::vector<int>& values, int layer) {
  int found = -1;
  for (const int value : values) {
    if (value <= layer) {
      found = value;
    }
  }
  return found;
}

Result<void> check_shapes(const ModelConfig& config) {
  if (config.rope_dims % 2 != 0 || config.rope_dims > config.head_dim ||
      config.rope_dims > config.index_head_dim) {
    return broken("qk_rope_head_dim", "must be even and at most head_dim and index_head_dim");
  }
  // Two FP4 codes share a byte, and V4 runs a Hadamard transform over an index key.
  if (config.head_dim % 2 != 0) {
    return broken("head_dim", "must be even");
  }
  const bool v4 = config.family == Family::kV4;
  if (config.index_head_dim % 2 != 0 ||
      (v4 && !std::has_single_bit(static_cast<unsigned>(config.index_head_dim)))) {
    return broken("index_head_dim", v4 ? "must be a power of two" : "must be even");
  }
  if (config.heads % config.o_groups != 0) {
    return broken("o_groups", "must divide num_attention_heads");
  }
  if (config.experts_per_token > config.experts) {
    return broken("num_experts_per_tok", "must be at most n_routed_experts");
  }
  if (config.window > kBlockTokens) {
    return broken("sliding_window", "must be at most 128, a block");
  }
  if (std::int64_t{config.experts} * config.layers > kExpertsMax) {
    return broken("n_routed_experts",
                  fmt::format("times num_hidden_layers must be at most {}", kExpertsMax));
  }
  return {};
}

Result<void> check_ratios(const ModelConfig& config) {
  const auto ratios = std::ssize(config.compress_ratios);
  if (ratios < config.layers) {
    return broken("compress_ratios",
                  fmt::format("has {} entries for {} layers", ratios, config.layers));
  }
  for (std::ptrdiff_t i = config.layers; i < ratios; ++i) {
    if (config.compress_ratios[static_cast<std::size_t>(i)] != 0) {
      return broken(fmt::format("compress_ratios[{}]", i),
                    "entries after the layers (draft stages) must be 0");
    }
  }
  const bool v4 = config.family == Family::kV4;
  for (int layer = 0; layer < config.layers; ++layer) {
    const int ratio = config.compress_ratios[static_cast<std::size_t>(layer)];
    const bool known = v4 ? ratio == 0 || ratio == 4 || ratio == 128 : ratio >= 0 && ratio <= 2;
    if (!known) {
      return broken(fmt::format("compress_ratios[{}]", layer),
                    fmt::format("ratio {} is not one of {}", ratio, v4 ? "0, 4, 128" : "0, 1, 2"));
    }
  }
  return {};
}

// The rules of spec model 1.2 for V4.1's sources.
Result<void> check_sources(const ModelConfig& config) {
  const auto ratio_of = [&](int layer) {
    return config.compress_ratios[static_cast<std::size_t>(layer)];
  };
  const auto check_list = [&](const char* key, const std::vector<int>& layers) -> Result<void> {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i] >= config.layers || ratio_of(layers[i]) == 0 ||
          (i > 0 && layers[i] <= layers[i - 1])) {
        return broken(fmt::format("{}[{}]", key, i),
                      "must ascend and name layers with a ratio above 0");
      }
    }
    return {};
  };
  GALLEY_CHECK_OK(check_list("kv_source_layer_ids", config.kv_sources));
  GALLEY_CHECK_OK(check_list("index_source_layer_ids", config.index_sources));
  for (const int source : config.kv_sources) {
    if (!contains(config.index_sources, source)) {
      return broken("index_source_layer_ids",
                    fmt::format("kv source {} is missing: it owns index keys", source));
    }
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    if (ratio_of(layer) == 0) {
      continue;
    }
    const int source = last_at_or_before(config.kv_sources, layer);
    if (source < 0 || ratio_of(source) != ratio_of(layer)) {
      return broken("kv_source_layer_ids",
                    fmt::format("layer {} (ratio {}) has no source of its ratio at or before it",
                                layer, ratio_of(layer)));
    }
  }
  if (config.candidate_source >= 0 && !contains(config.kv_sources, config.candidate_source)) {
    return broken("candidate_source_layer_id", "must be a kv source");
  }
  return {};
}

Result<void> check_extras(const ModelConfig& config, int cut) {
  if (config.engram) {
    if (config.engram->layers.size() != config.engram->table_rows.size()) {
      return broken("engram_num_embeddings", "want one entry for each of engram_layer_ids");
    }
    const std::vector<int>& layers = config.engram->layers;
    if (std::ranges::adjacent_find(layers, std::greater_equal{}) != layers.end()) {
      return broken("engram_layer_ids", "must ascend");
    }
    if (std::ssize(layers) * (config.engram->ngram_max - 1) * config.engram->heads >
        kEngramPrimesMax) {
      return broken(
          "engram_n_heads",
          fmt::format("times n-gram sizes and layers must be at most {}", kEngramPrimesMax));
    }
    if (config.engram->pad_token >= config.vocabulary) {
      return broken("engram_pad_token_id", "is outside the vocabulary");
    }
    for (const int layer : layers) {
      if (layer >= config.layers || (cut >= 0 && layer >= cut)) {
        return broken("engram_layer_ids",
                      fmt::format("layer {} does not lie below the prefill cut", layer));
      }
    }
    if (config.engram->head_dim % 32 != 0) {
      return broken("engram_head_dim", "must be a multiple of 32, the scale block of a row");
    }
  }
  if (config.drafts_by(DraftKind::kDspark)) {
    const std::vector<int>& targets = config.draft->target_layers;
    if (targets.empty()) {
      return broken("dspark_target_layer_ids", "is empty");
    }
    for (const int layer : targets) {
      if (layer >= config.layers || (cut >= 0 && (layer >= cut) != (targets.front() >= cut))) {
        return broken("dspark_target_layer_ids",
                      "must be layers that all lie on one side of the prefill cut");
      }
    }
    if (config.draft->experts_per_token > config.draft->experts ||
        config.draft->experts > kExpertsMax) {
      return broken(
          "dspark_num_experts_per_tok",
          fmt::format("must be at most dspark_n_routed_experts, at most {}", kExpertsMax));
    }
    if (config.draft->noise_token >= config.vocabulary) {
      return broken("dspark_noise_token_id", "is outside the vocabulary");
    }
  }
  return {};
}

int find_cut(const ModelConfig& config) {
  if (config.family == Family::kV4) {
    return -1;
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    if (config.compress_ratios[static_cast<std::size_t>(layer)] == 1) {
      return layer;
    }
  }
  return -1;
}

LayerPlan plan_layer(const ModelConfig& config, int layer, int cut) {
  LayerPlan plan;
  plan.ratio = config.compress_ratios[static_cast<std::size_t>(layer)];
  plan.hash_routing = config.family == Family::kV4 && layer < config.hash_layers;
  plan.engram = config.engram && contains(config.engram->layers, layer);
  plan.draft_capture = config.draft && contains(config.draft->target_layers, layer);
  plan.above_cut = cut >= 0 && layer >= cut;
  if (plan.ratio == 0) {
    plan.role = LayerRole::kWindow;
    return plan;
  }
  if (config.family == Family::kV4) {
    plan.role = plan.ratio == 4 ? LayerRole::kCsa : LayerRole::kHca;
    plan.kv_source = layer;
    plan.list_source = plan.role == LayerRole::kCsa ? layer : -1;
    return plan;
  }
  plan.kv_source = last_at_or_before(config.kv_sources, layer);
  plan.list_source = last_at_or_before(config.index_sources, layer);
  plan.role = plan.kv_source == layer     ? LayerRole::kFull
              : plan.list_source == layer ? LayerRole::kReindex
                                          : LayerRole::kReuse;
  plan.candidate_source = layer == config.candidate_source;
  plan.masked_by_candidates = plan.role == LayerRole::kReindex && config.candidate_source >= 0 &&
                              layer > config.candidate_source;
  return plan;
}

// ---- bytes (spec model 8.2, 8.3)
// --------------------------------------------------------------------------------

// A window row, and V4's compressed row: FP8; in V4 without the rope channels, which stay bfloat16.
kernels::RowFormat fp8_row(const ModelConfig& config) {
  const auto width = static_cast<std::size_t>(config.head_dim);
  const bool v41 = config.family == Family::kV41;
  return {.codec = kernels::RowCodec::kFp8,
          .width = width,
          .plain = v41 ? width : width - static_cast<std::size_t>(config.rope_dims),
          .block = v41 ? 32U : 64U};
}

kernels::RowFormat compressed_row(const ModelConfig& config) {
  if (config.family == Family::kV4) {
    return fp8_row(config);
  }
  const auto width = static_cast<std::size_t>(config.head_dim);
  return {.codec = kernels::RowCodec::kFp4E4m3, .width = width, .plain = width, .block = 16};
}

kernels::RowFormat index_key(const ModelConfig& config) {
  const auto width = static_cast<std::size_t>(config.index_head_dim);
  return {.codec = kernels::RowCodec::kFp4, .width = width, .plain = width, .block = 32};
}

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

CacheLayout lay_out(const ModelConfig& config,
                    const std::vector<LayerPlan>& layers,
                    int cut,
                    int draft_stages) {
  CacheLayout cache;
  const kernels::RowFormat row = compressed_row(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerPlan& plan = layers[static_cast<std::size_t>(layer)];
    if (plan.kv_source != layer) {
      continue;
    }
    CacheSource source;
    source.layer = layer;
    source.rows_per_block = kBlockTokens / plan.ratio;
    source.row = row;
    if (plan.list_source == layer) {
      source.key = index_key(config);
    }
    source.offset = cache.block_bytes;
    source.bytes =
        static_cast<std::size_t>(source.rows_per_block) * (source.row.bytes() + source.key_bytes());
    cache.block_bytes += source.bytes;
    cache.sources.push_back(source);
  }
  // The index kernel wants strides of 128 bytes, the attention kernel strides of whole rows.
  cache.block_stride = round_up(cache.block_bytes, std::lcm<std::size_t>(128, row.bytes()));

  const int drafts = config.draft ? config.draft->block : 0;
  cache.ring_rows = config.window + drafts + 1;
  cache.window_row = fp8_row(config);
  cache.ring_bytes = static_cast<std::size_t>(cache.ring_rows) * cache.window_row.bytes();
  const int below = cut >= 0 ? cut : config.layers;
  cache.state_bytes = static_cast<std::size_t>(below) * cache.ring_bytes;
  cache.rebuilt_bytes =
      static_cast<std::size_t>(config.layers - below + draft_stages) * cache.ring_bytes;
  for (const CacheSource& source : cache.sources) {
    const int ratio = layers[static_cast<std::size_t>(source.layer)].ratio;
    if (ratio == 1) {
      continue;
    }
    // Raw (a, g) rows in float32: V4.1 pairs head_dim wide; V4 CSA two windows, twice as wide, HCA
    // one.
    const std::size_t wide = ratio == 4 ? 2 : 1;
    const std::size_t rows =
        wide * static_cast<std::size_t>(ratio) + static_cast<std::size_t>(drafts);
    const auto raw_row = [&](int channels) {
      return 2 * wide * static_cast<std::size_t>(channels) * sizeof(float);
    };
    cache.raw_bytes += rows * raw_row(config.head_dim);
    if (ratio == 4) {
      cache.raw_bytes += rows * raw_row(config.index_head_dim);
    }
  }
  cache.slot_bytes =
      round_up(cache.state_bytes + cache.rebuilt_bytes + cache.raw_bytes, kSlotAlignment);
  return cache;
}

// A hash of everything that decides what the bytes of a block mean.
std::string fingerprint(const ModelPlan& plan) {
  std::string text =
      fmt::format("galley-layout-1 family={} window={} head={}/{} index={}/{} eps={} theta={}/{}",
                  static_cast<int>(plan.config.family), plan.config.window, plan.config.head_dim,
                  plan.config.rope_dims, plan.config.index_heads, plan.config.index_head_dim,
                  plan.config.norm_eps, plan.config.rope_theta, plan.config.compress_rope_theta);
  for (const CacheSource& source : plan.cache.sources) {
    text += fmt::format(" {}:{}x({}+{})@{}", source.layer, source.rows_per_block,
                        source.row.bytes(), source.key_bytes(), source.offset);
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

const CacheSource& CacheLayout::source(int layer) const {
  const auto it = std::ranges::find(sources, layer, &CacheSource::layer);
  GALLEY_ASSERT(it != sources.end());
  return *it;
}

std::string_view name(LayerRole role) {
  switch (role) {
    case LayerRole::kWindow:
      return "window";
    case LayerRole::kCsa:
      return "csa";
    case LayerRole::kHca:
      return "hca";
    case LayerRole::kFull:
      return "full";
    case LayerRole::kReindex:
      return "reindex";
    case LayerRole::kReuse:
      return "reuse";
  }
  std::unreachable();
}

Result<ModelPlan> make_plan(ModelConfig config, int draft_stages) {
  GALLEY_CHECK_OK(check_shapes(config));
  GALLEY_CHECK_OK(check_ratios(config));
  const int cut = find_cut(config);
  if (config.family == Family::kV41) {
    GALLEY_CHECK_OK(check_sources(config));
    if (cut >= 0 && !contains(config.kv_sources, cut)) {
      return broken("kv_source_layer_ids",
                    fmt::format("the prefill cut, layer {}, must be its own source", cut));
    }
  }
  GALLEY_CHECK_OK(check_extras(config, cut));
  if (config.drafts_by(DraftKind::kMtp) && draft_stages > 1) {
    return broken("mtp", fmt::format("{} draft stages, an MTP drafter has one", draft_stages));
  }
  if (draft_stages > 0 && !config.draft) {
    return broken("dspark_block_size",
                  fmt::format("is missing, and the checkpoint has {} draft stages", draft_stages));
  }
  if (draft_stages < 0 || draft_stages > kDraftStagesMax) {
    return broken("mtp",
                  fmt::format("{} draft stages, want at most {}", draft_stages, kDraftStagesMax));
  }
  ModelPlan plan;
  plan.draft_stages = draft_stages;
  plan.cut = cut;
  const int drafts = config.draft ? config.draft->block : 0;
  plan.keep = config.window + drafts +
              7;  // >= window + drafts + 1; the makers' recommended 140 in the real model
  for (int layer = 0; layer < config.layers; ++layer) {
    plan.layers.push_back(plan_layer(config, layer, cut));
  }
  plan.cache = lay_out(config, plan.layers, cut, draft_stages);
  config.compress_ratios.resize(static_cast<std::size_t>(config.layers));
  plan.config = std::move(config);
  plan.fingerprint = fingerprint(plan);
  return plan;
}

std::int64_t HitRule::longest_hit(std::int64_t tokens) const {
  return std::max<std::int64_t>(0, tokens - keep_tokens) / kBlockTokens * kBlockTokens;
}

std::int64_t HitRule::replay_begin(std::int64_t hit) const {
  return std::max<std::int64_t>(0, hit - replay_tokens);
}

HitRule hit_rule(const ModelPlan& plan, WindowRebuild rebuild) {
  std::int64_t windows = 0;
  switch (rebuild) {
    case WindowRebuild::kBounded:
      GALLEY_ASSERT(plan.config.family == Family::kV41);
      windows = 1;
      break;
    case WindowRebuild::kExact:
      windows = plan.cut >= 0 ? plan.cut : plan.config.layers;
      break;
    case WindowRebuild::kStored:
      break;
  }
  return {.keep_tokens = plan.cut >= 0 ? plan.keep : 1,
          .replay_tokens = windows * plan.config.window};
}

}  // namespace galley::model
