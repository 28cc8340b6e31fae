// What another engine's server does with Galley's codec from C++: request body in, prompt ids to
// the engine, generated ids in, server-sent events out.
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/entropy.h"
#include "base/ids.h"
#include "base/real_clock.h"
#include "base/result.h"
#include "recipe/control.h"
#include "recipe/prompt.h"
#include "recipe/prompt_encoder.h"
#include "recipe/random_ids.h"
#include "recipe/reply_writer.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

namespace recipe = galley::recipe;
using galley::Result;

namespace {

void send(std::string& bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  bytes.clear();
}

Result<void> answer(const char* tokenizer_path) {
  constexpr std::string_view kBody =
      R"({"model":"my-model","stream":true,"messages":[{"role":"user","content":"Say hello."}]})";
  GALLEY_TRY(const std::shared_ptr<const recipe::Tokenizer> tokenizer,
             recipe::Tokenizer::from_file(tokenizer_path));
  recipe::CodecOptions options;
  options.models.emplace("my-model", recipe::ModelVersion::kV4);

  // Body -> ids. The encoder is made once; it remembers conversations that grow.
  GALLEY_TRY(const recipe::Request request, recipe::parse_chat_request(kBody, options));
  GALLEY_TRY(const recipe::ControlIds controls,
             recipe::ControlIds::find(*tokenizer, request.version));
  recipe::PromptEncoder encoder(tokenizer, controls);
  const std::vector<galley::TokenId> prompt =
      encoder.encode(recipe::render(request.conversation, request.version));

  // What the engine could have generated.
  std::vector<galley::TokenId> generated;
  tokenizer->encode_with_added("A greeting.</think>Hello!", generated);

  // Ids -> server-sent events.
  const galley::RealClock clock;
  recipe::RandomIds ids(galley::entropy_seed());
  recipe::ReplyWriter reply(request, tokenizer,
                            {.id = recipe::new_reply_id(request.protocol, ids),
                             .created_s = clock.unix_seconds(),
                             .call_ids = &ids,
                             .clock = &clock});
  reply.start({.prompt_tokens = std::ssize(prompt), .fingerprint = {}});
  for (const galley::TokenId id : generated) {
    GALLEY_CHECK_OK(reply.feed_tokens({&id, 1}));
    send(reply.bytes());
    if (reply.finished()) {
      break;  // one of the client's stop strings
    }
  }
  reply.finish(recipe::SourceFinish::kStop);
  send(reply.bytes());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s tokenizer.json\n", argv[0]);
    return 2;
  }
  const Result<void> result = answer(argv[1]);
  if (!result) {
    std::fprintf(stderr, "%s\n", galley::to_string(result.error()).c_str());
    return 1;
  }
  return 0;
}
