#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"

namespace galley::model {

// One comparison with a golden, or one bit-for-bit property of our own code.
struct GoldenOutcome {
  std::string name;  // "v41/f32_nq prefill.L3.streams"
  bool passed{};
  double max_error{};
  double relative_rms{};
  std::string detail;  // why it failed, or what was compared
};

// Runs a golden set: a folder with v4/, v41/ and ops/ as tests/golden has them; every file that is
// there is checked, shapes and parameters come from the files. Error: the folder or a checkpoint
// cannot be read.
[[nodiscard]] Result<std::vector<GoldenOutcome>> check_golden_set(const std::filesystem::path& set,
                                                                  kernels::Device& device);

}  // namespace galley::model
