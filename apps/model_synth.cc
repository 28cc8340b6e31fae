#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/number_flag.h"
#include "apps/progress_bar.h"
#include "apps/tokenizer_choice.h"
#include "base/units.h"
#include "model/synth.h"
#include "recipe/tokenizer.h"

namespace galley::apps {
namespace {

struct Flags {
  std::string like;
  std::string tokenizer;
  std::string engram = "16MiB";
  std::uint64_t seed = 0;
  model::SynthOptions options;
  std::string out;
};

Result<void> synth(Flags flags) {
  std::string json(builtin_tokenizer_json());
  if (!flags.tokenizer.empty()) {
    GALLEY_TRY(json, read_input(flags.tokenizer));
  }
  GALLEY_TRY(const auto tokenizer, recipe::Tokenizer::from_json(json));
  GALLEY_TRY(flags.options.like, model::synth_like(flags.like));
  const auto engram = parse_bytes(flags.engram);
  if (!engram) {
    return fail(engram.error().code, engram.error().what, "--engram");
  }
  flags.options.engram_bytes = static_cast<std::int64_t>(engram->value());
  flags.options.vocabulary = static_cast<int>(tokenizer->vocabulary_size());
  flags.options.seed = Seed(flags.seed);
  ProgressBar bar;
  std::uint64_t bytes = 0;
  GALLEY_CHECK_OK(
      model::synthesise(flags.options, flags.out, [&](std::uint64_t done, std::uint64_t total) {
        bar.show(done, total);
        bytes = done;
      }));
  const auto path = std::filesystem::path(flags.out) / "tokenizer.json";
  std::ofstream file(path, std::ios::binary);
  file << json;
  file.close();
  if (!file) {
    return fail(Code::kUnavailable, "cannot write it", path.string());
  }
  fmt::print(
      "{}: {:.3f} GB of random weights, shaped like {}\n"
      "  galley model inspect {}\n"
      "  galley chat --model {}\n",
      flags.out, static_cast<double>(bytes) / 1e9, flags.like, flags.out, flags.out);
  return {};
}

}  // namespace

void add_model_synth(CLI::App& model, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = model.add_subcommand(
      "synth",
      "Writes a checkpoint with random weights in the released formats, and a tokenizer. It "
      "speaks nonsense; it is for tests and measurements.");
  command->add_option("--like", flags->like, "v4-flash, v4-pro or v4.1-flash.")
      ->required()
      ->check(CLI::IsMember({"v4-flash", "v4-pro", "v4.1-flash"}));
  command->add_option("--layers", flags->options.layers,
                      "Layers; the pattern of roles is kept. Default: as the released model.");
  command->add_option("--hidden", flags->options.hidden,
                      "Hidden size, a multiple of 32; heads, ranks and experts' width shrink with "
                      "it, index and head sizes stay.");
  command->add_option("--experts", flags->options.experts, "Routed experts a layer.");
  command
      ->add_option("--engram", flags->engram,
                   "V4.1: about the size of all engram tables together (the released model has "
                   "203 GB).")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "The same seed gives the same bytes.")
      ->check(integer_in(0, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  command->add_option("--tokenizer", flags->tokenizer,
                      "Its ids are the model's vocabulary. Default: the small built-in one.");
  command->add_option("OUT", flags->out, "A folder that is empty or does not exist yet.")
      ->required();
  command->callback([flags, &exit_code] {
    if (const auto done = synth(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
