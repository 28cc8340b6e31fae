#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "recipe/json.h"

// Where references of a schema lead. Internal to the code of schemas.
namespace galley::recipe {

// Splits "base#fragment"; without '#' the fragment is empty.
struct SchemaReference {
  explicit SchemaReference(std::string_view text)
      : base(text.substr(0, text.find('#'))),
        fragment(text.substr(base.size() == text.size() ? base.size() : base.size() + 1)) {}
  [[nodiscard]] bool is_pointer() const { return fragment.empty() || fragment.front() == '/'; }

  std::string_view base;      // a URI, or empty: the same document
  std::string_view fragment;  // of a place's pointer, the name of an anchor, or empty
};

// Follows JSON pointers in one document, which outlives it. Thousands of pointers into one table of
// thousands do not cost their product.
class SchemaPointers {
 public:
  explicit SchemaPointers(const Json& root) : root_(root) {}

  // `fragment`: empty, or begins with '/'; percent-encoded as in a URI. Null: no such place.
  [[nodiscard]] const Json* find(std::string_view fragment);

 private:
  [[nodiscard]] const Json* child(const Json& place, std::string_view key);

  const Json& root_;
  std::unordered_map<const JsonObject*, std::unordered_map<std::string_view, const Json*>> members_;
};

}  // namespace galley::recipe
