// Goal: rounding to the small formats is to the nearest number, ties to the even code.
// Method: every middle between neighbours and its neighbouring float32, against a search.
#include "kernels/formats.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace galley::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// `codes`: positive numbers by code, ascending. `sign`: the bit of a code that negates.
template <class Nearest, class Code, class Value>
void expect_nearest(int codes, int sign, Nearest nearest, Code code, Value value) {
  const auto expect = [&](float x, int want) {
    EXPECT_EQ(nearest(x), value(static_cast<std::uint8_t>(want))) << x;
    EXPECT_EQ(code(x), want) << x;
    EXPECT_EQ(nearest(-x), -value(static_cast<std::uint8_t>(want))) << x;
    EXPECT_EQ(code(-x), want | sign) << x;
  };
  for (int low = 0; low + 1 < codes; ++low) {
    const float a = value(static_cast<std::uint8_t>(low));
    const float b = value(static_cast<std::uint8_t>(low + 1));
    const float middle = (a + b) / 2;
    expect(a, low);
    expect(std::nextafter(middle, a), low);
    expect(middle, low % 2 == 0 ? low : low + 1);
    expect(std::nextafter(middle, b), low + 1);
    expect(b, low + 1);
  }
  expect(std::numeric_limits<float>::denorm_min(), 0);
}

TEST(Formats, NearestE4m3) {
  constexpr int kNumbers = 0x7f;  // then NaN
  expect_nearest(kNumbers, 0x80, nearest_e4m3, to_e4m3, from_e4m3);
  EXPECT_TRUE(std::isnan(nearest_e4m3(kNan)));
  EXPECT_EQ(to_e4m3(kNan), 0x7f);
  EXPECT_EQ(to_e4m3(-kNan), 0xff);
}

TEST(Formats, NearestE2m1) {
  expect_nearest(8, 8, nearest_e2m1, to_e2m1, from_e2m1);
  EXPECT_EQ(nearest_e2m1(kNan), 0.0F);
}

}  // namespace
}  // namespace galley::kernels
