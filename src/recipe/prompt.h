#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/ids.h"
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
  std::vector<TokenId> ids;  // not empty: the prompt came as ids, and is them; it has no text
  std::string text;
  std::vector<ControlSpan> controls;  // ascending, disjoint
  std::vector<Image> images;          // in placeholder order; `offset` is meaningless here
};

// A conversation as a prompt for `version`. Cannot fail: whatever passed parse_request renders.
[[nodiscard]] Prompt render(const Conversation& conversation, ModelVersion version);
// The same for whatever the request holds: its conversation, or its completion.
[[nodiscard]] Prompt render(const Request& request);

// What ends the answer to a request: the end of the turn, and of a completion also the legacy end
// of text and the tokens around a gap, as far as the vocabulary has them (spec 2.10).
[[nodiscard]] std::vector<TokenId> stop_ids(const Request& request,
                                            const ControlIds& controls,
                                            const Tokenizer& tokenizer);

// Fill in the middle (spec 2.10).
[[nodiscard]] Prompt render_fim(std::string_view prefix, std::string_view suffix);

}  // namespace galley::recipe
