#include "model/tensor_names.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/core.h>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace galley::model {
namespace {

struct Renaming {
  std::string_view theirs;
  std::string_view released;
};

// Tensors outside the blocks.
constexpr Renaming kGlobals[] = {
    {"embed_tokens", "embed"},
    {"lm_head", "head"},
    {"hc_head.hc_fn", "hc_head_fn"},
    {"hc_head.hc_base", "hc_head_base"},
    {"hc_head.hc_scale", "hc_head_scale"},
};

// Tensors of a block, below "layers.N." or "mtp.S.". An entry renames a whole name or the part
// before a suffix that begins with a dot (".weight", ".scale").
constexpr Renaming kLeaves[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"attn_hc.fn", "hc_attn_fn"},
    {"attn_hc.base", "hc_attn_base"},
    {"attn_hc.scale", "hc_attn_scale"},
    {"ffn_hc.fn", "hc_ffn_fn"},
    {"ffn_hc.base", "hc_ffn_base"},
    {"ffn_hc.scale", "hc_ffn_scale"},
    {"hc_head.hc_fn", "hc_head_fn"},
    {"hc_head.hc_base", "hc_head_base"},
    {"hc_head.hc_scale", "hc_head_scale"},
    {"self_attn.q_a_proj", "attn.wq_a"},
    {"self_attn.q_a_norm", "attn.q_norm"},
    {"self_attn.q_b_proj", "attn.wq_b"},
    {"self_attn.kv_proj", "attn.wkv"},
    {"self_attn.kv_norm", "attn.kv_norm"},
    {"self_attn.o_a_proj", "attn.wo_a"},
    {"self_attn.o_b_proj", "attn.wo_b"},
    {"self_attn.sinks", "attn.attn_sink"},
    {"attn.sinks_param.weight", "attn.attn_sink"},
    {"self_attn.compressor.kv_proj", "attn.compressor.wkv"},
    {"self_attn.compressor.gate_proj", "attn.compressor.wgate"},
    {"self_attn.compressor.position_bias", "attn.compressor.ape"},
    {"self_attn.compressor.kv_norm", "attn.compressor.norm"},
    {"self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"},
    {"self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"},
    {"self_attn.compressor.indexer.kv_proj", "attn.indexer.compressor.wkv"},
    {"self_attn.compressor.indexer.gate_proj", "attn.indexer.compressor.wgate"},
    {"self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"},
    {"self_attn.compressor.indexer.kv_norm", "attn.indexer.compressor.norm"},
    {"mlp.gate.weight", "ffn.gate.weight"},
    {"mlp.gate.tid2eid", "ffn.gate.tid2eid"},
    {"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
    {"ffn.gate.e_score_correction_bias", "ffn.gate.bias"},
    {"mlp.shared_experts.gate_proj", "ffn.shared_experts.w1"},
    {"mlp.shared_experts.down_proj", "ffn.shared_experts.w2"},
    {"mlp.shared_experts.up_proj", "ffn.shared_experts.w3"},
    {"ffn.shared_experts.gate_proj", "ffn.shared_experts.w1"},
    {"ffn.shared_experts.down_proj", "ffn.shared_experts.w2"},
    {"ffn.shared_experts.up_proj", "ffn.shared_experts.w3"},
};

// All experts of a layer in one tensor [E, ...]. `first` and `second` stand one after the other
// along the outputs; no second: the tensor holds one matrix an expert.
struct Fusion {
  std::string_view theirs;
  std::string_view first;
  std::string_view second;
  bool transposed;  // [inputs, outputs]
};
constexpr Fusion kFusions[] = {
    {"mlp.experts.gate_up_proj", "w1", "w3", false},
    {"mlp.experts.down_proj", "w2", "", false},
    {"ffn.experts.gate_and_up_projs", "w1", "w3", true},
    {"ffn.experts.down_projs", "w2", "", true},
};

// "weight_scale_inv" and "_scale_inv" of a fused tensor are what the release calls ".scale".
constexpr std::string_view kTheirScale = ".weight_scale_inv";
constexpr std::string_view kFusedScale = "_scale_inv";

template <std::size_t n>
std::optional<std::string> renamed(const Renaming (&table)[n], std::string_view name) {
  for (const Renaming& entry : table) {
    if (name == entry.theirs ||
        (name.starts_with(entry.theirs) && name[entry.theirs.size()] == '.')) {
      return std::string(entry.released) + std::string(name.substr(entry.theirs.size()));
    }
  }
  return std::nullopt;
}

// Length of "layers.12." or "mtp.0.", or 0.
std::size_t block_prefix(std::string_view name) {
  for (const std::string_view kind : {"layers.", "mtp."}) {
    if (name.starts_with(kind)) {
      const std::size_t dot = name.find('.', kind.size());
      return dot == std::string_view::npos ? 0 : dot + 1;
    }
  }
  return 0;
}

// Rows [begin, begin + count) of a row-major matrix, or of its transpose.
TensorView take_rows(const TensorView& matrix, std::size_t begin, std::size_t count) {
  const std::size_t row_bytes = matrix.bytes.size() / static_cast<std::size_t>(matrix.shape[0]);
  return {matrix.dtype,
          {static_cast<std::int64_t>(count), matrix.shape[1]},
          matrix.bytes.subspan(begin * row_bytes, count * row_bytes)};
}

NamedTensor take_columns(const TensorView& matrix, std::size_t begin, std::size_t count) {
  const std::size_t element = bytes_of(matrix.dtype);
  const auto rows = static_cast<std::size_t>(matrix.shape[0]);
  const auto columns = static_cast<std::size_t>(matrix.shape[1]);
  auto bytes = std::make_shared<std::vector<std::byte>>(count * rows * element);
  for (std::size_t c = 0; c < count; ++c) {
    for (std::size_t r = 0; r < rows; ++r) {
      std::memcpy(bytes->data() + (c * rows + r) * element,
                  matrix.bytes.data() + (r * columns + begin + c) * element, element);
    }
  }
  NamedTensor out;
  out.view = {
      matrix.dtype, {static_cast<std::int64_t>(count), static_cast<std::int64_t>(rows)}, *bytes};
  out.owned = std::move(bytes);
  return out;
}

Result<std::vector<NamedTensor>> split(const std::string& prefix,
                                       const Fusion& fusion,
                                       std::string_view suffix,
                                       const TensorView& view) {
  const std::size_t parts = fusion.second.empty() ? 1 : 2;
  const std::size_t axis = fusion.transposed ? 2 : 1;
  const bool whole = view.shape.size() == 3 && std::ranges::min(view.shape) > 0;
  if (!whole || view.shape[axis] % static_cast<std::int64_t>(parts) != 0) {
    return fail(Code::kCorruption,
                fmt::format("has shape {}, want experts of {} equal matrices along axis {}",
                            view.shape_text(), parts, axis));
  }
  if (fusion.transposed && view.dtype != Dtype::kBf16 && view.dtype != Dtype::kF32) {
    return fail(Code::kCorruption,
                fmt::format("has dtype {}; experts stored as [experts, inputs, outputs] are read "
                            "in BF16 and F32 only",
                            name(view.dtype)));
  }
  const auto experts = static_cast<std::size_t>(view.shape[0]);
  const std::size_t expert_bytes = view.bytes.size() / experts;
  const std::size_t count = static_cast<std::size_t>(view.shape[axis]) / parts;
  std::vector<NamedTensor> out;
  for (std::size_t e = 0; e < experts; ++e) {
    const TensorView matrix{view.dtype,
                            {view.shape[1], view.shape[2]},
                            view.bytes.subspan(e * expert_bytes, expert_bytes)};
    for (std::size_t part = 0; part < parts; ++part) {
      NamedTensor tensor;
      if (fusion.transposed) {
        tensor = take_columns(matrix, part * count, count);
      } else {
        tensor.view = take_rows(matrix, part * count, count);
      }
      tensor.name = fmt::format("{}ffn.experts.{}.{}{}", prefix, e,
                                part == 0 ? fusion.first : fusion.second, suffix);
      out.push_back(std::move(tensor));
    }
  }
  return out;
}

}  // namespace

Result<std::vector<NamedTensor>> released_tensors(std::string_view stored, const TensorView& view) {
  constexpr std::string_view kModel = "model.";
  if (stored.starts_with(kModel)) {
    stored.remove_prefix(kModel.size());
  }
  const std::size_t prefix_size = block_prefix(stored);
  const std::string prefix(stored.substr(0, prefix_size));
  const std::string_view leaf = stored.substr(prefix_size);
  for (const Fusion& fusion : kFusions) {
    if (!prefix.empty() && leaf.starts_with(fusion.theirs)) {
      const std::string_view rest = leaf.substr(fusion.theirs.size());
      if (rest.empty() || rest == kFusedScale) {
        return split(prefix, fusion, rest.empty() ? ".weight" : ".scale", view);
      }
    }
  }
  std::string name = prefix.empty() ? renamed(kGlobals, leaf).value_or(std::string(leaf))
                                    : renamed(kLeaves, leaf).value_or(std::string(leaf));
  if (name.ends_with(kTheirScale)) {
    name.replace(name.size() - kTheirScale.size(), kTheirScale.size(), ".scale");
  }
  return std::vector<NamedTensor>{{prefix + name, view, nullptr}};
}

}  // namespace galley::model
