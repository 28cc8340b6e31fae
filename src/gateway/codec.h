#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "recipe/control.h"
#include "recipe/prompt_encoder.h"
#include "recipe/request.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::gateway {

// A request that is understood: what to generate, and how to read and encode the reply.
struct Prepared {
  recipe::Request request;
  recipe::Generation generation;
};

// Fits it to who is to answer it, and has the grammar compiled (TokenSource::prepare). A source
// that enforces no grammars: kUnimplemented, `where` the request's member, for what needs one; what
// only promises less without it is noted.
[[nodiscard]] Result<void> fit(Prepared& prepared, recipe::TokenSource& source);

// Bodies -> generations, with the operator's choices: tokenizer, model names, context length.
// Thread-safe.
class Codec {
 public:
  // Error: kInvalidArgument when there is no model name, or one needs a control token that the
  // vocabulary lacks.
  static Result<std::unique_ptr<Codec>> create(std::shared_ptr<const recipe::Tokenizer> tokenizer,
                                               recipe::CodecOptions options,
                                               std::int64_t context_tokens);

  // Linear in `body`. Errors as recipe::parse_request, and the context check. `earlier` is what the
  // named Response stands for; nothing: it was not looked for, and naming one is an error.
  [[nodiscard]] Result<Prepared> prepare(
      recipe::Protocol protocol,
      std::string_view body,
      std::optional<recipe::JsonArray> earlier = std::nullopt) const;

  // The prompt of a request as the model would get it, whether its answer has room or not. Errors
  // as recipe::parse_request.
  [[nodiscard]] Result<std::vector<TokenId>> prompt(recipe::Protocol protocol,
                                                    std::string_view body) const;

  [[nodiscard]] const recipe::CodecOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t context_tokens() const { return context_tokens_; }
  [[nodiscard]] const std::shared_ptr<const recipe::Tokenizer>& tokenizer() const {
    return tokenizer_;
  }

 private:
  // A prompt encoder for each model version that some model name uses.
  struct Version {
    std::unique_ptr<recipe::PromptEncoder> encoder;
    recipe::ControlIds controls;
  };

  Codec(std::shared_ptr<const recipe::Tokenizer> tokenizer,
        recipe::CodecOptions options,
        std::int64_t context_tokens);

  [[nodiscard]] const Version& version_of(const recipe::Request& request) const;
  [[nodiscard]] Result<void> check_completion(const recipe::Completion& completion,
                                              const Version& version) const;

  std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with the token source
  recipe::CodecOptions options_;
  std::int64_t context_tokens_;
  std::array<Version, 2> versions_;  // by ModelVersion
};

}  // namespace galley::gateway
