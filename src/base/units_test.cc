// Goal: configuration text for time and size means exactly one value or is refused.
// Method: tables of good and bad text, limits, and a round trip through formatting.
#include "base/units.h"

#include <gtest/gtest.h>
#include <limits>

namespace galley {
namespace {

using namespace std::chrono_literals;

TEST(Units, DurationsParse) {
  EXPECT_EQ(*parse_duration("0s"), 0s);
  EXPECT_EQ(*parse_duration("7ns"), 7ns);
  EXPECT_EQ(*parse_duration("7us"), 7us);
  EXPECT_EQ(*parse_duration("250ms"), 250ms);
  EXPECT_EQ(*parse_duration("90s"), 90s);
  EXPECT_EQ(*parse_duration("15m"), 15min);
  EXPECT_EQ(*parse_duration("2h"), 2h);
  EXPECT_EQ(*parse_duration("1d"), 24h);
  EXPECT_EQ(*parse_duration("106751d"), 24h * 106751);
  EXPECT_EQ(parse_duration("9223372036854775807ns")->count(),
            std::numeric_limits<std::int64_t>::max());
}

TEST(Units, BadDurationsAreRefused) {
  for (const char* text : {"", "5", "s", "-1s", "-0s", "+1s", " 1s", "1s ", "1 s", "1.5s", "1S",
                           "1h30m", "106752d", "9223372036854775808ns", "1e3s", "0x1s"}) {
    EXPECT_FALSE(parse_duration(text)) << text;
  }
}

TEST(Units, SizesParse) {
  EXPECT_EQ(parse_bytes("0")->value(), 0U);
  EXPECT_EQ(parse_bytes("4096")->value(), 4096U);
  EXPECT_EQ(parse_bytes("3B")->value(), 3U);
  EXPECT_EQ(parse_bytes("3KiB")->value(), 3072U);
  EXPECT_EQ(parse_bytes("3kB")->value(), 3000U);
  EXPECT_EQ(parse_bytes("64MiB")->value(), 64U << 20);
  EXPECT_EQ(parse_bytes("5MB")->value(), 5'000'000U);
  EXPECT_EQ(parse_bytes("2GiB")->value(), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("2GB")->value(), 2'000'000'000U);
  EXPECT_EQ(parse_bytes("2TiB")->value(), std::uint64_t{2} << 40);
  EXPECT_EQ(parse_bytes("2TB")->value(), 2'000'000'000'000U);
}

TEST(Units, BadSizesAreRefused) {
  for (const char* text : {"", "B", "-1", "1 KiB", "1K", "1KB", "1kib", "8388608TiB", "1.5GiB",
                           "9223372036854775808"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
}

TEST(Units, FormattingRoundTrips) {
  EXPECT_EQ(to_string(Duration(90s)), "90s");
  EXPECT_EQ(to_string(Duration(0)), "0ns");
  EXPECT_EQ(to_string(Duration(48h)), "2d");
  EXPECT_EQ(to_string(Bytes(3 << 20)), "3MiB");
  EXPECT_EQ(to_string(Bytes(3000)), "3kB");
  EXPECT_EQ(to_string(Bytes(0)), "0B");
  for (const std::int64_t value : {0L, 1L, 999L, 1000L, 1024L, 60'000'000'000L, 1L << 40}) {
    EXPECT_EQ(*parse_duration(to_string(Duration(value))), Duration(value));
    const Bytes bytes(static_cast<std::uint64_t>(value));
    EXPECT_EQ(*parse_bytes(to_string(bytes)), bytes);
  }
}

}  // namespace
}  // namespace galley
