// Goal: whatever way bytes are cut, the same well-formed text comes out, and never half a
// character. Method: Unicode's own examples of ill-formed sequences, and random bytes in random
// cuts.
#include "recipe/text_decoder.h"

#include <gtest/gtest.h>
#include <random>
#include <simdjson.h>
#include <string>

namespace galley::recipe {
namespace {

std::string decode(std::string_view bytes) {
  std::string out;
  TextDecoder decoder;
  decoder.feed(bytes, out);
  decoder.flush(out);
  return out;
}

TEST(TextDecoder, EachMaximalIllFormedPartIsOneReplacement) {
  struct Row {
    std::string_view bytes;
    std::string_view text;
  };
  constexpr Row kRows[] = {
      {"", ""},
      {"plain é 汉 🦀", "plain é 汉 🦀"},
      // Tables 3-8 to 3-11 of The Unicode Standard 16.0, section 3.9.
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "��������A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "��������A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "�����A��B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "����A"},
      // The edges of what may follow a leading byte.
      {"\xC2\x80\xDF\xBF", "\u0080\u07FF"},
      {"\xE0\xA0\x80\xEF\xBF\xBF", "\u0800\uFFFF"},
      {"\xED\x9F\xBF\xEE\x80\x80", "\uD7FF\uE000"},
      {"\xF0\x90\x80\x80\xF4\x8F\xBF\xBF", "\U00010000\U0010FFFF"},
      {"\xF5\x80", "��"},
      {"\xC1\x80", "��"},
      {"\xE6\xB1", "�"},
      {"\xF0\x9F\xA6", "�"},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(decode(row.bytes), row.text);
  }
}

TEST(TextDecoder, AnUnfinishedCharacterWaits) {
  std::string out;
  TextDecoder decoder;
  const std::string_view crab = "🦀";
  for (std::size_t i = 0; i != 3; ++i) {
    decoder.feed(crab.substr(i, 1), out);
    EXPECT_EQ(out, "");
    EXPECT_TRUE(decoder.pending());
  }
  decoder.feed(crab.substr(3), out);
  EXPECT_EQ(out, crab);
  EXPECT_FALSE(decoder.pending());
  decoder.flush(out);
  EXPECT_EQ(out, crab);
  decoder.feed("a\xE6\xB1", out);
  EXPECT_EQ(out, "🦀a");
  decoder.flush(out);
  EXPECT_EQ(out, "🦀a�");
  EXPECT_FALSE(decoder.pending());
}

TEST(TextDecoder, CutsDoNotMatter) {
  std::mt19937 random(7);
  constexpr std::string_view kBytes =
      "aZ \x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC2\xDF\xE0\xE6\xED\xEF\xF0\xF1\xF4\xF5\xFF";
  for (int round = 0; round != 3'000; ++round) {
    std::string bytes;
    for (auto left = random() % 20; left != 0; --left) {
      bytes += kBytes[random() % kBytes.size()];
    }
    const std::string whole = decode(bytes);
    ASSERT_TRUE(simdjson::validate_utf8(whole));
    std::string out;
    TextDecoder decoder;
    for (std::size_t at = 0; at != bytes.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 3, bytes.size() - at);
      decoder.feed(std::string_view(bytes).substr(at, size), out);
      ASSERT_TRUE(simdjson::validate_utf8(out));  // never half a character
      at += size;
    }
    decoder.flush(out);
    ASSERT_EQ(out, whole);
  }
}

}  // namespace
}  // namespace galley::recipe
