#pragma once

#include <cstdint>
#include <functional>

#include "apps/model_source.h"
#include "base/clock.h"
#include "gateway/codec.h"
#include "recipe/event.h"

// A request answered in this process, its tokens through the output parser as in the server. What
// `chat` and `model eval` share.
namespace galley::apps {

// What one answer took.
struct AnswerFigures {
  std::int64_t prompt_tokens{};
  std::int64_t tokens{};
  Duration first_token{};  // from the question
  Duration all{};
  std::int64_t drafts_verified{};
  std::int64_t drafts_accepted{};
};

// Events come on this thread. `stop` is asked all the time, at least every 50 ms; when it says so,
// the answer ends where it is. Errors: the source's; events may have come before.
[[nodiscard]] Result<AnswerFigures> answer_here(gateway::Prepared prepared,
                                                LoadedModel& model,
                                                const Clock& clock,
                                                recipe::EventSink& events,
                                                const std::function<bool()>& stop);

}  // namespace galley::apps
