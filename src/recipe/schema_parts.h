#pragma once

#include <string>

#include "recipe/json.h"

// What checking and normalising of schemas share. Internal to them.
namespace galley::recipe {

// One of the seven names that `type` may have.
[[nodiscard]] bool is_schema_type(const Json& value);
// A value inside an error's sentence: JSON of at most about a hundred bytes.
[[nodiscard]] std::string quoted_json(const Json& value);

}  // namespace galley::recipe
