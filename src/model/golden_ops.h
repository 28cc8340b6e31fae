#pragma once

#include <vector>

#include "model/golden_check.h"
#include "model/safetensors.h"

namespace galley::model {

// Every operation of an ops.safetensors against kernels/reference: formats and quantisers exactly,
// formulas to 1e-5 x max(1, largest magnitude).
[[nodiscard]] std::vector<GoldenOutcome> check_golden_ops(const Safetensors& ops);

}  // namespace galley::model
