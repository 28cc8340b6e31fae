// Goal: the classes are those of Unicode 16.0.0. Method: every code point goes into a hash and a
// count; the expected ones were computed by Python from unicodedata2 16.0.0, not from the tables.
#include "recipe/unicode_tables.h"

#include <array>
#include <cstdint>
#include <gtest/gtest.h>

#include "base/fnv1a.h"

namespace galley::recipe {
namespace {

TEST(CharClass, EveryCodePoint) {
  std::array<int, 11> counts{};
  Fnv1a hash;
  for (std::uint32_t code_point = 0; code_point != 0x110000; ++code_point) {
    const auto value = static_cast<std::uint8_t>(char_class(code_point));
    ++counts.at(value);
    hash.add(value);
  }
  const std::array<int, 11> expected = {959'275, 119'943, 2'499,  1'911, 9'365, 23,
                                        2,       3,       21'085, 2,     4};
  EXPECT_EQ(counts, expected);
  EXPECT_EQ(hash.hex(), "b8d45ba70b3184f5");
}

TEST(CharClass, ASampleOfEachKind) {
  EXPECT_EQ(char_class('a'), CharClass::kLetter);
  EXPECT_EQ(char_class(0x0301), CharClass::kMark);
  EXPECT_EQ(char_class(0x00B2), CharClass::kNumber);
  EXPECT_EQ(char_class('$'), CharClass::kPunct);
  EXPECT_EQ(char_class(0x3000), CharClass::kSpace);
  EXPECT_EQ(char_class('\n'), CharClass::kNewline);
  EXPECT_EQ(char_class(0x200B), CharClass::kOther);
  EXPECT_EQ(char_class(0x9FA5), CharClass::kEastLetter);
  EXPECT_EQ(char_class(0x9FA6), CharClass::kLetter);
  EXPECT_EQ(char_class(0x3099), CharClass::kEastMark);
  EXPECT_EQ(char_class(0x30FB), CharClass::kEastPunct);
  EXPECT_EQ(char_class(0x3040), CharClass::kEastOther);
  EXPECT_EQ(char_class(0x105C0), CharClass::kLetter);  // new in 16.0
  EXPECT_EQ(char_class(0x10940), CharClass::kOther);   // new in 17.0
  EXPECT_EQ(char_class(0x10FFFF), CharClass::kOther);
}

}  // namespace
}  // namespace galley::recipe
