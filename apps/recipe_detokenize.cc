#include <fmt/core.h>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/token_text.h"
#include "apps/tokenizer_choice.h"
#include "recipe/json.h"

namespace galley::apps {
namespace {

struct Flags {
  std::string file = "-";
  std::string tokenizer;
  bool json = false;
};

Result<void> detokenize(const Flags& flags) {
  GALLEY_TRY(const auto tokenizer, choose_tokenizer(flags.tokenizer));
  GALLEY_TRY(const std::string input, read_input(flags.file));
  GALLEY_TRY(const std::vector<TokenId> ids, parse_ids(input, *tokenizer));
  const std::string text = tokenizer->decode(ids);
  if (flags.json) {
    fmt::print("{}\n", to_json(recipe::Json(text)));
  } else {
    fmt::print("{}{}", text, on_terminal() && !text.ends_with('\n') ? "\n" : "");
  }
  return {};
}

}  // namespace

void add_recipe_detokenize(CLI::App& recipe, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = recipe.add_subcommand(
      "detokenize",
      "Token ids to text, byte for byte: in a pipe or a file nothing is added "
      "to it.");
  command->add_option("FILE", flags->file,
                      "The ids: numbers with spaces, line ends or commas between them, or a JSON "
                      "array; - for standard input (the default).");
  command->add_option("--tokenizer", flags->tokenizer, kTokenizerHelp);
  command->add_flag("--json", flags->json, "Print the text as a JSON string.");
  command->callback([flags, &exit_code] {
    if (const auto done = detokenize(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
