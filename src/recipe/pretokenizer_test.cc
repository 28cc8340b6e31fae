// Goal: text is cut exactly as the four patterns cut it (spec recipe 1.3). Method: a table whose
// pieces were taken from HF tokenizers 0.23.3, and properties of random text.
#include "recipe/pretokenizer.h"

#include <cstddef>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace galley::recipe {
namespace {

using std::string_view_literals::operator""sv;

std::vector<std::string_view> pieces_of(std::string_view text) {
  std::vector<std::string_view> pieces;
  PieceScanner scanner(text);
  for (std::string_view piece = scanner.next(); !piece.empty(); piece = scanner.next()) {
    pieces.push_back(piece);
  }
  return pieces;
}

struct Row {
  const char* name;
  std::vector<std::string_view> pieces;  // together, the text
};

const std::vector<Row> kRows = {
    {"words and the space before them",
     {"Hello"sv, " world"sv, " "sv, " two"sv, "  "sv, " three"sv}},
    {"ascii mark glued to ascii letters",
     {"(abc"sv, " '"sv, "tis"sv, " _"sv, "x"sv, " $"sv, "HOME"sv, " don"sv, "'t"sv, " !!"sv,
      "a"sv}},
    {"only ascii letters are glued", {"(abc"sv, "é"sv, " '"sv, "ß"sv, " ."sv, "д"sv}},
    {"digits in threes",
     {"123"sv, "456"sv, "7"sv, " a"sv, "12"sv, " "sv, "3"sv, "."sv, "141"sv, "59"sv}},
    {"numbers of all kinds", {"²½Ⅷ"sv, "٣〇1"sv}},
    {"number after spaces", {"a"sv, "  "sv, "1"sv, "\t\t"sv, "2"sv, " \n"sv, "3"sv}},
    {"leading white space", {"  "sv, " x"sv, " \t"sv, " y"sv}},
    {"white space at the end", {"x"sv, "   "sv}},
    {"line ends", {"a"sv, "\n\n"sv, " "sv, " b"sv, " \r\n\r\n"sv, " c"sv, "\n"sv}},
    {"line end after marks", {"};\r\n\n"sv, "x"sv}},
    {"space then marks then line ends", {"a"sv, " ...\n\n"sv, " b"sv}},
    {"tab before mark", {"\t"sv, "!"sv, " "sv, "\t"sv, "!"sv}},
    {"odd white space",
     {"a"sv, "\302\240b"sv, "\343\200\200c"sv, "\342\200\250d"sv, "\302\205e"sv, "\013"sv,
      "\014f"sv}},
    {"zero width space",
     {"a"sv, "\342\200\213b"sv, " "sv, "\342\200\213"sv, "!"sv, " "sv, "\342\200\213"sv,
      "\342\200\213c"sv}},
    {"control characters", {"\000"sv, "\001a"sv, "\002\177"sv, "1"sv, "\037"sv}},
    {"unassigned and private", {"\315\270"sv, "\356\200\200b"sv, " "sv, "\315\270"sv}},
    {"marks of combining kind",
     {"e\314\201"sv, " \314\201x"sv, " !"sv, "\314\201\314\201"sv, " \314\201"sv}},
    {"han", {"汉字"sv, "abc"sv, "汉字"sv, " "sv, "汉字"sv, "，"sv, "汉字"sv}},
    {"ends of the han range", {"一龥"sv, "龦"sv, "一"sv}},
    {"kana with marks and punctuation inside",
     {"ア"sv, "・"sv, "イーウ"sv, "゛"sv, "ェ"sv, "゠"sv, "ぁ\343\202\231か"sv}},
    {"unassigned inside the kana block",
     {"\343\201\200あ"sv, " "sv, "\343\201\200"sv, "\343\201\200い"sv, "\343\201\200"sv}},
    {"han after a space is a piece of its own",
     {"a"sv, " "sv, "汉"sv, " !"sv, "汉"sv, "\t"sv, "汉"sv}},
    {"emoji",
     {"\360\237\246\200\360\237\247\252"sv, " \360\237\221\251"sv, "\342\200\215"sv,
      "\360\237\232\200!"sv}},
    {"symbols", {"“"sv, "a"sv, "”"sv, " —"sv, " €"sv, "5"sv, " ≤"sv, " x"sv, "²"sv}},
    {"cyrillic", {"Привет"sv, ","sv, " мир"sv, "!"sv, " съешь"sv}},
    {"thai and devanagari", {"สวัสดี"sv, " नमस्ते"sv}},
    {"unicode 16 letters", {"\360\220\265\212\360\220\227\200a"sv}},
    {"unicode 16 symbols and digits", {"\360\234\263\260"sv, "\360\234\260\200"sv, "a"sv}},
    {"new in unicode 17", {"\360\220\245\200a"sv}},
    {"all classes", {"aé\314\201"sv, "1"sv, "!."sv, "汉"sv, "・"sv, " \n"sv, "\t"sv, "\001"sv}},
};

TEST(PieceScanner, CutsAsThePatternsDo) {
  for (const Row& row : kRows) {
    std::string text;
    for (const std::string_view piece : row.pieces) {
      text += piece;
    }
    EXPECT_EQ(pieces_of(text), row.pieces) << row.name;
  }
}

TEST(PieceScanner, EmptyTextHasNoPiece) {
  EXPECT_TRUE(pieces_of("").empty());
}

TEST(PieceScanner, EveryPieceStandsAlone) {
  // What a piece is cut into does not depend on what came before it; a white space piece that gave
  // its last character away, and one followed by a word, are the only ones that see what follows.
  std::mt19937 random(1);
  const std::vector<std::string_view> characters = {
      "a",      "Z",    "1",      "!",  "'",  " ",  " ",      "\n",    "\r",
      "\t",     "é",    "д",      "汉", "ア", "・", "゛",     "゙",      "\u0301",
      "\u200b", "\x01", "\u00a0", "²",  "€",  "🦀", "\u3040", "\u0378"};
  for (int round = 0; round != 2'000; ++round) {
    std::string text;
    for (std::size_t left = random() % 24; left != 0; --left) {
      text += characters[random() % characters.size()];
    }
    const std::vector<std::string_view> pieces = pieces_of(text);
    std::size_t at = 0;
    for (const std::string_view piece : pieces) {
      ASSERT_EQ(piece.data(), text.data() + at) << text;
      at += piece.size();
    }
    ASSERT_EQ(at, text.size());
    for (std::size_t i = 0; i != pieces.size(); ++i) {
      const auto begin = static_cast<std::size_t>(pieces[i].data() - text.data());
      const std::vector<std::string_view> rest(pieces.begin() + static_cast<std::ptrdiff_t>(i),
                                               pieces.end());
      ASSERT_EQ(pieces_of(std::string_view(text).substr(begin)), rest) << text;
    }
  }
}

TEST(PieceScanner, LongRunsAreOnePieceEach) {
  constexpr std::size_t kLong = 1'000'000;
  EXPECT_EQ(pieces_of(std::string(kLong, 'a')).size(), 1U);
  EXPECT_EQ(pieces_of(std::string(kLong, '!')).size(), 1U);
  EXPECT_EQ(pieces_of(std::string(kLong, '\x01')).size(), 1U);
  EXPECT_EQ(pieces_of(std::string(kLong, ' ') + "x").size(), 2U);
  EXPECT_EQ(pieces_of(std::string(kLong, '7')).size(), kLong / 3 + 1);
}

}  // namespace
}  // namespace galley::recipe
