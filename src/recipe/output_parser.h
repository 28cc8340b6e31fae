#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/event.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

namespace galley::recipe {

// Why the token source stopped.
enum class SourceFinish : std::uint8_t { kStop, kLength, kContentFilter };

// Tokens (or text) of one reply -> events, incrementally (spec recipe 3). One stream gives one
// answer, however it is cut; nothing that was emitted is ever taken back; what could still become
// markup is held. Linear in the input.
class OutputParser {
 public:
  // With a tokenizer, markers match control ids only: `</think>` spelled with plain tokens is
  // content. Without one, text matches by spelling. `sink` must outlive the parser.
  static std::unique_ptr<OutputParser> create(const Request& request,
                                              std::shared_ptr<const Tokenizer> tokenizer,
                                              EventSink& sink);
  virtual ~OutputParser() = default;

  // At most once, before anything is fed; when it is left out, Started{} is emitted before the
  // first output.
  virtual void start(const Started& started) = 0;
  // `token_count` is what `text` counts in usage. Feed text or tokens, never both.
  virtual void feed_text(std::string_view text, std::int64_t token_count) = 0;
  // `logprobs` is empty or has one entry a token. Error: kInvalidArgument (ids without a tokenizer,
  // wrong count).
  virtual Result<void> feed_tokens(std::span<const TokenId> ids,
                                   std::span<const TokenLogprob> logprobs = {}) = 0;
  // Ends the reply: emits what is held, then Finished. nullopt: the source ended without a reason.
  virtual void finish(std::optional<SourceFinish> reason) = 0;

  // A stop string matched (Finished was emitted): the source should be cancelled, further input is
  // ignored.
  [[nodiscard]] virtual bool finished() const = 0;
};

}  // namespace galley::recipe
