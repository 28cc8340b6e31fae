#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "kernels/row_format.h"
#include "model/config.h"

namespace galley::model {

// What a layer's long-range attention reads (spec model 1.3, 4).
enum class LayerRole : std::uint8_t {
  kWindow,   // window only
  kCsa,      // V4: own compressor (overlapping, ratio 4) and indexer
  kHca,      // V4: own compressor (ratio 128), attends every entry
  kFull,     // V4.1: owns compressor, index keys and list
  kReindex,  // V4.1: own list over another layer's keys
  kReuse,    // V4.1: another layer's rows and list
};
[[nodiscard]] std::string_view name(LayerRole role);

struct LayerPlan {
  LayerRole role{};
  int ratio{};           // tokens a compressed row; 0: none
  int kv_source = -1;    // layer whose compressed rows are read; -1: none
  int list_source = -1;  // layer whose top-k list is read; -1: none
  bool candidate_source = false;
  bool masked_by_candidates = false;  // list only from the candidate source's blocks
  bool engram = false;
  bool hash_routing = false;
  bool draft_capture = false;
  bool above_cut =
      false;  // in prefill only the kept rows are computed (the cut layer itself included)
};

// One kind of compressed row a block holds for one source layer.
struct CacheSource {
  int layer{};
  int rows_per_block{};
  kernels::RowFormat row;  // one compressed row
  kernels::RowFormat key;  // one index key; width 0: the layer has none
  std::size_t offset{};    // of this source's part in the block: all rows, then all keys
  std::size_t bytes{};

  [[nodiscard]] std::size_t key_bytes() const { return key.width == 0 ? 0 : key.bytes(); }
};

// What is stored where, in bytes (spec model 8).
struct CacheLayout {
  std::vector<CacheSource> sources;  // in layer order
  // That of a layer that owns rows.
  [[nodiscard]] const CacheSource& source(int layer) const;
  std::size_t block_bytes{};   // data of 128 tokens
  std::size_t block_stride{};  // what a block occupies: kernels want strides of whole rows

  int ring_rows{};  // window + drafts + 1
  kernels::RowFormat window_row;
  std::size_t ring_bytes{};     // one layer's ring
  std::size_t state_bytes{};    // the part worth keeping at a boundary: rings below the cut, one
                                // prefix of the slot
  std::size_t rebuilt_bytes{};  // rings above the cut and of the draft stages
  std::size_t raw_bytes{};      // unfinished groups of compressors
  std::size_t slot_bytes{};     // sum, padded to kSlotAlignment
};
inline constexpr std::size_t kSlotAlignment =
    64;  // a cache line: neighbouring slots never share one

// The one idea the rest hangs on (design 4): what each layer does, computed once from the
// configuration.
struct ModelPlan {
  ModelConfig config;
  int draft_stages{};
  std::vector<LayerPlan> layers;
  int cut = -1;  // prefill cut: first layer with one compressed row a token; -1: every layer runs
                 // on every token
  int keep{};    // tokens at the end of a prompt that run above the cut
  CacheLayout cache;
  std::string fingerprint;  // 32 hex digits; part of every cache key

  [[nodiscard]] bool drafts_by(DraftKind kind) const {
    return draft_stages > 0 && config.drafts_by(kind);
  }
  // Floats a row that the drafter takes from the backbone: the means of the target layers' streams
  // (DSpark), or all streams after the last layer (MTP); 0 without a drafter.
  [[nodiscard]] std::size_t feature_width() const {
    const std::size_t parts = drafts_by(DraftKind::kDspark) ? config.draft->target_layers.size()
                              : drafts_by(DraftKind::kMtp)
                                  ? static_cast<std::size_t>(config.streams)
                                  : 0;
    return parts * static_cast<std::size_t>(config.hidden);
  }
};

// `draft_stages`: number of `mtp.N` prefixes in the checkpoint. Error: kInvalidArgument naming the
// rule that fails.
[[nodiscard]] Result<ModelPlan> make_plan(ModelConfig config, int draft_stages);

// How the windows at a hit are made again, when only blocks are stored (spec model 8.5, design 5).
enum class WindowRebuild : std::uint8_t {
  kBounded,  // replay of one window: the makers' approximation, V4.1 only
  kExact,    // replay of one window for each layer below the cut: the very same windows
  kStored,   // none: the state of the hit is there
};
// What of a prompt is fed although blocks of its beginning are there.
struct HitRule {
  // At its end: its last token, and with a cut every token that runs above it (spec model 8.6).
  std::int64_t keep_tokens = 1;
  // Before the end of the hit, to rebuild windows. Until the last row of the replay is right in
  // layer n, n windows have to pass: layer n's rows are exact from `window` - 1 tokens later on
  // than those of layer n - 1, whose outputs they are made of.
  std::int64_t replay_tokens = 0;

  // Where the longest hit ends that a prompt of `tokens` may use, a multiple of 128.
  [[nodiscard]] std::int64_t longest_hit(std::int64_t tokens) const;
  // First token to feed after a hit that ends at `hit`, a multiple of 128. No window looks below
  // it.
  [[nodiscard]] std::int64_t replay_begin(std::int64_t hit) const;
};
[[nodiscard]] HitRule hit_rule(const ModelPlan& plan, WindowRebuild rebuild);

}  // namespace galley::model
