#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "model/checkpoint.h"
#include "model/image.h"
#include "model/image_plan.h"

namespace galley::model {

// Parameters of tower, aligner and the learned rows of a span, bound by name.
struct VisionWeights {
  struct Linear {
    kernels::Weight weight;
    std::vector<float> bias;  // empty: none
  };
  struct Block {
    std::vector<float> norm1;
    Linear wqkv;
    Linear wo;
    std::vector<float> norm2;
    Linear w1;
    Linear w2;
  };
  Linear patch_embed;
  std::vector<Block> blocks;
  std::vector<float> norm;
  Linear aligner_w1;
  Linear aligner_w2;
  std::vector<float> start;
  std::vector<float> newline;
  std::vector<float> end;
  std::vector<float> pad;  // V4-Vision
};
[[nodiscard]] VisionWeights bind_vision(const Checkpoint& checkpoint);

// An image as the tower reads it.
struct PreparedImage {
  ImagePlan plan;
  std::vector<float> patches;  // [patch_rows * patch_columns, 3 * patch^2], see to_patches
};

// Decodes, resizes and normalises a JPEG, PNG or WebP file (spec model 10.1). Errors: those of
// decode_image and plan_image.
[[nodiscard]] Result<PreparedImage> prepare_image(const VisionConfig& config,
                                                  std::span<const std::byte> file);
// (pixel / 255 - 0.5) / 0.5 of an image of whole patches; patches row-major, each channel, row,
// column.
[[nodiscard]] std::vector<float> to_patches(const Image& image, int patch);

struct ImageFeatures {
  std::vector<float> patches;  // [patch_rows * patch_columns, tower width], after the final norm
  std::vector<float> tokens;   // [rows * columns, H], row-major grid
};

// The rows an image puts into a sequence.
struct ImageSpan {
  std::vector<ImagePlace> places;
  std::vector<float> rows;  // [places.size(), H]
  std::size_t start{};      // index of START: what is before is padding
};

// Vision transformer and aligner on one device (spec model 10.2, 10.3). An image's numbers depend
// on nothing but the image. Not thread-safe.
class VisionTower {
 public:
  // Values are rounded to bfloat16 where the reference stores bfloat16 if `round` says so.
  // `hidden`: H.
  VisionTower(const VisionConfig& config,
              VisionWeights weights,
              std::size_t hidden,
              kernels::Device& device,
              kernels::Round round);

  [[nodiscard]] const VisionConfig& config() const { return config_; }
  [[nodiscard]] ImageFeatures encode(const PreparedImage& image);
  // The span whose first row sits at `first_position`: learned rows and `tokens` in the order of
  // lay_out_image.
  [[nodiscard]] ImageSpan splice(const ImagePlan& plan,
                                 std::span<const float> tokens,
                                 std::int64_t first_position) const;

 private:
  class Pass;

  VisionConfig config_;
  VisionWeights weights_;
  std::size_t hidden_;
  kernels::Device& device_;
  kernels::Round round_;
  std::vector<float> frequencies_;  // [width of a head / 4]
  std::unique_ptr<kernels::Stream> stream_;
};

}  // namespace galley::model
