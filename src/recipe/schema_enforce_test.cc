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
