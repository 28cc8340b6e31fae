#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/mutex.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::gateway {

// FNV-1a 64 over each id as four little-endian bytes (spec recipe 9.2), 16 hex digits.
[[nodiscard]] std::string prompt_hash(std::span<const TokenId> prompt);

// Answers from a file, for tests and demonstrations. JSONL, one answer a line:
//   {"text": "Hello</think>Hi"}       control tokens by their spelling; or "tokens": [1, 2, 3]
//   "prompt_hash": "…"                only for prompts with that hash (any number of times)
//   "finish": "stop|length|content_filter", "cached_tokens": 0, "error": "…" instead of a finish
// Prompts whose hash is in no line take the lines without one, in order; after the last of them,
// kUnavailable.
class ScriptedSource final : public recipe::TokenSource {
 public:
  // `loop` delivers the answers and outlives them. Errors: kInvalidArgument naming the line.
  static Result<std::unique_ptr<ScriptedSource>> from_jsonl(std::string_view jsonl,
                                                            const recipe::Tokenizer& tokenizer,
                                                            Loop& loop);

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override;
  [[nodiscard]] bool ready() const override { return true; }
  [[nodiscard]] std::string_view description() const override { return "scripted answers"; }

 private:
  struct Line {
    std::vector<TokenId> tokens;
    std::string prompt_hash;  // empty: any prompt
    recipe::SourceFinish finish = recipe::SourceFinish::kStop;
    std::int64_t cached_tokens = 0;
    std::optional<std::string> error;
  };
  static Result<Line> parse_line(std::string_view text, const recipe::Tokenizer& tokenizer);

  ScriptedSource(std::vector<Line> lines, Loop& loop) : lines_(std::move(lines)), loop_(loop) {}
  const Line* pick(std::span<const TokenId> prompt);

  const std::vector<Line> lines_;
  Loop& loop_;
  Mutex mutex_;
  std::size_t next_ GALLEY_GUARDED_BY(mutex_) = 0;  // first line not yet given away in order
};

}  // namespace galley::gateway
