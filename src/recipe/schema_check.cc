#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "recipe/schema.h"
#include "recipe/schema_parts.h"
#include "recipe/schema_pointer.h"

// Whether a document is a JSON Schema of its draft.
namespace galley::recipe {

bool is_schema_type(const Json& value) {
  constexpr std::array<std::string_view, 7> kNames = {"array",  "boolean", "integer", "null",
                                                      "number", "object",  "string"};
  const std::string* const name = value.string();
  return name != nullptr && std::ranges::find(kNames, *name) != kNames.end();
}

std::string quoted_json(const Json& value) {
  constexpr std::size_t kShownBytesMax = 100;
  std::string text = to_json(value);
  if (text.size() > kShownBytesMax) {
    std::size_t cut = kShownBytesMax;
    while ((static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) {
      --cut;
    }
    text.resize(cut);
    text.append("...");
  }
  return text;
}

namespace {

enum class Draft : std::uint8_t { k4, k6, k7, k2019, k2020 };

// `$schema` without its trailing '#'. A schema of another dialect cannot be judged.
std::optional<Draft> draft_of(std::string_view name) {
  if (name.ends_with('#')) {
    name.remove_suffix(1);
  }
  constexpr std::array<std::pair<std::string_view, Draft>, 5> kDrafts = {
      {{"://json-schema.org/draft-04/schema", Draft::k4},
       {"://json-schema.org/draft-06/schema", Draft::k6},
       {"://json-schema.org/draft-07/schema", Draft::k7},
       {"://json-schema.org/draft/2019-09/schema", Draft::k2019},
       {"://json-schema.org/draft/2020-12/schema", Draft::k2020}}};
  for (const std::string_view scheme : {"http", "https"}) {
    if (!name.starts_with(scheme)) {
      continue;
    }
    for (const auto& [suffix, draft] : kDrafts) {
      if (name.substr(scheme.size()) == suffix) {
        return draft;
      }
    }
  }
  return std::nullopt;
}

// What a keyword's value has to be.
enum class Rule : std::uint8_t {
  kSchema,
  kSchemas,         // object of schemas
  kSchemaList,      // array with at least one schema
  kItems,           // schema; before 2020-12 also an array of schemas
  kPatternSchemas,  // object of schemas, keys are patterns
  kDependencies,    // object of schemas or of lists of names
  kType,
  kNames,       // array of distinct strings
  kNamesByKey,  // object of arrays of distinct strings
  kArray,
  kString,
  kPattern,
  kAnchor,
  kId,
  kRef,
  kBoolean,
  kNumber,
  kPositive,    // number above 0
  kBound,       // number; in draft 4 a boolean
  kCount,       // integer from 0
  kVocabulary,  // object of booleans
};

const std::unordered_map<std::string_view, Rule>& rules() {
  static const std::unordered_map<std::string_view, Rule> table = {
      {"additionalProperties", Rule::kSchema},
      {"unevaluatedProperties", Rule::kSchema},
      {"unevaluatedItems", Rule::kSchema},
      {"propertyNames", Rule::kSchema},
      {"contains", Rule::kSchema},
      {"contentSchema", Rule::kSchema},
      {"if", Rule::kSchema},
      {"then", Rule::kSchema},
      {"else", Rule::kSchema},
      {"not", Rule::kSchema},
      {"items", Rule::kItems},
      {"properties", Rule::kSchemas},
      {"dependentSchemas", Rule::kSchemas},
      {"$defs", Rule::kSchemas},
      {"definitions", Rule::kSchemas},
      {"patternProperties", Rule::kPatternSchemas},
      {"dependencies", Rule::kDependencies},
      {"prefixItems", Rule::kSchemaList},
      {"allOf", Rule::kSchemaList},
      {"anyOf", Rule::kSchemaList},
      {"oneOf", Rule::kSchemaList},
      {"type", Rule::kType},
      {"required", Rule::kNames},
      {"dependentRequired", Rule::kNamesByKey},
      {"enum", Rule::kArray},
      {"examples", Rule::kArray},
      {"title", Rule::kString},
      {"description", Rule::kString},
      {"format", Rule::kString},
      {"contentEncoding", Rule::kString},
      {"contentMediaType", Rule::kString},
      {"$comment", Rule::kString},
      {"$schema", Rule::kString},
      {"$recursiveRef", Rule::kString},
      {"pattern", Rule::kPattern},
      {"$anchor", Rule::kAnchor},
      {"$dynamicAnchor", Rule::kAnchor},
      {"$id", Rule::kId},
      {"$ref", Rule::kRef},
      {"$dynamicRef", Rule::kRef},
      {"uniqueItems", Rule::kBoolean},
      {"deprecated", Rule::kBoolean},
      {"readOnly", Rule::kBoolean},
      {"writeOnly", Rule::kBoolean},
      {"minimum", Rule::kNumber},
      {"maximum", Rule::kNumber},
      {"exclusiveMinimum", Rule::kBound},
      {"exclusiveMaximum", Rule::kBound},
      {"multipleOf", Rule::kPositive},
      {"minLength", Rule::kCount},
      {"maxLength", Rule::kCount},
      {"minItems", Rule::kCount},
      {"maxItems", Rule::kCount},
      {"minContains", Rule::kCount},
      {"maxContains", Rule::kCount},
      {"minProperties", Rule::kCount},
      {"maxProperties", Rule::kCount},
      {"$vocabulary", Rule::kVocabulary},
  };
  return table;
}

bool is_distinct_strings(const Json& value) {
  const JsonArray* const array = value.array();
  if (array == nullptr) {
    return false;
  }
  std::unordered_set<std::string_view> seen;
  return std::ranges::all_of(*array, [&](const Json& element) {
    return element.string() != nullptr && seen.insert(*element.string()).second;
  });
}

bool is_type(const Json& value) {
  const JsonArray* const names = value.array();
  return names == nullptr ? is_schema_type(value)
                          : !names->empty() && std::ranges::all_of(*names, is_schema_type) &&
                                is_distinct_strings(value);
}

bool is_count(const Json& value) {
  const std::optional<double> number = value.number();
  return number && *number >= 0 && std::trunc(*number) == *number;
}

bool is_anchor(const Json& value) {
  const std::string* const name = value.string();
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return name != nullptr && !name->empty() && (letter(name->front()) || name->front() == '_') &&
         std::ranges::all_of(*name, [&](char c) {
           return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
         });
}

bool is_id(const Json& value) {
  const std::string* const id = value.string();
  return id != nullptr && id->find('#') >= id->size() - (id->empty() ? 0 : 1);
}

// Brackets, groups and escapes are complete and no quantifier stands alone. The grammar compiler
// knows the rest.
bool is_pattern(std::string_view text) {
  int groups = 0;
  bool in_class = false;
  bool repeatable = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      if (++i == text.size()) {
        return false;
      }
      repeatable = true;
    } else if (in_class) {
      in_class = c != ']';
      repeatable = true;
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(') {
      ++groups;
      repeatable = false;
      i += text.substr(i).starts_with("(?") ? 1 : 0;
    } else if (c == ')') {
      if (--groups < 0) {
        return false;
      }
      repeatable = true;
    } else if (c == '*' || c == '+' || c == '?') {
      if (!repeatable) {
        return false;
      }
    } else {
      repeatable = c != '|' && c != '^';
    }
  }
  return groups == 0 && !in_class;
}

// One walk over the schema: every keyword is judged, anchors and ids are gathered, references are
// kept for the end.
class SchemaChecker {
 public:
  explicit SchemaChecker(const Json& root) : root_(root), pointers_(root) {}

  Result<void> check() {
    Result<void> verdict = judge();
    if (!verdict && culprit_ != nullptr) {
      find_path(root_, verdict.error().where);
    }
    return verdict;
  }

 private:
  Result<void> judge() {
    if (const Json* const name = root_.find("$schema"); name != nullptr && name->string()) {
      const std::optional<Draft> draft = draft_of(*name->string());
      if (!draft) {
        return wrong(*name, "unknown $schema " + quoted_json(*name));
      }
      draft_ = *draft;
    }
    GALLEY_CHECK_OK(schema(root_));
    // A target may lie where no keyword puts a schema, say under `default`; it is one all the same.
    following_ = true;
    for (std::size_t i = 0; i < references_.size(); ++i) {
      const Json& reference = *references_[i];
      const Json* const target = find_target(*reference.string());
      if (target == nullptr) {
        return wrong(reference, "reference " + quoted_json(reference) +
                                    " does not lead to a place in this schema");
      }
      GALLEY_CHECK_OK(schema(*target));
    }
    return {};
  }

  // Appends the way from `place` to the culprit to `path`; false when it is not below.
  bool find_path(const Json& place, std::string& path) const {
    if (&place == culprit_) {
      return true;
    }
    const std::size_t length = path.size();
    if (const JsonObject* const members = place.object()) {
      for (const JsonMember& member : *members) {
        path.append(".").append(member.key);
        if (find_path(member.value, path)) {
          return true;
        }
        path.resize(length);
      }
    } else if (const JsonArray* const elements = place.array()) {
      for (std::size_t i = 0; i < elements->size(); ++i) {
        path.append("[").append(std::to_string(i)).append("]");
        if (find_path((*elements)[i], path)) {
          return true;
        }
        path.resize(length);
      }
    }
    return false;
  }

  // Only the culprit is kept: paths would cost their length at every step, for one that is shown.
  std::unexpected<Error> wrong(const Json& value, std::string what) {
    culprit_ = &value;
    return fail(Code::kInvalidArgument, std::move(what));
  }
  std::unexpected<Error> is_not(const Json& value, std::string_view wanted) {
    return wrong(value, quoted_json(value) + " is not " + std::string(wanted));
  }

  Result<void> schema(const Json& value) {
    if (value.boolean() != nullptr || (following_ && !followed_.insert(&value).second)) {
      return {};
    }
    const JsonObject* const members = value.object();
    if (members == nullptr) {
      return is_not(value, "of types \"boolean\", \"object\"");
    }
    for (const JsonMember& member : *members) {
      const auto rule = rules().find(member.key);
      if (rule == rules().end()) {
        continue;
      }
      GALLEY_CHECK_OK(keyword(rule->second, member, value));
    }
    return {};
  }

  Result<void> keyword(Rule rule, const JsonMember& member, const Json& node) {
    const Json& value = member.value;
    switch (rule) {
      case Rule::kSchema:
        return schema(value);
      case Rule::kSchemas:
      case Rule::kPatternSchemas:
      case Rule::kDependencies:
        return schemas(rule, value);
      case Rule::kSchemaList:
        return schema_list(value);
      case Rule::kItems:
        return value.array() != nullptr && draft_ != Draft::k2020 ? schema_list(value)
                                                                  : schema(value);
      case Rule::kRef:
        if (value.string() == nullptr) {
          return is_not(value, "of type \"string\"");
        }
        references_.push_back(&value);
        return {};
      case Rule::kAnchor:
        if (!is_anchor(value)) {
          return is_not(value, "the name of an anchor");
        }
        anchors_.emplace(*value.string(), &node);
        return {};
      case Rule::kId:
        if (!is_id(value)) {
          return is_not(value, "a URI without fragment");
        }
        ids_.emplace(SchemaReference(*value.string()).base, &node);
        return {};
      default:
        return plain(rule, value);
    }
  }

  // Keywords that hold no schema.
  Result<void> plain(Rule rule, const Json& value) {
    const auto expect = [&](bool ok, std::string_view wanted) -> Result<void> {
      if (!ok) {
        return is_not(value, wanted);
      }
      return {};
    };
    switch (rule) {
      case Rule::kType:
        return expect(is_type(value), "the name of a type or a list of them");
      case Rule::kNames:
        return expect(is_distinct_strings(value), "an array of distinct strings");
      case Rule::kNamesByKey:
        return expect(value.object() != nullptr &&
                          std::ranges::all_of(
                              *value.object(),
                              [](const JsonMember& m) { return is_distinct_strings(m.value); }),
                      "an object of arrays of distinct strings");
      case Rule::kArray:
        return expect(value.array() != nullptr, "of type \"array\"");
      case Rule::kPattern:
        return expect(value.string() != nullptr && is_pattern(*value.string()), "a \"regex\"");
      case Rule::kBoolean:
        return expect(value.boolean() != nullptr, "of type \"boolean\"");
      case Rule::kNumber:
        return expect(value.is_number(), "of type \"number\"");
      case Rule::kPositive:
        return expect(value.is_number() && *value.number() > 0, "a number above 0");
      case Rule::kBound:
        return expect(draft_ == Draft::k4 ? value.boolean() != nullptr : value.is_number(),
                      draft_ == Draft::k4 ? "of type \"boolean\"" : "of type \"number\"");
      case Rule::kCount:
        return expect(is_count(value), "an integer of at least 0");
      case Rule::kVocabulary:
        return expect(value.object() != nullptr &&
                          std::ranges::all_of(
                              *value.object(),
                              [](const JsonMember& m) { return m.value.boolean() != nullptr; }),
                      "an object of booleans");
      default:
        return expect(value.string() != nullptr, "of type \"string\"");
    }
  }

  Result<void> schemas(Rule rule, const Json& value) {
    const JsonObject* const members = value.object();
    if (members == nullptr) {
      return is_not(value, "of type \"object\"");
    }
    for (const JsonMember& member : *members) {
      if (rule == Rule::kDependencies && member.value.array() != nullptr) {
        if (!is_distinct_strings(member.value)) {
          return is_not(member.value, "an array of distinct strings");
        }
        continue;
      }
      if (rule == Rule::kPatternSchemas && !is_pattern(member.key)) {
        return wrong(member.value, quoted_json(Json(member.key)) + " is not a \"regex\"");
      }
      GALLEY_CHECK_OK(schema(member.value));
    }
    return {};
  }

  Result<void> schema_list(const Json& value) {
    const JsonArray* const elements = value.array();
    if (elements == nullptr) {
      return is_not(value, "of type \"array\"");
    }
    if (elements->empty()) {
      return wrong(value, "[] has less than 1 item");
    }
    for (const Json& element : *elements) {
      GALLEY_CHECK_OK(schema(element));
    }
    return {};
  }

  // What a reference leads to inside this document: "#", "#/pointer", "#anchor", or one of its ids,
  // where the part behind '#' is not followed. nullptr when there is no such place.
  const Json* find_target(std::string_view target) {
    const SchemaReference reference(target);
    if (!reference.base.empty()) {
      const auto it = ids_.find(reference.base);
      return it == ids_.end() ? nullptr : it->second;
    }
    if (!reference.is_pointer()) {
      const auto it = anchors_.find(reference.fragment);
      return it == anchors_.end() ? nullptr : it->second;
    }
    return pointers_.find(reference.fragment);
  }

  const Json& root_;
  Draft draft_ = Draft::k2020;
  const Json* culprit_ = nullptr;
  std::vector<const Json*> references_;
  std::unordered_map<std::string_view, const Json*> anchors_;  // and the schema each names
  std::unordered_map<std::string_view, const Json*> ids_;
  bool following_ = false;
  std::unordered_set<const Json*> followed_;
  SchemaPointers pointers_;
};

}  // namespace

Result<void> check_schema(const Json& schema) {
  return SchemaChecker(schema).check();
}

}  // namespace galley::recipe
