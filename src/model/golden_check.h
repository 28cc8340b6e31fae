#pragma once

#include <filesystem>
#include <string>
#include <string_view>
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
// `only`: one part of it, as its outcomes are labelled ("ops", "v41/short"); empty: all.
[[nodiscard]] Result<std::vector<GoldenOutcome>> check_golden_set(const std::filesystem::path& set,
                                                                  kernels::Device& device,
                                                                  std::string_view only = {});

}  // namespace galley::model
