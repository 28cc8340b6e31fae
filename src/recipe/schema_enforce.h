#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "recipe/json.h"

// Which keywords of JSON Schema a grammar enforces (docs/SCHEMAS.md is made from this list).
namespace galley::recipe {

// Schemas in one another, references not followed.
inline constexpr std::size_t kSchemaNodesMax = 4'000;
// Of one object: the price of optional ones grows with the square.
inline constexpr std::size_t kSchemaPropertiesMax = 240;

enum class KeywordUse : std::uint8_t {
  kEnforced,
  kAnnotation,  // says nothing about a value
  kRefused,     // says something that is not enforced
};
struct SchemaKeyword {
  std::string_view name;
  KeywordUse use{};
};
// All keywords of drafts 4 to 2020-12. Others mean nothing in any draft and are let pass.
[[nodiscard]] std::span<const SchemaKeyword> schema_keywords();

// Whether all of a schema that is a JSON Schema can be enforced, as far as its keywords tell. Error
// kInvalidArgument: a keyword that is not, or too much of it, or a reference that leads past what
// was looked at; `where` is the place inside the schema (".properties.a.not").
[[nodiscard]] Result<void> check_enforced(const Json& schema);

// Calls `visit` with every reference that stands where a keyword puts a schema.
void visit_references(Json& schema, const std::function<void(std::string&)>& visit);

}  // namespace galley::recipe
