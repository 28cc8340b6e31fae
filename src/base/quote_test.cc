// Goal: quoted text is one line of valid UTF-8 and a JSON string, harmless text is nothing that a
// terminal obeys, whatever comes in.
// Method: escapes, every class of invalid UTF-8, the limit on and inside a character.
#include "base/quote.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

std::string whole(std::string_view text) {
  return quoted(text, 1000);
}

TEST(Quoted, EscapesWhatBreaksALine) {
  EXPECT_EQ(whole(""), R"("")");
  EXPECT_EQ(whole("a b"), R"("a b")");
  EXPECT_EQ(whole("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(whole(std::string_view("\0\x1b\x1f \x7f", 5)), R"("\u0000\u001b\u001f \u007f")");
  EXPECT_EQ(whole("\xC2\x80\xC2\x9B\xC2\x9F\xC2\xA0"), "\"\\u0080\\u009b\\u009f\xC2\xA0\"");
}

TEST(Quoted, KeepsValidUtf8) {
  for (const std::string text : {"é", "中", "😀", "\xED\x9F\xBF", "\xEE\x80\x80", "\xE0\xA0\x80",
                                 "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "\xDF\xBF"}) {
    EXPECT_EQ(whole(text), "\"" + text + "\"");
  }
}

TEST(Quoted, ReplacesInvalidUtf8) {
  EXPECT_EQ(whole("\x80"), "\"\uFFFD\"");
  EXPECT_EQ(whole("\xFF!"), "\"\uFFFD!\"");
  EXPECT_EQ(whole("\xF5\x80"), "\"\uFFFD\uFFFD\"");
  for (const std::string two : {"\xC1\xBF", "\xC3(", "\xE4\xB8"}) {
    EXPECT_TRUE(whole(two).starts_with("\"\uFFFD")) << whole(two);
  }
  for (const std::string text : {"\xE0\x9F\xBF", "\xED\xA0\x80"}) {
    EXPECT_EQ(whole(text), "\"\uFFFD\uFFFD\uFFFD\"");
  }
  for (const std::string text : {"\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80"}) {
    EXPECT_EQ(whole(text), "\"\uFFFD\uFFFD\uFFFD\uFFFD\"");
  }
}

TEST(Quoted, CutsAtTheLimit) {
  EXPECT_EQ(quoted("abc", 3), "\"abc\"");
  EXPECT_EQ(quoted("abcd", 3), "\"abc…\"");
  EXPECT_EQ(quoted("ab中", 3), "\"ab…\"");
  EXPECT_EQ(quoted("ab中", 5), "\"ab中\"");
}

TEST(Harmless, ControlsAreReplaced) {
  EXPECT_EQ(harmless(std::string_view("\0a\x1b[2J\x07\r\x1f \x7f~", 12)),
            "\uFFFDa\uFFFD[2J\uFFFD\uFFFD\uFFFD \uFFFD~");
  EXPECT_EQ(harmless("\xC2\x80\xC2\x9B"
                     "31m\xC2\x9F\xC2\xA0"),
            "\uFFFD\uFFFD"
            "31m\uFFFD\xC2\xA0");
  EXPECT_EQ(harmless("a\xC3\x9B"), "a\xC3\x9B");  // its second byte is no control of its own
}

TEST(Harmless, TextStays) {
  for (const std::string text : {"", "a\n\tb", "é中😀", "\"\\"}) {
    EXPECT_EQ(harmless(text), text);
  }
}

TEST(Harmless, InvalidUtf8IsReplaced) {
  EXPECT_EQ(harmless("\xC2"), "\uFFFD");
  EXPECT_EQ(harmless("\x9B"
                     "31m"),
            "\uFFFD"
            "31m");
  EXPECT_EQ(harmless("a\xE4\xB8"), "a\uFFFD\uFFFD");
}

}  // namespace
}  // namespace galley
