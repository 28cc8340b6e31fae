#include "recipe/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "recipe/request_fields.h"

namespace galley::recipe {
namespace {

// ---------------------------------------------------------------------------------------------
// Any JSON Schema

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
  static const std::unordered_map<std::string_view, Rule> kRules = {
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
  return kRules;
}

bool is_type_name(const Json& value) {
  constexpr std::array<std::string_view, 7> kNames = {"array",  "boolean", "integer", "null",
                                                      "number", "object",  "string"};
  const std::string* const name = value.string();
  return name != nullptr && std::ranges::find(kNames, *name) != kNames.end();
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
  return names == nullptr ? is_type_name(value)
                          : !names->empty() && std::ranges::all_of(*names, is_type_name) &&
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

// "~1" and "~0" of a JSON pointer, "%20" of a URI fragment.
std::string unescape_pointer_part(std::string_view part) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '%' && i + 2 < part.size() && hex(part[i + 1]) >= 0 && hex(part[i + 2]) >= 0) {
      out.push_back(static_cast<char>(hex(part[i + 1]) * 16 + hex(part[i + 2])));
      i += 2;
    } else {
      out.push_back(part[i]);
    }
  }
  for (std::size_t i = 0; (i = out.find('~', i)) != std::string::npos; ++i) {
    if (i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1')) {
      out.replace(i, 2, 1, out[i + 1] == '0' ? '~' : '/');
    }
  }
  return out;
}

std::string quoted(const Json& value) {
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

// One walk over the schema: every keyword is judged, anchors and ids are gathered, references are
// kept for the end.
class SchemaChecker {
 public:
  explicit SchemaChecker(const Json& root) : root_(root) {}

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
        return wrong(*name, "unknown $schema " + quoted(*name));
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
        return wrong(reference,
                     "reference " + quoted(reference) + " does not lead to a place in this schema");
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
    return wrong(value, quoted(value) + " is not " + std::string(wanted));
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
        ids_.emplace(without_hash(*value.string()), &node);
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
        return wrong(member.value, quoted(Json(member.key)) + " is not a \"regex\"");
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

  static std::string_view without_hash(std::string_view id) { return id.substr(0, id.find('#')); }

  // What a reference leads to inside this document: "#", "#/pointer", "#anchor", or one of its ids,
  // where the part behind '#' is not followed. nullptr when there is no such place.
  const Json* find_target(std::string_view target) {
    const std::string_view base = without_hash(target);
    if (!base.empty()) {
      const auto it = ids_.find(base);
      return it == ids_.end() ? nullptr : it->second;
    }
    const std::string_view fragment = target.empty() ? target : target.substr(1);
    if (!fragment.empty() && fragment.front() != '/') {
      const auto it = anchors_.find(fragment);
      return it == anchors_.end() ? nullptr : it->second;
    }
    const Json* place = &root_;
    std::string_view rest = fragment;
    while (!rest.empty() && place != nullptr) {
      rest.remove_prefix(1);
      const std::string_view part = rest.substr(0, rest.find('/'));
      rest.remove_prefix(part.size());
      place = child(*place, unescape_pointer_part(part));
    }
    return place;
  }

  const Json* child(const Json& place, std::string_view key) {
    if (const JsonArray* const array = place.array()) {
      std::size_t index = 0;
      for (const char c : key) {
        if (c < '0' || c > '9' || index >= array->size()) {
          return nullptr;
        }
        index = index * 10 + static_cast<std::size_t>(c - '0');
      }
      return key.empty() || index >= array->size() ? nullptr : &(*array)[index];
    }
    const JsonObject* const members = place.object();
    if (members == nullptr) {
      return nullptr;
    }
    // Thousands of references into one table of thousands must not cost their product.
    auto& index = member_index_[members];
    if (index.empty()) {
      for (const JsonMember& member : *members) {
        index.emplace(member.key, &member.value);
      }
    }
    const auto it = index.find(key);
    return it == index.end() ? nullptr : it->second;
  }

  const Json& root_;
  Draft draft_ = Draft::k2020;
  const Json* culprit_ = nullptr;
  std::vector<const Json*> references_;
  std::unordered_map<std::string_view, const Json*> anchors_;  // and the schema each names
  std::unordered_map<std::string_view, const Json*> ids_;
  bool following_ = false;
  std::unordered_set<const Json*> followed_;
  std::unordered_map<const JsonObject*, std::unordered_map<std::string_view, const Json*>>
      member_index_;
};

// ---------------------------------------------------------------------------------------------
// Strict schemas

// Integers of this kind are 64-bit in the reference: 2.0 and 2^63 do not fit.
bool fits(const Json& value, std::string_view kind) {
  if (kind == "string") {
    return value.string() != nullptr;
  }
  if (kind == "integer") {
    return value.int64() != nullptr;
  }
  if (kind == "number") {
    return value.is_number();
  }
  if (kind == "boolean") {
    return value.boolean() != nullptr;
  }
  constexpr std::array<std::string_view, 5> kFormats = {"email", "hostname", "ipv4", "ipv6",
                                                        "uuid"};
  if (kind == "format") {
    return value.string() != nullptr &&
           std::ranges::find(kFormats, *value.string()) != kFormats.end();
  }
  const JsonArray* const strings = value.array();
  return strings != nullptr &&
         std::ranges::all_of(*strings, [](const Json& s) { return s.string() != nullptr; });
}

struct Keyword {
  std::string_view name;
  std::string_view kind;  // see fits()
};

// The keywords a scalar node keeps behind "type", in their output order.
std::vector<Keyword> kept_keywords(std::string_view type) {
  if (type == "string") {
    return {{"description", "string"},
            {"pattern", "string"},
            {"format", "format"},
            {"enum", "strings"}};
  }
  if (type == "number" || type == "integer") {
    return {{"description", "string"},  {"const", type},     {"default", type},
            {"minimum", type},          {"maximum", type},   {"exclusiveMinimum", type},
            {"exclusiveMaximum", type}, {"multipleOf", type}};
  }
  return {{"description", "string"}};
}

class StrictNormaliser {
 public:
  explicit StrictNormaliser(StrictUse use) : use_(use) {}

  std::expected<StrictSchema, StrictError> run(const Json& schema) {
    StrictSchema out;
    // The shape is judged for the whole schema before any rule about properties.
    Result<Json> shape = read(schema);
    if (!shape) {
      return std::unexpected(StrictError{std::move(shape).error(), true});
    }
    out.rendered = std::move(*shape);
    path_.clear();
    const bool empty_allowed = use_ == StrictUse::kToolParameters;
    if (Result<void> closed = close(out.rendered, empty_allowed); !closed) {
      return std::unexpected(StrictError{std::move(closed).error(), false});
    }
    const Json* const type = out.rendered.find("type");
    if (type == nullptr || type->string() == nullptr || *type->string() != "object") {
      return std::unexpected(StrictError{
          Error{Code::kInvalidArgument,
                use_ == StrictUse::kToolParameters
                    ? "The top level of the function parameters schema must be an object."
                    : "The top level of the json schema must be an object.",
                {}},
          false});
    }
    out.complete = schema;
    complete(out.complete);
    out.lost = std::move(lost_);
    return out;
  }

 private:
  std::unexpected<Error> misfit(std::string what) const {
    return fail(Code::kInvalidArgument, std::move(what), path_);
  }

  void lose(const std::string& keyword) {
    if (lost_.size() < kLostKeywordsMax && std::ranges::find(lost_, keyword) == lost_.end()) {
      lost_.push_back(keyword);
    }
  }

  // Remembers the members of `node` that its rendered form does not have.
  void note_lost(const Json& node, const JsonObject& kept) {
    for (const JsonMember& member : *node.object()) {
      if (std::ranges::find(kept, member.key, &JsonMember::key) == kept.end()) {
        lose(member.key);
      }
    }
  }

  // Copies an optional keyword; null counts as absent.
  Result<void> keep(const Json& node, const Keyword& keyword, JsonObject& out) {
    const Json* const value = node.find(keyword.name);
    if (value == nullptr || value->is_null()) {
      return {};
    }
    if (!fits(*value, keyword.kind)) {
      return misfit("`" + std::string(keyword.name) + "` cannot be " + quoted(*value));
    }
    out.emplace_back(std::string(keyword.name), *value);
    return {};
  }

  Result<Json> read(const Json& node) {
    if (node.object() == nullptr) {
      return misfit(quoted(node) + " is no schema object");
    }
    JsonObject out;
    if (const Json* const type = node.find("type")) {
      if (type->array() == nullptr) {
        return read_typed(node);
      }
      constexpr std::array<std::string_view, 5> kSimple = {"string", "number", "integer", "boolean",
                                                           "null"};
      for (const Json& name : *type->array()) {
        if (name.string() == nullptr ||
            std::ranges::find(kSimple, *name.string()) == kSimple.end()) {
          return misfit("`type` lists " + quoted(name) + ", which is no simple type");
        }
      }
      out.emplace_back("type", *type);
      GALLEY_CHECK_OK(keep(node, {"description", "string"}, out));
    } else if (const Json* const any_of = node.find("anyOf")) {
      GALLEY_TRY(Json choices, read_choices(*any_of));
      out.emplace_back("anyOf", std::move(choices));
      GALLEY_CHECK_OK(keep(node, {"description", "string"}, out));
    } else if (const Json* const reference = node.find("$ref")) {
      if (reference->string() == nullptr) {
        return misfit("`$ref` cannot be " + quoted(*reference));
      }
      out.emplace_back("$ref", *reference);
    } else {
      return misfit("one of `type`, `anyOf`, `$ref` field is required");
    }
    note_lost(node, out);
    return Json(std::move(out));
  }

  Result<Json> read_choices(const Json& any_of) {
    if (any_of.array() == nullptr) {
      return misfit("`anyOf` cannot be " + quoted(any_of));
    }
    JsonArray choices;
    for (const Json& choice : *any_of.array()) {
      const std::size_t length = path_.size();
      path_.append(".anyOf[").append(std::to_string(choices.size())).append("]");
      GALLEY_TRY(choices.emplace_back(), read_typed(choice));
      path_.resize(length);
    }
    return Json(std::move(choices));
  }

  // A node with one type.
  Result<Json> read_typed(const Json& node) {
    const Json* const type = node.find("type");
    if (type == nullptr || !is_type_name(*type)) {
      return misfit(type == nullptr ? "missing field `type`" : "unknown `type` " + quoted(*type));
    }
    JsonObject out;
    out.emplace_back("type", *type);
    if (*type->string() == "object") {
      GALLEY_CHECK_OK(read_object(node, out));
    } else if (*type->string() == "array") {
      const Json* const items = node.find("items");
      if (items == nullptr) {
        return misfit("missing field `items`");
      }
      GALLEY_TRY(Json inner, read_at(".items", *items));
      out.emplace_back("items", std::move(inner));
      GALLEY_CHECK_OK(keep(node, {"description", "string"}, out));
    } else {
      for (const Keyword& keyword : kept_keywords(*type->string())) {
        GALLEY_CHECK_OK(keep(node, keyword, out));
      }
    }
    note_lost(node, out);
    return Json(std::move(out));
  }

  Result<Json> read_at(std::string_view step, const Json& node) {
    const std::size_t length = path_.size();
    path_.append(step);
    GALLEY_TRY(Json out, read(node));
    path_.resize(length);
    return out;
  }

  Result<Json> read_table(std::string_view keyword, const Json& table) {
    if (table.object() == nullptr) {
      return misfit("`" + std::string(keyword) + "` cannot be " + quoted(table));
    }
    JsonObject out;
    for (const JsonMember& member : *table.object()) {
      GALLEY_TRY(Json inner, read_at("." + std::string(keyword) + "." + member.key, member.value));
      out.emplace_back(member.key, std::move(inner));
    }
    return Json(std::move(out));
  }

  // Leaves `properties`, `additionalProperties` and `required` in place, whatever they hold, for
  // close().
  Result<void> read_object(const Json& node, JsonObject& out) {
    Json properties(JsonObject{});
    if (const Json* const table = node.find("properties"); table != nullptr && !table->is_null()) {
      GALLEY_TRY(properties, read_table("properties", *table));
    }
    out.emplace_back("properties", std::move(properties));
    out.emplace_back("additionalProperties", Json{});
    out.emplace_back("required", Json{});
    JsonObject sent;
    GALLEY_CHECK_OK(keep(node, {"additionalProperties", "boolean"}, sent));
    GALLEY_CHECK_OK(keep(node, {"required", "strings"}, sent));
    for (JsonMember& member : sent) {
      set_member(out, member.key, std::move(member.value));
    }
    GALLEY_CHECK_OK(keep(node, {"description", "string"}, out));
    if (const Json* const table = node.find("$def"); table != nullptr && !table->is_null()) {
      GALLEY_TRY(Json definitions, read_table("$def", *table));
      out.emplace_back("$def", std::move(definitions));
    }
    return {};
  }

  // Closes every object of a schema that has the fixed shape.
  Result<void> close(Json& node, bool empty_allowed) {
    if (Json* const any_of = node.find("anyOf")) {
      for (Json& choice : *any_of->array()) {
        GALLEY_CHECK_OK(close(choice, empty_allowed));
      }
      return {};
    }
    if (Json* const items = node.find("items")) {
      return close(*items, false);
    }
    Json* const properties = node.find("properties");
    if (properties == nullptr) {
      return {};
    }
    if (properties->object()->empty() && !empty_allowed) {
      return misfit("An object with no properties is not allowed.");
    }
    for (Json* const table : {properties, node.find("$def")}) {
      if (table == nullptr) {
        continue;
      }
      for (JsonMember& member : *table->object()) {
        const std::size_t length = path_.size();
        path_.append(table == properties ? ".properties." : ".$def.").append(member.key);
        GALLEY_CHECK_OK(close(member.value, false));
        path_.resize(length);
      }
    }
    return close_object(*properties->object(), *node.find("required"),
                        *node.find("additionalProperties"));
  }

  Result<void> close_object(const JsonObject& properties, Json& required, Json& additional) const {
    if (const JsonArray* const sent = required.array()) {
      std::unordered_set<std::string_view> names;
      for (const JsonMember& property : properties) {
        names.insert(property.key);
      }
      std::unordered_set<std::string_view> seen;
      for (const Json& entry : *sent) {
        if (!names.contains(*entry.string())) {
          return misfit("Required property '" + *entry.string() + "' not found in object");
        }
        if (!seen.insert(*entry.string()).second) {
          return misfit("Duplicate required property '" + *entry.string() + "'");
        }
      }
      if (seen.size() != properties.size()) {
        return misfit("Required properties must match all properties in the object");
      }
    }
    if (additional.boolean() != nullptr && *additional.boolean()) {
      return misfit("additionalProperties should not be true");
    }
    required = names_of(properties);
    additional = Json(false);
    return {};
  }

  static Json names_of(const JsonObject& properties) {
    JsonArray names;
    names.reserve(properties.size());
    for (const JsonMember& property : properties) {
      names.emplace_back(property.key);
    }
    return Json(std::move(names));
  }

  // The demands of close() on a schema that keeps all its keywords, `$defs` included, since a
  // reference may lead there.
  void complete(Json& node) {
    if (node.object() == nullptr) {
      return;
    }
    for (JsonMember& member : *node.object()) {
      if (member.key == "items") {
        complete(member.value);
      } else if (member.key == "anyOf" && member.value.array() != nullptr) {
        for (Json& choice : *member.value.array()) {
          complete(choice);
        }
      } else if (member.value.object() != nullptr &&
                 (member.key == "properties" || member.key == "$def" || member.key == "$defs" ||
                  member.key == "definitions")) {
        for (JsonMember& inner : *member.value.object()) {
          complete(inner.value);
        }
      }
    }
    const Json* const type = node.find("type");
    if (type == nullptr || type->string() == nullptr || *type->string() != "object") {
      return;
    }
    const Json* const properties = node.find("properties");
    Json names = properties != nullptr && properties->object() != nullptr
                     ? names_of(*properties->object())
                     : Json(JsonArray{});
    set_member(*node.object(), "required", std::move(names));
    set_member(*node.object(), "additionalProperties", Json(false));
  }

  StrictUse use_;
  std::string path_;
  std::vector<std::string> lost_;
};

std::unexpected<Error> placed(Error error, std::string_view introduction, std::string_view where) {
  error.what.insert(0, introduction);
  error.where.insert(0, where);
  return std::unexpected(std::move(error));
}

std::string schema_introduction(const Tool& tool) {
  return "Invalid schema for function '" + tool.name + "': ";
}

Result<void> check_tool_schema(const Tool& tool, std::string_view where) {
  if (Result<void> valid = check_schema(*tool.parameters); !valid) {
    return placed(std::move(valid).error(), schema_introduction(tool), where);
  }
  return {};
}

}  // namespace

Result<void> check_schema(const Json& schema) {
  return SchemaChecker(schema).check();
}

std::expected<StrictSchema, StrictError> normalise_strict(const Json& schema, StrictUse use) {
  return StrictNormaliser(use).run(schema);
}

Result<void> settle_tool_schema(Tool& tool,
                                Compat compat,
                                std::string_view where,
                                std::vector<std::string>& notes) {
  if (tool.strict == true) {
    const Json empty_object(JsonObject{{"type", "object"}});
    auto strict = normalise_strict(tool.parameters ? *tool.parameters : empty_object,
                                   StrictUse::kToolParameters);
    if (!strict) {
      return placed(std::move(strict.error().error),
                    strict.error().misfit ? "Invalid tool parameters schema : " : "", where);
    }
    if (compat == Compat::kGalley && tool.parameters) {
      GALLEY_CHECK_OK(check_tool_schema(tool, where));
    }
    tool.parameters = std::move(strict->rendered);
    if (compat == Compat::kGalley && !strict->lost.empty()) {
      tool.constraint_parameters = std::move(strict->complete);
      std::string note =
          "tool '" + tool.name + "': the strict schema shown to the model leaves out";
      for (const std::string& keyword : strict->lost) {
        note.append(&keyword == strict->lost.data() ? " `" : ", `").append(keyword).append("`");
      }
      add_note(notes, std::move(note));
    }
    return {};
  }
  if (!tool.parameters) {
    return {};
  }
  GALLEY_CHECK_OK(check_tool_schema(tool, where));
  const Json* const type = tool.parameters->find("type");
  if (type == nullptr || type->string() == nullptr || *type->string() != "object") {
    return fail(Code::kInvalidArgument,
                schema_introduction(tool) +
                    "schema must be a JSON Schema of 'type: \"object\"', got 'type: " +
                    (type == nullptr ? "null" : to_json(*type)) + "'.",
                std::string(where));
  }
  return {};
}

Result<void> settle_response_schema(ResponseFormat& format,
                                    bool strict,
                                    Compat compat,
                                    std::string_view where) {
  constexpr std::string_view kIntroduction = "Invalid json schema: ";
  const auto check = [&]() -> Result<void> {
    if (Result<void> valid = check_schema(format.schema); !valid) {
      return placed(std::move(valid).error(), kIntroduction, where);
    }
    return {};
  };
  if (!strict) {
    GALLEY_CHECK_OK(check());
    format.constraint_schema = format.schema;
    return {};
  }
  auto normal = normalise_strict(format.schema, StrictUse::kResponseFormat);
  if (!normal) {
    return placed(std::move(normal.error().error), normal.error().misfit ? kIntroduction : "",
                  where);
  }
  if (compat == Compat::kGalley) {  // the reference only looks at the shape
    GALLEY_CHECK_OK(check());
  }
  format.constraint_schema = compat == Compat::kGalley && !normal->lost.empty()
                                 ? std::move(normal->complete)
                                 : std::move(normal->rendered);
  return {};
}

}  // namespace galley::recipe
