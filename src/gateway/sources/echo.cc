#include "gateway/sources/echo.h"

#include <algorithm>
#include <optional>

#include "gateway/sources/delivery.h"
#include "recipe/control.h"

namespace galley::gateway {
namespace {

using recipe::Control;

constexpr std::string_view kReasoning = "No model is loaded, so there is nothing to think about.";
constexpr std::string_view kAnswer = "No model is loaded. You said: ";
// A long prompt is not worth repeating in full.
constexpr std::size_t kEchoTokensMax = 256;

// Tokens of the last user turn, control tokens left out.
std::vector<TokenId> last_user_turn(std::span<const TokenId> prompt,
                                    const recipe::Tokenizer& tokenizer) {
  std::vector<TokenId> turn;
  const auto user = tokenizer.find_added(recipe::spelling(Control::kUser));
  const auto assistant = tokenizer.find_added(recipe::spelling(Control::kAssistant));
  if (!user || !assistant) {
    return turn;
  }
  std::size_t at = prompt.size();
  while (at > 0 && prompt[at - 1] != *user) {
    --at;
  }
  for (; at > 0 && at < prompt.size() && turn.size() < kEchoTokensMax; ++at) {
    if (prompt[at] == *assistant) {
      break;
    }
    if (!tokenizer.is_added(prompt[at])) {
      turn.push_back(prompt[at]);
    }
  }
  return turn;
}

}  // namespace

EchoSource::EchoSource(std::shared_ptr<const recipe::Tokenizer> tokenizer, Loop& loop)
    : tokenizer_(std::move(tokenizer)), loop_(loop) {}

Result<std::unique_ptr<recipe::ActiveGeneration>> EchoSource::start(recipe::Generation generation,
                                                                    recipe::TokenSink& sink) {
  if (generation.sampling.logprobs) {
    return fail(Code::kUnimplemented, "logprobs need a model, and none is loaded", "logprobs");
  }
  if (!generation.images.empty()) {
    return fail(Code::kUnimplemented, "images need a model, and none is loaded", "messages");
  }
  KnownAnswer known{
      .started = {.prompt_tokens = static_cast<std::int64_t>(generation.prompt.size())},
      .ids = answer(generation.prompt)};
  return deliver(loop_, limited(std::move(known), generation), sink);
}

std::vector<TokenId> EchoSource::answer(std::span<const TokenId> prompt) const {
  std::vector<TokenId> ids;
  const auto think_open = tokenizer_->find_added(recipe::spelling(Control::kThinkOpen));
  const auto think_close = tokenizer_->find_added(recipe::spelling(Control::kThinkClose));
  if (!prompt.empty() && think_open == prompt.back() && think_close) {
    tokenizer_->encode(kReasoning, ids);
    ids.push_back(*think_close);
  }
  tokenizer_->encode(kAnswer, ids);
  std::ranges::copy(last_user_turn(prompt, *tokenizer_), std::back_inserter(ids));
  return ids;
}

}  // namespace galley::gateway
