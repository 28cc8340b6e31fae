#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "gateway/codec.h"
#include "recipe/event.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

// A request answered in this process, its tokens through the output parser as in the server. What
// `chat` and `model eval` share.
namespace galley::apps {

// What one answer took.
struct AnswerFigures {
  std::int64_t prompt_tokens{};
  std::int64_t cached_tokens{};  // of them, not computed again
  std::int64_t tokens{};
  Duration first_token{};  // from the question
  Duration all{};
};

// Events come on this thread. `stop` is asked all the time, at least every 50 ms; when it says so,
// the answer ends where it is. Errors: the source's; events may have come before.
[[nodiscard]] Result<AnswerFigures> answer_here(gateway::Prepared prepared,
                                                std::shared_ptr<const recipe::Tokenizer> tokenizer,
                                                recipe::TokenSource& source,
                                                const Clock& clock,
                                                recipe::EventSink& events,
                                                const std::function<bool()>& stop);

}  // namespace galley::apps
