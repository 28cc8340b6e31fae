#include "gateway/codec.h"

#include <fmt/core.h>
#include <utility>

#include "base/check.h"
#include "recipe/control.h"
#include "recipe/prompt.h"

namespace galley::gateway {
namespace {

// What the codec can read and this server cannot do yet is refused by name, never ignored.
Result<void> refuse_unsupported(const recipe::Request& request, const recipe::Prompt& prompt) {
  if (request.sampling.n > 1) {
    return fail(Code::kUnimplemented,
                fmt::format("n = {} is not supported by this server, only 1", request.sampling.n),
                "n");
  }
  if (!prompt.images.empty()) {
    return fail(Code::kUnimplemented, "images are not supported by this server", "messages");
  }
  return {};
}

// The vocabulary is the server's, so the request parser cannot know it.
Result<void> check_logit_bias(const recipe::Request& request, const recipe::Tokenizer& tokenizer) {
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (std::cmp_greater_equal(id, tokenizer.vocabulary_size())) {
      return fail(Code::kInvalidArgument,
                  fmt::format("is not a token id of this model, whose ids are below {}",
                              tokenizer.vocabulary_size()),
                  fmt::format("logit_bias.{}", id));
    }
  }
  return {};
}

}  // namespace

Codec::Codec(std::shared_ptr<const recipe::Tokenizer> tokenizer,
             recipe::CodecOptions options,
             std::int64_t context_tokens)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      context_tokens_(context_tokens) {}

Result<std::unique_ptr<Codec>> Codec::create(std::shared_ptr<const recipe::Tokenizer> tokenizer,
                                             recipe::CodecOptions options,
                                             std::int64_t context_tokens) {
  if (options.models.empty()) {
    return fail(Code::kInvalidArgument, "needs at least one name that clients may ask for",
                "models");
  }
  std::unique_ptr<Codec> codec(new Codec(std::move(tokenizer), std::move(options), context_tokens));
  for (const auto& [name, model_version] : codec->options_.models) {
    Version& version = codec->versions_[static_cast<std::size_t>(model_version)];
    if (version.encoder != nullptr) {
      continue;
    }
    auto controls = recipe::ControlIds::find(*codec->tokenizer_, model_version);
    if (!controls) {
      return in_step(fmt::format("model name '{}'", name), std::move(controls).error());
    }
    version.end_of_turn = (*controls)[recipe::Control::kEos];
    version.encoder = std::make_unique<recipe::PromptEncoder>(codec->tokenizer_, *controls);
  }
  return codec;
}

Result<Prepared> Codec::prepare(recipe::Protocol protocol, std::string_view body) const {
  GALLEY_TRY(recipe::Request request, recipe::parse_request(protocol, body, options_));
  recipe::Prompt prompt = recipe::render(request.conversation, request.version);
  GALLEY_CHECK_OK(refuse_unsupported(request, prompt));
  GALLEY_CHECK_OK(check_logit_bias(request, *tokenizer_));

  const Version& version = versions_[static_cast<std::size_t>(request.version)];
  GALLEY_ASSERT(version.encoder != nullptr);  // the version came from options_.models
  Prepared prepared;
  prepared.generation.prompt = version.encoder->encode(prompt);
  GALLEY_TRY(
      prepared.generation.max_tokens,
      recipe::effective_max_tokens(
          request, static_cast<std::int64_t>(prepared.generation.prompt.size()), context_tokens_));
  prepared.generation.images = std::move(prompt.images);
  prepared.generation.sampling = request.sampling;
  prepared.generation.constraint = request.constraint;
  prepared.generation.stop_ids = {version.end_of_turn};
  prepared.request = std::move(request);
  return prepared;
}

}  // namespace galley::gateway
