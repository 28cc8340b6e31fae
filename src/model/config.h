#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::model {

enum class Family : std::uint8_t { kV4, kV41 };

struct YarnConfig {
  double factor{};
  double beta_fast{};
  double beta_slow{};
  double original_positions{};
};

struct EngramConfig {
  std::vector<int> layers;
  std::vector<std::int64_t> table_rows;  // one a layer
  int ngram_max{};
  int heads{};
  int head_dim{};
  std::int64_t vocabulary{};  // bucket base
  std::int64_t compressed_vocabulary{};
  std::int64_t pad_token{};
};

// Who proposes tokens (spec model 9). Both hang behind Network::draft_context and draft.
enum class DraftKind : std::uint8_t {
  kDspark,  // stages that draft a block at once from features of target layers
  kMtp,     // the first V4 release: one layer that drafts one token from the final streams
};

struct DraftConfig {
  DraftKind kind = DraftKind::kDspark;
  int block{};  // gamma: drafts a block
  // DSpark only.
  std::int64_t noise_token{};
  std::vector<int> target_layers;
  int markov_rank{};

  int experts{};
  int experts_per_token{};
};

// Order of an image's tokens in the sequence (spec model 10.4, 10.5).
enum class ImageLayout : std::uint8_t {
  kRows,      // V4.1: row by row, causal
  kRowPairs,  // V4-Vision: two rows at a time, every token of a span sees the whole span
};

struct VisionConfig {
  int layers{};
  int hidden{};
  int heads{};
  int intermediate{};
  int patch{};
  double rope_theta{};
  int downsample{};
  int tokens_max{};
  std::int64_t pixels_min{};
  double ratio_max{};  // width / height above which an image is stretched; 0: none
  ImageLayout layout{};
};

// config.json of a checkpoint, typed and checked (spec model 1). Every size of the network comes
// from here.
struct ModelConfig {
  Family family{};
  int vocabulary{};
  int hidden{};
  int layers{};
  int heads{};
  int head_dim{};
  int rope_dims{};
  int q_lora_rank{};
  int o_lora_rank{};
  int o_groups{};
  int window{};
  std::vector<int> compress_ratios;  // of the layers; draft stages are cut off
  int index_heads{};
  int index_head_dim{};
  int index_topk{};
  std::vector<int> kv_sources;     // V4.1
  std::vector<int> index_sources;  // V4.1
  int candidate_source = -1;       // V4.1; -1: no second level
  int candidate_blocks{};
  int candidate_block_size{};
  int experts{};
  int experts_per_token{};
  int expert_intermediate{};
  double routed_scale{};
  double gate_temperature = 1.0;
  int hash_layers{};  // V4: the first N layers route by token id
  double swiglu_limit{};
  double norm_eps{};
  double rope_theta{};
  double compress_rope_theta{};
  YarnConfig yarn;
  int streams{};  // hc_mult
  int sinkhorn_passes{};
  double mix_eps{};
  std::int64_t positions_max{};
  int quant_block{};  // side of an FP8 weight block: 128 (V4), 32 (V4.1)
  std::optional<std::int64_t> image_token;
  std::optional<EngramConfig> engram;
  std::optional<DraftConfig> draft;  // the number of stages is counted in the checkpoint

  [[nodiscard]] bool drafts_by(DraftKind kind) const { return draft && draft->kind == kind; }
  std::optional<VisionConfig> vision;

  // Gates have a second bias, for rows of images (spec model 6.1).
  [[nodiscard]] bool image_routing() const { return family == Family::kV41 || vision; }
};

inline constexpr std::size_t kConfigBytesMax = std::size_t{4} << 20U;

// Error: kInvalidArgument; `where` is the field ("text_config.compress_ratios[3]"), `what` the
// expectation.
[[nodiscard]] Result<ModelConfig> parse_config(std::string_view json);
[[nodiscard]] Result<ModelConfig> load_config(const std::filesystem::path& directory);
// The text of config.json.
[[nodiscard]] Result<std::string> read_config(const std::filesystem::path& directory);

}  // namespace galley::model
