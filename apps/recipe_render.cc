#include <fmt/core.h>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/recipe_request.h"
#include "apps/token_text.h"
#include "apps/tokenizer_choice.h"
#include "recipe/control.h"
#include "recipe/json.h"
#include "recipe/names.h"
#include "recipe/prompt.h"
#include "recipe/prompt_encoder.h"

namespace galley::apps {
namespace {

struct Flags {
  std::string file = "-";
  std::string tokenizer;
  RequestFlags request;
  bool tokens = false;
  bool json = false;
};

std::string as_json(const recipe::Request& request,
                    const recipe::Prompt& prompt,
                    const std::vector<TokenId>& ids) {
  recipe::JsonArray controls;
  for (const recipe::ControlSpan& span : prompt.controls) {
    controls.emplace_back(recipe::JsonArray{std::uint64_t{span.begin}, std::uint64_t{span.end}});
  }
  recipe::JsonArray tokens;
  for (const TokenId id : ids) {
    tokens.emplace_back(std::uint64_t{id});
  }
  recipe::JsonArray notes;
  for (const std::string& note : request.notes) {
    notes.emplace_back(note);
  }
  return to_json(recipe::JsonObject{{"prompt", prompt.text},
                                    {"special", std::move(controls)},
                                    {"ids", std::move(tokens)},
                                    {"images", std::uint64_t{prompt.images.size()}},
                                    {"thinking", request.output.thinking},
                                    {"constraint", name_of(request.constraint.kind)},
                                    {"notes", std::move(notes)}});
}

Result<void> render(const Flags& flags) {
  GALLEY_TRY(const std::string body, read_input(flags.file));
  GALLEY_TRY(const recipe::Request request, flags.request.parse(body));
  const recipe::Prompt prompt = recipe::render(request);
  if (!flags.tokens && !flags.json && prompt.ids.empty()) {
    fmt::print("{}\n", prompt_text(prompt, use_colour()));
    return {};
  }
  GALLEY_TRY(const auto tokenizer, choose_tokenizer(flags.tokenizer));
  GALLEY_TRY(const auto controls, recipe::ControlIds::find(*tokenizer, request.version));
  recipe::PromptEncoder encoder(tokenizer, controls);
  const std::vector<TokenId> ids = encoder.encode(prompt);
  if (flags.json) {
    fmt::print("{}\n", as_json(request, prompt, ids));
  } else {
    fmt::print("{}{} tokens\n", token_lines(ids, *tokenizer, use_colour()), ids.size());
  }
  return {};
}

}  // namespace

void add_recipe_render(CLI::App& recipe, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = recipe.add_subcommand(
      "render",
      "A request body to the prompt the model reads. Control tokens are shown reversed on a "
      "terminal and as ⟦token⟧ elsewhere; text that merely spells one is not.");
  command->add_option("FILE", flags->file, "The request body; - for standard input (the default).");
  flags->request.add_to(*command);
  command->add_flag("--tokens", flags->tokens, "Print the token ids, one a line, with their text.");
  command->add_flag("--json", flags->json,
                    "Print one JSON object: prompt, byte ranges of its control tokens, ids.");
  command->add_option("--tokenizer", flags->tokenizer, kTokenizerHelp);
  command->callback([flags, &exit_code] {
    if (const auto done = render(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
