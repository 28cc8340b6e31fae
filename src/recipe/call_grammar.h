#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/conversation.h"

// The markup of tool calls as a grammar in llguidance's Lark (spec recipe 2.6, 3.1). Internal to
// answer_grammar().
namespace galley::recipe {

struct CallGrammar {
  std::string calls;  // name of the rule: the calls of a block and its closing tag
  std::string rules;  // lines, that rule among them
};

// Behind the `>\n` of the block's opening tag. `mark` is ｜DSML｜. Calls of strict tools have the
// arguments their schema wants, those of others any that are well formed. Error kInvalidArgument,
// `where` in the request: a strict schema that cannot be enforced.
[[nodiscard]] Result<CallGrammar> call_grammar(const std::vector<Tool>& tools,
                                               ModelVersion version,
                                               bool parallel,
                                               TokenId mark);

// Name of the block's tag.
[[nodiscard]] std::string_view block_tag(ModelVersion version);

// Text as a literal of the grammar.
[[nodiscard]] std::string lark_literal(std::string_view text);
// A schema inside a grammar, or by itself: with Galley's bound on whitespace.
[[nodiscard]] std::string grammar_schema(const Json& schema);

}  // namespace galley::recipe
