#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "recipe/prompt.h"
#include "recipe/tokenizer.h"

// How prompts and tokens are shown: control tokens must be told apart from text that spells them.
namespace galley::apps {

// Standard output is a terminal: people read it, not programs.
[[nodiscard]] bool on_terminal();

// Standard output is a terminal that understands colours (NO_COLOR is not set).
[[nodiscard]] bool use_colour();

// A control token: reversed on a terminal, ⟦spelling⟧ elsewhere.
[[nodiscard]] std::string control_text(std::string_view spelling, bool colour);

// The text of a prompt with its control tokens shown distinctly.
[[nodiscard]] std::string prompt_text(const recipe::Prompt& prompt, bool colour);

// One line a token: id, and its bytes as a JSON string, or as control_text. Bytes that are not
// whole characters are shown as <0xNN>.
[[nodiscard]] std::string token_lines(std::span<const TokenId> ids,
                                      const recipe::Tokenizer& tokenizer,
                                      bool colour);

// "[1,2,3]"
[[nodiscard]] std::string ids_json(std::span<const TokenId> ids);

// One id a line.
[[nodiscard]] std::string id_lines(std::span<const TokenId> ids);

// Ids out of text: as id_lines and ids_json write them, or with blanks and commas between them.
// Error: kInvalidArgument for anything else, and for a number that is no id of the vocabulary.
[[nodiscard]] Result<std::vector<TokenId>> parse_ids(std::string_view text,
                                                     const recipe::Tokenizer& tokenizer);

}  // namespace galley::apps
