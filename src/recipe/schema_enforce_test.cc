// Goal: every keyword of JSON Schema is enforced, an annotation, or refused by name where it
// stands. Method: small schemas; the table in the documentation is the one in the code.
#include "recipe/schema_enforce.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>

namespace galley::recipe {
namespace {

std::string verdict(const std::string& text) {
  const auto enforced = check_enforced(parse_json(text).value());
  return enforced ? "" : enforced.error().where + " " + enforced.error().what;
}

TEST(SchemaKeywords, RefusedWhereTheyStand) {
  for (const SchemaKeyword& keyword : schema_keywords()) {
    const std::string name(keyword.name);
    const std::string schema = R"({"properties":{"a":{"items":{")" + name + R"(":{}}}}})";
    EXPECT_EQ(verdict(schema),
              keyword.use == KeywordUse::kRefused
                  ? ".properties.a.items." + name + " `" + name + "` cannot be enforced"
                  : "")
        << name;
  }
}

TEST(SchemaKeywords, NamesOfMembersAreNoKeywords) {
  EXPECT_EQ(verdict(R"({"properties":{"not":{"type":"null"},"contains":true}})"), "");
  EXPECT_EQ(verdict(R"({"enum":[{"not":1}],"default":{"if":2},"examples":[{"then":3}]})"), "");
  EXPECT_EQ(verdict(R"({"nothing in any draft":{"not":{}}})"), "");
}

// What a reference leads to is enforced, too, so it has to be where the walk comes by.
TEST(SchemaKeywords, ReferencesLeadWhereKeywordsPutSchemas) {
  const auto of = [](const std::string& reference, const std::string& more = "") {
    return verdict(R"({"$id":"http://x/top","foo":{"a":{"not":{}}},"default":{},"enum":[{}],)"
                   R"("$defs":{"d /":{"$anchor":"here"},"yes":true},"properties":{"a":{"$ref":")" +
                   reference + R"("}})" + more + "}");
  };
  const std::string refused =
      ".properties.a.$ref `$ref` to a place where no keyword puts a schema cannot be enforced";
  for (const char* const reference :
       {"#", "", "#/$defs/d%20~1", "#/%24defs/yes", "#/properties/a", "#here", "http://x/top",
        "http://x/top#/$defs/yes", "http://x/top#here"}) {
    EXPECT_EQ(of(reference), "") << reference;
  }
  for (const char* const reference :
       {"#/foo/a", "#/foo", "#/default", "#/enum/0", "#/properties", "#/$defs", "#/%66oo%2Fa",
        "#nowhere", "#/nowhere", "http://x/other", "http://x/top#/foo/a", "/top#/foo/a"}) {
    EXPECT_EQ(of(reference), refused) << reference;
  }
  // Below an id of its own, "#" is another document.
  const std::string below = R"(,"items":{"$id":"http://x/below"})";
  EXPECT_EQ(of("#/$defs/yes", below), refused);
  EXPECT_EQ(of("#here", below), "");
  EXPECT_EQ(of("http://x/below", below), "");
}

TEST(SchemaKeywords, WhatAsksForNothingIsLetPass) {
  EXPECT_EQ(verdict(R"({"uniqueItems":false,"unevaluatedProperties":true})"), "");
  EXPECT_EQ(verdict(R"({"uniqueItems":true})"), ".uniqueItems `uniqueItems` cannot be enforced");
  EXPECT_EQ(verdict("true"), "");
}

TEST(SchemaKeywords, TooMuchIsRefused) {
  const auto wide = [](std::size_t count) {
    std::string out = R"({"properties":{)";
    for (std::size_t i = 0; i < count; ++i) {
      out += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + "\":{}";
    }
    return out + "}}";
  };
  EXPECT_EQ(verdict(wide(kSchemaPropertiesMax)), "");
  EXPECT_NE(verdict(wide(kSchemaPropertiesMax + 1)), "");
  std::string list = R"({"prefixItems":[{})";
  for (std::size_t i = 2; i < kSchemaNodesMax; ++i) {
    list += ",{}";
  }
  EXPECT_EQ(verdict(list + "]}"), "");
  EXPECT_NE(verdict(list + ",{}]}"), "");
}

TEST(SchemaKeywords, TheTableOfTheDocumentationIsTheCodes) {
  const std::string path = GALLEY_TESTS_DIR "/../docs/SCHEMAS.md";
  constexpr std::string_view kHead = "| keyword | |\n| --- | --- |\n";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t head = text.find(kHead);
  ASSERT_NE(head, std::string::npos);
  std::string wanted = text.substr(0, head + kHead.size());
  for (const SchemaKeyword& keyword : schema_keywords()) {
    wanted += "| `" + std::string(keyword.name) + "` | " +
              (keyword.use == KeywordUse::kEnforced     ? "enforced"
               : keyword.use == KeywordUse::kAnnotation ? "says nothing about a value"
                                                        : "refused") +
              " |\n";
  }
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << wanted;
    return;
  }
  EXPECT_EQ(text, wanted);
}

}  // namespace
}  // namespace galley::recipe
