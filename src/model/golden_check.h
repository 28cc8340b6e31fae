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
// and names file and tensor; so is a tensor that was compared with nothing, and a file of tensors
// that no check takes.
//
// Not compared, as their values say nothing behind a rounding that may go either way (README of the
// goldens, step 8): what layers and drafter hold inside in the runs with fake quantisers (`f32`,
// `bf16`, `bf16_act`; but embedding and stored rows of the first three layers of `f32` are),
// choices and gates of layers in `vision` under `f32.` and `bf16.`, drafts in `replay` outside
// `nq.`. They are passed over one by one by name; anything else fails.
//
// `only`: one part of it, as its outcomes are labelled ("files", "ops", "v41/short", "images");
// empty: all. Errors: the folder is none, `only` is no part.
[[nodiscard]] Result<std::vector<GoldenOutcome>> check_golden_set(const std::filesystem::path& set,
                                                                  kernels::Device& device,
                                                                  std::string_view only = {});

}  // namespace galley::model
