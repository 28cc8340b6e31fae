#include "model/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <fstream>
#include <span>
#include <utility>
#include <vector>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "base/ceil_div.h"
#include "base/check.h"
#include "kernels/formats.h"
#include "kernels/reference/ops.h"
#include "model/checkpoint.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kShardBytes = std::int64_t{4} << 30;
// One channel in this many is an outlier, as large as kOutlier ordinary ones.
constexpr std::uint32_t kOutlierEvery = 256;
constexpr float kOutlier = 8.0F;

// ---- shapes (spec model 1.1, 1.2)
// -------------------------------------------------------------------------------

// A released model's sizes, from the config.json of each.
struct Shape {
  int layers;
  int hidden;
  int heads;
  int q_lora;
  int o_groups;
  int o_lora;
  int experts;
  int intermediate;
  int index_heads;
  int index_topk;
  int draft_experts;
  int draft_chosen;
  int markov_rank;
  double routed_scale;
};

constexpr Shape kV4Flash{43, 4096, 64, 1024, 8, 1024, 256, 2048, 64, 512, 256, 6, 256, 1.5};
constexpr Shape kV4Pro{61, 7168, 128, 1536, 16, 1024, 384, 3072, 64, 1024, 384, 6, 512, 2.5};
constexpr Shape kV41Flash{40, 5120, 64, 1280, 8, 1024, 384, 2304, 32, 512, 128, 3, 256, 1.5};

constexpr int kDraftStages = 3;
constexpr int kEngramHeads = 8;
constexpr int kEngramDim = 256;
constexpr int kEngramNgram = 4;
constexpr int kV41LayersMin = 4;  // window, window, cut, one above
constexpr std::int64_t kEngramRowBytes = kEngramDim + kEngramDim / kRowScaleBlock;

int scaled(int value, int numerator, int denominator, int multiple) {
  const auto exact = std::int64_t{value} * numerator / denominator;
  return static_cast<int>(std::max<std::int64_t>(exact / multiple, 1)) * multiple;
}

Shape shape_of(const SynthOptions& options) {
  Shape shape = options.like == SynthLike::kV4Flash ? kV4Flash
                : options.like == SynthLike::kV4Pro ? kV4Pro
                                                    : kV41Flash;
  if (options.hidden) {
    const int real = shape.hidden;
    const int hidden = *options.hidden;
    shape.hidden = hidden;
    shape.heads = scaled(shape.heads, hidden, real, shape.o_groups);
    for (int* const width :
         {&shape.q_lora, &shape.o_lora, &shape.intermediate, &shape.markov_rank}) {
      *width = scaled(*width, hidden, real, kFp4Block);
    }
  }
  if (options.experts) {
    const bool v41 = options.like == SynthLike::kV41Flash;
    shape.draft_experts = v41 ? std::max(1, *options.experts / 3) : *options.experts;
    shape.experts = *options.experts;
  }
  shape.draft_chosen = std::min(shape.draft_chosen, shape.draft_experts);
  shape.layers = options.layers.value_or(shape.layers);
  return shape;
}

Result<void> check_size(const char* name, std::int64_t size, std::int64_t low, std::int64_t high) {
  if (size < low || size > high) {
    return fail(Code::kInvalidArgument, fmt::format("want {} to {}, got {}", low, high, size),
                name);
  }
  return {};
}

Result<void> check(const SynthOptions& options) {
  const int layers_min = options.like == SynthLike::kV41Flash ? kV41LayersMin : 1;
  GALLEY_CHECK_OK(
      check_size("layers", options.layers.value_or(layers_min), layers_min, kSynthLayersMax));
  GALLEY_CHECK_OK(
      check_size("hidden", options.hidden.value_or(kFp4Block), kFp4Block, kSynthHiddenMax));
  if (options.hidden.value_or(kFp4Block) % kFp4Block != 0) {
    return fail(Code::kInvalidArgument,
                fmt::format("{} is not a multiple of {}, an FP4 block", *options.hidden, kFp4Block),
                "hidden");
  }
  GALLEY_CHECK_OK(check_size("experts", options.experts.value_or(1), 1, kSynthExpertsMax));
  GALLEY_CHECK_OK(check_size("engram", options.engram_bytes, 0, kSynthEngramBytesMax));
  return check_size("vocabulary", options.vocabulary, 2, kSynthVocabularyMax);
}

Json last_layers(int layers, int lowest) {
  Json targets = Json::array();
  for (int layer = std::max(lowest, layers - 3); layer < layers; ++layer) {
    targets.push_back(layer);
  }
  return targets;
}

Json common_fields(const SynthOptions& options, const Shape& shape) {
  return {{"vocab_size", options.vocabulary},
          {"hidden_size", shape.hidden},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads},
          {"num_key_value_heads", 1},
          {"head_dim", 512},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", shape.q_lora},
          {"o_groups", shape.o_groups},
          {"o_lora_rank", shape.o_lora},
          {"sliding_window", 128},
          {"index_n_heads", shape.index_heads},
          {"index_head_dim", 128},
          {"index_topk", shape.index_topk},
          {"n_routed_experts", shape.experts},
          {"num_experts_per_tok", std::min(6, shape.experts)},
          {"n_shared_experts", 1},
          {"moe_intermediate_size", shape.intermediate},
          {"scoring_func", "sqrtsoftplus"},
          {"topk_method", "noaux_tc"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", shape.routed_scale},
          {"swiglu_limit", 10.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"max_position_embeddings", 1'048'576},
          {"rope_theta", 10'000},
          {"compress_rope_theta", 160'000},
          {"hc_mult", 4},
          {"hc_sinkhorn_iters", 20},
          {"hc_eps", 1e-6},
          {"num_nextn_predict_layers", kDraftStages},
          {"dspark_block_size", 5},
          // Any id does that no prompt uses; the makers took a reserved one, too.
          {"dspark_noise_token_id", options.vocabulary - 1},
          {"dspark_markov_rank", shape.markov_rank}};
}

Json yarn(const char* type_key) {
  return {{type_key, "yarn"},
          {"factor", 16},
          {"beta_fast", 32},
          {"beta_slow", 1},
          {"original_max_position_embeddings", 65'536}};
}

Json quantisation(int block) {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"scale_fmt", "ue8m0"},
          {"weight_block_size", {block, block}}};
}

Json v4_config(const SynthOptions& options, const Shape& shape) {
  Json json = {{"architectures", {"DeepseekV4ForCausalLM"}},
               {"model_type", "deepseek_v4"},
               {"torch_dtype", "bfloat16"},
               {"bos_token_id", 0},
               {"eos_token_id", 1}};
  json.update(common_fields(options, shape));
  Json ratios = Json::array();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const int first = options.like == SynthLike::kV4Pro ? 128 : 0;
    ratios.push_back(layer < 2 ? first : layer % 2 == 0 ? 4 : 128);
  }
  ratios.insert(ratios.end(), kDraftStages, 0);
  json["compress_ratios"] = ratios;
  json["num_hash_layers"] = std::min(3, shape.layers);
  json["rms_norm_eps"] = 1e-6;
  json["rope_scaling"] = yarn("type");
  json["dspark_target_layer_ids"] = last_layers(shape.layers, 0);
  json["expert_dtype"] = "fp4";
  json["quantization_config"] = quantisation(128);
  return json;
}

// Layers of V4.1 by their distance to the cut, which lies in the middle: sources every six below,
// lists every four above.
Json v41_config(const SynthOptions& options, const Shape& shape) {
  const int cut = shape.layers / 2;
  Json ratios = Json::array();
  Json kv_sources = Json::array();
  Json index_sources = Json::array();
  Json engram_layers = Json::array({1});
  for (int layer = 0; layer < shape.layers; ++layer) {
    ratios.push_back(layer < 2 ? 0 : layer < cut ? 2 : 1);
    const bool source = layer == cut || (layer >= 2 && layer < cut && (layer - 2) % 6 == 0);
    if (source) {
      kv_sources.push_back(layer);
    }
    if (source || (layer > cut && (layer - cut) % 4 == 0)) {
      index_sources.push_back(layer);
    }
    if (layer == 14 && layer < cut) {
      engram_layers.push_back(layer);
    }
  }
  ratios.insert(ratios.end(), kDraftStages, 0);

  const std::int64_t compressed =
      std::max<std::int64_t>(1, std::int64_t{options.vocabulary} * 99'092 / 129'280);
  const std::int64_t columns = std::int64_t{kEngramNgram - 1} * kEngramHeads;
  const std::int64_t buckets = std::max<std::int64_t>(
      64, options.engram_bytes / std::ssize(engram_layers) / columns / kEngramRowBytes);
  Json rows = Json::array();
  for (const auto& layout :
       kernels::reference::engram_layouts({.layers = engram_layers.get<std::vector<int>>(),
                                           .vocabulary = buckets,
                                           .ngram = kEngramNgram,
                                           .heads = kEngramHeads,
                                           .compressed_vocabulary = compressed})) {
    rows.push_back(layout.rows);
  }
  Json text = common_fields(options, shape);
  text["compress_ratios"] = ratios;
  text["kv_source_layer_ids"] = kv_sources;
  text["index_source_layer_ids"] = index_sources;
  text["candidate_source_layer_id"] = cut;
  text["candidate_topk_blocks"] = 2048;
  text["candidate_block_size"] = 8;
  text["gate_temp"] = 1.0;
  text["rms_norm_eps"] = 1e-20;
  text["rope_scaling"] = yarn("rope_type");
  text["engram_layer_ids"] = engram_layers;
  text["engram_num_embeddings"] = rows;
  text["engram_max_ngram_size"] = kEngramNgram;
  text["engram_n_heads"] = kEngramHeads;
  text["engram_head_dim"] = kEngramDim;
  text["engram_vocab_size"] = buckets;
  text["engram_compressed_vocab_size"] = compressed;
  text["engram_pad_token_id"] = 2;
  text["dspark_target_layer_ids"] = last_layers(shape.layers, cut);
  text["dspark_n_routed_experts"] = shape.draft_experts;
  text["dspark_num_experts_per_tok"] = shape.draft_chosen;
  Json quantised = quantisation(32);
  quantised["expert_dtype"] = "fp4";
  return {{"architectures", {"DeepseekV41ForCausalLM"}},
          {"model_type", "deepseek_v41"},
          {"torch_dtype", "bfloat16"},
          {"pad_token_id", 2},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"text_config", text},
          {"quantization_config", quantised}};
}

// ---- values
// -----------------------------------------------------------------------------------------------------

// Nearly normal numbers as sums of four bytes: whole, so that every machine makes the same ones.
constexpr int kSums = 4 * 255 + 1;
constexpr float kSumMean = 510.0F;
constexpr float kSumDeviation = 147.8F;  // sqrt(4 * (256^2 - 1) / 12)
constexpr float kNormalMax = kSumMean / kSumDeviation;

float normal_of(int sum) {
  return (static_cast<float>(sum) - kSumMean) / kSumDeviation;
}

// Number `index` of the tensor `stream`.
class Noise {
 public:
  Noise(Seed seed, std::string_view tensor)
      : seed_(seed), stream_(XXH3_64bits(tensor.data(), tensor.size())) {}

  // Sums of four bytes of elements [begin, begin + sums.size()), begin a multiple of 4.
  void fill(std::int64_t begin, std::span<std::uint16_t> sums) const {
    for (std::size_t i = 0; i < sums.size(); i += 4) {
      const RandomBlock block =
          random_block(seed_, stream_, (static_cast<std::uint64_t>(begin) + i) / 4);
      for (std::size_t k = 0; k < std::min<std::size_t>(4, sums.size() - i); ++k) {
        const std::uint32_t word = block[k];
        sums[i + k] = static_cast<std::uint16_t>((word & 255U) + (word >> 8U & 255U) +
                                                 (word >> 16U & 255U) + (word >> 24U));
      }
    }
  }
  // Whether a channel is one of the large ones.
  [[nodiscard]] bool outlier(std::int64_t channel) const {
    constexpr std::uint64_t kOutliers = std::uint64_t{1} << 63U;  // beyond every element
    return random_block(seed_, stream_, kOutliers | static_cast<std::uint64_t>(channel))[0] %
               kOutlierEvery ==
           0;
  }
  [[nodiscard]] std::uint32_t word(std::uint64_t index) const {
    return random_block(seed_, stream_, index)[0];
  }

 private:
  Seed seed_;
  std::uint64_t stream_;
};

// mean + deviation * normal; channels (columns) that are outliers are kOutlier times that.
struct Law {
  float mean = 0.0F;
  float deviation = 1.0F;
  bool outliers = false;
  bool skewed_rows = false;  // router: some rows are larger than others
};

// Deviations keep activations near one through the layers, and logits near the goldens' (2.5).
Law law_of(const TensorSpec& spec) {
  const std::string_view name = spec.name;
  const auto ends = [name](std::string_view end) { return name.ends_with(end); };
  const std::int64_t columns = spec.shape.back();
  const float unit = 1.0F / std::sqrt(static_cast<float>(columns));
  if (ends("norm.weight") || ends("q_weight") || ends("k_weight")) {
    return {.mean = 1.0F, .deviation = 0.1F, .outliers = true};
  }
  if (ends("_scale")) {
    return {.mean = 1.0F, .deviation = 0.1F};
  }
  if (ends("_base") || ends("attn_sink") || ends(".ape")) {
    return {.deviation = 0.5F};
  }
  if (ends("gate.bias") || ends("gate.bias_vl")) {
    return {.deviation = 0.1F};
  }
  if (ends("ffn.gate.weight")) {
    return {.deviation = unit, .skewed_rows = true};
  }
  if (name == "embed.weight" || ends("engram.embed.weight") || ends("markov_w1.weight") ||
      ends("markov_head.embed.weight")) {
    return {.deviation = 1.0F};
  }
  if (name == "head.weight" || ends("markov_w2.weight") || ends("markov_head.head.weight")) {
    return {.deviation = 2.5F * unit};
  }
  if (ends("wo_b.weight") || ends("w2.weight")) {
    return {.deviation = 0.5F * unit, .outliers = true};
  }
  return {.deviation = unit, .outliers = spec.kind != TensorKind::kVector};
}

// One stored tensor of the file: the data of a spec, or its scales.
struct Entry {
  std::string name;
  Dtype dtype{};
  std::vector<std::int64_t> shape;
  const TensorSpec* spec{};
  bool scales = false;

  [[nodiscard]] std::int64_t bytes() const {
    auto count = static_cast<std::int64_t>(bytes_of(dtype));
    for (const std::int64_t side : shape) {
      count *= side;
    }
    return count;
  }
};

bool stored_in_f32(std::string_view name) {
  return name.find("hc_") != std::string_view::npos || name.ends_with("attn_sink") ||
         name.ends_with("gate.bias") || name.ends_with("gate.bias_vl") || name.ends_with(".ape");
}

void add_entries(const TensorSpec& spec, int quant_block, std::vector<Entry>& entries) {
  Entry data{.name = spec.name, .dtype = Dtype::kBf16, .shape = spec.shape, .spec = &spec};
  std::vector<std::int64_t> scales;
  switch (spec.kind) {
    case TensorKind::kVector:
      data.dtype = stored_in_f32(spec.name) ? Dtype::kF32 : Dtype::kBf16;
      break;
    case TensorKind::kMatrix:
      break;
    case TensorKind::kLinear8:
      data.dtype = Dtype::kF8E4m3;
      scales = {ceil_div(spec.shape[0], quant_block), ceil_div(spec.shape[1], quant_block)};
      break;
    case TensorKind::kLinear4:
      data.dtype = Dtype::kI8;
      data.shape[1] /= 2;
      scales = {spec.shape[0], spec.shape[1] / kFp4Block};
      break;
    case TensorKind::kRows8:
      data.dtype = Dtype::kF8E4m3;
      scales = {spec.shape[0], spec.shape[1] / kRowScaleBlock};
      break;
    case TensorKind::kIds:
      data.dtype = Dtype::kI64;
      break;
  }
  entries.push_back(std::move(data));
  if (!scales.empty()) {
    entries.push_back({.name = scale_name(spec.name),
                       .dtype = Dtype::kF8E8m0,
                       .shape = std::move(scales),
                       .spec = &spec,
                       .scales = true});
  }
}

// Makes a tensor's bytes, some rows at a time.
class TensorMaker {
 public:
  TensorMaker(const Entry& entry, const ModelConfig& config, Seed seed)
      : entry_(entry),
        config_(config),
        noise_(seed, entry.spec->name),
        law_(law_of(*entry.spec)),
        columns_(entry.spec->shape.back()) {
    large_.resize(static_cast<std::size_t>(columns_));
    for (std::int64_t c = 0; c < columns_ && law_.outliers; ++c) {
      large_[static_cast<std::size_t>(c)] = noise_.outlier(c) ? 1 : 0;
    }
    // A scale takes the largest value its block may hold to the end of the code's range. Powers of
    // two; blocks without an outlier use finer ones.
    const bool fp4 = entry.spec->kind == TensorKind::kLinear4;
    const float code_max = fp4 ? 6.0F : kernels::kE4m3Max;
    for (const bool large : {false, true}) {
      const float largest = law_.deviation * kNormalMax * (large ? kOutlier : 1.0F);
      scale_[large ? 1 : 0] = kernels::pow2_ceil(largest / code_max);
    }
    for (const int scale : {0, 1}) {
      for (const int size : {0, 1}) {
        if (size <= scale) {
          fill_codes(codes_[scale][size], fp4, size == 1 ? kOutlier : 1.0F, scale_[scale]);
        }
      }
    }
  }

  // Bytes of rows [begin, end), where a vector is one row.
  void rows(std::int64_t begin, std::int64_t end, std::vector<std::byte>& out) {
    out.clear();
    for (std::int64_t row = begin; row < end; ++row) {
      if (entry_.scales) {
        add_scales(row, out);
      } else if (entry_.dtype == Dtype::kI64) {
        add_ids(row, out);
      } else {
        add_values(row, out);
      }
    }
  }

  [[nodiscard]] std::int64_t row_count() const {
    return entry_.shape.size() == 1 ? 1 : entry_.shape[0];
  }
  [[nodiscard]] std::int64_t row_bytes() const { return entry_.bytes() / row_count(); }

 private:
  using Codes = std::array<std::uint8_t, kSums>;

  void fill_codes(Codes& codes, bool fp4, float size, float scale) const {
    for (int sum = 0; sum < kSums; ++sum) {
      const float value = normal_of(sum) * law_.deviation * size / scale;
      codes[static_cast<std::size_t>(sum)] =
          fp4 ? kernels::to_e2m1(value) : kernels::to_e4m3(value);
    }
  }

  template <class T>
  static void append(T value, std::vector<std::byte>& out) {
    const auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }

  // Columns that share a scale.
  [[nodiscard]] std::int64_t block() const {
    return entry_.spec->kind == TensorKind::kLinear8 ? config_.quant_block : kFp4Block;
  }
  [[nodiscard]] bool block_has_outlier(std::int64_t index) const {
    const std::int64_t begin = index * block();
    const std::int64_t end = std::min(columns_, begin + block());
    return std::any_of(large_.begin() + begin, large_.begin() + end,
                       [](std::uint8_t large) { return large != 0; });
  }

  void add_scales(std::int64_t, std::vector<std::byte>& out) const {
    for (std::int64_t b = 0; b < entry_.shape[1]; ++b) {
      const float scale = scale_[block_has_outlier(b) ? 1 : 0];
      out.push_back(static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23U));
    }
  }

  // Different experts for one token: a start and an odd step through a power of two would need one;
  // consecutive ones do as well.
  void add_ids(std::int64_t row, std::vector<std::byte>& out) const {
    const std::uint32_t first = noise_.word(static_cast<std::uint64_t>(row));
    for (std::int64_t k = 0; k < columns_; ++k) {
      append((std::int64_t{first} + k) % config_.experts, out);
    }
  }

  void add_values(std::int64_t row, std::vector<std::byte>& out) {
    sums_.resize(static_cast<std::size_t>(ceil_div(columns_, 4) * 4));
    noise_.fill(row * std::ssize(sums_), sums_);
    if (entry_.dtype == Dtype::kF8E4m3 || entry_.dtype == Dtype::kI8) {
      add_codes(out);
      return;
    }
    // Rows of a router between 1 and 3 times as large, most of them near 1.
    const float skew =
        static_cast<float>(noise_.word(~static_cast<std::uint64_t>(row)) >> 16U) * 0x1p-16F;
    const float size = law_.skewed_rows ? 1.0F + 2.0F * skew * skew * skew : 1.0F;
    for (std::int64_t c = 0; c < columns_; ++c) {
      const auto at = static_cast<std::size_t>(c);
      const float value = (law_.mean + law_.deviation * normal_of(sums_[at])) * size *
                          (large_[at] != 0 ? kOutlier : 1.0F);
      if (entry_.dtype == Dtype::kF32) {
        append(value, out);
      } else {
        append(kernels::to_bf16(value), out);
      }
    }
  }

  void add_codes(std::vector<std::byte>& out) const {
    const bool fp4 = entry_.dtype == Dtype::kI8;
    for (std::int64_t begin = 0; begin < columns_; begin += block()) {
      const auto& codes = codes_[block_has_outlier(begin / block()) ? 1 : 0];
      const std::int64_t end = std::min(columns_, begin + block());
      for (std::int64_t c = begin; c < end; c += fp4 ? 2 : 1) {
        const auto at = static_cast<std::size_t>(c);
        std::uint32_t code = codes[large_[at]][sums_[at]];
        if (fp4) {  // the even column in the low half
          code |= static_cast<std::uint32_t>(codes[large_[at + 1]][sums_[at + 1]]) << 4U;
        }
        out.push_back(static_cast<std::byte>(code));
      }
    }
  }

  const Entry& entry_;
  const ModelConfig& config_;
  const Noise noise_;
  const Law law_;
  const std::int64_t columns_;
  std::vector<std::uint8_t> large_;  // by column: 1 for an outlier
  float scale_[2]{};                 // of blocks without and with outliers
  Codes codes_[2][2]{};              // by block, then by channel
  std::vector<std::uint16_t> sums_;
};

// ---- files
// ------------------------------------------------------------------------------------------------------

std::unexpected<Error> cannot_write(const fs::path& path) {
  return fail(Code::kUnavailable, "cannot write it; is the disk full?", path.string());
}

Result<void> write_text(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) {
    return cannot_write(path);
  }
  return {};
}

class Progress {
 public:
  Progress(const SynthProgress& report, std::uint64_t total) : report_(report), total_(total) {}
  void add(std::size_t bytes) {
    done_ += bytes;
    if (report_) {
      report_(done_, total_);
    }
  }

 private:
  const SynthProgress& report_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

std::string header_of(std::span<const Entry> entries) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::int64_t offset = 0;
  for (const Entry& entry : entries) {
    const std::int64_t end = offset + entry.bytes();
    header[entry.name] = {{"dtype", std::string(name(entry.dtype))},
                          {"shape", entry.shape},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

Result<void> write_shard(const fs::path& path,
                         std::span<const Entry> entries,
                         const ModelConfig& config,
                         Seed seed,
                         Progress& progress) {
  constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
  std::ofstream out(path, std::ios::binary);
  const std::string header = header_of(entries);
  const auto length = static_cast<std::uint64_t>(header.size());
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  std::vector<std::byte> piece;
  for (const Entry& entry : entries) {
    TensorMaker maker(entry, config, seed);
    const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / maker.row_bytes());
    for (std::int64_t row = 0; row < maker.row_count(); row += step) {
      maker.rows(row, std::min(row + step, maker.row_count()), piece);
      out.write(reinterpret_cast<const char*>(piece.data()),
                static_cast<std::streamsize>(piece.size()));
      if (!out) {
        return cannot_write(path);
      }
      progress.add(piece.size());
    }
  }
  out.close();
  if (!out) {
    return cannot_write(path);
  }
  return {};
}

// Entries [begin, end) of each shard, none above kShardBytes unless it is a single tensor.
std::vector<std::span<const Entry>> split(std::span<const Entry> entries) {
  std::vector<std::span<const Entry>> shards;
  std::size_t begin = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > begin && bytes + entries[i].bytes() > kShardBytes) {
      shards.push_back(entries.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += entries[i].bytes();
  }
  shards.push_back(entries.subspan(begin));
  return shards;
}

// Neighbouring token ids share a compressed id, as spellings that differ in case or blanks do.
std::string token_map(const ModelConfig& config) {
  std::string bytes;
  for (std::int64_t id = 0; id < config.vocabulary; ++id) {
    const auto compressed =
        static_cast<std::uint32_t>(id * config.engram->compressed_vocabulary / config.vocabulary);
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bytes += static_cast<char>(compressed >> shift & 255U);
    }
  }
  return bytes;
}

Result<void> make_empty_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return fail(Code::kUnavailable, "cannot make it: " + error.message(), directory.string());
  }
  const bool empty = fs::is_empty(directory, error);
  if (error || !empty) {
    return fail(Code::kInvalidArgument, "is not an empty folder; nothing in it was touched",
                directory.string());
  }
  return {};
}

}  // namespace

Result<void> synth_fits(std::uint64_t bytes, std::uint64_t available) {
  if (available < kSynthOtherBytes || available - kSynthOtherBytes < bytes) {
    return fail(Code::kUnavailable,
                fmt::format("needs {:.2f} GB, {:.2f} GB are free", static_cast<double>(bytes) / 1e9,
                            static_cast<double>(available) / 1e9));
  }
  return {};
}

Result<SynthLike> synth_like(std::string_view name) {
  if (name == "v4-flash") {
    return SynthLike::kV4Flash;
  }
  if (name == "v4-pro") {
    return SynthLike::kV4Pro;
  }
  if (name == "v4.1-flash") {
    return SynthLike::kV41Flash;
  }
  return fail(Code::kInvalidArgument,
              fmt::format("'{}' is not v4-flash, v4-pro or v4.1-flash", name), "like");
}

Result<std::string> synth_config(const SynthOptions& options) {
  GALLEY_CHECK_OK(check(options));
  const Shape shape = shape_of(options);
  const Json json =
      options.like == SynthLike::kV41Flash ? v41_config(options, shape) : v4_config(options, shape);
  return json.dump(2) + '\n';
}

Result<void> synthesise(const SynthOptions& options,
                        const fs::path& directory,
                        const SynthProgress& report) {
  GALLEY_TRY(const std::string config_text, synth_config(options));
  GALLEY_TRY(ModelConfig config, parse_config(config_text));
  GALLEY_TRY(const ModelPlan plan, make_plan(std::move(config), kDraftStages));
  const std::vector<TensorSpec> specs = expected_tensors(plan);
  std::vector<Entry> entries;
  std::uint64_t total = 0;
  for (const TensorSpec& spec : specs) {
    add_entries(spec, plan.config.quant_block, entries);
  }
  for (const Entry& entry : entries) {
    total += static_cast<std::uint64_t>(entry.bytes());
  }
  GALLEY_CHECK_OK(make_empty_directory(directory));
  // Better said now than after an hour of writing.
  std::error_code error;
  if (const fs::space_info space = fs::space(directory, error); !error) {
    if (auto fits = synth_fits(total, space.available); !fits) {
      return fail(fits.error().code, std::move(fits.error().what), directory.string());
    }
  }
  Progress progress(report, total);
  const auto shards = split(entries);
  Json weight_map = Json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const Entry& entry : shards[i]) {
      weight_map[entry.name] = file;
    }
    GALLEY_CHECK_OK(write_shard(directory / file, shards[i], plan.config, options.seed, progress));
  }
  if (plan.config.engram) {
    GALLEY_CHECK_OK(write_text(directory / "engram_token_map.bin", token_map(plan.config)));
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  GALLEY_CHECK_OK(write_text(directory / "model.safetensors.index.json", index.dump(1) + '\n'));
  return write_text(directory / "config.json", config_text);
}

}  // namespace galley::model
