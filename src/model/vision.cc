#include "model/vision.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/formats.h"
#include "kernels/reference/ops.h"
#include "model/arena.h"
#include "model/arithmetic.h"
#include "model/image_resize.h"

namespace galley::model {
namespace {

constexpr float kVisionEps = 1e-6F;  // of every norm in the tower, whatever the text model has

VisionWeights::Linear linear_of(const Checkpoint& checkpoint, const std::string& name, bool bias) {
  return {checkpoint.matrix(name + ".weight"),
          bias ? checkpoint.vector(name + ".bias") : std::vector<float>()};
}

}  // namespace

VisionWeights bind_vision(const Checkpoint& checkpoint) {
  const VisionConfig& config = *checkpoint.plan().config.vision;
  VisionWeights out;
  out.patch_embed = linear_of(checkpoint, "vision.patch_embed.proj", true);
  for (int i = 0; i < config.layers; ++i) {
    const std::string prefix = fmt::format("vision.blocks.{}.", i);
    out.blocks.push_back({.norm1 = checkpoint.vector(prefix + "norm1.weight"),
                          .wqkv = linear_of(checkpoint, prefix + "attn.wqkv", true),
                          .wo = linear_of(checkpoint, prefix + "attn.wo", true),
                          .norm2 = checkpoint.vector(prefix + "norm2.weight"),
                          .w1 = linear_of(checkpoint, prefix + "mlp.w1", false),
                          .w2 = linear_of(checkpoint, prefix + "mlp.w2", false)});
  }
  out.norm = checkpoint.vector("vision.norm.weight");
  out.aligner_w1 = linear_of(checkpoint, "aligner.w1", true);
  out.aligner_w2 = linear_of(checkpoint, "aligner.w2", true);
  out.start = checkpoint.vector("image_start");
  out.newline = checkpoint.vector("image_newline");
  out.end = checkpoint.vector("image_end");
  if (config.layout == ImageLayout::kRowPairs) {
    out.pad = checkpoint.vector("image_pad");
  }
  return out;
}

std::vector<float> to_patches(const Image& image, int patch) {
  GALLEY_ASSERT(image.width % patch == 0);
  GALLEY_ASSERT(image.height % patch == 0);
  const std::size_t side = size(patch);
  const std::size_t width = size(image.width);
  std::vector<float> out;
  out.reserve(image.rgb.size());
  for (std::size_t top = 0; top < size(image.height); top += side) {
    for (std::size_t left = 0; left < width; left += side) {
      for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t y = top; y < top + side; ++y) {
          for (std::size_t x = left; x < left + side; ++x) {
            const auto pixel = static_cast<float>(image.rgb[(y * width + x) * 3 + c]);
            out.push_back((pixel / 255.0F - 0.5F) / 0.5F);
          }
        }
      }
    }
  }
  return out;
}

Result<PreparedImage> prepare_image(const VisionConfig& config, std::span<const std::byte> file) {
  GALLEY_TRY(const ImageInfo info, probe_image(file));
  GALLEY_TRY(const ImagePlan plan, plan_image(config, info.width, info.height));
  GALLEY_TRY(const Image image, decode_image(file));
  const Image resized = plan.stretch ? resize_bicubic(image, plan.width, plan.height)
                                     : fit_into(image, plan.width, plan.height);
  return PreparedImage{plan, to_patches(resized, config.patch)};
}

// ---- one image on its way through the tower
// ---------------------------------------------------------------------

// Holds the operations' common arguments. `rows`: patches first, tokens in the aligner.
class VisionTower::Pass {
 public:
  explicit Pass(VisionTower& tower) : tower_(tower), arena_(tower.device_) {}

  Arena& arena() { return arena_; }

  float* linear(std::size_t rows, const float* x, const VisionWeights::Linear& linear) {
    float* const y = arena_.floats(rows * linear.weight.rows);
    into(rows, x, linear, y);
    return y;
  }

  void into(std::size_t rows, const float* x, const VisionWeights::Linear& linear, float* y) {
    tower_.stream_->linear({.rows = rows,
                            .x = x,
                            .x_stride = linear.weight.columns,
                            .weight = linear.weight,
                            .outputs = linear.weight.rows,
                            .bias = linear.bias,
                            .y = y,
                            .y_stride = linear.weight.rows,
                            .round = tower_.round_});
  }

  void norm(std::size_t rows, const float* x, std::span<const float> weight, float* y) {
    tower_.stream_->norm({.rows = rows,
                          .width = weight.size(),
                          .x = x,
                          .x_stride = weight.size(),
                          .weight = weight,
                          .eps = kVisionEps,
                          .y = y,
                          .y_stride = weight.size(),
                          .round = tower_.round_});
  }

  // x [rows, width] through all blocks, in place. Every block uses the same memory: the stream runs
  // them one after the other.
  void blocks(std::size_t rows, std::size_t columns, float* x) {
    const std::size_t width = size(tower_.config_.hidden);
    const std::size_t heads = size(tower_.config_.heads);
    const std::size_t head = width / heads;
    const std::size_t inner = size(tower_.config_.intermediate);
    kernels::Stream& stream = *tower_.stream_;
    float* const normed = arena_.floats(rows * width);
    float* const qkv = arena_.floats(rows * 3 * width);
    float* const mixed = arena_.floats(rows * width);
    float* const gates = arena_.floats(rows * 2 * inner);
    float* const gated = arena_.floats(rows * inner);
    float* const y = arena_.floats(rows * width);
    for (const VisionWeights::Block& block : tower_.weights_.blocks) {
      norm(rows, x, block.norm1, normed);
      into(rows, normed, block.wqkv, qkv);
      stream.grid_rope({.rows = rows,
                        .columns = columns,
                        .heads = 2 * heads,  // queries, then keys
                        .width = head,
                        .x = qkv,
                        .stride = 3 * width,
                        .frequencies = tower_.frequencies_,
                        .round = tower_.round_});
      stream.grid_attention({.rows = rows,
                             .heads = heads,
                             .width = head,
                             .qkv = qkv,
                             .scale = static_cast<float>(std::pow(static_cast<double>(head), -0.5)),
                             .out = mixed,
                             .round = tower_.round_});
      into(rows, mixed, block.wo, y);
      stream.add({.rows = rows, .width = width, .x = x, .y = y, .round = tower_.round_});
      norm(rows, x, block.norm2, normed);
      into(rows, normed, block.w1, gates);
      stream.silu_gate(
          {.rows = rows, .width = inner, .x = gates, .y = gated, .round = tower_.round_});
      into(rows, gated, block.w2, y);
      stream.add({.rows = rows, .width = width, .x = x, .y = y, .round = tower_.round_});
    }
  }

  // Tokens from the patches of their cells.
  float* align(const kernels::PatchGrid& grid, std::size_t tokens) {
    const std::size_t side = size(tower_.config_.downsample);
    float* const cells = arena_.floats(tokens * grid.width * side * side);
    tower_.stream_->gather_cells({.grid = grid, .side = side, .y = cells});
    float* const h = linear(tokens, cells, tower_.weights_.aligner_w1);
    tower_.stream_->gelu({.rows = tokens,
                          .width = tower_.weights_.aligner_w1.weight.rows,
                          .x = h,
                          .round = tower_.round_});
    return linear(tokens, h, tower_.weights_.aligner_w2);
  }

 private:
  VisionTower& tower_;
  Arena arena_;  // given back with the image: the largest takes more than a step of text
};

VisionTower::VisionTower(const VisionConfig& config,
                         VisionWeights weights,
                         std::size_t hidden,
                         kernels::Device& device,
                         kernels::Round round)
    : config_(config),
      weights_(std::move(weights)),
      hidden_(hidden),
      device_(device),
      round_(round),
      frequencies_(kernels::reference::rope_frequencies(
          config.rope_theta, size(config.hidden / config.heads / 2), nullptr)),
      stream_(device.create_stream()) {}

ImageFeatures VisionTower::encode(const PreparedImage& image) {
  const std::size_t rows = size(image.plan.patch_rows) * size(image.plan.patch_columns);
  const std::size_t tokens = size(image.plan.rows) * size(image.plan.columns);
  const std::size_t width = size(config_.hidden);
  GALLEY_ASSERT(image.patches.size() == rows * weights_.patch_embed.weight.columns);
  Pass pass(*this);
  float* const input = pass.arena().floats(image.patches.size());
  std::ranges::transform(image.patches, input, [this](float value) {
    return round_ == kernels::Round::kBf16 ? kernels::round_to_bf16(value) : value;
  });
  float* const normed = pass.arena().floats(rows * width);
  const float* aligned = nullptr;
  {
    const kernels::NoSync guard;
    float* const x = pass.linear(rows, input, weights_.patch_embed);
    pass.blocks(rows, size(image.plan.patch_columns), x);
    pass.norm(rows, x, weights_.norm, normed);
    aligned = pass.align({.patches = normed,
                          .rows = size(image.plan.patch_rows),
                          .columns = size(image.plan.patch_columns),
                          .width = width},
                         tokens);
  }
  stream_->synchronise();
  return {.patches = {normed, normed + rows * width},
          .tokens = {aligned, aligned + tokens * hidden_}};
}

ImageSpan VisionTower::splice(const ImagePlan& plan,
                              std::span<const float> tokens,
                              std::int64_t first_position) const {
  GALLEY_ASSERT(tokens.size() == size(plan.rows) * size(plan.columns) * hidden_);
  ImageSpan span;
  span.places = lay_out_image(config_, plan, first_position);
  span.rows.reserve(span.places.size() * hidden_);
  for (std::size_t i = 0; i < span.places.size(); ++i) {
    const ImagePlace& place = span.places[i];
    std::span<const float> row;
    switch (place.role) {
      case ImageRole::kStart:
        span.start = i;
        row = weights_.start;
        break;
      case ImageRole::kPad:
        row = weights_.pad;
        break;
      case ImageRole::kNewline:
        row = weights_.newline;
        break;
      case ImageRole::kEnd:
        row = weights_.end;
        break;
      case ImageRole::kToken:
        row = tokens.subspan(size(place.token) * hidden_, hidden_);
        break;
    }
    span.rows.insert(span.rows.end(), row.begin(), row.end());
  }
  return span;
}

}  // namespace galley::model
