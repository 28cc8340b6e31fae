#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"

namespace galley::gateway {

// What a token source has delivered and nobody has read, in order. A token takes four bytes and a
// step four more, so that a long reply can wait behind a slow client. Not thread-safe.
class StepQueue {
 public:
  struct Tokens {
    std::vector<TokenId> ids;
    std::vector<recipe::TokenLogprob> logprobs;  // none, or one for each id
  };
  using Step = std::variant<recipe::Started, Tokens, recipe::SourceFinish, Error>;

  // In the order of recipe::TokenSink.
  void push_start(const recipe::Started& started) { started_ = started; }
  void push_tokens(std::span<const TokenId> ids, std::span<const recipe::TokenLogprob> logprobs);
  void push_finish(recipe::SourceFinish reason) { end_ = reason; }
  void push_error(Error error) { end_ = std::move(error); }

  // The oldest step, none when there is none. `step` is reused, its memory too.
  bool pop(Step& step);
  // Bytes of the tokens that wait, heap included.
  [[nodiscard]] std::size_t bytes() const;
  void clear();

 private:
  struct StepSize {
    std::uint32_t tokens : 31;
    std::uint32_t has_logprobs : 1;
  };

  std::optional<recipe::Started> started_;
  std::deque<StepSize> sizes_;
  std::deque<TokenId> ids_;
  std::deque<recipe::TokenLogprob> logprobs_;
  std::size_t logprob_bytes_ = 0;
  std::optional<std::variant<recipe::SourceFinish, Error>> end_;
};

}  // namespace galley::gateway
