#pragma once

#include <filesystem>
#include <vector>

#include "base/result.h"
#include "model/golden_compare.h"

namespace galley::model {

// A `vision` file beside `directory`/image.png: preprocessing, tower, aligner, span, and the text
// model with the span in its prompt, at the numerics of `network`.
[[nodiscard]] Result<void> check_vision(Network& network,
                                        const std::filesystem::path& directory,
                                        Golden& golden,
                                        Report& report);

// The image plans a set's MANIFEST.json lists under `images`: of this configuration ("tiny") and of
// the released V4.1-Flash ("release").
[[nodiscard]] Result<std::vector<GoldenOutcome>> check_image_plans(
    const std::filesystem::path& manifest, const ModelConfig& config);

}  // namespace galley::model
