#include "cache/crc32c.h"

#include <gtest/gtest.h>
#include <string_view>
#include <vector>

namespace galley::cache {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32c, IsTheStandardsOne) {
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283U);  // its check value
  EXPECT_EQ(crc32c({}), 0U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43U);
}

TEST(Crc32c, GoesOnBehindAPart) {
  EXPECT_EQ(crc32c(bytes("56789"), crc32c(bytes("1234"))), crc32c(bytes("123456789")));
}

}  // namespace
}  // namespace galley::cache
