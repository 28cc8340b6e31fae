#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <utility>

#include "base/check.h"
#include "model/arithmetic.h"

namespace galley::model {
namespace {

using kernels::Round;

constexpr std::size_t kIndexBlock = 32;  // channels an FP4 scale of an index query

kernels::Quantiser quantiser_of(kernels::RowCodec codec) {
  switch (codec) {
    case kernels::RowCodec::kF32:
      return kernels::Quantiser::kNone;
    case kernels::RowCodec::kFp8:
      return kernels::Quantiser::kFp8;
    case kernels::RowCodec::kFp4:
      return kernels::Quantiser::kFp4;
    case kernels::RowCodec::kFp4E4m3:
      return kernels::Quantiser::kFp4E4m3;
  }
  std::unreachable();
}

float inverse_root(double value) {
  return static_cast<float>(std::pow(value, -0.5));
}

}  // namespace

Step::Step(const StepContext& context) : context_(context), config_(context.plan.config) {}

Step::Step(const StepContext& context, std::span<const SequenceRows> batch, CutMode cut)
    : Step(context) {
  batch_.assign(batch.begin(), batch.end());
  cut_ = context.plan.cut < 0 ? CutMode::kOff : cut;
  for (const SequenceRows& part : batch_) {
    sequences_.push_back({rows_, part.tokens.size(), part.sequence->length()});
    rows_ += part.tokens.size();
  }
  Arena& arena = context.arena;
  tokens_ = arena.array<std::int32_t>(rows_);
  positions_ = arena.array<std::int64_t>(rows_);
  window_begin_ = arena.array<std::int64_t>(rows_);
  is_image_ = arena.array<std::uint8_t>(rows_);
  const auto** const overrides = arena.array<const float*>(rows_);
  bool any_override = false;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const SequenceRows& part = batch_[i];
    std::vector<std::int32_t> history;
    for (std::size_t r = 0; r < part.tokens.size(); ++r) {
      const std::size_t t = sequences_[i].batch_begin + r;
      const std::int32_t token = part.tokens[r];
      GALLEY_ASSERT(token >= 0 && token < config_.vocabulary);
      tokens_[t] = token;
      positions_[t] = sequences_[i].first_position + static_cast<std::int64_t>(r);
      window_begin_[t] = part.window_begin;
      overrides[t] = part.embeddings.empty() ? nullptr : part.embeddings[r];
      is_image_[t] = static_cast<std::uint8_t>(
          overrides[t] != nullptr || (config_.image_token && token == *config_.image_token));
      any_override = any_override || overrides[t] != nullptr;
      if (config_.engram) {
        history.push_back(
            is_image_[t] != 0 ? -1 : context.weights.token_map[static_cast<std::size_t>(token)]);
      } else if (context.plan.drafts_by(DraftKind::kMtp)) {
        history.push_back(token);
      }
    }
    const std::int64_t end = part.sequence->length() + std::ssize(part.tokens);
    part.sequence->reserve(end);
    if (!history.empty()) {
      part.sequence->append_history(history);
    }
    longest = std::max(longest, end);
  }
  if (config_.vision && config_.vision->layout == ImageLayout::kRowPairs) {
    mark_spans();
  }
  const std::size_t streams = size(config_.streams);
  streams_ = arena.floats(rows_ * streams * size(config_.hidden));
  pre_ = arena.floats(rows_ * streams);
  next_pre_ = arena.floats(rows_ * streams);
  for (std::size_t t = 0; t < rows_; ++t) {
    std::fill_n(pre_ + t * streams, streams, 0.0F);
    pre_[t * streams] = 1.0F;
  }
  list_ = arena.array<std::int32_t>(rows_ * size(config_.index_topk));
  std::fill_n(list_, rows_ * size(config_.index_topk), -1);
  if (config_.candidate_source >= 0) {
    const auto per_byte = static_cast<std::int64_t>(config_.candidate_block_size) * 8;
    candidate_stride_ = static_cast<std::size_t>(longest / per_byte + 1);
    candidates_ = arena.array<std::uint8_t>(rows_ * candidate_stride_);
  }
  if (context.plan.drafts_by(DraftKind::kDspark)) {
    features_ = arena.floats(rows_ * context.plan.feature_width());
  }
  context.stream.embed({.rows = rows_,
                        .streams = streams,
                        .tokens = tokens_,
                        .overrides = any_override ? overrides : nullptr,
                        .table = context.weights.embed,
                        .out = streams_});
}

// Rows inside an image see all of it (spec model 4.5, V4-Vision).
void Step::mark_spans() {
  span_begin_ = context_.arena.array<std::int64_t>(rows_);
  span_end_ = context_.arena.array<std::int64_t>(rows_);
  for (std::size_t t = 0; t < rows_; ++t) {
    span_begin_[t] = positions_[t];
    span_end_[t] = positions_[t] + 1;
  }
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const std::int64_t first = sequences_[i].first_position;
    for (const ImageRange& image : batch_[i].images) {
      GALLEY_ASSERT(image.begin >= first);
      GALLEY_ASSERT(image.begin < image.end);
      GALLEY_ASSERT(image.end <= first + static_cast<std::int64_t>(sequences_[i].batch_rows));
      for (std::int64_t p = image.begin; p < image.end; ++p) {
        const std::size_t t = sequences_[i].batch_begin + static_cast<std::size_t>(p - first);
        span_begin_[t] = image.begin;
        span_end_[t] = image.end;
      }
    }
  }
}

// ---- pieces
// -----------------------------------------------------------------------------------------------------

Round Step::round() const {
  return context_.numerics.bf16 ? Round::kBf16 : Round::kNone;
}

std::size_t Step::activation_block() const {
  if (!context_.numerics.activation_quantise) {
    return 0;
  }
  return config_.family == Family::kV41 ? 32 : 128;
}

template <class T>
std::span<const T> Step::keep_alive(std::vector<T> values) {
  T* const copy = context_.arena.array<T>(values.size());
  std::ranges::copy(values, copy);
  return {copy, values.size()};
}

float* Step::linear(const float* x, const kernels::Weight& weight, bool quantised, bool rounded) {
  float* const y = context_.scratch.floats(rows_ * weight.rows);
  context_.stream.linear({.rows = rows_,
                          .x = x,
                          .x_stride = weight.columns,
                          .weight = weight,
                          .outputs = weight.rows,
                          .y = y,
                          .y_stride = weight.rows,
                          .activation_block = quantised ? activation_block() : 0,
                          .round = rounded ? round() : Round::kNone});
  return y;
}

float* Step::norm(const float* x, std::span<const float> weight, std::size_t width) {
  float* const y = context_.scratch.floats(rows_ * width);
  context_.stream.norm({.rows = rows_,
                        .width = width,
                        .x = x,
                        .x_stride = width,
                        .weight = weight,
                        .eps = static_cast<float>(config_.norm_eps),
                        .y = y,
                        .y_stride = width,
                        .round = round()});
  return y;
}

void Step::rope(float* x,
                std::size_t heads,
                std::size_t width,
                std::span<const float> frequencies,
                std::int64_t multiple,
                bool inverse) {
  context_.stream.rope({.rows = rows_,
                        .heads = heads,
                        .width = width,
                        .x = x,
                        .positions = positions_,
                        .multiple = multiple,
                        .frequencies = frequencies,
                        .inverse = inverse,
                        .round = round()});
}

// A window row, in place (spec model 2.3, 4.1).
void Step::quantise_row(float* x, std::size_t width) {
  if (!context_.numerics.kv_quantise) {
    return;
  }
  const kernels::RowFormat& format = context_.plan.cache.window_row;
  context_.stream.quantise({.rows = rows_,
                            .width = width,
                            .channels = format.plain,
                            .x = x,
                            .quantiser = quantiser_of(format.codec),
                            .block = format.block});
}

void Step::probe(int layer, int stage, const char* what, const float* values, std::size_t width) {
  if (context_.probe == nullptr) {
    return;
  }
  context_.stream.synchronise();
  context_.probe->floats(stage >= 0 ? fmt::format("m{}", stage) : fmt::format("{}", layer), what,
                         {values, rows_ * width}, rows_);
}

void Step::probe_integers(int layer,
                          int stage,
                          const char* what,
                          std::vector<std::int64_t> values) {
  context_.probe->integers(stage >= 0 ? fmt::format("m{}", stage) : fmt::format("{}", layer), what,
                           values, rows_);
}

std::vector<kernels::RingView> Step::rings(int layer, Sequence::Raw kind) const {
  std::vector<kernels::RingView> out;
  out.reserve(batch_.size());
  for (const SequenceRows& part : batch_) {
    out.push_back(part.sequence->raw(layer, kind));
  }
  return out;
}

// ---- a block (spec model 3)
// -------------------------------------------------------------------------------------

void Step::run_block(const BlockWeights& block, int layer, int stage) {
  const std::size_t n = size(config_.streams);
  const std::size_t hidden = size(config_.hidden);
  const bool v41 = config_.family == Family::kV41;
  for (const bool attention_site : {true, false}) {
    const Arena::Scope scope(context_.scratch);
    float* const post = context_.scratch.floats(rows_ * n);
    float* const comb = context_.scratch.floats(rows_ * n * n);
    float* const collapsed = context_.scratch.floats(rows_ * hidden);
    const MixWeights& mix = attention_site ? block.attention_mix : block.ffn_mix;
    context_.stream.mix({.rows = rows_,
                         .streams = n,
                         .hidden = hidden,
                         .x = streams_,
                         .weights = mix.view(),
                         .options = {.norm_eps = static_cast<float>(config_.norm_eps),
                                     .eps = static_cast<float>(config_.mix_eps),
                                     .sinkhorn_passes = config_.sinkhorn_passes},
                         .pre = next_pre_,
                         .post = post,
                         .comb = comb});
    // V4.1 collapses with the coefficients of the sub-layer before: one read of the streams yields
    // everything.
    context_.stream.collapse({.rows = rows_,
                              .streams = n,
                              .hidden = hidden,
                              .x = streams_,
                              .pre = v41 ? pre_ : next_pre_,
                              .y = collapsed,
                              .y_stride = hidden,
                              .round = round()});
    const float* const x =
        norm(collapsed, attention_site ? block.attention_norm : block.ffn_norm, hidden);
    const float* const y =
        attention_site ? attention(block, layer, stage, x) : experts(block, layer, stage, x);
    probe(layer, stage, attention_site ? "attn_out" : "ffn_out", y, hidden);
    context_.stream.expand({.rows = rows_,
                            .streams = n,
                            .hidden = hidden,
                            .y = y,
                            .post = post,
                            .comb = comb,
                            .x = streams_,
                            .round = round()});
    std::swap(pre_, next_pre_);
  }
  probe(layer, stage, "streams", streams_, n * hidden);
  probe(layer, stage, "pre", pre_, n);
}

float* Step::window_row(const BlockWeights& block,
                        const float* x,
                        std::span<const float> frequencies) {
  const std::size_t width = size(config_.head_dim);
  float* const kv = norm(linear(x, block.wkv), block.kv_norm, width);
  rope(kv, 1, width, frequencies);
  quantise_row(kv, width);
  return kv;
}

float* Step::attention(const BlockWeights& block, int layer, int stage, const float* x) {
  const LayerPlan role = stage >= 0 ? LayerPlan{} : context_.plan.layers[size(layer)];
  const std::size_t heads = size(config_.heads);
  const std::size_t width = size(config_.head_dim);
  const std::span<const float> frequencies =
      role.ratio > 0 ? context_.rope_compress : context_.rope_window;
  const float* const qr = norm(linear(x, block.wq_a), block.q_norm, size(config_.q_lora_rank));
  float* q = linear(qr, block.wq_b);
  if (config_.family == Family::kV4) {
    float* const normed = context_.scratch.floats(rows_ * heads * width);
    context_.stream.norm({.rows = rows_ * heads,
                          .width = width,
                          .x = q,
                          .x_stride = width,
                          .eps = static_cast<float>(config_.norm_eps),
                          .y = normed,
                          .y_stride = width,
                          .round = round()});
    q = normed;
  }
  rope(q, heads, width, frequencies);
  const float* const kv = window_row(block, x, frequencies);
  probe(layer, stage, "win_row", kv, width);
  if (stage < 0 && role.kv_source == layer && !compressed_before_cut_) {
    compress(block, layer, x);
  }
  compressed_before_cut_ = false;
  if (stage < 0 && role.list_source == layer) {
    select(block, layer, {x, qr});
  }
  std::vector<kernels::RingView> rings;
  std::vector<kernels::PagedView> compressed;
  for (const SequenceRows& part : batch_) {
    rings.push_back(stage >= 0 ? part.sequence->draft_window(stage) : part.sequence->window(layer));
    if (role.ratio > 0) {
      compressed.push_back(part.sequence->rows(role.kv_source));
    }
  }
  const auto kept_rings = keep_alive(std::move(rings));
  float* const o = context_.scratch.floats(rows_ * heads * width);
  context_.stream.attention(
      {.sequences = keep_alive(sequences_),
       .positions = positions_,
       .window_begin = window_begin_,
       .span_begin = span_begin_,
       .span_end = span_end_,
       .heads = heads,
       .width = width,
       .window = size(config_.window),
       .q = q,
       .kv = kv,
       .rings = kept_rings,
       .compressed = keep_alive(std::move(compressed)),
       .ratio = role.ratio,
       .list = role.list_source >= 0 ? list_ : nullptr,
       .list_stride = size(config_.index_topk),
       .block_rows_see_all = stage >= 0 && config_.drafts_by(DraftKind::kDspark),
       .scale = inverse_root(config_.head_dim),
       .sinks = block.sinks,
       .out = o,
       .round = round()});
  if (stage < 0) {  // a draft block's own rows are discarded
    context_.stream.ring_write({.sequences = keep_alive(sequences_), .rings = kept_rings, .x = kv});
  }
  return grouped_output(block, o, frequencies);
}

float* Step::grouped_output(const BlockWeights& block,
                            float* o,
                            std::span<const float> frequencies) {
  const std::size_t heads = size(config_.heads);
  const std::size_t width = size(config_.head_dim);
  rope(o, heads, width, frequencies, 1, true);
  const std::size_t groups = size(config_.o_groups);
  const std::size_t rank = size(config_.o_lora_rank);
  float* const z = context_.scratch.floats(rows_ * groups * rank);
  context_.stream.linear({.rows = rows_,
                          .x = o,
                          .x_stride = heads * width,
                          .weight = block.wo_a,
                          .parts = groups,
                          .outputs = groups * rank,
                          .y = z,
                          .y_stride = groups * rank,
                          .round = round()});
  return linear(z, block.wo_b);
}

float* Step::experts(const BlockWeights& block, int layer, int stage, const float* x) {
  const bool draft = stage >= 0;
  const std::size_t count = block.experts.size();
  const std::size_t chosen =
      size(draft ? config_.draft->experts_per_token : config_.experts_per_token);
  const float* const logits = linear(x, block.gate, false, false);
  auto* const ids = context_.scratch.array<std::int32_t>(rows_ * chosen);
  float* const weights = context_.scratch.floats(rows_ * chosen);
  context_.stream.route({.rows = rows_,
                         .experts = count,
                         .chosen = chosen,
                         .logits = logits,
                         .temperature = static_cast<float>(config_.gate_temperature),
                         .scale = static_cast<float>(config_.routed_scale),
                         .bias = block.gate_bias,
                         .image_bias = block.gate_bias_image,
                         .is_image = is_image_,
                         .table = block.gate_table.empty() ? nullptr : block.gate_table.data(),
                         .tokens = tokens_,
                         .expert_ids = ids,
                         .weights = weights});
  if (context_.probe != nullptr) {
    probe(layer, stage, "router_w", weights, chosen);
    probe_integers(layer, stage, "router_idx",
                   std::vector<std::int64_t>(ids, ids + rows_ * chosen));
  }
  float* const y = context_.scratch.floats(rows_ * size(config_.hidden));
  context_.stream.experts({.rows = rows_,
                           .hidden = size(config_.hidden),
                           .intermediate = size(config_.expert_intermediate),
                           .chosen = chosen,
                           .x = x,
                           .experts = block.experts,
                           .shared = block.shared,
                           .expert_ids = ids,
                           .weights = weights,
                           .limit = static_cast<float>(config_.swiglu_limit),
                           .activation_block = activation_block(),
                           .y = y,
                           .round = round()});
  return y;
}

// ---- compression and selection (spec model 4.2 to 4.4)
// ----------------------------------------------------------

void Step::compress(const BlockWeights& block, int layer, const float* x) {
  if (config_.family == Family::kV4) {
    compress_v4(block, layer, x);
  } else {
    compress_v41(block, layer, x);
  }
}

// Raw projections, pooled per closed group; the raw rows are remembered for the groups that are
// still open.
float* Step::pool(const CompressorWeights& weights,
                  const LayerPlan& layer,
                  const float* x,
                  std::size_t width,
                  std::vector<kernels::RingView> values,
                  std::vector<kernels::RingView> gates) {
  float* const a = linear(x, weights.wkv, false, false);
  float* const g = linear(x, weights.wgate, false, false);
  if (!weights.ape.empty()) {
    context_.stream.position_bias({.rows = rows_,
                                   .width = weights.wgate.rows,
                                   .x = g,
                                   .positions = positions_,
                                   .bias = weights.ape,
                                   .period = size(layer.ratio)});
  }
  const auto sequences = keep_alive(sequences_);
  const auto value_rings = keep_alive(std::move(values));
  const auto gate_rings = keep_alive(std::move(gates));
  float* const pooled = context_.scratch.floats(rows_ * width);
  context_.stream.pool({.sequences = sequences,
                        .value_rings = value_rings,
                        .gate_rings = gate_rings,
                        .values = a,
                        .gates = g,
                        .width = width,
                        .ratio = layer.ratio,
                        .overlap = layer.role == LayerRole::kCsa,
                        .out = pooled,
                        .round = round()});
  context_.stream.ring_write({.sequences = sequences, .rings = value_rings, .x = a});
  context_.stream.ring_write({.sequences = sequences, .rings = gate_rings, .x = g});
  return pooled;
}

// Stores the rows that close a group, quantised: packing does it, or where blocks hold float32 the
// fake quantiser of the same format.
void Step::store(int layer, float* x, bool keys) {
  const CacheSource& source = context_.plan.cache.source(layer);
  const kernels::RowFormat& format = keys ? source.key : source.row;
  std::vector<kernels::PagedView> pages;
  std::vector<std::int64_t> floors;
  for (const SequenceRows& part : batch_) {
    pages.push_back(keys ? part.sequence->keys(layer) : part.sequence->rows(layer));
    floors.push_back(part.write_floor);
  }
  if (context_.numerics.kv_quantise && pages.front().format.codec == kernels::RowCodec::kF32) {
    context_.stream.quantise({.rows = rows_,
                              .width = format.width,
                              .channels = format.plain,
                              .x = x,
                              .quantiser = quantiser_of(format.codec),
                              .block = format.block});
  }
  context_.stream.paged_write({.sequences = keep_alive(sequences_),
                               .pages = keep_alive(std::move(pages)),
                               .write_floors = keep_alive(std::move(floors)),
                               .ratio = context_.plan.layers[size(layer)].ratio,
                               .x = x});
}

void Step::compress_v4(const BlockWeights& block, int layer, const float* x) {
  const LayerPlan& role = context_.plan.layers[size(layer)];
  const std::size_t width = size(config_.head_dim);
  float* const pooled = pool(block.compressor, role, x, width, rings(layer, Sequence::Raw::kValue),
                             rings(layer, Sequence::Raw::kGate));
  float* const row = norm(pooled, block.compressor.norm, width);
  rope(row, 1, width, context_.rope_compress, role.ratio);
  store(layer, row, false);
  if (role.role != LayerRole::kCsa) {
    return;
  }
  const std::size_t index_width = size(config_.index_head_dim);
  const CompressorWeights& index = block.indexer.compressor;
  float* const key =
      norm(pool(index, role, x, index_width, rings(layer, Sequence::Raw::kIndexValue),
                rings(layer, Sequence::Raw::kIndexGate)),
           index.norm, index_width);
  rope(key, 1, index_width, context_.rope_compress, role.ratio);
  context_.stream.quantise(
      {.rows = rows_, .width = index_width, .channels = index_width, .x = key, .hadamard = true});
  store(layer, key, true);
}

void Step::compress_v41(const BlockWeights& block, int layer, const float* x) {
  const LayerPlan& role = context_.plan.layers[size(layer)];
  const std::size_t width = size(config_.head_dim);
  const std::size_t index_width = size(config_.index_head_dim);
  const float* const pooled =
      role.ratio == 1 ? linear(x, block.compressor.wkv, false)
                      : pool(block.compressor, role, x, width, rings(layer, Sequence::Raw::kValue),
                             rings(layer, Sequence::Raw::kGate));
  float* const latent = norm(pooled, block.compressor.norm, width);
  // Index keys come from the latent before it is rotated.
  float* const key =
      norm(linear(latent, block.indexer.wk, false), block.indexer.k_norm, index_width);
  rope(key, 1, index_width, context_.rope_compress, role.ratio);
  rope(latent, 1, width, context_.rope_compress, role.ratio);
  store(layer, key, true);
  store(layer, latent, false);
}

void Step::select(const BlockWeights& block, int layer, const Attended& attended) {
  const LayerPlan& role = context_.plan.layers[size(layer)];
  const std::size_t heads = size(config_.index_heads);
  const std::size_t width = size(config_.index_head_dim);
  const std::size_t top_k = size(config_.index_topk);
  float* const q = linear(attended.qr, block.indexer.wq_b);
  rope(q, heads, width, context_.rope_compress);
  const bool v4 = config_.family == Family::kV4;
  if (v4 || context_.numerics.kv_quantise) {
    context_.stream.quantise({.rows = rows_ * heads,
                              .width = width,
                              .channels = width,
                              .x = q,
                              .quantiser = context_.numerics.kv_quantise
                                               ? kernels::Quantiser::kFp4
                                               : kernels::Quantiser::kNone,
                              .block = kIndexBlock,
                              .hadamard = v4});
  }
  const float* const weights = linear(attended.x, block.indexer.weights_proj, false);
  std::vector<kernels::PagedView> keys;
  keys.reserve(batch_.size());
  for (const SequenceRows& part : batch_) {
    keys.push_back(part.sequence->keys(role.kv_source));
  }
  float* const margin = context_.probe == nullptr ? nullptr : context_.scratch.floats(rows_);
  const bool second_level = role.candidate_source || role.masked_by_candidates;
  context_.stream.select(
      {.sequences = keep_alive(sequences_),
       .keys = keep_alive(std::move(keys)),
       .positions = positions_,
       .ratio = role.ratio,
       .heads = heads,
       .width = width,
       .q = q,
       .weights = weights,
       .weight_scale = static_cast<float>(std::pow(config_.index_head_dim, -0.5) *
                                          std::pow(config_.index_heads, -0.5)),
       .round = context_.numerics.kv_quantise ? round() : Round::kNone,
       .top_k = top_k,
       .list = list_,
       .candidates = second_level ? candidates_ : nullptr,
       .candidate_stride = candidate_stride_,
       .candidate_block = size(config_.candidate_block_size),
       .candidate_blocks_kept = size(config_.candidate_blocks),
       .publish_candidates = role.candidate_source,
       .margin = margin});
  if (context_.probe != nullptr) {
    probe(layer, -1, "topk_margin", margin, 1);
    probe_integers(layer, -1, "topk", std::vector<std::int64_t>(list_, list_ + rows_ * top_k));
    if (role.candidate_source) {
      probe_integers(
          layer, -1, "cand",
          std::vector<std::int64_t>(candidates_, candidates_ + rows_ * candidate_stride_));
    }
  }
}

// ---- engram (spec model 7)
// --------------------------------------------------------------------------------------

// Rows are known as soon as tokens are, so they are read while the layers below compute.
void Step::fetch_engram_rows() {
  const EngramConfig& engram = *config_.engram;
  const std::size_t columns = size((engram.ngram_max - 1) * engram.heads);
  std::vector<const std::int32_t*> histories;
  histories.reserve(batch_.size());
  for (const SequenceRows& part : batch_) {
    histories.push_back(part.sequence->history().data());
  }
  const auto sequences = keep_alive(sequences_);
  const auto kept_histories = keep_alive(std::move(histories));
  for (std::size_t i = 0; i < engram.layers.size(); ++i) {
    const EngramWeights& weights = *context_.weights.layers[size(engram.layers[i])].engram;
    const std::size_t count = rows_ * columns;
    auto* const ids = context_.arena.array<std::int64_t>(count);
    context_.disk.engram_hash(
        {.sequences = sequences,
         .histories = kept_histories,
         .layout = &weights.layout,
         .ngram = engram.ngram_max,
         .heads = engram.heads,
         .pad = context_.weights.token_map[static_cast<std::size_t>(engram.pad_token)],
         .row_ids = ids});
    auto* const data = context_.arena.array<std::byte>(count * weights.table.row_bytes());
    auto* const scales = context_.arena.array<std::byte>(count * weights.table.scale_bytes());
    context_.disk.read_rows({.rows = count,
                             .table = &weights.table,
                             .row_ids = ids,
                             .data = data,
                             .scales = scales,
                             .failed = &read_failed_});
    context_.disk.record(*context_.rows_read[i]);
    kernels::Weight rows = weights.table.shape;
    rows.rows = count;
    rows.data = data;
    rows.scales = scales;
    fetched_.push_back({ids, rows});
  }
}

void Step::engram(const EngramWeights& weights, int layer) {
  const std::vector<int>& layers = config_.engram->layers;
  const auto index = static_cast<std::size_t>(std::ranges::find(layers, layer) - layers.begin());
  const FetchedRows& fetched = fetched_[index];
  const Arena::Scope scope(context_.scratch);
  float* const rows = context_.scratch.floats(fetched.rows.rows * fetched.rows.columns);
  context_.stream.wait(*context_.rows_read[index]);
  context_.stream.widen({.weight = fetched.rows, .out = rows});
  const float* const kv = linear(rows, weights.wkv);
  const std::size_t n = size(config_.streams);
  float* const gates = context_.scratch.floats(rows_ * n);
  context_.stream.engram_add({.rows = rows_,
                              .streams = n,
                              .hidden = size(config_.hidden),
                              .kv = kv,
                              .gate = {.q_weight = weights.q_weight,
                                       .k_weight = weights.k_weight,
                                       .eps = static_cast<float>(config_.norm_eps)},
                              .is_image = is_image_,
                              .x = streams_,
                              .gates = gates,
                              .round = round()});
  if (context_.probe != nullptr) {
    probe(layer, -1, "engram_gate", gates, n);
    probe_integers(layer, -1, "engram_ids",
                   std::vector<std::int64_t>(fetched.ids, fetched.ids + fetched.rows.rows));
  }
}

// ---- the cut (spec model 8.6)
// -----------------------------------------------------------------------------------

namespace {

// First position of the rectangle, or 0 when every row counts.
std::int64_t rectangle_begin(const SequenceRows& part,
                             const ModelPlan& plan,
                             std::int64_t first_position) {
  if (part.prompt_tokens == 0 || first_position >= part.prompt_tokens) {
    return 0;
  }
  const int keep = part.keep > 0 ? part.keep : plan.keep;
  return std::max<std::int64_t>(0, part.prompt_tokens - keep);
}

}  // namespace

void Step::mask_above_cut() {
  // The layers below are enqueued and may still read the old bounds.
  auto* const bounds = context_.arena.array<std::int64_t>(rows_);
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const std::int64_t begin =
        rectangle_begin(batch_[i], context_.plan, sequences_[i].first_position);
    for (std::size_t r = 0; r < sequences_[i].batch_rows; ++r) {
      const std::size_t t = sequences_[i].batch_begin + r;
      const bool kept = positions_[t] >= begin;
      bounds[t] = kept ? std::max(window_begin_[t], begin) : positions_[t] + 1;
    }
  }
  window_begin_ = bounds;
}

// Latent, index key and compressed row of the cut layer come from every row; everything else only
// from the kept ones.
void Step::cross_cut(int layer) {
  std::vector<std::int32_t> kept;
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const std::int64_t begin =
        rectangle_begin(batch_[i], context_.plan, sequences_[i].first_position);
    for (std::size_t r = 0; r < sequences_[i].batch_rows; ++r) {
      const std::size_t t = sequences_[i].batch_begin + r;
      if (positions_[t] >= begin) {
        kept.push_back(static_cast<std::int32_t>(t));
      }
    }
  }
  if (kept.size() == rows_) {
    return mask_above_cut();
  }
  const BlockWeights& block = context_.weights.layers[size(layer)];
  const std::size_t hidden = size(config_.hidden);
  const Arena::Scope scope(context_.scratch);
  float* const collapsed = context_.scratch.floats(rows_ * hidden);
  context_.stream.collapse({.rows = rows_,
                            .streams = size(config_.streams),
                            .hidden = hidden,
                            .x = streams_,
                            .pre = pre_,
                            .y = collapsed,
                            .y_stride = hidden,
                            .round = round()});
  compress(block, layer, norm(collapsed, block.attention_norm, hidden));
  compressed_before_cut_ = true;
  drop_rows(kept);
  mask_above_cut();
}

void Step::drop_rows(const std::vector<std::int32_t>& kept) {
  GALLEY_ASSERT(span_begin_ == nullptr);  // no family has both a cut and spans that see themselves
  const std::size_t n = size(config_.streams);
  const std::size_t width = n * size(config_.hidden);
  Arena& arena = context_.arena;
  const std::span<const std::int32_t> indices = keep_alive(kept);
  float* const streams = arena.floats(kept.size() * width);
  float* const pre = arena.floats(kept.size() * n);
  context_.stream.gather({.rows = kept.size(),
                          .width = width,
                          .x = streams_,
                          .indices = indices.data(),
                          .y = streams});
  context_.stream.gather(
      {.rows = kept.size(), .width = n, .x = pre_, .indices = indices.data(), .y = pre});
  streams_ = streams;
  pre_ = pre;
  next_pre_ = arena.floats(kept.size() * n);
  // Host arrays that enqueued operations still read stay as they are; the remaining rows get new
  // ones.
  auto* const tokens = arena.array<std::int32_t>(kept.size());
  auto* const positions = arena.array<std::int64_t>(kept.size());
  auto* const window_begin = arena.array<std::int64_t>(kept.size());
  auto* const is_image = arena.array<std::uint8_t>(kept.size());
  for (std::size_t t = 0; t < kept.size(); ++t) {
    const auto from = static_cast<std::size_t>(kept[t]);
    tokens[t] = tokens_[from];
    positions[t] = positions_[from];
    window_begin[t] = window_begin_[from];
    is_image[t] = is_image_[from];
  }
  tokens_ = tokens;
  positions_ = positions;
  window_begin_ = window_begin;
  is_image_ = is_image;
  std::size_t begin = 0;
  for (kernels::SequenceView& sequence : sequences_) {
    const auto first = static_cast<std::int32_t>(sequence.batch_begin);
    const auto last = static_cast<std::int32_t>(sequence.batch_begin + sequence.batch_rows);
    const auto rows = static_cast<std::size_t>(
        std::ranges::count_if(kept, [&](std::int32_t t) { return t >= first && t < last; }));
    // Kept rows are the last of their sequence.
    sequence = {begin, rows,
                sequence.first_position + static_cast<std::int64_t>(sequence.batch_rows - rows)};
    begin += rows;
  }
  rows_ = kept.size();
  list_ = arena.array<std::int32_t>(rows_ * size(config_.index_topk));
}

// ---- the backbone
// -----------------------------------------------------------------------------------------------

void Step::capture(int layer) {
  if (features_ == nullptr) {
    return;
  }
  const std::vector<int>& targets = config_.draft->target_layers;
  const auto at = std::ranges::find(targets, layer) - targets.begin();
  const std::size_t hidden = size(config_.hidden);
  context_.stream.collapse({.rows = rows_,
                            .streams = size(config_.streams),
                            .hidden = hidden,
                            .x = streams_,
                            .y = features_ + static_cast<std::size_t>(at) * hidden,
                            .y_stride = targets.size() * hidden,
                            .round = round()});
}

void Step::run_layers() {
  const bool v41 = config_.family == Family::kV41;
  if (config_.engram) {
    fetch_engram_rows();
  }
  for (int layer = 0; layer < config_.layers; ++layer) {
    const LayerPlan& role = context_.plan.layers[size(layer)];
    const BlockWeights& block = context_.weights.layers[size(layer)];
    if (block.engram) {
      engram(*block.engram, layer);
    }
    if (layer == context_.plan.cut && cut_ == CutMode::kCompact) {
      cross_cut(layer);
      if (rows_ == 0) {
        return;
      }
    } else if (layer == context_.plan.cut && cut_ == CutMode::kMask) {
      mask_above_cut();
    }
    if (role.draft_capture && v41) {
      capture(layer);
    }
    run_block(block, layer, -1);
    if (role.draft_capture && !v41) {
      capture(layer);
    }
    if (context_.probe != nullptr) {
      const std::size_t n = size(config_.streams);
      context_.probe->after_layer(layer, {streams_, rows_ * n * size(config_.hidden)},
                                  {pre_, rows_ * n});
    }
  }
  if (context_.plan.drafts_by(DraftKind::kMtp)) {
    features_ = streams_;  // nothing writes them any more
  }
}

// V4: the weights of the last collapse have parameters of their own.
void Step::head_mix(const MixWeights& mix) {
  context_.stream.mix({.rows = rows_,
                       .streams = size(config_.streams),
                       .hidden = size(config_.hidden),
                       .x = streams_,
                       .weights = mix.view(),
                       .options = {.norm_eps = static_cast<float>(config_.norm_eps),
                                   .eps = static_cast<float>(config_.mix_eps)},
                       .pre = pre_});
}

void Step::run_head(std::size_t tail) {
  if (rows_ == 0) {
    return;
  }
  const std::size_t n = size(config_.streams);
  const std::size_t hidden = size(config_.hidden);
  if (config_.family == Family::kV4) {
    head_mix(context_.weights.head_mix);
  }
  float* const collapsed = context_.scratch.floats(rows_ * hidden);
  context_.stream.collapse({.rows = rows_,
                            .streams = n,
                            .hidden = hidden,
                            .x = streams_,
                            .pre = pre_,
                            .y = collapsed,
                            .y_stride = hidden,
                            .round = round()});
  const float* h = norm(collapsed, context_.weights.norm, hidden);
  std::vector<std::int32_t> wanted;
  for (const kernels::SequenceView& sequence : sequences_) {
    const std::size_t skip = sequence.batch_rows > tail ? sequence.batch_rows - tail : 0;
    for (std::size_t r = skip; r < sequence.batch_rows; ++r) {
      wanted.push_back(static_cast<std::int32_t>(sequence.batch_begin + r));
    }
  }
  logits_rows_ = wanted.size();
  if (wanted.size() != rows_) {
    float* const some = context_.scratch.floats(wanted.size() * hidden);
    context_.stream.gather({.rows = wanted.size(),
                            .width = hidden,
                            .x = h,
                            .indices = keep_alive(wanted).data(),
                            .y = some});
    h = some;
  }
  logits_ = context_.arena.floats(logits_rows_ * size(config_.vocabulary));
  context_.stream.linear({.rows = logits_rows_,
                          .x = h,
                          .x_stride = hidden,
                          .weight = context_.weights.head,
                          .outputs = size(config_.vocabulary),
                          .y = logits_,
                          .y_stride = size(config_.vocabulary)});
}

std::vector<ForwardResult::Part> Step::parts() const {
  std::vector<ForwardResult::Part> out;
  out.reserve(sequences_.size());
  for (const kernels::SequenceView& sequence : sequences_) {
    out.push_back({sequence.batch_begin, sequence.batch_rows, sequence.first_position});
  }
  return out;
}

// ---- drafting (spec model 9)
// ------------------------------------------------------------------------------------

void Step::start_rows(std::span<const DrafterRows> parts) {
  Arena& arena = context_.arena;
  const std::size_t n = size(config_.streams);
  for (const DrafterRows& part : parts) {
    batch_.push_back({.sequence = part.sequence});
    sequences_.push_back({rows_, part.rows, part.first_position});
    rows_ += part.rows;
  }
  tokens_ = arena.array<std::int32_t>(rows_);
  positions_ = arena.array<std::int64_t>(rows_);
  window_begin_ = arena.array<std::int64_t>(rows_);
  is_image_ = arena.array<std::uint8_t>(rows_);
  streams_ = arena.floats(rows_ * n * size(config_.hidden));
  pre_ = arena.floats(rows_ * n);
  next_pre_ = arena.floats(rows_ * n);
  for (const kernels::SequenceView& sequence : sequences_) {
    for (std::size_t r = 0; r < sequence.batch_rows; ++r) {
      const std::size_t t = sequence.batch_begin + r;
      positions_[t] = sequence.first_position + static_cast<std::int64_t>(r);
      window_begin_[t] = 0;
      is_image_[t] = 0;
      std::fill_n(pre_ + t * n, n, 0.0F);
      pre_[t * n] = 1.0F;
    }
  }
}

// A block's input: the verified token, then noise.
void Step::start_dspark(std::span<const DraftRow> batch) {
  std::fill_n(tokens_, rows_, static_cast<std::int32_t>(config_.draft->noise_token));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    tokens_[sequences_[i].batch_begin] = batch[i].token;
  }
  context_.stream.embed({.rows = rows_,
                         .streams = size(config_.streams),
                         .tokens = tokens_,
                         .table = context_.weights.embed,
                         .out = streams_});
}

// An MTP layer's input (spec model 9.8), stream i of position p: h_proj . norm(X_i) plus e_proj .
// norm(embedding of the token at p + 1); position 0 has no second term. `streams` [rows, n, H] are
// the backbone's after its last layer.
void Step::start_mtp(std::span<const float> streams, std::span<const std::int32_t> next_tokens) {
  const DraftWeights& draft = *context_.weights.draft;
  Arena& arena = context_.arena;
  const std::size_t n = size(config_.streams);
  const std::size_t hidden = size(config_.hidden);
  const auto eps = static_cast<float>(config_.norm_eps);
  std::ranges::copy(next_tokens, tokens_);
  float* const x = arena.floats(streams.size());
  std::ranges::copy(streams, x);
  float* const normed = context_.scratch.floats(streams.size());
  context_.stream.norm({.rows = rows_ * n,
                        .width = hidden,
                        .x = x,
                        .x_stride = hidden,
                        .weight = draft.hidden_norm,
                        .eps = eps,
                        .y = normed,
                        .y_stride = hidden,
                        .round = round()});
  context_.stream.linear({.rows = rows_ * n,
                          .x = normed,
                          .x_stride = hidden,
                          .weight = draft.hidden_proj,
                          .outputs = hidden,
                          .y = streams_,
                          .y_stride = hidden,
                          .activation_block = activation_block(),
                          .round = round()});
  float* const embedded = context_.scratch.floats(rows_ * hidden);
  context_.stream.embed({.rows = rows_,
                         .streams = 1,
                         .tokens = tokens_,
                         .table = context_.weights.embed,
                         .out = embedded});
  const float* const e = linear(norm(embedded, draft.embed_norm, hidden), draft.embed_proj);
  // The sum is an expand that mixes nothing.
  float* const post = arena.floats(rows_ * n);
  float* const comb = arena.floats(rows_ * n * n);
  for (std::size_t t = 0; t < rows_; ++t) {
    std::fill_n(post + t * n, n, positions_[t] == 0 ? 0.0F : 1.0F);
    for (std::size_t i = 0; i < n * n; ++i) {
      comb[t * n * n + i] = i % (n + 1) == 0 ? 1.0F : 0.0F;
    }
  }
  context_.stream.expand({.rows = rows_,
                          .streams = n,
                          .hidden = hidden,
                          .y = e,
                          .post = post,
                          .comb = comb,
                          .x = streams_,
                          .round = round()});
}

void Step::write_draft_ring(int stage, const float* x) {
  std::vector<kernels::RingView> rings;
  for (const SequenceRows& part : batch_) {
    rings.push_back(part.sequence->draft_window(stage));
  }
  context_.stream.ring_write(
      {.sequences = keep_alive(sequences_), .rings = keep_alive(std::move(rings)), .x = x});
}

void Step::write_draft_context(std::span<const DraftContextRows> batch) {
  if (context_.plan.drafts_by(DraftKind::kMtp)) {
    return write_mtp_context(batch);
  }
  const std::size_t width = context_.plan.feature_width();
  GALLEY_ASSERT(width > 0);
  std::vector<DrafterRows> parts;
  for (const DraftContextRows& one : batch) {
    parts.push_back({one.sequence, one.first_position, one.features.size() / width});
  }
  start_rows(parts);
  if (rows_ == 0) {
    return;
  }
  const DraftWeights& draft = *context_.weights.draft;
  float* const x = context_.arena.floats(rows_ * width);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::ranges::copy(batch[i].features, x + sequences_[i].batch_begin * width);
  }
  const float* const main = norm(linear(x, draft.main_proj), draft.main_norm, size(config_.hidden));
  for (std::size_t stage = 0; stage < draft.stages.size(); ++stage) {
    write_draft_ring(static_cast<int>(stage),
                     window_row(draft.stages[stage], main, context_.rope_window));
  }
}

// Position p's row needs the token at p + 1, so each call writes the row left over from the call
// before and leaves its own last one.
void Step::write_mtp_context(std::span<const DraftContextRows> batch) {
  const std::size_t width = context_.plan.feature_width();
  GALLEY_ASSERT(width > 0);
  std::vector<float> streams;
  std::vector<std::int32_t> next_tokens;
  std::vector<DrafterRows> parts;
  for (const DraftContextRows& one : batch) {
    if (one.features.empty()) {
      continue;
    }
    const std::span<float> pending = one.sequence->draft_pending();
    if (one.first_position > 0) {
      streams.insert(streams.end(), pending.begin(), pending.end());
    }
    const std::span<const float> last = one.features.last(width);
    streams.insert(streams.end(), one.features.begin(), one.features.end() - std::ssize(last));
    std::ranges::copy(last, pending.begin());
    const std::size_t rows = one.features.size() / width - (one.first_position > 0 ? 0 : 1);
    const std::int64_t first = std::max<std::int64_t>(one.first_position - 1, 0);
    const auto next = one.sequence->history().subspan(static_cast<std::size_t>(first) + 1, rows);
    next_tokens.insert(next_tokens.end(), next.begin(), next.end());
    if (rows > 0) {
      parts.push_back({one.sequence, first, rows});
    }
  }
  if (parts.empty()) {
    return;
  }
  start_rows(parts);
  start_mtp(streams, next_tokens);
  const BlockWeights& block = context_.weights.draft->stages.front();
  const std::size_t n = size(config_.streams);
  const std::size_t hidden = size(config_.hidden);
  context_.stream.mix({.rows = rows_,
                       .streams = n,
                       .hidden = hidden,
                       .x = streams_,
                       .weights = block.attention_mix.view(),
                       .options = {.norm_eps = static_cast<float>(config_.norm_eps),
                                   .eps = static_cast<float>(config_.mix_eps),
                                   .sinkhorn_passes = config_.sinkhorn_passes},
                       .pre = pre_,
                       .post = context_.scratch.floats(rows_ * n),
                       .comb = context_.scratch.floats(rows_ * n * n)});
  float* const collapsed = context_.scratch.floats(rows_ * hidden);
  context_.stream.collapse({.rows = rows_,
                            .streams = n,
                            .hidden = hidden,
                            .x = streams_,
                            .pre = pre_,
                            .y = collapsed,
                            .y_stride = hidden,
                            .round = round()});
  write_draft_ring(
      0, window_row(block, norm(collapsed, block.attention_norm, hidden), context_.rope_window));
}

std::vector<DraftResult> Step::run_draft(std::span<const DraftRow> batch,
                                         const DraftOptions& options) {
  const DraftWeights& draft = *context_.weights.draft;
  const std::size_t block = size(config_.draft->block);
  const std::size_t hidden = size(config_.hidden);
  const std::size_t vocabulary = size(config_.vocabulary);
  const bool mtp = context_.plan.drafts_by(DraftKind::kMtp);
  Arena& arena = context_.arena;
  std::vector<DrafterRows> parts;
  std::vector<float> pending;
  auto* const first_tokens = arena.array<std::int32_t>(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Sequence& sequence = *batch[i].sequence;
    first_tokens[i] = batch[i].token;
    // MTP: the row of the last verified position predicts the token behind `token`.
    GALLEY_ASSERT(!mtp || sequence.length() > 0);
    parts.push_back({&sequence, sequence.length() - (mtp ? 1 : 0), block});
    if (mtp) {
      const std::span<float> one = sequence.draft_pending();
      pending.insert(pending.end(), one.begin(), one.end());
    }
  }
  start_rows(parts);
  if (mtp) {
    start_mtp(pending, {first_tokens, batch.size()});
  } else {
    start_dspark(batch);
  }
  for (std::size_t stage = 0; stage < draft.stages.size(); ++stage) {
    run_block(draft.stages[stage], -1, static_cast<int>(stage));
  }
  if (config_.family == Family::kV4) {
    head_mix(draft.head_mix);
  }
  float* const h = arena.floats(rows_ * hidden);
  context_.stream.collapse({.rows = rows_,
                            .streams = size(config_.streams),
                            .hidden = hidden,
                            .x = streams_,
                            .pre = pre_,
                            .y = h,
                            .y_stride = hidden,
                            .round = round()});
  float* const logits = linear(norm(h, draft.norm, hidden), context_.weights.head, false, false);
  auto* const drafts = arena.array<std::int32_t>(rows_);
  float* const confidences = arena.floats(rows_);
  if (!mtp) {
    context_.stream.draft_chain({.sequences = batch.size(),
                                 .block = block,
                                 .hidden = hidden,
                                 .h = h,
                                 .logits = logits,
                                 .markov_embed = draft.markov_embed,
                                 .markov_head = draft.markov_head,
                                 .confidence = draft.confidence,
                                 .first_tokens = first_tokens,
                                 .choose = options.choose ? &options.choose : nullptr,
                                 .tokens = drafts,
                                 .confidences = confidences});
  }
  context_.stream.synchronise();
  std::vector<DraftResult> results(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    DraftResult& result = results[i];
    const std::span<const float> own(logits + i * block * vocabulary, block * vocabulary);
    if (mtp) {
      result.tokens = {
          options.choose ? options.choose(i, 0, own)
                         : static_cast<std::int32_t>(std::ranges::max_element(own) - own.begin())};
    } else {
      result.tokens.assign(drafts + i * block, drafts + (i + 1) * block);
      result.confidences.assign(confidences + i * block, confidences + (i + 1) * block);
    }
    if (options.values) {
      result.logits.assign(own.begin(), own.end());
      result.hidden.assign(h + i * block * hidden, h + (i + 1) * block * hidden);
    }
  }
  return results;
}

}  // namespace galley::model
