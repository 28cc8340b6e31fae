#include <algorithm>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "base/cpu_count.h"
#include "kernels/device.h"
#include "kernels/isa.h"
#include "model/checkpoint.h"
#include "model/golden_check.h"
#include "recipe/tokenizer.h"

namespace galley::apps {
namespace {

Result<bool> check(const std::string& set) {
  GALLEY_TRY(const kernels::Isa isa, kernels::choose_isa(kernels::wanted_isa()));
  const auto device = kernels::create_cpu_device(cpu_count(), isa);
  GALLEY_TRY(const auto outcomes, model::check_golden_set(set, *device));
  std::size_t passed = 0;
  for (const model::GoldenOutcome& outcome : outcomes) {
    passed += outcome.passed ? 1U : 0U;
    fmt::print("{:<6} {:<52} max {:<10.3g} relative rms {:<10.3g} {}\n",
               outcome.passed ? "ok" : "FAILED", outcome.name, outcome.max_error,
               outcome.relative_rms, outcome.passed ? "" : outcome.detail);
  }
  fmt::print("{} passed, {} failed\n", passed, outcomes.size() - passed);
  return passed == outcomes.size();
}

// Serving would refuse a tokenizer that cannot be read, or has ids the model does not know. The
// error's `where` is a place inside the file.
Result<void> check_tokenizer(const std::filesystem::path& path, int vocabulary) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return fail(Code::kCorruption, "is no file");
  }
  const auto json = read_input(path.string());
  if (!json) {
    return fail(json.error().code, json.error().what);
  }
  GALLEY_TRY(const auto tokenizer, recipe::Tokenizer::from_json(*json));
  const std::size_t ids = tokenizer->vocabulary_size();
  if (ids > static_cast<std::size_t>(vocabulary)) {
    return fail(Code::kCorruption, fmt::format("has {} ids, the model {}", ids, vocabulary));
  }
  return {};
}

Result<bool> verify(const std::string& directory) {
  GALLEY_TRY(auto problems, model::Checkpoint::verify(directory));
  GALLEY_TRY(const model::ModelConfig config, model::load_config(directory));
  const std::filesystem::path tokenizer = std::filesystem::path(directory) / "tokenizer.json";
  std::error_code error;
  const bool has_tokenizer = std::filesystem::exists(tokenizer, error);
  if (has_tokenizer) {
    if (const auto good = check_tokenizer(tokenizer, config.vocabulary); !good) {
      const std::string& where = good.error().where;
      problems.push_back(
          {tokenizer.string() + (where.empty() ? "" : ": " + where), good.error().what});
    }
  }
  for (const model::Checkpoint::Problem& problem : problems) {
    fmt::print("{} {}\n", problem.where, problem.what);
  }
  if (!has_tokenizer) {  // another place may hold it
    fmt::print("{} is missing: to serve this, name a `--tokenizer`\n", tokenizer.string());
  }
  fmt::print("{} problems\n", problems.size());
  return problems.empty();
}

void add_command(CLI::App& model,
                 const char* command_name,
                 const char* help,
                 const char* argument,
                 const char* argument_help,
                 Result<bool> (*run)(const std::string&),
                 int& exit_code) {
  const auto path = std::make_shared<std::string>();
  CLI::App* const command = model.add_subcommand(command_name, help);
  command->add_option(argument, *path, argument_help)->required();
  command->callback([path, run, &exit_code] {
    const auto done = run(*path);
    exit_code = !done ? report(done.error()) : *done ? 0 : kExitFailure;
  });
}

}  // namespace

void add_model(CLI::App& galley, int& exit_code) {
  CLI::App* const model = galley.add_subcommand(
      "model", "Checkpoints: what is in them, whether they are whole and right.");
  need_subcommand(*model);
  add_model_inspect(*model, exit_code);
  add_command(
      *model, "verify",
      "Reads every tensor, the engram's token map and a tokenizer.json; names what is missing, "
      "extra, misshapen, out of range or not finite.",
      "DIR", "Folder of a checkpoint.", verify, exit_code);
  add_command(*model, "check", "Runs a golden set and compares every value.", "SET",
              "Folder that holds v4/, v41/, ops/ and MANIFEST.json.", check, exit_code);
  add_model_eval(*model, exit_code);
  add_model_pack(*model, exit_code);
  add_model_synth(*model, exit_code);
}

}  // namespace galley::apps
