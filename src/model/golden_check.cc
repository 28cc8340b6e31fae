#include "model/golden_check.h"

#include <fmt/core.h>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "model/golden_compare.h"
#include "model/golden_manifest.h"
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

Result<void> check_numerics(Network& network,
                            const fs::path& checkpoint,
                            std::string_view file,
                            Golden& golden,
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
  Golden golden(*tensors);
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
  report.file_problems(golden);
  return report.take();
}

Result<std::vector<GoldenOutcome>> check_plans(const fs::path& set) {
  GALLEY_TRY(const ModelConfig config, load_config(set / "v41"));
  return check_image_plans(set / "MANIFEST.json", config);
}

// Every file of tensors that some check takes.
std::set<std::string> taken_files() {
  std::set<std::string> out = {"ops/ops.safetensors"};
  for (const char* const family : {"v4", "v41"}) {
    out.insert(fmt::format("{}/model.safetensors", family));
    for (const RunFile& run : kRuns) {
      if (in_set(family, run.name)) {
        out.insert(fmt::format("{}/{}.safetensors", family, run.name));
      }
    }
  }
  return out;
}

// That the set holds the files its manifest lists, and no tensors that no check takes.
Result<std::vector<GoldenOutcome>> check_files(const fs::path& set) {
  constexpr int kDepthMax = 1;  // of folders in the set
  GALLEY_TRY(const nlohmann::json manifest, read_manifest(set / "MANIFEST.json"));
  Report report("files ");
  const std::set<std::string> taken = taken_files();
  std::error_code error;
  for (fs::recursive_directory_iterator it(set, error), end; !error && it != end;
       it.increment(error)) {
    if (it.depth() >= kDepthMax) {
      it.disable_recursion_pending();
    }
    const std::string file = it->path().lexically_relative(set).generic_string();
    if (file.ends_with(".safetensors")) {
      report.require(file, taken.contains(file), "no check takes it");
    }
  }
  report.require("can be listed", !error, error.message());
  const auto listed = [&](const char* list, const auto& holds, const char* otherwise) {
    const bool is_object = manifest.contains(list) && manifest[list].is_object();
    report.require(fmt::format("MANIFEST.json {}", list), is_object, "want an object");
    if (is_object) {
      for (const auto& [key, value] : manifest[list].items()) {
        report.require(fmt::format("MANIFEST.json {} {}", list, key), holds(key), otherwise);
      }
    }
  };
  listed(
      "runs", [&](const std::string& run) { return taken.contains(run + ".safetensors"); },
      "no check takes it");
  listed(
      "sha256", [&](const std::string& file) { return fs::is_regular_file(set / file, error); },
      "is not there");
  return report.take();
}

}  // namespace

Result<std::vector<GoldenOutcome>> check_golden_set(const fs::path& set,
                                                    kernels::Device& device,
                                                    std::string_view only) {
  std::error_code error;
  if (!fs::is_directory(set, error)) {
    return fail(Code::kNotFound, "want a folder with v4/, v41/, ops/ and MANIFEST.json",
                set.string());
  }
  bool known = only.empty();
  const auto wanted = [&](std::string_view part) {
    known = known || only == part;
    return only.empty() || only == part;
  };
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
  if (wanted("files")) {
    add(check_files(set), "files");
  }
  if (wanted("ops")) {
    add(check_golden_ops(set / "ops"), "ops");
  }
  for (const char* const family : {"v4", "v41"}) {
    std::set<std::string_view> done;
    for (const RunFile& run : kRuns) {
      const std::string part = fmt::format("{}/{}", family, run.name);
      if (in_set(family, run.name) && wanted(part) && done.insert(run.name).second) {
        add(check_file(set / family, run.name, device), part);
      }
    }
  }
  if (wanted("images")) {
    add(check_plans(set), "images");
  }
  if (!known) {
    return fail(Code::kNotFound, "is no part of a golden set", std::string(only));
  }
  return outcomes;
}

}  // namespace galley::model
