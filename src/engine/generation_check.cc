#include "engine/generation_check.h"

#include <fmt/core.h>
#include <iterator>
#include <string_view>

namespace galley::engine {
namespace {

using recipe::Constraint;

Result<void> check_id(TokenId id, std::size_t vocabulary, std::string_view where) {
  if (id >= vocabulary) {
    return fail(Code::kInvalidArgument,
                fmt::format("token {} is outside the model's vocabulary of {}", id, vocabulary),
                std::string(where));
  }
  return {};
}

}  // namespace

Result<void> check_generation(const recipe::Generation& generation,
                              std::size_t vocabulary,
                              std::int64_t context_tokens) {
  const auto prompt = std::ssize(generation.prompt);
  if (generation.prompt.empty() || generation.max_tokens < 1) {
    return fail(Code::kInvalidArgument, "want at least one prompt token and one to generate");
  }
  if (generation.max_tokens > context_tokens - prompt) {
    return fail(Code::kInvalidArgument,
                fmt::format("{} prompt tokens and {} to generate do not fit the context of {}",
                            prompt, generation.max_tokens, context_tokens),
                "max_tokens");
  }
  if (!generation.images.empty()) {
    return fail(Code::kUnimplemented, "images are not supported by this server", "messages");
  }
  if (generation.grammar.kind == recipe::AnswerGrammar::Kind::kNone &&
      generation.constraint.kind != Constraint::Kind::kNone &&
      generation.constraint.kind != Constraint::Kind::kToolCall) {
    return fail(
        Code::kUnimplemented, "an output format or tool call can only be enforced with a grammar",
        generation.constraint.kind == Constraint::Kind::kToolCallRequired ? "tool_choice"
                                                                          : "response_format");
  }
  for (const TokenId id : generation.prompt) {
    GALLEY_CHECK_OK(check_id(id, vocabulary, "prompt"));
  }
  for (const auto& [id, bias] : generation.sampling.logit_bias) {
    GALLEY_CHECK_OK(check_id(id, vocabulary, "logit_bias"));
  }
  return {};
}

Result<void> check_model(const model::ModelPlan& plan,
                         const recipe::Tokenizer& tokenizer,
                         std::optional<model::WindowRebuild> rebuild) {
  if (tokenizer.vocabulary_size() > static_cast<std::size_t>(plan.config.vocabulary)) {
    return fail(Code::kInvalidArgument,
                fmt::format("the tokenizer has {} ids, the model only {}",
                            tokenizer.vocabulary_size(), plan.config.vocabulary),
                "tokenizer");
  }
  if (rebuild == model::WindowRebuild::kBounded && plan.config.family != model::Family::kV41) {
    return fail(Code::kInvalidArgument, "only V4.1's windows can be rebuilt from one window",
                "rebuild");
  }
  return {};
}

}  // namespace galley::engine
