#include "model/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <optional>
#include <set>
#include <utility>
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/file.h"
#include "kernels/formats.h"
#include "kernels/packed_weight.h"
#include "model/arithmetic.h"
#include "model/engram.h"
#include "model/tensor_names.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kScale = ".scale";
constexpr std::size_t kShardsMax = 4096;
constexpr std::size_t kIndexBytesMax = std::size_t{256} << 20U;

// ---- what the plan needs
// ----------------------------------------------------------------------------------------

class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : config_(config) {}

  void add(std::string tensor, TensorKind kind, std::vector<std::int64_t> shape) {
    specs_.push_back({std::move(tensor), kind, std::move(shape)});
  }

  // An attention block with its norms and hyper-connections, and the experts: the backbone's or a
  // draft stage's.
  void add_block(const std::string& prefix, int experts, bool hash_routing) {
    const std::int64_t hidden = config_.hidden;
    const std::int64_t streams = config_.streams;
    const std::int64_t inner = std::int64_t{config_.heads} * config_.head_dim;
    const std::int64_t grouped = std::int64_t{config_.o_groups} * config_.o_lora_rank;
    for (const char* const site : {"attn", "ffn"}) {
      add(prefix + site + "_norm.weight", TensorKind::kVector, {hidden});
      add(prefix + "hc_" + site + "_fn", TensorKind::kVector,
          {(2 + streams) * streams, streams * hidden});
      add(prefix + "hc_" + site + "_base", TensorKind::kVector, {(2 + streams) * streams});
      add(prefix + "hc_" + site + "_scale", TensorKind::kVector, {3});
    }
    const std::string attention = prefix + "attn.";
    add(attention + "attn_sink", TensorKind::kVector, {config_.heads});
    add(attention + "q_norm.weight", TensorKind::kVector, {config_.q_lora_rank});
    add(attention + "kv_norm.weight", TensorKind::kVector, {config_.head_dim});
    add(attention + "wq_a.weight", TensorKind::kLinear8, {config_.q_lora_rank, hidden});
    add(attention + "wq_b.weight", TensorKind::kLinear8, {inner, config_.q_lora_rank});
    add(attention + "wkv.weight", TensorKind::kLinear8, {config_.head_dim, hidden});
    add(attention + "wo_a.weight", TensorKind::kLinear8, {grouped, inner / config_.o_groups});
    add(attention + "wo_b.weight", TensorKind::kLinear8, {hidden, grouped});
    add_experts(prefix + "ffn.", experts, hash_routing);
  }

  void add_compression(const std::string& prefix,
                       const LayerPlan& layer,
                       bool owns_rows,
                       bool owns_list) {
    const std::int64_t hidden = config_.hidden;
    const bool v4 = config_.family == Family::kV4;
    const int wide = layer.role == LayerRole::kCsa ? 2 : 1;
    if (owns_rows) {
      add_compressor(prefix + "compressor.", layer.ratio, wide, config_.head_dim, v4);
    }
    if (!owns_list) {
      return;
    }
    const std::string indexer = prefix + "indexer.";
    add(indexer + "wq_b.weight", TensorKind::kLinear8,
        {std::int64_t{config_.index_heads} * config_.index_head_dim, config_.q_lora_rank});
    add(indexer + "weights_proj.weight", TensorKind::kMatrix, {config_.index_heads, hidden});
    if (v4) {
      add_compressor(indexer + "compressor.", layer.ratio, wide, config_.index_head_dim, true);
    } else if (owns_rows) {
      add(indexer + "wk.weight", TensorKind::kMatrix, {config_.index_head_dim, config_.head_dim});
      add(indexer + "k_norm.weight", TensorKind::kVector, {config_.index_head_dim});
    }
  }

  void add_engram(const std::string& prefix, std::int64_t table_rows) {
    const EngramConfig& engram = *config_.engram;
    const std::int64_t columns =
        std::int64_t{engram.ngram_max - 1} * engram.heads * engram.head_dim;
    const std::int64_t hidden = config_.hidden;
    add(prefix + "embed.weight", TensorKind::kRows8, {table_rows, engram.head_dim});
    add(prefix + "wkv.weight", TensorKind::kLinear8, {(config_.streams + 1) * hidden, columns});
    add(prefix + "q_weight", TensorKind::kVector, {config_.streams, hidden});
    add(prefix + "k_weight", TensorKind::kVector, {config_.streams, hidden});
  }

  void add_head_mix(const std::string& prefix) {
    const std::int64_t streams = config_.streams;
    add(prefix + "hc_head_fn", TensorKind::kVector, {streams, streams * config_.hidden});
    add(prefix + "hc_head_base", TensorKind::kVector, {streams});
    add(prefix + "hc_head_scale", TensorKind::kVector, {1});
  }

  // What an MTP layer has besides its block (spec model 9.8).
  void add_mtp_ends() {
    const std::int64_t hidden = config_.hidden;
    const std::string prefix = "mtp.0.";
    for (const char* const norm : {"enorm", "hnorm", "norm"}) {
      add(prefix + norm + ".weight", TensorKind::kVector, {hidden});
    }
    for (const char* const projection : {"e_proj", "h_proj"}) {
      add(prefix + projection + ".weight", TensorKind::kLinear8, {hidden, hidden});
    }
    add_head_mix(prefix);
  }

  // What the first and the last DSpark stage have besides their blocks (spec model 9.4).
  void add_draft_ends(int stages) {
    const std::int64_t hidden = config_.hidden;
    const auto targets = std::ssize(config_.draft->target_layers);
    const bool v4 = config_.family == Family::kV4;
    add("mtp.0.main_proj.weight", TensorKind::kLinear8, {hidden, targets * hidden});
    add("mtp.0.main_norm.weight", TensorKind::kVector, {hidden});
    const std::string last = fmt::format("mtp.{}.", stages - 1);
    add(last + "norm.weight", TensorKind::kVector, {hidden});
    const std::int64_t rank = config_.draft->markov_rank;
    add(last + "markov_head." + (v4 ? "markov_w1" : "embed") + ".weight", TensorKind::kMatrix,
        {config_.vocabulary, rank});
    add(last + "markov_head." + (v4 ? "markov_w2" : "head") + ".weight", TensorKind::kMatrix,
        {config_.vocabulary, rank});
    add(last + "confidence_head.proj.weight", TensorKind::kMatrix, {1, hidden + rank});
    if (v4) {
      add_head_mix(last);
    }
  }

  void add_vision() {
    const VisionConfig& vision = *config_.vision;
    const std::int64_t width = vision.hidden;
    const std::int64_t hidden = config_.hidden;
    const std::int64_t cell = std::int64_t{vision.downsample} * vision.downsample * width;
    add("vision.patch_embed.proj.weight", TensorKind::kMatrix,
        {width, std::int64_t{3} * vision.patch * vision.patch});
    add("vision.patch_embed.proj.bias", TensorKind::kVector, {width});
    for (int block = 0; block < vision.layers; ++block) {
      const std::string prefix = fmt::format("vision.blocks.{}.", block);
      add(prefix + "norm1.weight", TensorKind::kVector, {width});
      add(prefix + "attn.wqkv.weight", TensorKind::kMatrix, {3 * width, width});
      add(prefix + "attn.wqkv.bias", TensorKind::kVector, {3 * width});
      add(prefix + "attn.wo.weight", TensorKind::kMatrix, {width, width});
      add(prefix + "attn.wo.bias", TensorKind::kVector, {width});
      add(prefix + "norm2.weight", TensorKind::kVector, {width});
      add(prefix + "mlp.w1.weight", TensorKind::kMatrix,
          {std::int64_t{2} * vision.intermediate, width});
      add(prefix + "mlp.w2.weight", TensorKind::kMatrix, {width, vision.intermediate});
    }
    add("vision.norm.weight", TensorKind::kVector, {width});
    add("aligner.w1.weight", TensorKind::kMatrix, {hidden, cell});
    add("aligner.w1.bias", TensorKind::kVector, {hidden});
    add("aligner.w2.weight", TensorKind::kMatrix, {hidden, hidden});
    add("aligner.w2.bias", TensorKind::kVector, {hidden});
    for (const char* const row : {"image_start", "image_newline", "image_end"}) {
      add(row, TensorKind::kVector, {hidden});
    }
    if (vision.layout == ImageLayout::kRowPairs) {
      add("image_pad", TensorKind::kVector, {hidden});
    }
  }

  [[nodiscard]] std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void add_compressor(const std::string& prefix, int ratio, int wide, std::int64_t width, bool v4) {
    const std::int64_t channels = wide * width;
    add(prefix + "wkv.weight", TensorKind::kMatrix, {channels, config_.hidden});
    if (ratio > 1) {
      add(prefix + "wgate.weight", TensorKind::kMatrix, {channels, config_.hidden});
    }
    if (v4) {
      add(prefix + "ape", TensorKind::kVector, {ratio, channels});
    }
    add(prefix + "norm.weight", TensorKind::kVector, {width});
  }

  void add_experts(const std::string& prefix, int experts, bool hash_routing) {
    const std::int64_t hidden = config_.hidden;
    const std::int64_t inner = config_.expert_intermediate;
    add(prefix + "gate.weight", TensorKind::kMatrix, {experts, hidden});
    if (hash_routing) {
      add(prefix + "gate.tid2eid", TensorKind::kIds,
          {config_.vocabulary, config_.experts_per_token});
    }
    // V4-Vision ships the text bias in hash layers too, where nothing reads it (spec model 10.5).
    if (!hash_routing || config_.image_routing()) {
      add(prefix + "gate.bias", TensorKind::kVector, {experts});
    }
    if (config_.image_routing()) {
      add(prefix + "gate.bias_vl", TensorKind::kVector, {experts});
    }
    for (int expert = 0; expert < experts; ++expert) {
      const std::string one = fmt::format("{}experts.{}.", prefix, expert);
      add(one + "w1.weight", TensorKind::kLinear4, {inner, hidden});
      add(one + "w2.weight", TensorKind::kLinear4, {hidden, inner});
      add(one + "w3.weight", TensorKind::kLinear4, {inner, hidden});
    }
    add(prefix + "shared_experts.w1.weight", TensorKind::kLinear8, {inner, hidden});
    add(prefix + "shared_experts.w2.weight", TensorKind::kLinear8, {hidden, inner});
    add(prefix + "shared_experts.w3.weight", TensorKind::kLinear8, {inner, hidden});
  }

  const ModelConfig& config_;
  std::vector<TensorSpec> specs_;
};

// Codes or scales of an engram table.
bool is_table(std::string_view tensor) {
  return tensor.find(".engram.embed.") != std::string_view::npos;
}

// ---- files
// ------------------------------------------------------------------------------------------------------

constexpr const char* kIndexFile = "model.safetensors.index.json";

// Which file holds each tensor, as the index says; empty without an index: one file holds all.
Result<std::map<std::string, std::string>> read_index(const fs::path& directory) {
  const fs::path index = directory / kIndexFile;
  const auto text = read_file(index.string(), Bytes(kIndexBytesMax));
  if (!text && text.error().code == Code::kNotFound) {
    return std::map<std::string, std::string>{};
  }
  if (!text) {
    return std::unexpected(text.error());
  }
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object()) {
    return fail(Code::kCorruption, "want an object with weight_map", index.string());
  }
  std::map<std::string, std::string> files;
  std::set<std::string> names;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    // A shard is a file of this directory; anything else would read where it must not.
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos ||
        file.get<std::string>().starts_with(".")) {
      return fail(Code::kCorruption, fmt::format("{} is not a file name", file.dump()),
                  index.string() + ": " + tensor);
    }
    names.insert(file.get<std::string>());
    files[tensor] = file.get<std::string>();
  }
  if (names.empty() || names.size() > kShardsMax) {
    return fail(Code::kCorruption,
                fmt::format("names {} shards, want 1 to {}", names.size(), kShardsMax),
                index.string());
  }
  return files;
}

// XXH3 with 128 bits over fields: a number is 8 bytes, least significant first; a text its length
// as a number, then its bytes.
class FieldHash {
 public:
  FieldHash() { XXH3_128bits_reset(state_.get()); }
  void add_number(std::uint64_t value) { update(&value, sizeof(value)); }
  void add_text(std::string_view text) {
    add_number(text.size());
    update(text.data(), text.size());
  }
  [[nodiscard]] std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  void update(const void* bytes, std::size_t count) {
    XXH3_128bits_update(state_.get(), bytes, count);
  }

  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
};

template <class T>
T load(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

bool all_finite(const TensorView& view) {
  const auto count = static_cast<std::size_t>(view.elements());
  for (std::size_t i = 0; i < count; ++i) {
    switch (view.dtype) {
      case Dtype::kF32:
        if (!std::isfinite(load<float>(view.bytes, i))) {
          return false;
        }
        break;
      case Dtype::kBf16:
        if (!std::isfinite(kernels::from_bf16(load<std::uint16_t>(view.bytes, i)))) {
          return false;
        }
        break;
      case Dtype::kF8E4m3:
        if ((load<std::uint8_t>(view.bytes, i) & 0x7fU) == 0x7fU) {
          return false;
        }
        break;
      case Dtype::kF8E8m0:
        if (load<std::uint8_t>(view.bytes, i) == 0xffU) {
          return false;
        }
        break;
      default:
        return true;
    }
  }
  return true;
}

// Above 0, and so small that its product with the largest code, 448, is finite.
bool all_scales_usable(const TensorView& view) {
  constexpr float kScaleMax = 0x1p119F;
  const auto count = static_cast<std::size_t>(view.elements());
  for (std::size_t i = 0; i < count; ++i) {
    const float scale = view.dtype == Dtype::kF32
                            ? load<float>(view.bytes, i)
                            : kernels::from_e8m0(load<std::uint8_t>(view.bytes, i));
    if (!(scale > 0 && scale <= kScaleMax)) {
      return false;
    }
  }
  return true;
}

// What a file that was never filled holds.
bool all_zeros(const TensorView& view) {
  return std::ranges::all_of(view.bytes, [](std::byte b) { return b == std::byte{0}; });
}

// The first value outside [0, limit).
std::optional<std::size_t> first_outside(const TensorView& view, std::int64_t limit) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.elements()); ++i) {
    const auto id = load<std::int64_t>(view.bytes, i);
    if (id < 0 || id >= limit) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string scale_name(std::string_view tensor) {
  std::string scale(tensor);
  if (scale.ends_with(kWeight)) {
    scale.resize(scale.size() - kWeight.size());
  }
  scale += kScale;
  return scale;
}

std::vector<TensorSpec> expected_tensors(const ModelPlan& plan) {
  const ModelConfig& config = plan.config;
  SpecList list(config);
  list.add("embed.weight", TensorKind::kMatrix, {config.vocabulary, config.hidden});
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerPlan& role = plan.layers[static_cast<std::size_t>(layer)];
    const std::string prefix = fmt::format("layers.{}.", layer);
    list.add_block(prefix, config.experts, role.hash_routing);
    list.add_compression(prefix + "attn.", role, role.kv_source == layer,
                         role.list_source == layer);
    if (role.engram) {
      const auto at =
          std::ranges::find(config.engram->layers, layer) - config.engram->layers.begin();
      list.add_engram(prefix + "engram.", config.engram->table_rows[static_cast<std::size_t>(at)]);
    }
  }
  list.add("norm.weight", TensorKind::kVector, {config.hidden});
  list.add("head.weight", TensorKind::kMatrix, {config.vocabulary, config.hidden});
  if (config.family == Family::kV4) {
    list.add_head_mix("");
  }
  if (config.draft && plan.draft_stages > 0) {
    for (int stage = 0; stage < plan.draft_stages; ++stage) {
      list.add_block(fmt::format("mtp.{}.", stage), config.draft->experts, false);
    }
    if (plan.drafts_by(DraftKind::kMtp)) {
      list.add_mtp_ends();
    } else {
      list.add_draft_ends(plan.draft_stages);
    }
  }
  if (config.vision) {
    list.add_vision();
  }
  return list.take();
}

Result<Checkpoint> Checkpoint::open(const fs::path& directory) {
  GALLEY_TRY(Checkpoint out, read(directory));
  if (std::vector<Problem> problems = out.structure_problems(); !problems.empty()) {
    return fail(Code::kCorruption, std::move(problems.front().what),
                std::move(problems.front().where));
  }
  return out;
}

Result<Checkpoint> Checkpoint::read(const fs::path& directory) {
  Checkpoint out;
  out.directory_ = directory;
  GALLEY_TRY(out.config_text_, read_config(directory));
  Result<ModelConfig> config = parse_config(out.config_text_);
  if (!config) {
    return in_step((directory / "config.json").string(), std::move(config).error());
  }
  GALLEY_TRY(out.index_, read_index(directory));
  std::set<std::string> shards;
  for (const auto& [tensor, file] : out.index_) {
    shards.insert(file);
  }
  if (shards.empty()) {
    shards.insert("model.safetensors");
  }
  for (const std::string& shard : shards) {
    GALLEY_CHECK_OK(out.add_file(directory / shard));
  }
  std::set<std::string_view> stages;
  for (const auto& [tensor, stored] : out.stored_) {
    constexpr std::string_view kStage = "mtp.";
    if (tensor.starts_with(kStage)) {
      const std::string_view rest = std::string_view(tensor).substr(kStage.size());
      stages.insert(rest.substr(0, rest.find('.')));
    }
  }
  Result<ModelPlan> plan = make_plan(std::move(*config), static_cast<int>(stages.size()));
  if (!plan) {
    Error error = std::move(plan).error();
    error.where = (directory / "config.json").string() + ": " + error.where;
    return std::unexpected(std::move(error));
  }
  out.plan_ = std::move(*plan);
  return out;
}

Result<void> Checkpoint::add_file(const fs::path& path) {
  GALLEY_TRY(Safetensors file, Safetensors::open(path));
  paths_.push_back(path);
  for (const auto& [stored, view] : file.tensors()) {
    auto parts = released_tensors(stored, view);
    if (!parts) {
      return fail(parts.error().code, parts.error().what, path.string() + ": " + stored);
    }
    for (NamedTensor& part : *parts) {
      const auto [it, inserted] = stored_.try_emplace(
          part.name,
          Stored{paths_.size() - 1, stored, std::move(part.view), std::move(part.owned)});
      if (!inserted) {
        return fail(Code::kCorruption,
                    "is stored a second time, want one of each tensor; see " + locate(part.name),
                    path.string() + ": " + stored);
      }
    }
  }
  files_.push_back(std::move(file));
  return {};
}

const TensorView* Checkpoint::find(std::string_view released_name) const {
  const auto it = stored_.find(released_name);
  return it == stored_.end() ? nullptr : &it->second.view;
}

std::string Checkpoint::fingerprint() const {
  FieldHash hash;
  hash.add_text("galley packed weights");
  hash.add_number(kernels::kPackedLayout);
  hash.add_text(config_text_);
  hash.add_number(files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) {
    hash.add_text(paths_[i].filename().string());
    hash.add_number(files_[i].file().bytes().size());
    hash.add_number(files_[i].file().modified_ns());
    const std::span<const std::byte> header = files_[i].header();
    hash.add_text({reinterpret_cast<const char*>(header.data()), header.size()});
  }
  return hash.hex();
}

Checkpoint::Sizes Checkpoint::sizes() const {
  Sizes sizes;
  for (const auto& [tensor, stored] : stored_) {
    (is_table(tensor)          ? sizes.tables
     : stored.owned != nullptr ? sizes.copied
                               : sizes.weights) += stored.view.bytes.size();
  }
  return sizes;
}

std::string Checkpoint::locate(std::string_view tensor) const {
  const auto it = stored_.find(tensor);
  if (it == stored_.end()) {
    return directory_.string() + ": " + std::string(tensor);
  }
  return paths_[it->second.file].string() + ": " + it->second.name;
}

std::string Checkpoint::describe_mismatch(const TensorSpec& spec) const {
  const TensorView* const view = find(spec.name);
  if (view == nullptr) {
    return "is missing";
  }
  const auto wrong_shape = [](const TensorView& got, const std::vector<std::int64_t>& want) {
    return fmt::format("has shape {}, want [{}]", got.shape_text(), fmt::join(want, ", "));
  };
  std::vector<std::int64_t> stored = spec.shape;
  std::vector<std::int64_t> scales;
  const bool wide = view->dtype == Dtype::kF32 || view->dtype == Dtype::kBf16;
  const bool linear = spec.kind == TensorKind::kLinear8 || spec.kind == TensorKind::kLinear4;
  if (linear && view->dtype == Dtype::kF8E4m3) {
    const std::int64_t block = plan_.config.quant_block;
    scales = {ceil_div(stored[0], block), ceil_div(stored[1], block)};
  } else if (spec.kind == TensorKind::kLinear4 && view->dtype == Dtype::kI8) {
    if (stored[1] % kFp4Block != 0) {
      return fmt::format("FP4 needs columns in blocks of {}, has {}", kFp4Block, stored[1]);
    }
    scales = {stored[0], stored[1] / kFp4Block};
    stored[1] /= 2;
  } else if (spec.kind == TensorKind::kRows8 && view->dtype == Dtype::kF8E4m3) {
    scales = {stored[0], stored[1] / kRowScaleBlock};
  } else if (spec.kind == TensorKind::kIds ? view->dtype != Dtype::kI64 : !wide) {
    return fmt::format("has dtype {}, which is not one this tensor can have", name(view->dtype));
  }
  if (view->shape != stored) {
    return wrong_shape(*view, stored);
  }
  if (scales.empty()) {
    return {};
  }
  const TensorView* const scale = find(scale_name(spec.name));
  if (scale == nullptr) {
    return "has no scales (" + scale_name(spec.name) + ")";
  }
  if (scale->dtype != Dtype::kF8E8m0 && scale->dtype != Dtype::kF32) {
    return fmt::format("has scales of dtype {}, want F8_E8M0 or F32", name(scale->dtype));
  }
  return scale->shape == scales ? std::string() : "scales: " + wrong_shape(*scale, scales);
}

std::vector<float> Checkpoint::vector(std::string_view tensor) const {
  const TensorView* const view = find(tensor);
  GALLEY_ASSERT(view != nullptr);
  std::vector<float> values(static_cast<std::size_t>(view->elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = view->dtype == Dtype::kF32
                    ? load<float>(view->bytes, i)
                    : kernels::from_bf16(load<std::uint16_t>(view->bytes, i));
  }
  return values;
}

kernels::Weight Checkpoint::matrix(std::string_view tensor) const {
  const TensorView* const view = find(tensor);
  GALLEY_ASSERT(view != nullptr);
  GALLEY_ASSERT(view->shape.size() == 2);
  kernels::Weight weight;
  weight.rows = static_cast<std::size_t>(view->shape[0]);
  weight.columns = static_cast<std::size_t>(view->shape[1]);
  weight.data = view->bytes.data();
  const TensorView* const scale = find(scale_name(tensor));
  switch (view->dtype) {
    case Dtype::kF32:
      weight.format = kernels::WeightFormat::kF32;
      return weight;
    case Dtype::kBf16:
      weight.format = kernels::WeightFormat::kBf16;
      return weight;
    case Dtype::kI8:
      weight.format = kernels::WeightFormat::kFp4;
      weight.columns *= 2;
      weight.block = kFp4Block;
      break;
    default: {
      const bool table = is_table(tensor);
      weight.format = table ? kernels::WeightFormat::kFp8Row : kernels::WeightFormat::kFp8Block;
      weight.block = static_cast<std::size_t>(table ? kRowScaleBlock : plan_.config.quant_block);
    }
  }
  weight.scale_format =
      scale->dtype == Dtype::kF32 ? kernels::ScaleFormat::kF32 : kernels::ScaleFormat::kE8m0;
  weight.scales = scale->bytes.data();
  return weight;
}

Result<kernels::DiskTable> Checkpoint::disk_table(std::string_view tensor) const {
  kernels::DiskTable table;
  table.shape = matrix(tensor);
  const auto place = [&](std::string_view part, std::uint64_t& offset) -> Result<RowFile> {
    const Stored& stored = stored_.find(part)->second;
    offset = files_[stored.file].offset_of(stored.view);
    return RowFile::open(paths_[stored.file]);
  };
  GALLEY_TRY(table.data, place(tensor, table.data_offset));
  if (table.shape.scale_format != kernels::ScaleFormat::kNone) {
    GALLEY_TRY(table.scales, place(scale_name(tensor), table.scales_offset));
  }
  table.shape.data = nullptr;
  table.shape.scales = nullptr;
  return table;
}

std::vector<std::int64_t> Checkpoint::ids(std::string_view tensor) const {
  const TensorView* const view = find(tensor);
  GALLEY_ASSERT(view != nullptr);
  std::vector<std::int64_t> values(static_cast<std::size_t>(view->elements()));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

std::vector<Checkpoint::Problem> Checkpoint::structure_problems() const {
  std::vector<Problem> problems;
  for (const TensorSpec& spec : expected_tensors(plan_)) {
    if (std::string problem = describe_mismatch(spec); !problem.empty()) {
      problems.push_back({locate(spec.name), std::move(problem)});
    }
  }
  return problems;
}

// A tensor that the index and the files do not agree on, and a drafter that is configured only: the
// network runs without either, slower or on other weights than were meant.
std::vector<Checkpoint::Problem> Checkpoint::index_problems() const {
  std::vector<Problem> problems;
  std::map<std::string, const Safetensors*> files;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    files[paths_[i].filename().string()] = &files_[i];
  }
  for (const auto& [tensor, file] : index_) {
    if (!files.at(file)->tensors().contains(tensor)) {
      problems.push_back({(directory_ / kIndexFile).string() + ": " + tensor, "is not in " + file});
    }
  }
  for (const auto& [file, content] : files) {
    for (const auto& [tensor, view] : content->tensors()) {
      if (!index_.empty() && !index_.contains(tensor)) {
        problems.push_back({(directory_ / file).string() + ": " + tensor,
                            fmt::format("is not in {}", kIndexFile)});
      }
    }
  }
  if (plan_.config.draft && plan_.draft_stages == 0) {
    problems.push_back({(directory_ / "config.json").string(),
                        "configures a drafter, and no tensor mtp.* is stored"});
  }
  return problems;
}

std::vector<Checkpoint::Problem> Checkpoint::value_problems() const {
  std::vector<Problem> problems;
  for (const auto& [tensor, stored] : stored_) {
    if (!all_finite(stored.view)) {
      problems.push_back({locate(tensor), "holds a value that is not finite"});
    } else if (tensor.ends_with(kScale) && !all_scales_usable(stored.view)) {
      problems.push_back({locate(tensor), "holds a scale that is not above 0 and up to 2^119"});
    } else if (stored.view.shape.size() == 2 && all_zeros(stored.view)) {
      problems.push_back({locate(tensor), "holds nothing but zeros"});
    }
  }
  for (const TensorSpec& spec : expected_tensors(plan_)) {
    const TensorView* const view = find(spec.name);
    if (spec.kind != TensorKind::kIds || view == nullptr || view->shape != spec.shape ||
        view->dtype != Dtype::kI64) {
      continue;
    }
    if (const auto at = first_outside(*view, plan_.config.experts)) {
      problems.push_back({locate(spec.name),
                          fmt::format("token {} goes to expert {}, want [0, {})",
                                      *at / size(plan_.config.experts_per_token),
                                      load<std::int64_t>(view->bytes, *at), plan_.config.experts)});
    }
  }
  return problems;
}

std::vector<Checkpoint::Problem> Checkpoint::engram_problems() const {
  std::vector<Problem> problems;
  if (!plan_.config.engram) {
    return problems;
  }
  if (const auto map = read_token_map(directory_, plan_.config); !map) {
    problems.push_back({map.error().where, map.error().what});
  }
  if (const auto layouts = hash_layouts(plan_.config); !layouts) {
    problems.push_back({(directory_ / "config.json").string() + ": " + layouts.error().where,
                        layouts.error().what});
  }
  return problems;
}

Result<std::vector<Checkpoint::Problem>> Checkpoint::verify(const fs::path& directory) {
  GALLEY_TRY(const Checkpoint checkpoint, read(directory));
  std::vector<Problem> problems = checkpoint.structure_problems();
  std::set<std::string, std::less<>> known;
  for (const TensorSpec& spec : expected_tensors(checkpoint.plan_)) {
    known.insert(spec.name);
    const TensorView* const view = checkpoint.find(spec.name);
    if (view != nullptr && bytes_of(view->dtype) == 1) {
      known.insert(scale_name(spec.name));
    }
  }
  for (const auto& [tensor, stored] : checkpoint.stored_) {
    if (!known.contains(tensor)) {
      const bool scale = tensor.ends_with(kScale);
      problems.push_back(
          {checkpoint.locate(tensor),
           scale ? "is not expected: no quantised weight has these scales" : "is not expected"});
    }
  }
  for (const auto& more :
       {checkpoint.index_problems(), checkpoint.value_problems(), checkpoint.engram_problems()}) {
    problems.insert(problems.end(), more.begin(), more.end());
  }
  return problems;
}

}  // namespace galley::model
