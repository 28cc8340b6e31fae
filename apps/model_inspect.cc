#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "engine/single_sequence.h"
#include "model/checkpoint.h"
#include "model/memory.h"

namespace galley::apps {
namespace {

std::string or_dash(int layer) {
  return layer < 0 ? "-" : std::to_string(layer);
}

// "1.25 GiB"; exact below a KiB.
std::string human(std::size_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) {
    value /= 1024;
  }
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::vector<std::string> extras(const model::ModelPlan& plan, std::size_t index) {
  const model::LayerPlan& layer = plan.layers[index];
  std::vector<std::string> out;
  const auto add = [&out](bool holds, const char* what) {
    if (holds) {
      out.emplace_back(what);
    }
  };
  add(static_cast<int>(index) == plan.cut, "prefill cut");
  add(layer.engram, "engram");
  add(layer.hash_routing, "hash routing");
  add(layer.candidate_source, "candidates");
  add(layer.draft_capture, "draft features");
  return out;
}

void print_bytes(std::string_view what, std::size_t bytes, std::string_view remark = "") {
  fmt::print("{:<36} {:>18} B {:>11}{}{}\n", what, bytes, human(bytes), remark.empty() ? "" : "  ",
             remark);
}

void print_text(const model::Checkpoint& checkpoint) {
  const model::ModelPlan& plan = checkpoint.plan();
  fmt::print("{:>5}  {:<8} {:>5}  {:>9}  {:>8}  {}\n", "layer", "role", "ratio", "kv source",
             "list of", "also");
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const model::LayerPlan& layer = plan.layers[i];
    std::string also;
    for (const std::string& extra : extras(plan, i)) {
      also += (also.empty() ? "" : ", ") + extra;
    }
    std::string line =
        fmt::format("{:>5}  {:<8} {:>5}  {:>9}  {:>8}  {}", i, name(layer.role), layer.ratio,
                    or_dash(layer.kv_source), or_dash(layer.list_source), also);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
  fmt::print("\n{:<36} {:>18}\n", "draft stages", plan.draft_stages);
  fmt::print("{:<36} {:>18}\n", "prompt tokens kept above the cut", plan.keep);
  fmt::print("{:<36} {}\n", "layout fingerprint", plan.fingerprint);

  const model::CacheLayout& cache = plan.cache;
  const model::MemoryNeeds needs = model::memory_needs(checkpoint, engine::kPrefillChunk);
  fmt::print("\ncache\n");
  print_bytes("  a token", cache.block_bytes / kBlockTokens);
  print_bytes("  a block of 128 tokens", cache.block_bytes, fmt::format("{} B apart", needs.block));
  print_bytes("  state kept at a boundary", cache.state_bytes);
  print_bytes("  state of a request, packed", cache.slot_bytes);

  fmt::print("\nmemory\n");
  print_bytes("  weights", needs.weights, "mapped: resident once used, shared by processes");
  if (needs.copied > 0) {
    print_bytes("  weights, transposed", needs.copied, "copied: in the memory of each process");
  }
  print_bytes("  cache, 1000 tokens", needs.thousand_tokens, "whole blocks");
  print_bytes("  a request", needs.request, "besides its blocks");
  print_bytes("  a step", needs.step, fmt::format("of {} rows", needs.step_rows));
  fmt::print("\non disk\n");
  print_bytes("  engram tables", needs.tables_on_disk, "read by row, never resident");
}

void print_json(const model::Checkpoint& checkpoint) {
  const model::ModelPlan& plan = checkpoint.plan();
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const model::LayerPlan& layer = plan.layers[i];
    layers.push_back({{"layer", i},
                      {"role", name(layer.role)},
                      {"ratio", layer.ratio},
                      {"kv_source", layer.kv_source},
                      {"list_source", layer.list_source},
                      {"also", extras(plan, i)}});
  }
  const model::CacheLayout& cache = plan.cache;
  const model::MemoryNeeds needs = model::memory_needs(checkpoint, engine::kPrefillChunk);
  const nlohmann::json out = {{"layers", layers},
                              {"draft_stages", plan.draft_stages},
                              {"prefill_cut", plan.cut},
                              {"keep", plan.keep},
                              {"fingerprint", plan.fingerprint},
                              {"cache",
                               {{"block_tokens", kBlockTokens},
                                {"block_bytes", cache.block_bytes},
                                {"block_stride", needs.block},
                                {"state_bytes", cache.state_bytes},
                                {"slot_bytes", cache.slot_bytes}}},
                              {"memory",
                               {{"weights", needs.weights},
                                {"weights_copied", needs.copied},
                                {"thousand_tokens", needs.thousand_tokens},
                                {"request", needs.request},
                                {"step_rows", needs.step_rows},
                                {"step", needs.step}}},
                              {"disk", {{"engram_tables", needs.tables_on_disk}}}};
  fmt::print("{}\n", out.dump(2));
}

}  // namespace

void add_model_inspect(CLI::App& model, int& exit_code) {
  CLI::App* const command =
      model.add_subcommand("inspect", "Roles of the layers; bytes of cache, state and memory.");
  const auto path = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("DIR", *path)->required();
  command->add_flag("--json", *json, "as JSON, for programs; -1 where a layer has no source");
  command->callback([path, json, &exit_code] {
    const auto checkpoint = model::Checkpoint::open(*path);
    if (!checkpoint) {
      exit_code = report(checkpoint.error());
      return;
    }
    *json ? print_json(*checkpoint) : print_text(*checkpoint);
    exit_code = 0;
  });
}

}  // namespace galley::apps
