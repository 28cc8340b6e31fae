#pragma once

#include <filesystem>
#include <vector>

#include "model/golden_check.h"

namespace galley::model {

// Single operations, compared with `folder`/ops.safetensors; an outcome a tensor, and one for each
// that is missing, garbled or compared with nothing. Shapes are those of the operations and the
// same in every set. Error: a file cannot be read.
[[nodiscard]] Result<std::vector<GoldenOutcome>> check_golden_ops(
    const std::filesystem::path& folder);

}  // namespace galley::model
