// Goal: the input of a custom tool call comes out of its arguments the same however they are cut.
// Method: a table of arguments, each fed whole, byte by byte and cut in two everywhere.

#include "recipe/custom_input.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace galley::recipe {
namespace {

std::string input_of(const std::vector<std::string_view>& pieces) {
  CustomInput input;
  std::string out;
  for (const std::string_view piece : pieces) {
    input.feed(piece, out);
  }
  input.finish(out);
  return out;
}

TEST(CustomInput, IsDecodedHoweverItIsCut) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {R"({"input": "a\"b\n\\u"})", "a\"b\n\\u"},
      {" {\n\"input\" :\t\"\" , \"x\": \"y\"}", ""},
      {R"({"input":"\u6bd5\u00e9\u0041\ud83d\ude00\/\b\f\r\t"})", "毕éA😀/\b\f\r\t"},
      {"{}", "{}"},
      {R"({"max_items": 3})", R"({"max_items": 3})"},
      {R"({"in put": "x"})", R"({"in put": "x"})"},
      {R"({"input": 3})", R"({"input": 3})"},
      {R"({"inp)", R"({"inp)"},
      {R"({"input": "a\u00)", "a\\u00"},
      {R"({"input": "a\ud83d)", "a\\ud83d"},
      {R"({"input": "a\ud83d\u0041\ud83d")", R"(a\ud83d\u0041\ud83d")"},
      {R"({"input": "a\qb"})", R"(a\qb"})"},
      {R"({"input": "a\u00zz"})", R"(a\u00zz"})"},
  };
  for (const auto& [arguments, want] : table) {
    EXPECT_EQ(input_of({arguments}), want);
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string_view all = arguments;
      bytes.push_back(all.substr(i, 1));
      EXPECT_EQ(input_of({all.substr(0, i), all.substr(i)}), want) << arguments << " at " << i;
    }
    EXPECT_EQ(input_of(bytes), want) << arguments;
  }
}

TEST(CustomInput, WhatIsCertainIsGivenAtOnce) {
  CustomInput input;
  std::string out;
  input.feed(R"({"input": "ab\)", out);
  EXPECT_EQ(out, "ab");
  input.feed("n", out);
  EXPECT_EQ(out, "ab\n");
}

}  // namespace
}  // namespace galley::recipe
