#include "gateway/codec.h"

#include <algorithm>
#include <fmt/core.h>
#include <utility>

#include "base/check.h"
#include "recipe/answer_grammar.h"
#include "recipe/control.h"
#include "recipe/limits.h"
#include "recipe/prompt.h"

namespace galley::gateway {
namespace {

// What no token source can do. Whatever else one cannot, it refuses itself.
Result<void> refuse_unsupported(const recipe::Request& request, bool keeps, bool has_earlier) {
  if (request.previous_response_id && !keeps) {
    return fail(Code::kUnimplemented,
                "this server keeps no responses: send the whole conversation as `input`",
                "previous_response_id");
  }
  if (request.previous_response_id && !has_earlier) {
    return fail(Code::kInvalidArgument, "the member's name must be spelled without escapes",
                "previous_response_id");
  }
  return {};
}

// What is understood and has no effect here. Before the other notes: a client relies on it.
void note_first(recipe::Request& request, std::string note) {
  request.notes.insert(request.notes.begin(), std::move(note));
  request.notes.resize(std::min(request.notes.size(), recipe::kNoteCountMax));
}

void note_unenforced(recipe::Request& request) {
  if (!request.conversation.has_tools()) {
    return;
  }
  if (!request.parallel_tool_calls) {
    note_first(request, request.protocol == recipe::Protocol::kMessages
                            ? "`disable_parallel_tool_use` is not enforced"
                            : "`parallel_tool_calls: false` is not enforced");
  }
  if (std::ranges::any_of(request.conversation.tools,
                          [](const recipe::Tool& tool) { return tool.strict == true; })) {
    note_first(request, "`strict` of tools is not enforced: arguments may not fit their schema");
  }
}

}  // namespace

Result<void> fit(Prepared& prepared, recipe::TokenSource& source) {
  if (!source.enforces_grammars()) {
    if (const std::string& member = prepared.generation.grammar.demanded_by; !member.empty()) {
      return fail(Code::kUnimplemented,
                  "what makes this server's tokens enforces no format and no tool call", member);
    }
    note_unenforced(prepared.request);
  }
  return source.prepare(prepared.generation);
}

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
    version.controls = *controls;
    version.encoder = std::make_unique<recipe::PromptEncoder>(codec->tokenizer_, *controls);
  }
  return codec;
}

const Codec::Version& Codec::version_of(const recipe::Request& request) const {
  const Version& version = versions_[static_cast<std::size_t>(request.version)];
  GALLEY_ASSERT(version.encoder != nullptr);  // the version came from options_.models
  return version;
}

Result<void> Codec::check_completion(const recipe::Completion& completion,
                                     const Version& version) const {
  const bool fills_gaps = std::ranges::none_of(recipe::kGapControls, [&](recipe::Control token) {
    return version.controls[token] == recipe::ControlIds::kAbsent;
  });
  if (!completion.suffix.empty() && !fills_gaps) {
    return fail(Code::kUnimplemented,
                "the model's vocabulary has no tokens to fill in the middle with", "suffix");
  }
  const std::size_t count = tokenizer_->vocabulary_size();
  for (std::size_t i = 0; i < completion.prompt_ids.size(); ++i) {
    if (completion.prompt_ids[i] >= count) {
      return fail(
          Code::kInvalidArgument,
          fmt::format("{} is no token id, the largest is {}", completion.prompt_ids[i], count - 1),
          fmt::format("prompt[{}]", i));
    }
  }
  return {};
}

Result<Prepared> Codec::prepare(recipe::Protocol protocol,
                                std::string_view body,
                                std::optional<recipe::JsonArray> earlier) const {
  const bool has_earlier = earlier.has_value();
  GALLEY_TRY(recipe::Request request,
             recipe::parse_request(protocol, body, options_,
                                   std::move(earlier).value_or(recipe::JsonArray())));
  const Version& version = version_of(request);
  if (request.completion) {
    GALLEY_CHECK_OK(check_completion(*request.completion, version));
  }
  GALLEY_CHECK_OK(refuse_unsupported(request, options_.keeps_responses, has_earlier));
  if (request.store && !options_.keeps_responses) {
    note_first(request, "`store: true` has no effect: this server keeps no responses");
  }
  recipe::Prompt prompt = recipe::render(request);

  Prepared prepared;
  prepared.generation.prompt = version.encoder->encode(prompt);
  GALLEY_TRY(
      prepared.generation.max_tokens,
      recipe::effective_max_tokens(
          request, static_cast<std::int64_t>(prepared.generation.prompt.size()), context_tokens_));
  prepared.generation.images = std::move(prompt.images);
  prepared.generation.user = request.user;
  prepared.generation.has_tools = request.conversation.has_tools();
  prepared.generation.sampling = request.sampling;
  prepared.generation.constraint = request.constraint;
  GALLEY_TRY(prepared.generation.grammar,
             recipe::answer_grammar(request, version.controls, *tokenizer_));
  prepared.generation.stop_ids = recipe::stop_ids(request, version.controls, *tokenizer_);
  prepared.request = std::move(request);
  return prepared;
}

Result<std::vector<TokenId>> Codec::prompt(recipe::Protocol protocol, std::string_view body) const {
  GALLEY_TRY(const recipe::Request request, recipe::parse_request(protocol, body, options_));
  return version_of(request).encoder->encode(recipe::render(request));
}

}  // namespace galley::gateway
