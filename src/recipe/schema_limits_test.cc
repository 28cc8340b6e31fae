// Goal: what a grammar would enforce wrongly, or at the price of the server, is refused by name,
// and its harmless neighbour is not. Method: schemas with which the library crashed, took minutes
// and gigabytes, or gave answers that are not valid.
#include "recipe/schema_limits.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <string>

#include "recipe/schema_enforce.h"

namespace galley::recipe {
namespace {

std::string refused(const std::string& text) {
  const auto enforced = check_enforced(parse_json(text).value());
  return enforced ? "" : enforced.error().where;
}

TEST(SchemaLimits, NumbersThatAreNotExact) {
  EXPECT_EQ(refused(R"({"minimum":-9223372036854775808,"maximum":-9223372036854775807})"),
            ".minimum");
  EXPECT_EQ(refused(R"({"exclusiveMaximum":-1e19})"), ".exclusiveMaximum");
  EXPECT_EQ(refused(R"({"maximum":9007199254740992})"), ".maximum");
  EXPECT_EQ(refused(R"({"maximum":9007199254740991,"minimum":-9007199254740991})"), "");
  EXPECT_EQ(refused(R"({"const":9007199254740993})"), ".const");
  EXPECT_EQ(refused(R"({"const":18446744073709551615})"), ".const");
  EXPECT_EQ(refused(R"({"enum":[1,[{"a":9007199254740993}]]})"), ".enum");
  EXPECT_EQ(refused(R"({"enum":[1,"9007199254740993"]})"), "");
}

TEST(SchemaLimits, MultiplesThatTakeGigabytes) {
  EXPECT_EQ(refused(R"({"multipleOf":9999991})"), ".multipleOf");
  EXPECT_EQ(refused(R"({"multipleOf":0.5})"), "");
  EXPECT_EQ(refused(R"({"multipleOf":0.000001})"), "");
  EXPECT_EQ(refused(R"({"multipleOf":0.0000001})"), ".multipleOf");
  EXPECT_EQ(refused(R"({"multipleOf":0.3333333333})"), ".multipleOf");
  EXPECT_EQ(refused(R"({"multipleOf":1e300})"), ".multipleOf");
  EXPECT_EQ(refused(R"({"multipleOf":20000})"), "");
  // Nobody says that they stay apart.
  EXPECT_EQ(refused(R"({"allOf":[{"multipleOf":9973},{"multipleOf":9967}]})"),
            ".allOf[1].multipleOf");
  EXPECT_EQ(refused(R"({"properties":{"a":{"multipleOf":0.01},"b":{"multipleOf":500}}})"), "");
}

TEST(SchemaLimits, TooManyAlternativesAndPatterns) {
  const auto list = [](std::string_view key, std::string_view item, std::size_t count) {
    std::string out = fmt::format(R"({{"{}":[{})", key, item);
    for (std::size_t i = 1; i < count; ++i) {
      out.append(",").append(item);
    }
    return out + "]}";
  };
  EXPECT_EQ(refused(list("anyOf", "{}", kSchemaAlternativesMax)), "");
  EXPECT_EQ(refused(list("anyOf", "{}", kSchemaAlternativesMax + 1)), ".anyOf");
  EXPECT_EQ(refused(list("enum", "[0]", kSchemaValuesMax)), "");
  EXPECT_EQ(refused(list("enum", "[0]", kSchemaValuesMax + 1)), ".enum");
  EXPECT_EQ(refused(list("enum", "7", 20'000)), "");
  EXPECT_EQ(refused(list("allOf", R"({"pattern":"a"})", kSchemaPatternsTogetherMax)), "");
  EXPECT_EQ(refused(list("allOf", R"({"pattern":"a"})", kSchemaPatternsTogetherMax + 1)),
            fmt::format(".allOf[{}].pattern", kSchemaPatternsTogetherMax));
  EXPECT_EQ(refused(list("anyOf", R"({"pattern":"a"})", 50)), "");
  const auto names = [](std::size_t count) {
    std::string out = R"({"patternProperties":{"^k0":{})";
    for (std::size_t i = 1; i < count; ++i) {
      out += fmt::format(R"(,"^k{}":{{}})", i);
    }
    return out + "}}";
  };
  EXPECT_EQ(refused(names(kSchemaPatternKeysMax)), "");
  EXPECT_EQ(refused(names(kSchemaPatternKeysMax + 1)), ".patternProperties");
}

TEST(SchemaLimits, CombinationsThatAreEnforcedWrongly) {
  EXPECT_EQ(refused(R"({"prefixItems":[{"const":1}],"additionalItems":false})"),
            ".additionalItems");
  EXPECT_EQ(refused(R"({"items":{"const":1},"additionalItems":false})"), "");
  EXPECT_EQ(refused(R"({"exclusiveMinimum":0,"exclusiveMaximum":0.1})"), ".exclusiveMinimum");
  EXPECT_EQ(refused(R"({"minimum":-0.001,"exclusiveMaximum":0})"), ".exclusiveMaximum");
  EXPECT_EQ(refused(R"({"exclusiveMinimum":0,"maximum":1})"), "");
  EXPECT_EQ(refused(R"({"minimum":0,"maximum":0.1})"), "");
  EXPECT_EQ(refused(R"({"patternProperties":{"^[ab]$":{}},"additionalProperties":false,)"
                    R"("minProperties":2})"),
            ".minProperties");
  EXPECT_EQ(refused(R"({"minProperties":2})"), ".minProperties");
  EXPECT_EQ(refused(R"({"minProperties":1})"), "");
  EXPECT_EQ(refused(R"({"minProperties":2,"required":["a","b"]})"), "");
  EXPECT_EQ(refused(R"({"properties":{"a":{},"b":{}},"additionalProperties":false,)"
                    R"("minProperties":2})"),
            "");
}

}  // namespace
}  // namespace galley::recipe
