// Goal: a character is read as the digit it is and as nothing else.
// Method: all 256.
#include "base/hex.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string_view>

namespace galley {
namespace {

TEST(HexDigit, OfEveryCharacter) {
  constexpr std::string_view kLower = "0123456789abcdef";
  constexpr std::string_view kUpper = "0123456789ABCDEF";
  for (int value = 0; value < 256; ++value) {
    const char c = static_cast<char>(value);
    const auto at = std::min(kLower.find(c), kUpper.find(c));
    EXPECT_EQ(hex_digit(c), at == std::string_view::npos ? -1 : static_cast<int>(at)) << value;
  }
}

}  // namespace
}  // namespace galley
