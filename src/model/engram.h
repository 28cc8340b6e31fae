#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "kernels/operands.h"
#include "model/config.h"

// What the engram of a configuration that has one (asserted) needs besides tensors.
namespace galley::model {

// How its tables are hashed into, a layout a layer. Error: a table that is smaller than its hashes
// reach.
[[nodiscard]] Result<std::vector<kernels::EngramLayout>> hash_layouts(const ModelConfig& config);

// Token id -> compressed id, from engram_token_map.bin in `directory`. Error: the file is missing
// or does not fit the vocabularies.
[[nodiscard]] Result<std::vector<std::int32_t>> read_token_map(
    const std::filesystem::path& directory, const ModelConfig& config);

}  // namespace galley::model
