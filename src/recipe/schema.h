#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "recipe/conversation.h"
#include "recipe/json.h"
#include "recipe/request.h"

// JSON Schemas of tools and response formats (spec recipe 5.4): what is refused, what the prompt
// shows and what a constraint has to enforce.
namespace galley::recipe {

// Error: kInvalidArgument when `schema` is no JSON Schema of its draft: a keyword with a value of
// the wrong type, a reference that leaves the document or points nowhere, an unknown `$schema`. The
// draft is `$schema`'s (04, 06, 07, 2019-09, 2020-12), else 2020-12. `where` is the place inside
// the schema (".properties.a.type"), empty for the top. Linear in the schema.
[[nodiscard]] Result<void> check_schema(const Json& schema);

// Whether an object without properties may stand at the top.
enum class StrictUse : std::uint8_t { kToolParameters, kResponseFormat };

// A schema with `strict: true`.
struct StrictSchema {
  // The reference's fixed shape: few keywords in a fixed order, every object closed and every
  // property required. Models were trained on it, so prompts show this one.
  Json rendered;
  // The same demands with every keyword kept that `rendered` lost ($defs, minLength, numeric enum).
  Json complete;
  // Names of the lost keywords, distinct, in order of appearance, at most kLostKeywordsMax of them.
  std::vector<std::string> lost;
};
inline constexpr std::size_t kLostKeywordsMax = 8;

// Error: kInvalidArgument. `what` is the reference's text without its introduction for a schema
// that does not fit the shape (`misfit` true) and its whole text otherwise.
struct StrictError {
  Error error;
  bool misfit = false;
};
[[nodiscard]] std::expected<StrictSchema, StrictError> normalise_strict(const Json& schema,
                                                                        StrictUse use);

// Replaces `tool.parameters`, as sent, by what is rendered, after checking it: the normalised
// schema when `tool.strict` is true, else the schema as sent, which must be a JSON Schema of type
// object. Galley mode wants a strict schema to be a JSON Schema too (the reference takes a pattern
// or a reference that leads nowhere), and also fills `tool.constraint_parameters` when the
// normalised schema lost something, and says so in `notes`. `where` is the request path of the
// schema
// ("tools[0].function.parameters").
[[nodiscard]] Result<void> settle_tool_schema(Tool& tool,
                                              Compat compat,
                                              std::string_view where,
                                              std::vector<std::string>& notes);

// The same for a response format whose `schema` is filled: sets `constraint_schema`; the prompt
// keeps the schema as sent, so nothing is hidden from the model.
[[nodiscard]] Result<void> settle_response_schema(ResponseFormat& format,
                                                  bool strict,
                                                  Compat compat,
                                                  std::string_view where);

}  // namespace galley::recipe
