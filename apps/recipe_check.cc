#include <fmt/core.h>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/input.h"
#include "recipe/conformance.h"
#include "recipe/control.h"

namespace galley::apps {
namespace {

struct Flags {
  std::string tokenizer;
  std::vector<std::string> files;
};

// Prints each difference; true when there was none.
Result<bool> check(const Flags& flags) {
  recipe::ConformanceTokenizers tokenizers;
  GALLEY_TRY(tokenizers.v4, recipe::Tokenizer::from_file(flags.tokenizer));
  GALLEY_TRY(tokenizers.v41,
             recipe::Tokenizer::from_file(flags.tokenizer, {.rename = recipe::v41_renames()}));
  std::size_t passed = 0;
  std::size_t failed = 0;
  for (const std::string& file : flags.files) {
    GALLEY_TRY(const auto records, recipe::check_file(file, tokenizers));
    for (const recipe::RecordCheck& record : records) {
      if (!record.not_applicable.empty()) {
        fmt::print("{}: not applicable: {}\n", record.id, record.not_applicable);
        continue;
      }
      ++(record.differences.empty() ? passed : failed);
      for (const std::string& difference : record.differences) {
        fmt::print("{}: {}\n", record.id, difference);
      }
    }
  }
  if (passed + failed == 0) {
    return fail(Code::kInvalidArgument, "no record was checked");
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0;
}

}  // namespace

void add_recipe_check(CLI::App& recipe, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = recipe.add_subcommand(
      "check",
      "Runs golden records against the codec in recipe-0.2 mode, prints each difference, and last "
      "`N passed, M failed`.");
  command->add_option("--tokenizer", flags->tokenizer, "The tokenizer.json of the V4 vocabulary.")
      ->required();
  command->add_option("FILE", flags->files, "Golden records (.jsonl) or vectors (.json).")
      ->required();
  command->callback([flags, &exit_code] {
    const auto passed = check(*flags);
    exit_code = !passed ? report(passed.error()) : *passed ? 0 : kExitFailure;
  });
}

}  // namespace galley::apps
