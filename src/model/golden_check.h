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

// Runs a golden set: a folder with v4/, v41/, ops/ and MANIFEST.json as tests/golden has them;
// shapes and parameters come from the files. What is missing or garbled is an outcome that failed
// and names file and tensor; so is a tensor that was compared with nothing. `only`: one part of it,
// as its outcomes are labelled ("ops", "v41/short", "images"); empty: all. Error: the folder is
// none.
[[nodiscard]] Result<std::vector<GoldenOutcome>> check_golden_set(const std::filesystem::path& set,
                                                                  kernels::Device& device,
                                                                  std::string_view only = {});

}  // namespace galley::model
