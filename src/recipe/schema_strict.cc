#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipe/request_fields.h"
#include "recipe/schema.h"
#include "recipe/schema_parts.h"

// The fixed shape of a schema with `strict: true`.
namespace galley::recipe {
namespace {

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
      return misfit("`" + std::string(keyword.name) + "` cannot be " + quoted_json(*value));
    }
    out.emplace_back(std::string(keyword.name), *value);
    return {};
  }

  Result<Json> read(const Json& node) {
    if (node.object() == nullptr) {
      return misfit(quoted_json(node) + " is no schema object");
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
          return misfit("`type` lists " + quoted_json(name) + ", which is no simple type");
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
        return misfit("`$ref` cannot be " + quoted_json(*reference));
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
      return misfit("`anyOf` cannot be " + quoted_json(any_of));
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
    if (type == nullptr || !is_schema_type(*type)) {
      return misfit(type == nullptr ? "missing field `type`"
                                    : "unknown `type` " + quoted_json(*type));
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
      return misfit("`" + std::string(keyword) + "` cannot be " + quoted_json(table));
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
          return misfit("Required property '" + std::string(clipped(*entry.string())) +
                        "' not found in object");
        }
        if (!seen.insert(*entry.string()).second) {
          return misfit("Duplicate required property '" + std::string(clipped(*entry.string())) +
                        "'");
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

}  // namespace

std::expected<StrictSchema, StrictError> normalise_strict(const Json& schema, StrictUse use) {
  return StrictNormaliser(use).run(schema);
}

}  // namespace galley::recipe
