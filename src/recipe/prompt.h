#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "recipe/control.h"
#include "recipe/conversation.h"
#include "recipe/request.h"

// Conversation -> prompt (spec recipe 2). The bytes equal deepseek-recipe 0.2.0's: models were
// trained on them.
namespace galley::recipe {

// A control token in the prompt: text[begin, end) is its spelling. Everything else is plain text,
// whatever it spells.
struct ControlSpan {
  std::size_t begin{};
  std::size_t end{};
  Control control{};
};

struct Prompt {
  std::string text;
  std::vector<ControlSpan> controls;  // ascending, disjoint
  std::vector<Image> images;          // in placeholder order; `offset` is meaningless here
};

// `request.conversation` as a prompt for `request.version`. Cannot fail: whatever passed
// parse_request renders.
[[nodiscard]] Prompt render(const Conversation& conversation, ModelVersion version);

// Fill in the middle (spec 2.10).
[[nodiscard]] Prompt render_fim(std::string_view prefix, std::string_view suffix);

}  // namespace galley::recipe
