// Goal: JSON text goes in and out exactly as spec recipe 2.5 says. Method: tables of text -> text,
// and every kind of malformed input refused.
#include "recipe/json.h"

#include <gtest/gtest.h>
#include <string>

namespace galley::recipe {
namespace {

constexpr JsonStyle kV4 = {JsonNumbers::kRust, JsonSpacing::kSpaced};
constexpr JsonStyle kV41 = {JsonNumbers::kPython, JsonSpacing::kSpaced};

std::string again(std::string_view text, JsonStyle style) {
  const Result<Json> value = parse_json(text);
  return value ? to_json(*value, style) : "error: " + to_string(value.error());
}

TEST(Json, NumbersAsTheModelsSawThem) {
  struct Row {
    const char* in;
    const char* v4;
    const char* v41;
  };
  constexpr Row kRows[] = {
      {"0", "0", "0"},
      {"-0", "-0.0", "-0.0"},
      {"-9223372036854775808", "-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551615", "18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "1.8446744073709552e+19", "1.8446744073709552e+19"},
      {"1.0", "1.0", "1.0"},
      {"123.25", "123.25", "123.25"},
      {"1e15", "1000000000000000.0", "1000000000000000.0"},
      {"1e16", "1e+16", "1e+16"},
      {"15e15", "1.5e+16", "1.5e+16"},
      {"1e-4", "0.0001", "0.0001"},
      {"1e-5", "0.00001", "1e-05"},
      {"2.5e-7", "2.5e-7", "2.5e-07"},
      {"5e-324", "5e-324", "5e-324"},
      {"1e-400", "0.0", "0.0"},
      {"1e100", "1e+100", "1e+100"},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(again(row.in, kV4), row.v4) << row.in;
    EXPECT_EQ(again(row.in, kV41), row.v41) << row.in;
  }
}

TEST(Json, KeepsOrderAndLastDuplicate) {
  EXPECT_EQ(again(R"({"b":1,"a":2,"b":3})", kV4), R"({"b": 3, "a": 2})");
  std::string many = "{";
  for (int i = 0; i < 100; ++i) {
    many += "\"k" + std::to_string(i % 50) + "\":" + std::to_string(i) + ",";
  }
  many.back() = '}';
  const Json value = *parse_json(many);
  ASSERT_EQ(value.object()->size(), 50U);
  EXPECT_EQ((*value.object())[7].key, "k7");
  EXPECT_EQ(*(*value.object())[7].value.int64(), 57);
}

TEST(Json, EscapesOnlyWhatMustBe) {
  EXPECT_EQ(again(R"("\u0001\u001f\b\f\n\r\t\"\\\/\u007f\u2028\ud83d\ude00é")", kV4),
            "\"\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7f\u2028\U0001F600é\"");
  EXPECT_EQ(again(R"([ {} , [ ] , true , false , null , "" ])", {}),
            R"([{},[],true,false,null,""])");
}

TEST(Json, RefusesWhatIsNotJson) {
  constexpr std::string_view kBad[] = {"",
                                       "  ",
                                       "{",
                                       "[1,]",
                                       "{\"a\":}",
                                       "01",
                                       "1.",
                                       ".5",
                                       "+1",
                                       "1e",
                                       "nul",
                                       "truex",
                                       "NaN",
                                       "1e400",
                                       "\"\\ud83d\"",
                                       "\"\\x\"",
                                       "\"a",
                                       "[1] 2",
                                       "1 2",
                                       "{\"a\" 1}",
                                       "{a:1}",
                                       "[1 2]",
                                       "\"\n\"",
                                       "\"\xff\"",
                                       "'a'",
                                       "[\"\xed\xa0\x80\"]",
                                       "{\"a\":1,}",
                                       "//x\n1"};
  for (const std::string_view text : kBad) {
    EXPECT_FALSE(parse_json(text)) << text;
  }
}

TEST(Json, NestsTo127Levels) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(127)));
  EXPECT_FALSE(parse_json(nested(128)));
  EXPECT_FALSE(parse_json(nested(1'000'000)));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '{')));
}

}  // namespace
}  // namespace galley::recipe
