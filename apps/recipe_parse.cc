#include <fmt/core.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/recipe_request.h"
#include "apps/token_text.h"
#include "apps/tokenizer_choice.h"
#include "recipe/names.h"
#include "recipe/output_parser.h"
#include "recipe/reply_writer.h"

namespace galley::apps {
namespace {

struct Flags {
  std::string file = "-";
  std::string request_file;
  RequestFlags request;
  std::string tokenizer;
  std::string finish = "stop";
  bool ids = false;
  bool stream = false;
};

// Ids that are the same in every run: this command shows how output is read.
class CountedIds final : public recipe::IdSource {
 public:
  std::string next_id() override { return fmt::format("{:0>20}", count_++); }

 private:
  int count_ = 0;
};

Result<void> parse(const Flags& flags) {
  if (flags.file == "-" && flags.request_file == "-") {
    return fail(Code::kInvalidArgument,
                "FILE and --request cannot both be standard input: name a file for one of them");
  }
  GALLEY_TRY(const std::string body, read_input(flags.request_file));
  GALLEY_TRY(const recipe::Request request, flags.request.parse(body));
  GALLEY_TRY(const std::string output, read_input(flags.file));
  std::shared_ptr<const recipe::Tokenizer> tokenizer;
  std::vector<TokenId> tokens;
  if (flags.ids) {
    GALLEY_TRY(tokenizer, choose_tokenizer(flags.tokenizer));
    GALLEY_TRY(tokens, parse_ids(output, *tokenizer));
  }
  CountedIds ids;
  recipe::ReplyWriter reply(request, tokenizer, {.id = "reply", .call_ids = &ids}, flags.stream);
  reply.start({});
  if (flags.ids) {
    for (const TokenId& id : tokens) {
      GALLEY_CHECK_OK(reply.feed_tokens({&id, 1}));
    }
  } else {
    reply.feed_text(output, 0);
  }
  reply.finish(recipe::named<recipe::SourceFinish>(flags.finish));  // none: nullopt
  fmt::print("{}{}", reply.bytes(), flags.stream ? "" : "\n");
  return {};
}

}  // namespace

void add_recipe_parse(CLI::App& recipe, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      recipe.add_subcommand("parse", "What a model wrote to the reply a client receives.");
  command->add_option("FILE", flags->file,
                      "The model's output; - for standard input (the default).");
  command->add_option("--request", flags->request_file, "The request body it answers.")->required();
  flags->request.add_to(*command);
  command->add_flag("--ids", flags->ids,
                    "The output is token ids, as `detokenize` reads them, not text.");
  command->add_option("--finish", flags->finish, "Why the model stopped.")
      ->check(CLI::IsMember({"stop", "length", "content_filter", "none"}))
      ->capture_default_str();
  command->add_flag("--stream", flags->stream, "Print server-sent events instead of one object.");
  command->add_option("--tokenizer", flags->tokenizer, kTokenizerHelp);
  command->callback([flags, &exit_code] {
    if (const auto done = parse(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
