#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/safetensors.h"

namespace galley::model {

// Checkpoints come under three namings of one network: the released names (spec model 11), those of
// transformers' modules for V4, and those of nemo-automodel for V4.1; the last two may stand behind
// "model.". Inside Galley there are only released names. The table is in the .cc file;
// docs/MODEL.md shows it.

// A tensor by its released name: a stored tensor as it is, or one expert's part of a fused one.
struct NamedTensor {
  std::string name;
  TensorView view;
  // Set where the file keeps the matrix transposed (nemo's experts): the bytes `view` points into.
  std::shared_ptr<const std::vector<std::byte>> owned;
};

// `stored` is the name in the file. A name that no table knows comes back as it is, less "model.".
// Error (kCorruption, `what` only): a fused tensor that cannot be taken apart.
[[nodiscard]] Result<std::vector<NamedTensor>> released_tensors(std::string_view stored,
                                                                const TensorView& view);

}  // namespace galley::model
