#include "model/golden_check.h"

#include <fmt/core.h>
#include <iterator>
#include <set>
#include <utility>

#include "model/golden_compare.h"
#include "model/golden_ops.h"
#include "model/golden_runs.h"
#include "model/golden_vision.h"
#include "model/network.h"
#include "model/safetensors.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

struct RunFile {
  std::string_view name;
  Numerics numerics;
};
constexpr Numerics kNoQuantisers = {
    .kv_quantise = false, .bf16 = false, .activation_quantise = false};
constexpr Numerics kFloat = {.kv_quantise = true, .bf16 = false, .activation_quantise = false};
constexpr Numerics kBfloat = {.kv_quantise = true, .bf16 = true, .activation_quantise = false};
constexpr Numerics kBfloatActivations = {
    .kv_quantise = true, .bf16 = true, .activation_quantise = true};

constexpr RunFile kRuns[] = {
    {"f32_nq", kNoQuantisers}, {"vision", kNoQuantisers},         {"vision", kFloat},
    {"vision", kBfloat},       {"replay", kNoQuantisers},         {"replay", kFloat},
    {"short", kFloat},         {"short_act", kBfloatActivations}, {"f32", kFloat},
    {"bf16", kBfloat},         {"bf16_act", kBfloatActivations}};

RunLimits limits_of(std::string_view file, bool v41) {
  if (file == "f32_nq") {
    return {.logits = {.max_abs = 2e-4},
            .layers = {.max_abs = 5e-4},
            .inner = {.max_abs = 2e-4},
            .layer_by_layer = true};
  }
  if (file == "f32") {
    return {
        .logits = {.relative_rms = v41 ? 0.1 : 0.02}, .argmax_share = 0.95, .stored_rows = true};
  }
  if (file == "bf16") {
    return {.logits = {.relative_rms = v41 ? 0.25 : 0.1}, .argmax_share = 0.85};
  }
  return {.logits = {.relative_rms = v41 ? 0.4 : 0.2}, .argmax_share = 0.7};
}

// Tensors behind a rounding, whose values say nothing: "no other tensor of these files" (README of
// the goldens, step 8).
bool behind_rounding(std::string_view file, std::string_view tensor) {
  if (file == "f32" || file == "bf16" || file == "bf16_act") {
    return tensor.starts_with("prefill.L") || tensor.starts_with("dspark.");
  }
  if (file == "vision") {
    return tensor.starts_with("f32.L") || tensor.starts_with("bf16.L");
  }
  return file == "replay" && !tensor.starts_with("nq.") &&
         tensor.find(".dspark.") != std::string_view::npos;
}

Result<void> check_numerics(Network& network,
                            const fs::path& checkpoint,
                            std::string_view file,
                            const Golden& golden,
                            Report& report) {
  if (file == "short") {
    return check_short(network, golden, {.max_abs = 2e-2, .relative_rms = 1e-4}, true, report);
  }
  if (file == "short_act") {
    return check_short(network, golden, {.relative_rms = 2e-3}, false, report);
  }
  if (file == "vision") {
    return check_vision(network, checkpoint, golden, report);
  }
  if (file == "replay") {
    return check_replay(network, golden, report);
  }
  const bool v41 = network.plan().config.family == Family::kV41;
  return check_run(network, golden, limits_of(file, v41), report);
}

// V4's checkpoint has neither a vision tower nor a cut.
bool in_set(std::string_view family, std::string_view file) {
  return family == "v41" || (file != "vision" && file != "replay");
}

// One file of a checkpoint's folder, at every numerics it has.
std::vector<GoldenOutcome> check_file(const fs::path& checkpoint,
                                      std::string_view file,
                                      kernels::Device& device) {
  Report report(fmt::format("{}/{} ", checkpoint.filename().string(), file));
  const auto tensors = Safetensors::open(checkpoint / fmt::format("{}.safetensors", file));
  if (!tensors) {
    report.require("can be read", false, to_string(tensors.error()));
    return report.take();
  }
  const Golden golden(*tensors);
  for (const RunFile& run : kRuns) {
    if (run.name != file) {
      continue;
    }
    const auto network = Network::load(checkpoint, device, run.numerics);
    const Result<void> done = network ? check_numerics(**network, checkpoint, file, golden, report)
                                      : std::unexpected(network.error());
    if (!done) {
      report.require("can be run", false, to_string(done.error()));
      return report.take();
    }
  }
  report.file_problems(golden,
                       [file](const std::string& tensor) { return behind_rounding(file, tensor); });
  return report.take();
}

Result<std::vector<GoldenOutcome>> check_plans(const fs::path& set) {
  GALLEY_TRY(const ModelConfig config, load_config(set / "v41"));
  return check_image_plans(set / "MANIFEST.json", config);
}

}  // namespace

Result<std::vector<GoldenOutcome>> check_golden_set(const fs::path& set,
                                                    kernels::Device& device,
                                                    std::string_view only) {
  if (!fs::is_directory(set)) {
    return fail(Code::kNotFound, "want a folder with v4/, v41/, ops/ and MANIFEST.json",
                set.string());
  }
  const auto wanted = [only](std::string_view part) { return only.empty() || only == part; };
  std::vector<GoldenOutcome> outcomes;
  const auto add = [&](Result<std::vector<GoldenOutcome>> more, std::string_view part) {
    if (!more) {
      outcomes.push_back(
          {.name = fmt::format("{} can be read", part), .detail = to_string(more.error())});
      return;
    }
    outcomes.insert(outcomes.end(), std::make_move_iterator(more->begin()),
                    std::make_move_iterator(more->end()));
  };
  if (wanted("ops")) {
    add(check_golden_ops(set / "ops"), "ops");
  }
  for (const char* const family : {"v4", "v41"}) {
    std::set<std::string_view> done;
    for (const RunFile& run : kRuns) {
      const std::string part = fmt::format("{}/{}", family, run.name);
      if (wanted(part) && in_set(family, run.name) && done.insert(run.name).second) {
        add(check_file(set / family, run.name, device), part);
      }
    }
  }
  if (wanted("images")) {
    add(check_plans(set), "images");
  }
  return outcomes;
}

}  // namespace galley::model
