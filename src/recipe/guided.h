#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "recipe/request.h"
#include "recipe/request_fields.h"

// What clients of vLLM send to shape an answer: `guided_json`, `guided_regex`, `guided_choice`,
// `guided_grammar`, and the same in `structured_outputs`. Internal to the request parsers.
namespace galley::recipe {

// Nothing when none was sent. Error kInvalidArgument: more than one, a wrong type, something that
// is no JSON Schema.
[[nodiscard]] Result<std::optional<GuidedFormat>> read_guided(const Fields& body,
                                                              std::vector<std::string>& notes);

}  // namespace galley::recipe
