#pragma once

#include <memory>

#include "base/loop.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::gateway {

// What answers while there is no model: says so, and repeats the start of the last user turn. With
// thinking on, one sentence of reasoning comes first. Refuses what only a model can do (logprobs,
// enforced formats), so that nobody mistakes it for one.
class EchoSource final : public recipe::TokenSource {
 public:
  // `loop` delivers the answers and outlives them.
  EchoSource(std::shared_ptr<const recipe::Tokenizer> tokenizer, Loop& loop);

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override;
  [[nodiscard]] bool ready() const override { return true; }
  [[nodiscard]] std::string_view description() const override {
    return "echo (no model is loaded)";
  }

 private:
  [[nodiscard]] std::vector<TokenId> answer(std::span<const TokenId> prompt) const;

  std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with the codec
  Loop& loop_;
};

}  // namespace galley::gateway
