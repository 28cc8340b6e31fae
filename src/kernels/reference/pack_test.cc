// Goal: a packed row holds exactly what the quantiser left, in the published number of bytes.
// Method: rows of every magnitude against fake_quantise_*, and one row's bytes written out.
#include "kernels/reference/pack.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "kernels/reference/quantise.h"

namespace galley::kernels::reference {
namespace {

constexpr RowFormat kV4Row{.codec = RowCodec::kFp8, .width = 512, .plain = 448, .block = 64};
constexpr RowFormat kV41Row{.codec = RowCodec::kFp4E4m3, .width = 512, .plain = 512, .block = 16};
constexpr RowFormat kIndexKey{.codec = RowCodec::kFp4, .width = 128, .plain = 128, .block = 32};
constexpr RowFormat kWindowRow{.codec = RowCodec::kFp8, .width = 512, .plain = 512, .block = 32};
constexpr RowFormat kOddRow{.codec = RowCodec::kFp4, .width = 37, .plain = 37, .block = 32};
constexpr RowFormat kFloatRow{.codec = RowCodec::kF32, .width = 20, .plain = 20, .block = 1};

std::vector<float> quantised(const RowFormat& format, std::vector<float> row) {
  const std::span<float> plain = std::span(row).first(format.plain);
  switch (format.codec) {
    case RowCodec::kF32:
      break;
    case RowCodec::kFp8:
      fake_quantise_fp8(plain, format.block);
      break;
    case RowCodec::kFp4:
      fake_quantise_fp4(plain, format.block);
      break;
    case RowCodec::kFp4E4m3:
      fake_quantise_fp4_e4m3(plain, format.block);
      break;
  }
  return row;
}

TEST(Pack, PublishedSizes) {
  EXPECT_EQ(kV4Row.bytes(), 584U);
  EXPECT_EQ(kV41Row.bytes(), 288U);
  EXPECT_EQ(kIndexKey.bytes(), 68U);
  EXPECT_EQ(kWindowRow.bytes(), 528U);
  EXPECT_EQ(kFloatRow.bytes(), 80U);
}

TEST(Pack, KeepsEveryBitOfTheQuantisedRow) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const RowFormat& format : {kV4Row, kV41Row, kIndexKey, kWindowRow, kOddRow, kFloatRow}) {
    for (int exponent = -40; exponent <= 30; ++exponent) {
      std::vector<float> row(format.width);
      for (float& value : row) {
        value = round_to_bf16(std::ldexp(normal(random), exponent));
      }
      row[3] = -0.0F;
      // Two guard bytes: nothing may be written past the row.
      std::vector<std::byte> packed(format.bytes() + 2, std::byte{0xa5});
      pack_row(format, row, packed.data());
      EXPECT_EQ(packed[format.bytes()], std::byte{0xa5});
      std::vector<float> unpacked(format.width);
      unpack_row(format, packed.data(), unpacked);
      const std::vector<float> want = quantised(format, row);
      ASSERT_EQ(std::memcmp(unpacked.data(), want.data(), want.size() * sizeof(float)), 0)
          << "codec " << static_cast<int>(format.codec) << ", 2^" << exponent;
    }
  }
}

TEST(Pack, TheBytesOfARow) {
  // Scale 2 (amax 12): codes of 1, -1.5, 3, 6 times 2.
  constexpr RowFormat kFour{.codec = RowCodec::kFp4, .width = 4, .plain = 4, .block = 4};
  std::vector<std::byte> out(kFour.bytes());
  pack_row(kFour, std::vector<float>{2, -3, 6, 12}, out.data());
  EXPECT_EQ(out, (std::vector<std::byte>{std::byte{0xb2}, std::byte{0x75}, std::byte{128}}));
  // e4m3 of 1 and -2 at scale 2^-8 (amax 2 / 448), one bfloat16 channel, its scale, padding.
  constexpr RowFormat kThree{.codec = RowCodec::kFp8, .width = 3, .plain = 2, .block = 2};
  out.assign(kThree.bytes(), std::byte{0xff});
  pack_row(kThree, std::vector<float>{1, -2, 1}, out.data());
  EXPECT_EQ(out, (std::vector<std::byte>{std::byte{0x70}, std::byte{0xf8}, std::byte{0x80},
                                         std::byte{0x3f}, std::byte{120}, std::byte{0},
                                         std::byte{0}, std::byte{0}}));
}

}  // namespace
}  // namespace galley::kernels::reference
