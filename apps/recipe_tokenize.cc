#include <fmt/core.h>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/token_text.h"
#include "apps/tokenizer_choice.h"

namespace galley::apps {
namespace {

struct Flags {
  std::string file = "-";
  std::string tokenizer;
  bool special = false;
  bool json = false;
};

Result<void> tokenize(const Flags& flags) {
  GALLEY_TRY(const auto tokenizer, choose_tokenizer(flags.tokenizer));
  GALLEY_TRY(const std::string text, read_input(flags.file));
  std::vector<TokenId> ids;
  flags.special ? tokenizer->encode_with_added(text, ids) : tokenizer->encode(text, ids);
  if (flags.json) {
    fmt::print("{}\n", ids_json(ids));
  } else if (on_terminal()) {
    fmt::print("{}{} tokens\n", token_lines(ids, *tokenizer, use_colour()), ids.size());
  } else {
    fmt::print("{}", id_lines(ids));
  }
  return {};
}

}  // namespace

void add_recipe_tokenize(CLI::App& recipe, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = recipe.add_subcommand(
      "tokenize",
      "Text to token ids. On a terminal each id with its text; in a pipe or a "
      "file one id a line, as `detokenize` reads them.");
  command->add_option("FILE", flags->file, "The text; - for standard input (the default).");
  command->add_option("--tokenizer", flags->tokenizer, kTokenizerHelp);
  command->add_flag("--special", flags->special,
                    "Recognise control tokens by their spelling, as no client text ever is.");
  command->add_flag("--json", flags->json, "Print the ids as one JSON array.");
  command->callback([flags, &exit_code] {
    if (const auto done = tokenize(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
