#include "model/config.h"

#include <cmath>
#include <fmt/core.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace galley::model {
namespace {

using Node = nlohmann::json;

std::unexpected<Error> wrong(std::string where, std::string what) {
  return fail(Code::kInvalidArgument, std::move(what), std::move(where));
}

// Reads members of one JSON object; the first failure is kept and every later read is a no-op, so
// that a long list of fields reads as a list. `finish` returns that failure.
class Fields {
 public:
  Fields(const Node& node, std::string prefix) : node_(node), prefix_(std::move(prefix)) {}

  // Integer in [low, high]; absent: `fallback`, or an error without one.
  std::int64_t integer(const char* key,
                       std::int64_t low,
                       std::int64_t high,
                       std::optional<std::int64_t> fallback = std::nullopt) {
    const Node* const value = find(key);
    if (value == nullptr) {
      return absent(key, fallback, low);
    }
    if (!value->is_number_integer() || value->get<std::int64_t>() < low ||
        value->get<std::int64_t>() > high) {
      return reject(
          key, fmt::format("want an integer in [{}, {}], got {}", low, high, value->dump()), low);
    }
    return value->get<std::int64_t>();
  }
  int count(const char* key,
            int low,
            int high,
            std::optional<std::int64_t> fallback = std::nullopt) {
    return static_cast<int>(integer(key, low, high, fallback));
  }

  // Finite number in [low, high].
  double real(const char* key,
              double low,
              double high,
              std::optional<double> fallback = std::nullopt) {
    const Node* const value = find(key);
    if (value == nullptr) {
      return absent(key, fallback, low);
    }
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
      return reject(key, fmt::format("want a number in [{}, {}], got {}", low, high, value->dump()),
                    low);
    }
    return value->get<double>();
  }

  std::vector<std::int64_t> integers(const char* key,
                                     std::int64_t low,
                                     std::int64_t high,
                                     bool required) {
    const Node* const value = find(key);
    std::vector<std::int64_t> out;
    if (value == nullptr) {
      if (required) {
        reject(key, "is missing", 0);
      }
      return out;
    }
    constexpr std::size_t kEntriesMax = 4096;
    if (!value->is_array() || value->size() > kEntriesMax) {
      reject(key, fmt::format("want an array of at most {} integers", kEntriesMax), 0);
      return out;
    }
    for (std::size_t i = 0; i < value->size(); ++i) {
      const Node& element = (*value)[i];
      if (!element.is_number_integer() || element.get<std::int64_t>() < low ||
          element.get<std::int64_t>() > high) {
        reject(fmt::format("{}[{}]", key, i),
               fmt::format("want an integer in [{}, {}], got {}", low, high, element.dump()), 0);
        return out;
      }
      out.push_back(element.get<std::int64_t>());
    }
    return out;
  }
  std::vector<int> counts(const char* key, int low, int high, bool required) {
    std::vector<int> out;
    for (const std::int64_t value : integers(key, low, high, required)) {
      out.push_back(static_cast<int>(value));
    }
    return out;
  }

  // A string field that must have one of these values when present.
  void expect(const char* key, std::initializer_list<const char*> values) {
    const Node* const value = find(key);
    if (value == nullptr) {
      return;
    }
    for (const char* const wanted : values) {
      if (value->is_string() && *value == wanted) {
        return;
      }
    }
    reject(key, fmt::format("{} is not supported, want {}", value->dump(), *values.begin()), 0);
  }

  [[nodiscard]] const Node* find(const char* key) const {
    const auto it = node_.find(key);
    return it == node_.end() || it->is_null() ? nullptr : &*it;
  }

  template <class T>
  T reject(const std::string& key, std::string what, T value) {
    if (!error_) {
      error_ = Error{Code::kInvalidArgument, std::move(what), prefix_ + key};
    }
    return value;
  }

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  template <class T, class Fallback>
  T absent(const char* key, const Fallback& fallback, T low) {
    return fallback ? static_cast<T>(*fallback) : reject(key, "is missing", low);
  }

  const Node& node_;
  std::string prefix_;
  std::optional<Error> error_;
};

// Sizes above these are not models but typing errors or attacks; they keep every product below
// 2^63.
constexpr int kSizeMax = 1 << 20;
constexpr int kLayersMax = 1024;
constexpr std::int64_t kVocabularyMax = std::int64_t{1} << 24;
constexpr std::int64_t kRowsMax = std::int64_t{1} << 40;

void read_attention(Fields& fields, ModelConfig& config) {
  config.heads = fields.count("num_attention_heads", 1, kSizeMax);
  if (fields.count("num_key_value_heads", 1, kSizeMax, 1) != 1) {
    fields.reject("num_key_value_heads", "only 1 is supported", 0);
  }
  config.head_dim = fields.count("head_dim", 1, kSizeMax);
  config.rope_dims = fields.count("qk_rope_head_dim", 2, kSizeMax);
  config.q_lora_rank = fields.count("q_lora_rank", 1, kSizeMax);
  config.o_lora_rank = fields.count("o_lora_rank", 1, kSizeMax);
  config.o_groups = fields.count("o_groups", 1, kSizeMax);
  config.window = fields.count("sliding_window", 1, kSizeMax);
  config.index_heads = fields.count("index_n_heads", 1, kSizeMax);
  config.index_head_dim = fields.count("index_head_dim", 1, kSizeMax);
  config.index_topk = fields.count("index_topk", 1, kSizeMax);
  config.rope_theta = fields.real("rope_theta", 1.0, 1e12);
  config.compress_rope_theta = fields.real("compress_rope_theta", 1.0, 1e12);
}

void read_experts(Fields& fields, ModelConfig& config) {
  config.experts = fields.count("n_routed_experts", 1, kSizeMax);
  config.experts_per_token = fields.count("num_experts_per_tok", 1, kSizeMax);
  if (fields.count("n_shared_experts", 0, kSizeMax, 1) != 1) {
    fields.reject("n_shared_experts", "only 1 is supported", 0);
  }
  config.expert_intermediate = fields.count("moe_intermediate_size", 1, kSizeMax);
  fields.expect("scoring_func", {"sqrtsoftplus"});
  fields.expect("topk_method", {"noaux_tc"});
  fields.expect("hidden_act", {"silu"});
  if (const Node* const norm = fields.find("norm_topk_prob"); norm != nullptr && *norm != true) {
    fields.reject("norm_topk_prob", fmt::format("{} is not supported, want true", norm->dump()), 0);
  }
  config.routed_scale = fields.real("routed_scaling_factor", 0.0, 1e6);
  config.gate_temperature = fields.real("gate_temp", 1e-6, 1e6, 1.0);
  config.hash_layers = fields.count("num_hash_layers", 0, kLayersMax, 0);
  config.swiglu_limit = fields.real("swiglu_limit", 0.0, 1e9);
}

void read_backbone(Fields& fields, ModelConfig& config) {
  config.vocabulary = static_cast<int>(fields.integer("vocab_size", 1, kVocabularyMax));
  config.hidden = fields.count("hidden_size", 1, kSizeMax);
  config.layers = fields.count("num_hidden_layers", 1, kLayersMax);
  config.compress_ratios = fields.counts("compress_ratios", 0, 128, true);
  config.norm_eps = fields.real("rms_norm_eps", 0.0, 1.0);
  config.streams = fields.count("hc_mult", 1, 64);
  config.sinkhorn_passes = fields.count("hc_sinkhorn_iters", 1, 10'000);
  config.mix_eps = fields.real("hc_eps", 0.0, 1.0);
  config.positions_max = fields.integer("max_position_embeddings", 1, std::int64_t{1} << 40);
  if (const Node* const tied = fields.find("tie_word_embeddings");
      tied != nullptr && *tied != false) {
    fields.reject("tie_word_embeddings", "tied embeddings are not supported", 0);
  }
}

void read_sources(Fields& fields, ModelConfig& config) {
  config.kv_sources = fields.counts("kv_source_layer_ids", 0, kLayersMax, true);
  config.index_sources = fields.counts("index_source_layer_ids", 0, kLayersMax, true);
  config.candidate_source = fields.count("candidate_source_layer_id", -kLayersMax, kLayersMax, -1);
  if (config.candidate_source < 0) {
    config.candidate_source = -1;
    return;
  }
  config.candidate_blocks = fields.count("candidate_topk_blocks", 1, kSizeMax);
  config.candidate_block_size = fields.count("candidate_block_size", 1, kSizeMax);
}

void read_engram(Fields& fields, ModelConfig& config) {
  if (fields.find("engram_layer_ids") == nullptr || fields.find("engram_layer_ids")->empty()) {
    return;
  }
  EngramConfig engram;
  engram.layers = fields.counts("engram_layer_ids", 0, kLayersMax, true);
  engram.table_rows = fields.integers("engram_num_embeddings", 1, kRowsMax, true);
  engram.ngram_max = fields.count("engram_max_ngram_size", 2, 16);
  engram.heads = fields.count("engram_n_heads", 1, 1024);
  engram.head_dim = fields.count("engram_head_dim", 32, kSizeMax);
  engram.vocabulary = fields.integer("engram_vocab_size", 2, std::int64_t{1} << 32);
  engram.compressed_vocabulary = fields.integer("engram_compressed_vocab_size", 1, kVocabularyMax);
  const char* const pad =
      fields.find("engram_pad_token_id") != nullptr ? "engram_pad_token_id" : "engram_pad_id";
  engram.pad_token = fields.integer(pad, 0, kVocabularyMax, 2);
  config.engram = std::move(engram);
}

void read_draft(Fields& fields, ModelConfig& config) {
  DraftConfig draft;
  if (fields.find("dspark_block_size") == nullptr) {
    // Checkpoints of V4 before DSpark have one MTP layer; later ones count 1 or 3 here and mean
    // DSpark.
    if (config.family == Family::kV4 && fields.count("num_nextn_predict_layers", 0, 1, 0) == 1) {
      draft.kind = DraftKind::kMtp;
      draft.block = 1;
      draft.experts = config.experts;
      draft.experts_per_token = config.experts_per_token;
      config.draft = std::move(draft);
    }
    return;
  }
  draft.block = fields.count("dspark_block_size", 1, 64);
  draft.noise_token = fields.integer("dspark_noise_token_id", 0, kVocabularyMax);
  draft.target_layers = fields.counts("dspark_target_layer_ids", 0, kLayersMax, true);
  draft.markov_rank = fields.count("dspark_markov_rank", 1, kSizeMax);
  draft.experts = fields.count("dspark_n_routed_experts", 1, kSizeMax, config.experts);
  draft.experts_per_token =
      fields.count("dspark_num_experts_per_tok", 1, kSizeMax, config.experts_per_token);
  if (const Node* const input = fields.find("dspark_target_attn_input");
      input != nullptr && *input == false) {
    fields.reject("dspark_target_attn_input", "only capture at the layer's entry is supported", 0);
  }
  config.draft = std::move(draft);
}

Result<void> read_yarn(const Fields& outer, const std::string& prefix, ModelConfig& config) {
  const Node* const scaling = outer.find("rope_scaling");
  if (scaling == nullptr || !scaling->is_object()) {
    return wrong(prefix + "rope_scaling", "want an object");
  }
  Fields fields(*scaling, prefix + "rope_scaling.");
  fields.expect(fields.find("rope_type") != nullptr ? "rope_type" : "type", {"yarn"});
  config.yarn.factor = fields.real("factor", 1.0, 1e6);
  config.yarn.beta_fast = fields.real("beta_fast", 1e-6, 1e6);
  config.yarn.beta_slow = fields.real("beta_slow", 1e-6, 1e6);
  config.yarn.original_positions = fields.real("original_max_position_embeddings", 1.0, 1e12);
  if (fields.error()) {
    return std::unexpected(*fields.error());
  }
  return {};
}

// What one family calls the fields of its vision tower, and the defaults of fields that may be
// absent.
struct VisionKeys {
  const char* layers;
  const char* hidden;
  const char* heads;
  const char* intermediate;
  const char* patch;
  const char* rope_theta;
  const char* downsample;
  const char* tokens_max;
  const char* pixels_min;
  const char* ratio_max;
};
constexpr VisionKeys kVisionKeysV41 = {
    "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
    "patch_size",        "rope_theta",  "downsample_ratio",    "max_image_tokens",
    "min_pixels",        "max_wh_ratio"};
constexpr VisionKeys kVisionKeysV4 = {
    "vision_n_layers",   "vision_dim",         "vision_n_heads",          "vision_inter_dim",
    "vision_patch_size", "vision_rope_theta",  "vision_downsample_ratio", "vision_max_n_token",
    "vision_min_pixels", "vision_max_wh_ratio"};

// V4.1: the object `vision_config`, every field given, no ratio limit unless it names one.
// V4-Vision: flat keys of the root, absent ones as released (spec model 10.5).
Result<void> read_vision(const Node& node, ModelConfig& config) {
  const bool v41 = config.family == Family::kV41;
  const std::string prefix = v41 ? "vision_config." : "";
  if (!node.is_object()) {
    return wrong("vision_config", "want an object");
  }
  const VisionKeys& keys = v41 ? kVisionKeysV41 : kVisionKeysV4;
  Fields fields(node, prefix);
  const auto released = [&](std::int64_t value) {
    return v41 ? std::nullopt : std::optional<std::int64_t>(value);
  };
  VisionConfig vision;
  vision.layers = fields.count(keys.layers, 1, kLayersMax);
  vision.hidden = fields.count(keys.hidden, 1, kSizeMax, released(1024));
  vision.heads = fields.count(keys.heads, 1, kSizeMax, released(16));
  vision.intermediate = fields.count(keys.intermediate, 1, kSizeMax, released(2816));
  vision.patch = fields.count(keys.patch, 1, 256, released(14));
  vision.rope_theta =
      fields.real(keys.rope_theta, 1.0, 1e12, v41 ? std::nullopt : std::optional(1e4));
  vision.downsample = fields.count(keys.downsample, 1, 64, released(3));
  // A span has a start, a token, a newline and an end at least; in pairs there are twice as many
  // and padding.
  constexpr int kTokensMin = 4;
  constexpr int kTokensMinInPairs = 12;
  vision.tokens_max =
      fields.count(keys.tokens_max, v41 ? kTokensMin : kTokensMinInPairs, kSizeMax, released(384));
  vision.pixels_min = fields.integer(keys.pixels_min, 1, std::int64_t{1} << 40, released(147'456));
  const bool without_limit = node.contains(keys.ratio_max) ? node[keys.ratio_max].is_null() : v41;
  vision.ratio_max = without_limit ? 0.0 : fields.real(keys.ratio_max, 1e-3, 1e6, 8.0);
  vision.layout = v41 ? ImageLayout::kRows : ImageLayout::kRowPairs;
  if (fields.error()) {
    return std::unexpected(*fields.error());
  }
  if (vision.hidden % vision.heads != 0 || vision.hidden / vision.heads % 4 != 0) {
    return wrong(prefix + keys.hidden, fmt::format("must be {} times a multiple of 4", keys.heads));
  }
  config.vision = vision;
  return {};
}

Result<Family> family_of(const Node& root) {
  const auto type = root.find("model_type");
  if (type != root.end() && type->is_string()) {
    if (*type == "deepseek_v4") {
      return Family::kV4;
    }
    if (*type == "deepseek_v41") {
      return Family::kV41;
    }
    return wrong("model_type", fmt::format("{} is not supported, want deepseek_v4 or deepseek_v41",
                                           type->dump()));
  }
  return wrong("model_type", "is missing");
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view json) {
  if (json.size() > kConfigBytesMax) {
    return fail(Code::kTooLarge,
                fmt::format("config.json is larger than {} bytes", kConfigBytesMax));
  }
  // The callback bounds nesting: the library's parser itself has no limit.
  constexpr int kDepthMax = 16;
  bool too_deep = false;
  const Node root = Node::parse(
      json,
      [&](int depth, Node::parse_event_t, Node&) {
        return !(too_deep = too_deep || depth > kDepthMax);
      },
      false);
  if (too_deep || root.is_discarded() || !root.is_object()) {
    return fail(Code::kInvalidArgument, "config.json is not a JSON object");
  }
  GALLEY_TRY(const Family family, family_of(root));
  ModelConfig config;
  config.family = family;
  std::string prefix;
  const Node* text = &root;
  if (const auto it = root.find("text_config"); it != root.end()) {
    if (!it->is_object()) {
      return wrong("text_config", "want an object");
    }
    text = &*it;
    prefix = "text_config.";
  } else if (family == Family::kV41) {
    return wrong("text_config", "is missing");
  }
  Fields fields(*text, prefix);
  read_backbone(fields, config);
  read_attention(fields, config);
  read_experts(fields, config);
  if (family == Family::kV41) {
    read_sources(fields, config);
    read_engram(fields, config);
  }
  read_draft(fields, config);
  if (fields.error()) {
    return std::unexpected(*fields.error());
  }
  GALLEY_CHECK_OK(read_yarn(fields, prefix, config));

  Fields top(root, "");
  // Nothing reads them (the recipe knows the control tokens), but a config that is wrong here is
  // not this checkpoint's.
  const std::int64_t last_id = config.vocabulary - 1;
  for (const char* const key : {"bos_token_id", "eos_token_id"}) {
    top.integer(key, 0, last_id, 0);
  }
  if (family == Family::kV41 && top.find("image_token_id") != nullptr) {
    config.image_token = top.integer("image_token_id", 0, last_id);
  }
  if (top.error()) {
    return std::unexpected(*top.error());
  }
  config.quant_block = family == Family::kV41 ? 32 : 128;
  if (const Node* const quantisation = top.find("quantization_config"); quantisation != nullptr) {
    if (!quantisation->is_object()) {
      return wrong("quantization_config", "want an object");
    }
    Fields quant(*quantisation, "quantization_config.");
    quant.expect("quant_method", {"fp8"});
    quant.expect("fmt", {"e4m3"});
    quant.expect("scale_fmt", {"ue8m0"});
    const std::vector<int> block = quant.counts("weight_block_size", 1, 4096, false);
    if (quant.error()) {
      return std::unexpected(*quant.error());
    }
    if (!block.empty()) {
      if (block.size() != 2 || block[0] != block[1]) {
        return wrong("quantization_config.weight_block_size", "want two equal sides");
      }
      config.quant_block = block[0];
    }
  }
  if (const Node* const vision = top.find("vision_config");
      vision != nullptr && family == Family::kV41) {
    GALLEY_CHECK_OK(read_vision(*vision, config));
  }
  if (const Node* const layers = top.find(kVisionKeysV4.layers);
      layers != nullptr && *layers != 0 && family == Family::kV4) {
    GALLEY_CHECK_OK(read_vision(root, config));
  }
  return config;
}

Result<ModelConfig> load_config(const std::filesystem::path& directory) {
  GALLEY_TRY(const std::string text, read_config(directory));
  Result<ModelConfig> config = parse_config(text);
  if (!config) {
    return in_step((directory / "config.json").string(), std::move(config).error());
  }
  return config;
}

Result<std::string> read_config(const std::filesystem::path& directory) {
  return read_file((directory / "config.json").string(), Bytes(kConfigBytesMax));
}

}  // namespace galley::model
