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
  bool done = false;  // the mark at the end of a stream
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> cached_tokens;  // of them
  std::optional<std::int64_t> answer_tokens;

  // Without one that does, a stream broke off.
  [[nodiscard]] bool ends() const { return done || finish.has_value(); }
  [[nodiscard]] bool delivers() const { return !text.empty() || !reasoning.empty() || call; }
};

// `data` of an event. Error: kUnavailable with what the server says broke;
// kCorruption for what is no event.
[[nodiscard]] Result<StreamPart> stream_part(std::string_view data);

// The error of a stream that closes and had no end.
[[nodiscard]] std::unexpected<Error> broken_off();

}  // namespace galley::apps
