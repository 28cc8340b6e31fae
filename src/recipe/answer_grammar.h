#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/control.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

// What an answer may consist of, token by token: the part of a request that a token source enforces
// while it draws (spec runtime 10.2, recipe 5.4). Text and numbers only; a source compiles it.
namespace galley::recipe {

struct AnswerGrammar {
  enum class Kind : std::uint8_t { kNone, kJsonSchema, kRegex, kLark };
  Kind kind = Kind::kNone;
  std::string text;  // schema, regular expression or grammar; control tokens as <[id]>

  // The grammar begins at once, or behind these tokens: until they have come in this order the text
  // is free. A token that ends in `behind` has to stand before the first of them (one token only).
  std::vector<TokenId> trigger;
  std::string behind;
  // Once it has come while the text is free, the trigger has to follow, and then the grammar.
  std::optional<TokenId> bound;
  std::vector<TokenId> forbidden;  // in free text
  bool guarded = false;            // the trigger's last token may only stand where it completes it
  std::string place;               // the request's member that asked for it, for error texts
  // The member that cannot be kept without it. Empty: the answer is of some use without it, too.
  std::string demanded_by;
  // Said already, as the end of the prompt: the grammar goes on behind these.
  std::vector<TokenId> begun;

  friend bool operator==(const AnswerGrammar&, const AnswerGrammar&) = default;
};

// Of a request that was parsed without error. Errors, kInvalidArgument, `where` the request's
// member: a schema that says what no grammar here can enforce (named), one that is too large.
[[nodiscard]] Result<AnswerGrammar> answer_grammar(const Request& request,
                                                   const ControlIds& controls,
                                                   const Tokenizer& tokenizer);

}  // namespace galley::recipe
