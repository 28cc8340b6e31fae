// Goal: schemas are refused, normalised and completed as spec recipe 5.4 says. Method: tables whose
// verdicts were taken from the reference; the strict rules one by one; large and deep input.
#include "recipe/schema.h"

#include <gtest/gtest.h>
#include <string>

namespace galley::recipe {
namespace {

Json parsed(std::string_view text) {
  Result<Json> value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? std::move(*value) : Json{};
}

TEST(CheckSchema, JudgesAsTheReference) {
  struct Row {
    bool valid;
    std::string_view schema;
  };
  constexpr Row kRows[] = {
      {false, R"j({"$schema": "foo"})j"},
      {true,
       R"j({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}})j"},
      {false, R"j({"properties": {"a": {"type": "array", "items": [{"type": "string"}]}}})j"},
      {true,
       R"j({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"type": "integer", "minimum": 1, "exclusiveMinimum": true}}})j"},
      {false,
       R"j({"properties": {"a": {"type": "integer", "minimum": 1, "exclusiveMinimum": true}}})j"},
      {true,
       R"j({"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"a": {"items": [true]}}})j"},
      {false,
       R"j({"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {"items": [true]}}})j"},
      {false, R"j({"$schema": 5})j"},
      {true, R"j({"$schema": "http://json-schema.org/draft-07/schema"})j"},
      {false, R"j({"$schema": "http://example.com/x"})j"},
      {false, R"j({"properties": {"a": {"$ref": "#/$defs/x"}}})j"},
      {true,
       R"j({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}})j"},
      {true, R"j({"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x"}}})j"},
      {false, R"j({"properties": {"a": {"$ref": "#x"}}})j"},
      {false, R"j({"properties": {"a": {"$ref": "http://e.com/s"}}})j"},
      {true,
       R"j({"properties": {"a": {"$ref": "http://e.com/s"}}, "$defs": {"x": {"$id": "http://e.com/s"}}})j"},
      {false, R"j({"properties": {"a": {"$ref": "http://json-schema.org/draft-07/schema#"}}})j"},
      {false, R"j({"properties": {"a": {"$ref": "other.json"}}})j"},
      {true,
       R"j({"$id": "http://e.com/root", "properties": {"a": {"$ref": "http://e.com/root#/$defs/x"}}, "$defs": {"x": {}}})j"},
      {true, R"j({"properties": {"a": {"$ref": "#/properties/a%20b"}, "a b": {}}})j"},
      {true, R"j({"properties": {"a": {"$ref": "#/properties/a~1b"}, "a/b": {}}})j"},
      {false, R"j({"properties": {"a": {"$ref": 5}}})j"},
      {true, R"j({"properties": {"a": {"$ref": "#"}}})j"},
      {true, R"j({"properties": {"a": {"$ref": ""}}})j"},
      {false,
       R"j({"properties": {"a": {"$ref": "#/properties/b/default"}, "b": {"default": {"$ref": "http://x"}}}})j"},
      {true, R"j({"properties": {"b": {"default": {"$ref": "http://x"}}}})j"},
      {true, R"j({"properties": {"b": {"const": {"$ref": "http://x"}}}})j"},
      {true, R"j({"properties": {"b": {"enum": [{"$ref": "http://x"}]}}})j"},
      {true, R"j({"foo": {"$ref": "http://x"}})j"},
      {false,
       R"j({"foo": {"$id": "http://e.com/s"}, "properties": {"a": {"$ref": "http://e.com/s"}}})j"},
      {false, R"j({"properties": {"a": {"pattern": "("}}})j"},
      {true, R"j({"properties": {"a": {"pattern": "\\d+(?=x)"}}})j"},
      {false, R"j({"properties": {"a": {"pattern": "[a-z"}}})j"},
      {false, R"j({"properties": {"a": {"pattern": 5}}})j"},
      {true, R"j({"properties": {"a": {"enum": []}}})j"},
      {true, R"j({"properties": {"a": {"enum": [1, 1]}}})j"},
      {false, R"j({"properties": {"a": {"enum": 5}}})j"},
      {false, R"j({"properties": {"a": {"enum": {}}}})j"},
      {false, R"j({"required": ["a", "a"]})j"},
      {true, R"j({"required": []})j"},
      {false, R"j({"required": "a"})j"},
      {false, R"j({"required": true})j"},
      {false, R"j({"required": [1]})j"},
      {false, R"j({"properties": {"a": {"type": "string", "required": true}}})j"},
      {false, R"j({"properties": {"a": {"type": ["string", "string"]}}})j"},
      {false, R"j({"properties": {"a": {"type": []}}})j"},
      {false, R"j({"properties": {"a": {"type": "any"}}})j"},
      {false, R"j({"properties": {"a": {"type": "float"}}})j"},
      {false, R"j({"properties": {"a": {"type": null}}})j"},
      {true, R"j({"properties": {"a": {"minLength": 2.0}}})j"},
      {false, R"j({"properties": {"a": {"minLength": -1}}})j"},
      {false, R"j({"properties": {"a": {"minLength": 1.5}}})j"},
      {true, R"j({"properties": {"a": {"minLength": 1e+30}}})j"},
      {false, R"j({"properties": {"a": {"multipleOf": 0}}})j"},
      {false, R"j({"properties": {"a": {"minimum": "1"}}})j"},
      {false, R"j({"properties": {"a": {"minimum": null}}})j"},
      {false, R"j({"properties": {"a": {"anyOf": []}}})j"},
      {false, R"j({"properties": {"a": {"anyOf": [1]}}})j"},
      {false, R"j({"properties": {"a": {"anyOf": {}}}})j"},
      {true, R"j({"properties": {"a": true}})j"},
      {false, R"j({"properties": {"a": null}})j"},
      {false, R"j({"properties": null})j"},
      {false, R"j({"properties": []})j"},
      {false, R"j({"description": 5})j"},
      {false, R"j({"description": null})j"},
      {false, R"j({"title": null})j"},
      {true, R"j({"default": null})j"},
      {false, R"j({"examples": 5})j"},
      {false, R"j({"examples": null})j"},
      {false, R"j({"format": 5})j"},
      {true, R"j({"format": "xyz"})j"},
      {false, R"j({"deprecated": "x"})j"},
      {false, R"j({"readOnly": 1})j"},
      {false, R"j({"$comment": 5})j"},
      {true, R"j({"nullable": 5})j"},
      {false, R"j({"definitions": 5})j"},
      {false, R"j({"$defs": {"a": 5}})j"},
      {false, R"j({"$defs": []})j"},
      {false, R"j({"dependencies": {"a": 5}})j"},
      {false, R"j({"dependencies": {"a": ["b", "b"]}})j"},
      {true, R"j({"dependencies": {"a": ["b"]}})j"},
      {false, R"j({"dependentRequired": {"a": "b"}})j"},
      {false, R"j({"dependentSchemas": {"a": 5}})j"},
      {false, R"j({"additionalProperties": 5})j"},
      {false, R"j({"additionalProperties": {"type": "strin"}})j"},
      {false, R"j({"patternProperties": {"(": {}}})j"},
      {false, R"j({"patternProperties": {"a": 5}})j"},
      {true, R"j({"propertyNames": {"type": "string"}})j"},
      {false, R"j({"propertyNames": 5})j"},
      {false, R"j({"if": 5})j"},
      {false, R"j({"not": 5})j"},
      {true, R"j({"allOf": [{}]})j"},
      {false, R"j({"oneOf": [{"type": "x"}]})j"},
      {false, R"j({"contains": 5})j"},
      {false, R"j({"prefixItems": []})j"},
      {true, R"j({"prefixItems": [{}]})j"},
      {true, R"j({"additionalItems": 5})j"},
      {false, R"j({"unevaluatedProperties": 5})j"},
      {false, R"j({"contentSchema": 5})j"},
      {false, R"j({"contentMediaType": 5})j"},
      {false, R"j({"$id": 5})j"},
      {false, R"j({"$id": "a#b"})j"},
      {true, R"j({"$id": "#"})j"},
      {false, R"j({"$anchor": "1"})j"},
      {false, R"j({"$anchor": "a b"})j"},
      {false, R"j({"$dynamicRef": "#x"})j"},
      {true, R"j({"$dynamicAnchor": "x"})j"},
      {false, R"j({"$vocabulary": 5})j"},
      {true, R"j({"$recursiveRef": "#"})j"},
      {false, R"j({"minProperties": -1})j"},
      {false, R"j({"uniqueItems": 5})j"},
      {true, R"j({"id": 5})j"},
  };
  for (const Row& row : kRows) {
    const Result<void> verdict = check_schema(parsed(row.schema));
    EXPECT_EQ(verdict.has_value(), row.valid)
        << row.schema << (verdict ? "" : to_string(verdict.error()));
  }
  EXPECT_TRUE(check_schema(Json(true)));
  EXPECT_FALSE(check_schema(Json{}));
  EXPECT_FALSE(check_schema(Json(5)));
  EXPECT_FALSE(check_schema(Json(JsonArray{})));
}

TEST(CheckSchema, NamesThePlace) {
  const auto where = [](std::string_view text) { return check_schema(parsed(text)).error().where; };
  EXPECT_EQ(where(R"({"properties":{"a":{"anyOf":[{},{"type":"x"}]}}})"),
            ".properties.a.anyOf[1].type");
  EXPECT_EQ(where(R"({"properties":{"a":{},"b":{"$ref":"#/c"}}})"), ".properties.b.$ref");
  EXPECT_EQ(where("5"), "");
}

// References into one large table, and a large `required`, stay linear.
TEST(CheckSchema, LinearInItsInput) {
  constexpr int kCount = 20'000;
  JsonObject table;
  JsonObject users;
  JsonArray names;
  for (int i = 0; i < kCount; ++i) {
    const std::string name = "n" + std::to_string(i);
    table.push_back({name, Json(JsonObject{})});
    users.push_back({name, Json(JsonObject{{"$ref", Json("#/$defs/" + name)}})});
    names.emplace_back(name);
  }
  const Json schema(JsonObject{{"type", "object"},
                               {"properties", Json(std::move(users))},
                               {"required", Json(std::move(names))},
                               {"$defs", Json(std::move(table))}});
  EXPECT_TRUE(check_schema(schema));
  EXPECT_TRUE(normalise_strict(schema, StrictUse::kToolParameters));
}

std::string strict(std::string_view text, StrictUse use = StrictUse::kToolParameters) {
  const auto schema = normalise_strict(parsed(text), use);
  return schema ? to_json(schema->rendered)
                : (schema.error().misfit ? "misfit" : schema.error().error.what);
}

TEST(StrictSchema, HasTheFixedShape) {
  EXPECT_EQ(
      strict(R"({"description":"d","properties":{"z":{"minLength":2,"type":"string"},)"
             R"("a":{"title":"T","type":["integer","null"]}},"type":"object"})"),
      R"({"type":"object","properties":{"z":{"type":"string"},"a":{"type":["integer","null"]}},)"
      R"("additionalProperties":false,"required":["z","a"],"description":"d"})");
  const auto property = [](std::string_view text) {
    const auto schema = normalise_strict(
        parsed(R"({"type":"object","properties":{"p":)" + std::string(text) + "}}"),
        StrictUse::kToolParameters);
    return schema ? to_json((*schema->rendered.find("properties")->object())[0].value)
                  : (schema.error().misfit ? "misfit" : schema.error().error.what);
  };
  EXPECT_EQ(
      property(
          R"({"enum":["a"],"format":"uuid","pattern":"x","description":"d","const":"q","type":"string"})"),
      R"({"type":"string","description":"d","pattern":"x","format":"uuid","enum":["a"]})");
  EXPECT_EQ(
      property(
          R"({"multipleOf":2.5,"exclusiveMaximum":9,"exclusiveMinimum":1,"maximum":8,"minimum":2,"default":3,"const":4,"description":"d","enum":[1],"type":"number"})"),
      R"({"type":"number","description":"d","const":4,"default":3,"minimum":2,"maximum":8,"exclusiveMinimum":1,"exclusiveMaximum":9,"multipleOf":2.5})");
  EXPECT_EQ(property(R"({"type":"integer","minimum":2})"), R"({"type":"integer","minimum":2})");
  EXPECT_EQ(property(R"({"type":"integer","minimum":2.0})"), "misfit");
  EXPECT_EQ(property(R"({"type":"integer","minimum":9223372036854775808})"), "misfit");
  EXPECT_EQ(property(R"({"type":"integer","minimum":null})"), R"({"type":"integer"})");
  EXPECT_EQ(property(R"({"default":true,"type":"boolean"})"), R"({"type":"boolean"})");
  EXPECT_EQ(property(R"({"type":"null","description":"d"})"),
            R"({"type":"null","description":"d"})");
  EXPECT_EQ(property(R"({"minItems":1,"description":"d","items":{"type":"null"},"type":"array"})"),
            R"({"type":"array","items":{"type":"null"},"description":"d"})");
  EXPECT_EQ(property(R"({"description":"d","anyOf":[{"type":"string"},{"type":"null"}]})"),
            R"({"anyOf":[{"type":"string"},{"type":"null"}],"description":"d"})");
  EXPECT_EQ(property(R"({"description":"d","$ref":"#/$defs/a"})"), R"({"$ref":"#/$defs/a"})");
  EXPECT_EQ(property(R"({"type":"string","anyOf":5})"), R"({"type":"string"})");
}

TEST(StrictSchema, RefusesWhatDoesNotFit) {
  for (const std::string_view text :
       {R"([])", R"(true)", R"({})", R"({"type":"objekt"})", R"({"type":5})",
        R"({"type":["object"]})", R"({"anyOf":{}})", R"({"anyOf":[{"anyOf":[]}]})", R"({"$ref":5})",
        R"({"type":"object","properties":[]})", R"({"type":"object","properties":{"a":{}}})",
        R"({"type":"object","additionalProperties":{}})", R"({"type":"object","required":"a"})",
        R"({"type":"object","required":[5]})", R"({"type":"object","description":5})",
        R"({"type":"object","$def":5})", R"({"type":"array"})",
        R"({"type":"string","format":"date"})", R"({"type":"string","enum":[5]})"}) {
    EXPECT_EQ(strict(text), "misfit") << text;
  }
}

TEST(StrictSchema, RefusesOpenObjects) {
  const auto with = [](std::string_view more) {
    return strict(R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},)" +
                  std::string(more) + "}");
  };
  EXPECT_EQ(with(R"("required":["a","z"])"), "Required property 'z' not found in object");
  EXPECT_EQ(with(R"("required":["a","a"])"), "Duplicate required property 'a'");
  EXPECT_EQ(with(R"("required":["a"])"),
            "Required properties must match all properties in the object");
  EXPECT_EQ(with(R"("additionalProperties":true)"), "additionalProperties should not be true");
  EXPECT_EQ(strict(R"({"type":"object"})"),
            R"({"type":"object","properties":{},"additionalProperties":false,"required":[]})");
  const std::string_view empty = "An object with no properties is not allowed.";
  EXPECT_EQ(strict(R"({"type":"object"})", StrictUse::kResponseFormat), empty);
  EXPECT_EQ(strict(R"({"type":"object","properties":{"a":{"type":"object"}}})"), empty);
  EXPECT_EQ(strict(R"({"type":"object","$def":{"a":{"type":"object"}}})"), empty);
  EXPECT_EQ(
      strict(R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"object"}}}})"),
      empty);
  EXPECT_EQ(strict(R"({"type":"string"})"),
            "The top level of the function parameters schema must be an object.");
  EXPECT_EQ(strict(R"({"anyOf":[{"type":"object"}]})", StrictUse::kResponseFormat), empty);
  EXPECT_EQ(strict(R"({"type":"null"})", StrictUse::kResponseFormat),
            "The top level of the json schema must be an object.");
  // The shape of the whole schema is judged first.
  EXPECT_EQ(strict(R"({"type":"object","additionalProperties":true,"properties":{"a":{}}})"),
            "misfit");
}

TEST(StrictSchema, CompleteKeepsWhatRenderedLoses) {
  const auto schema = normalise_strict(
      parsed(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"},)"
             R"("b":{"type":"string","minLength":2}},"$defs":{"x":{"type":"object",)"
             R"("properties":{"c":{"type":"integer","enum":[1]}}}}})"),
      StrictUse::kToolParameters);
  ASSERT_TRUE(schema);
  EXPECT_EQ(to_json(schema->complete),
            R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"type":"string",)"
            R"("minLength":2}},"$defs":{"x":{"type":"object","properties":{"c":{"type":"integer",)"
            R"("enum":[1]}},"required":["c"],"additionalProperties":false}},)"
            R"("required":["a","b"],"additionalProperties":false})");
  EXPECT_EQ(schema->lost, (std::vector<std::string>{"minLength", "$defs"}));
}

// `strict` asks for more, so what is refused without it is refused with it.
TEST(SettleToolSchema, StrictSchemasAreSchemasToo) {
  struct Row {
    std::string_view property;
    std::string_view says;
    std::string_view where;
  };
  constexpr Row kRows[] = {
      {R"({"$ref":"#/$defs/nowhere"})",
       R"(reference "#/$defs/nowhere" does not lead to a place in this schema)",
       ".properties.a.$ref"},
      {R"({"$ref":"http://example.com/s"})",
       R"(reference "http://example.com/s" does not lead to a place in this schema)",
       ".properties.a.$ref"},
      {R"({"type":"string","pattern":"(a"})", R"("(a" is not a "regex")", ".properties.a.pattern"},
      {R"({"type":"string","minLength":-1})", "-1 is not an integer of at least 0",
       ".properties.a.minLength"},
  };
  std::vector<std::string> notes;
  for (const Row& row : kRows) {
    const Json schema =
        parsed(R"({"type":"object","properties":{"a":)" + std::string(row.property) + "}}");
    for (const bool strict : {true, false}) {
      Tool tool{.name = "f", .parameters = schema, .strict = strict};
      const Result<void> settled = settle_tool_schema(tool, Compat::kGalley, "here", notes);
      ASSERT_FALSE(settled) << row.property;
      EXPECT_EQ(settled.error().what, "Invalid schema for function 'f': " + std::string(row.says));
      EXPECT_EQ(settled.error().where, "here" + std::string(row.where));
      ResponseFormat format{.kind = ResponseFormat::Kind::kJsonSchema, .schema = schema};
      const Result<void> response =
          settle_response_schema(format, strict, Compat::kGalley, "there");
      ASSERT_FALSE(response) << row.property;
      EXPECT_EQ(response.error().what, "Invalid json schema: " + std::string(row.says));
      EXPECT_EQ(response.error().where, "there" + std::string(row.where));
    }
    Tool reference{.name = "f", .parameters = schema, .strict = true};
    EXPECT_TRUE(settle_tool_schema(reference, Compat::kRecipe02, "here", notes)) << row.property;
  }
}

TEST(SettleToolSchema, StrictAndNot) {
  std::vector<std::string> notes;
  const auto settle = [&](std::string_view parameters, bool strict_tool, Compat compat) {
    Tool tool{.name = "f", .parameters = parsed(parameters), .strict = strict_tool};
    const Result<void> done = settle_tool_schema(tool, compat, "tools[0].parameters", notes);
    return done ? to_json(*tool.parameters) + "|" +
                      (tool.constraint_parameters ? to_json(*tool.constraint_parameters) : "")
                : done.error().what + " at " + done.error().where;
  };
  const std::string_view open =
      R"({"type":"object","properties":{"a":{"type":"string","maxLength":3}}})";
  EXPECT_EQ(settle(open, false, Compat::kGalley), std::string(open) + "|");
  const std::string rendered =
      R"({"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false,"required":["a"]})";
  EXPECT_EQ(settle(open, true, Compat::kRecipe02), rendered + "|");
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(
      settle(open, true, Compat::kGalley),
      rendered +
          R"(|{"type":"object","properties":{"a":{"type":"string","maxLength":3}},"required":["a"],"additionalProperties":false})");
  EXPECT_EQ(notes, (std::vector<std::string>{
                       "tool 'f': the strict schema shown to the model leaves out `maxLength`"}));
  EXPECT_EQ(settle(R"({"type":"array"})", false, Compat::kGalley),
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', "
            "got 'type: \"array\"'. at tools[0].parameters");
  EXPECT_EQ(settle(R"({})", false, Compat::kGalley),
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', "
            "got 'type: null'. at tools[0].parameters");
  EXPECT_EQ(settle(R"({"properties":5})", false, Compat::kGalley),
            "Invalid schema for function 'f': 5 is not of type \"object\" at "
            "tools[0].parameters.properties");
  EXPECT_EQ(settle(R"({"type":"object","properties":{"a":{}}})", true, Compat::kGalley),
            "Invalid tool parameters schema : one of `type`, `anyOf`, `$ref` field is required at "
            "tools[0].parameters.properties.a");
  Tool bare{.name = "g", .strict = true};
  ASSERT_TRUE(settle_tool_schema(bare, Compat::kGalley, "", notes));
  EXPECT_EQ(to_json(*bare.parameters),
            R"({"type":"object","properties":{},"additionalProperties":false,"required":[]})");
  Tool absent{.name = "h"};
  ASSERT_TRUE(settle_tool_schema(absent, Compat::kGalley, "", notes));
  EXPECT_FALSE(absent.parameters);
}

TEST(SettleResponseSchema, ConstraintIsNormalised) {
  ResponseFormat format{
      .kind = ResponseFormat::Kind::kJsonSchema,
      .schema = parsed(R"({"type":"object","properties":{"a":{"type":"null","title":"t"}}})")};
  ASSERT_TRUE(settle_response_schema(format, true, Compat::kRecipe02, ""));
  EXPECT_EQ(
      to_json(format.constraint_schema),
      R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":false,"required":["a"]})");
  ASSERT_TRUE(settle_response_schema(format, true, Compat::kGalley, ""));
  EXPECT_EQ(
      to_json(format.constraint_schema),
      R"({"type":"object","properties":{"a":{"type":"null","title":"t"}},"required":["a"],"additionalProperties":false})");
  ASSERT_TRUE(settle_response_schema(format, false, Compat::kGalley, ""));
  EXPECT_EQ(format.constraint_schema, format.schema);
  format.schema = parsed(R"({"type":7})");
  const Result<void> refused = settle_response_schema(format, false, Compat::kGalley, "s");
  EXPECT_TRUE(refused.error().what.starts_with("Invalid json schema: "));
  EXPECT_EQ(refused.error().where, "s.type");
}

}  // namespace
}  // namespace galley::recipe
