#include "recipe/call_grammar.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "recipe/schema_enforce.h"
#include "recipe/schema_pointer.h"

namespace galley::recipe {
namespace {

// Names of tags (spec recipe 2.3).
struct Tags {
  std::string_view block;
  std::string_view call;
  std::string_view parameter;
};
constexpr Tags kTagsV4 = {"tool_calls", "invoke", "parameter"};
constexpr Tags kTagsV41 = {" calls", " invoke", " parameter"};

const Tags& tags_of(ModelVersion version) {
  return version == ModelVersion::kV41 ? kTagsV41 : kTagsV4;
}

// Between tokens of JSON. Each run is bounded: a model that likes blanks would fill an answer with
// them.
constexpr std::string_view kWhitespace = R"([\x20\x0A\x0D\x09]{1,40})";

bool is_one_of(std::string_view key, std::span<const std::string_view> names) {
  return std::ranges::find(names, key) != names.end();
}

constexpr std::array<std::string_view, 6> kSilent = {"description", "title",    "default",
                                                     "examples",    "$comment", "deprecated"};

// Of a whole document, not of a schema inside one.
constexpr std::array<std::string_view, 3> kOfDocuments = {"$schema", "$id", "id"};
// The name of a strict tool's schema as a definition of one of its properties.
constexpr std::string_view kWhole = "parameters";

class Builder {
 public:
  Builder(ModelVersion version, TokenId mark)
      : version_(version),
        tags_(tags_of(version)),
        mark_(std::string("<[").append(std::to_string(mark)).append("]>")) {}

  Result<CallGrammar> build(const std::vector<Tool>& tools, bool parallel) {
    std::vector<std::string> calls;
    std::vector<std::string_view> free_names;
    for (std::size_t i = 0; i < tools.size(); ++i) {
      if (tools[i].strict == true) {
        GALLEY_TRY(std::string rule, strict_call(tools[i], i));
        calls.push_back(std::move(rule));
      } else {
        free_names.push_back(tools[i].name);
      }
    }
    if (!free_names.empty()) {
      calls.push_back(free_call(free_names));
    }
    line("a_call", alternatives(calls));
    line("the_calls", std::string(parallel ? "a_call+ " : "a_call ") + closing(tags_.block, ">"));
    // The `<` of the closing tag is part of it: text may hold any other.
    rules_.append("VALUE: /(?s:.)*<\\//\n");
    return CallGrammar{.calls = "the_calls", .rules = std::move(rules_)};
  }

 private:
  void line(std::string_view name, std::string_view body) {
    rules_.append(name).append(": ").append(body).append("\n");
  }
  static std::string alternatives(const std::vector<std::string>& rules) {
    std::string out;
    for (const std::string& rule : rules) {
      out.append(out.empty() ? "" : " | ").append(rule);
    }
    return out;
  }
  std::string opening(std::string_view tag, std::string_view rest) const {
    return lark_literal("<") + " " + mark_ + " " + lark_literal(std::string(tag).append(rest));
  }
  std::string closing(std::string_view tag, std::string_view rest) const {
    return lark_literal("</") + " " + closing_behind(tag, rest);
  }
  // Where the `</` is there already.
  std::string closing_behind(std::string_view tag, std::string_view rest) const {
    return mark_ + " " + lark_literal(std::string(tag).append(rest));
  }
  // V4.1 was trained with an empty line where there is no argument.
  [[nodiscard]] std::string nothing() const {
    return version_ == ModelVersion::kV41 ? lark_literal("\n") : lark_literal("");
  }

  std::string free_call(const std::vector<std::string_view>& names) {
    std::string any;
    for (const std::string_view name : names) {
      any.append(any.empty() ? "" : " | ").append(lark_literal(name));
    }
    line("any_json", "%json " + grammar_schema(Json(JsonObject{})));
    line("free_parameter", opening(tags_.parameter, " name=\"") + " KEY " +
                               lark_literal("\" string=\"") + " (" + lark_literal("true\">") +
                               " VALUE | " + lark_literal("false\">") + " any_json " +
                               lark_literal("</") + ") " + closing_behind(tags_.parameter, ">\n"));
    rules_.append("KEY: /[^\"<>\\n]+/\n");
    line("free_call", opening(tags_.call, " name=\"") + " (" + any + ") " + lark_literal("\">\n") +
                          " (free_parameter+ | " + nothing() + ") " + closing(tags_.call, ">\n"));
    return "free_call";
  }

  // Its parameters in the order of the schema, each that is required.
  Result<std::string> strict_call(const Tool& tool, std::size_t index) {
    const std::string place = "tools[" + std::to_string(index) + "]";
    const Json empty(JsonObject{});
    const Json& schema = tool.constraint_parameters ? *tool.constraint_parameters
                         : tool.parameters          ? *tool.parameters
                                                    : empty;
    if (Result<void> enforced = check_enforced(schema); !enforced) {
      Error error = std::move(enforced).error();
      error.what =
          "Invalid schema for function '" + tool.name + "': " + error.what + " by a strict tool";
      error.where = place + error.where;
      return std::unexpected(std::move(error));
    }
    constexpr std::array<std::string_view, 8> kKnown = {
        "type",  "properties",  "required", "additionalProperties",
        "$defs", "definitions", "$schema",  "$id"};
    static const JsonObject kNone;
    const JsonObject& members = schema.object() == nullptr ? kNone : *schema.object();
    for (const JsonMember& member : members) {
      if (!is_one_of(member.key, kKnown) && !is_one_of(member.key, kSilent)) {
        return fail(Code::kInvalidArgument,
                    "Invalid schema for function '" + tool.name + "': `" + member.key +
                        "` at the top of a strict tool's parameters cannot be enforced",
                    place);
      }
    }
    std::string parameters;
    const Json* const properties = schema.find("properties");
    const JsonObject* const by_name = properties == nullptr ? nullptr : properties->object();
    for (const JsonMember& property : by_name == nullptr ? kNone : *by_name) {
      if (property.key.find_first_of("\"\n\r") != std::string::npos) {
        return fail(Code::kInvalidArgument,
                    "Invalid schema for function '" + tool.name +
                        "': a parameter's name holds a quote or a line's end",
                    place);
      }
      const std::string rule = "p_" + std::to_string(index) + "_" + std::to_string(parameters_++);
      line(rule, parameter(property, schema));
      parameters.append(" ").append(rule).append(required(schema, property.key) ? "" : "?");
    }
    const std::string rule = "call_" + std::to_string(index);
    line(rule, opening(tags_.call, " name=\"" + tool.name + "\">\n") +
                   (parameters.empty() ? " " + nothing() : parameters) + " " +
                   closing(tags_.call, ">\n"));
    return rule;
  }

  static bool required(const Json& schema, std::string_view name) {
    const Json* const list = schema.find("required");
    const JsonArray* const names = list == nullptr ? nullptr : list->array();
    return names != nullptr && std::ranges::any_of(*names, [&](const Json& one) {
             return one.string() != nullptr && *one.string() == name;
           });
  }

  // Whether a property's text can be written raw: strings of which no more is asked. `type` may
  // have others beside, which are written as JSON.
  static bool may_be_raw(const Json& property) {
    const JsonObject* const members = property.object();
    const Json* const type = property.find("type");
    if (members == nullptr || type == nullptr) {
      return false;
    }
    const auto is_string = [](const Json& one) {
      return one.string() != nullptr && *one.string() == "string";
    };
    return (is_string(*type) ||
            (type->array() != nullptr && std::ranges::any_of(*type->array(), is_string))) &&
           std::ranges::all_of(*members, [](const JsonMember& member) {
             return member.key == "type" || is_one_of(member.key, kSilent);
           });
  }

  // The strings that a property may be, where they are all it may be. Each has a text of its own.
  static std::optional<std::vector<std::string>> raw_choices(const Json& property) {
    const Json* const list = property.find("enum");
    const JsonArray* const values = list == nullptr ? nullptr : list->array();
    if (values == nullptr || values->empty() ||
        !std::ranges::all_of(*property.object(), [](const JsonMember& member) {
          return member.key == "type" || member.key == "enum" || is_one_of(member.key, kSilent);
        })) {
      return std::nullopt;
    }
    std::vector<std::string> out;
    for (const Json& value : *values) {
      if (value.string() == nullptr) {
        return std::nullopt;
      }
      out.push_back(lark_literal(*value.string()));
    }
    const Json* const type = property.find("type");
    const bool strings =
        type == nullptr || (type->string() != nullptr && *type->string() == "string");
    return strings ? std::optional(std::move(out)) : std::nullopt;
  }

  std::string parameter(const JsonMember& property, const Json& root) {
    const std::string begin = opening(
        tags_.parameter, std::string(" name=\"").append(property.key).append("\" string=\""));
    const std::string end = closing_behind(tags_.parameter, ">\n");
    if (const auto choices = raw_choices(property.value)) {
      return begin + " " + lark_literal("true\">") + " (" + alternatives(*choices) + ") " +
             lark_literal("</") + " " + end;
    }
    const bool raw = may_be_raw(property.value);
    const std::string text = lark_literal("true\">") + " VALUE";
    const Json* const type = property.value.find("type");
    if (raw && type->string() != nullptr) {
      return begin + " " + text + " " + end;
    }
    const std::string json = lark_literal("false\">") + " %json " +
                             grammar_schema(as_document(property.value, root)) + " " +
                             lark_literal("</");
    return begin + " (" + (raw ? text + " | " : "") + json + ") " + end;
  }

  // A property by itself, with what its references lead to.
  static Json as_document(const Json& property, const Json& root) {
    if (property.boolean() != nullptr && !*property.boolean()) {
      return Json(JsonObject{{"enum", Json(JsonArray{})}});
    }
    Json out = property;
    bool refers = false;
    visit_references(out, [&](std::string& /*reference*/) { refers = true; });
    if (!refers) {
      return out;
    }
    // They are as well those of the definitions, and all lead into the schema the property was
    // taken from, which becomes a definition itself: `#` is another place now.
    JsonObject definitions;
    const bool whole = leaves_definitions(root);
    if (whole) {
      const Json* const id = root.find("$id");
      const std::string base(id == nullptr || id->string() == nullptr
                                 ? std::string_view()
                                 : SchemaReference(*id->string()).base);
      const auto move = [&](std::string& reference) { move_reference(reference, base); };
      Json top = root;
      std::erase_if(*top.object(),
                    [](const JsonMember& member) { return is_one_of(member.key, kOfDocuments); });
      visit_references(top, move);
      visit_references(out, move);
      definitions.push_back({std::string(kWhole), std::move(top)});
    }
    for (const std::string_view key : {"$defs", "definitions"}) {
      std::erase_if(*out.object(), [&](const JsonMember& member) { return member.key == key; });
      const Json* const given = root.find(key);
      if (!whole && given != nullptr) {
        out.object()->push_back({std::string(key), *given});
      }
    }
    if (whole) {
      out.object()->push_back({"$defs", Json(std::move(definitions))});
    }
    return out;
  }

  // Whether definitions alone are not all that references of a schema lead to.
  static bool leaves_definitions(const Json& schema) {
    bool out = false;
    Json copy = schema;
    visit_references(copy, [&](const std::string& reference) {
      out = out || !(reference.starts_with("#/$defs/") || reference.starts_with("#/definitions/"));
    });
    return out;
  }

  // To where the whole schema is now. Names of anchors and ids below the top stay what they are.
  static void move_reference(std::string& text, std::string_view base) {
    const SchemaReference reference(text);
    if (!reference.base.empty() && reference.base != base) {
      return;
    }
    text = reference.is_pointer()
               ? std::string("#/$defs/").append(kWhole).append(reference.fragment)
               : std::string("#").append(reference.fragment);
  }

  const ModelVersion version_;
  const Tags& tags_;
  const std::string mark_;
  std::string rules_;
  std::size_t parameters_ = 0;
};

}  // namespace

std::string lark_literal(std::string_view text) {
  std::string out;
  append_json_string(text, out);
  for (std::size_t at = 0; (at = out.find('\x7F', at)) != std::string::npos;) {
    out.replace(at, 1, "\\u007f");
  }
  return out;
}

std::string grammar_schema(const Json& schema) {
  JsonObject out = schema.object() == nullptr ? JsonObject() : *schema.object();
  std::erase_if(out, [](const JsonMember& member) { return member.key == "deprecated"; });
  out.push_back({"x-guidance", Json(JsonObject{{"whitespace_pattern", Json(kWhitespace)}})});
  return to_json(Json(std::move(out)));
}

std::string_view block_tag(ModelVersion version) {
  return tags_of(version).block;
}

Result<CallGrammar> call_grammar(const std::vector<Tool>& tools,
                                 ModelVersion version,
                                 bool parallel,
                                 TokenId mark) {
  return Builder(version, mark).build(tools, parallel);
}

}  // namespace galley::recipe
