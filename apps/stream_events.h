#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "recipe/event.h"

namespace galley::apps {

// What one event of a stream says, in whichever of the four protocols.
struct StreamPart {
  std::string text;       // of the answer
  std::string reasoning;  // before it
  bool call = false;      // a tool is called, or its arguments go on
  std::optional<recipe::FinishReason> finish;
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> cached_tokens;  // of them
  std::optional<std::int64_t> answer_tokens;

  [[nodiscard]] bool delivers() const { return !text.empty() || !reasoning.empty() || call; }
};

// `data` of an event. "[DONE]" says nothing. Error: kUnavailable with what the server says broke;
// kCorruption for what is no event.
[[nodiscard]] Result<StreamPart> stream_part(std::string_view data);

}  // namespace galley::apps
