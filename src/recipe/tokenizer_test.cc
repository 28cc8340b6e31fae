// Goal: text becomes the ids that HF tokenizers gives it, and ids become text. Method: the recorded
// goldens and vectors with the V4 vocabulary, properties of random text with our small one.
#include "recipe/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sstream>
#include <string>

#include "base/fnv1a.h"
#include "recipe/json.h"
#include "recipe/limits.h"
#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

const Tokenizer& small() {
  const auto tokenizer = small_tokenizer_for_test(GALLEY_TESTS_DIR);
  if (!tokenizer) {
    ADD_FAILURE() << to_string(tokenizer.error());
    std::abort();
  }
  return **tokenizer;
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::vector<TokenId> encode_with_added(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer.encode_with_added(text, ids);
  return ids;
}

// FNV-1a 64 over the ids as 32-bit little-endian words, as lower-case hex (spec 9.2).
std::string fnv_of(const std::vector<TokenId>& ids) {
  Fnv1a hash;
  for (const TokenId id : ids) {
    hash.add(id);
  }
  return hash.hex();
}

std::vector<TokenId> ids_of(const Json& list) {
  std::vector<TokenId> ids;
  for (const Json& id : *list.array()) {
    ids.push_back(static_cast<TokenId>(*id.int64()));
  }
  return ids;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string text_of(const Json& record) {
  if (const Json* hex = record.find("hex")) {
    return from_hex(*hex->string());
  }
  if (const Json* piece = record.find("rep")) {
    std::string text;
    for (std::int64_t left = *record.find("times")->int64(); left != 0; --left) {
      text += *piece->string();
    }
    return text;
  }
  return *record.find("text")->string();
}

TEST(TokenizerGolden, AllRecordsWithTheV4Vocabulary) {
  const auto tokenizer = v4_tokenizer_for_test();
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  std::istringstream lines(read_file_for_test(GALLEY_TESTS_DIR "/golden/tokenizer_golden.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Result<Json> record = parse_json(line);
    ASSERT_TRUE(record) << line;
    const std::string& name = *record->find("id")->string();
    if (*record->find("k")->string() == "dec") {
      EXPECT_EQ((*tokenizer)->decode(ids_of(*record->find("ids"))), *record->find("text")->string())
          << name;
      continue;
    }
    const std::string text = text_of(*record);
    const std::vector<TokenId> ids = *record->find("special")->boolean()
                                         ? encode_with_added(**tokenizer, text)
                                         : encode(**tokenizer, text);
    if (const Json* expected = record->find("ids")) {
      EXPECT_EQ(ids, ids_of(*expected)) << name;
    }
    EXPECT_EQ(ids.size(), static_cast<std::size_t>(*record->find("n")->int64())) << name;
    EXPECT_EQ(fnv_of(ids), *record->find("fnv")->string()) << name;
  }
  EXPECT_EQ(count, 400);
}

TEST(TokenizerGolden, TokenizeVectors) {
  const auto tokenizer = v4_tokenizer_for_test();
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  const Result<Json> vectors =
      parse_json(read_file_for_test(GALLEY_TESTS_DIR "/golden/recipe_vectors.json"));
  ASSERT_TRUE(vectors);
  for (const Json& vector : *vectors->find("tokenize")->array()) {
    const std::string& text = *vector.find("text")->string();
    const bool added = *vector.find("added_tokens_recognized")->boolean();
    EXPECT_EQ(added ? encode_with_added(**tokenizer, text) : encode(**tokenizer, text),
              ids_of(*vector.find("ids")))
        << text;
  }
}

TEST(TokenizerGolden, PlainTextNeverBecomesAControlToken) {
  const auto tokenizer = v4_tokenizer_for_test();
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  for (TokenId id = 0; id != (*tokenizer)->vocabulary_size(); ++id) {
    if (!(*tokenizer)->is_added(id)) {
      continue;
    }
    const std::string spelling((*tokenizer)->bytes(id));
    EXPECT_EQ(encode_with_added(**tokenizer, spelling), std::vector<TokenId>{id});
    for (const TokenId plain : encode(**tokenizer, "x" + spelling + spelling)) {
      EXPECT_FALSE((*tokenizer)->is_added(plain)) << spelling;
    }
  }
}

TEST(Tokenizer, KnowsItsVocabulary) {
  EXPECT_EQ(small().vocabulary_size(), 4'096U);
  EXPECT_EQ(small().find_added("<think>"), 4'085U);
  EXPECT_EQ(small().find_added("<think"), std::nullopt);
  EXPECT_EQ(small().find_added("<think>>"), std::nullopt);
  EXPECT_EQ(small().find_added(""), std::nullopt);
  EXPECT_EQ(small().bytes(4'085), "<think>");
  EXPECT_TRUE(small().is_added(0));
  EXPECT_FALSE(small().is_added(3));
  EXPECT_TRUE(small().is_added(4'095));
  EXPECT_FALSE(small().is_added(4'096));
  EXPECT_EQ(small().bytes(4'096), "");
  EXPECT_EQ(small().bytes(~TokenId{0}), "");
}

TEST(Tokenizer, AddedTokensCutTheText) {
  const std::vector<TokenId> ids = encode_with_added(small(), "in<think></think>in<thin");
  std::vector<TokenId> expected = encode(small(), "in");
  expected.push_back(4'085);
  expected.push_back(4'086);
  const std::vector<TokenId> rest = encode(small(), "in<thin");
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, AppendsToWhatIsThere) {
  std::vector<TokenId> ids = {9};
  small().encode("a", ids);
  small().encode("", ids);
  small().encode_with_added("<think>", ids);
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids.front(), 9U);
}

std::string random_text(std::mt19937& random, std::size_t characters_max) {
  static const std::vector<std::string> kCharacters = {
      "a",  "e",      "t",      "n",    "Z",      "0",  "9",  "!",  "<",  ">",  "/",
      "|",  " ",      " ",      "\n",   "\r",     "\t", "é",  "д",  "汉", "字", "ア",
      "・", "\u0301", "\u200b", "\x01", "\u00a0", "€",  "🦀", "｜", "▁"};
  std::string text;
  for (std::size_t left = random() % characters_max; left != 0; --left) {
    text += kCharacters[random() % kCharacters.size()];
  }
  return text;
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  std::mt19937 random(5);
  for (int round = 0; round != 2'000; ++round) {
    const std::string text = random_text(random, 60);
    EXPECT_EQ(small().decode(encode(small(), text)), text);
    EXPECT_EQ(small().decode(encode_with_added(small(), text + "<think>" + text)),
              text + "<think>" + text);
  }
}

TEST(Tokenizer, IllFormedBytesCountAsReplacementCharacters) {
  struct Row {
    std::string_view bytes;
    std::string_view text;
  };
  constexpr Row kRows[] = {
      {"a\xFF"
       "b",
       "a�b"},
      {"\xE6\xB1", "�"},             // an unfinished character is one
      {"\xE6\xB1z", "�z"},           // also before another
      {"\xC0\xAF", "��"},            // overlong
      {"\xED\xA0\x80", "���"},       // a surrogate
      {"\xF4\x90\x80\x80", "����"},  // above U+10FFFF
      {"\xF0\x9F\xA6\xF0\x9F\xA6\x80", "�🦀"},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(encode(small(), row.bytes), encode(small(), row.text)) << row.text;
    EXPECT_EQ(encode_with_added(small(), row.bytes), encode(small(), row.text)) << row.text;
  }
}

TEST(Tokenizer, DecodesBytesAcrossTokens) {
  std::vector<TokenId> ids = encode(small(), "🦀");
  ASSERT_GT(ids.size(), 1U);
  EXPECT_EQ(small().decode(ids), "🦀");
  ids.pop_back();
  EXPECT_EQ(small().decode(ids), "�");
  ids.push_back(4'085);
  EXPECT_EQ(small().decode(ids), "�<think>");
  const std::vector<TokenId> unknown = {4'085, 999'999};
  EXPECT_EQ(small().decode(unknown), "<think>");
}

TEST(Tokenizer, LongPiecesEndInTime) {
  constexpr std::size_t kLong = 100'000;
  for (const std::string_view unit :
       {"a", "in", " ", "\n", "!", "=-", "汉", "\u0301", "\x01", "7"}) {
    std::string text;
    while (text.size() < kLong) {
      text += unit;
    }
    const std::vector<TokenId> ids = encode(small(), text);
    std::size_t bytes = 0;
    for (const TokenId id : ids) {
      bytes += small().bytes(id).size();
    }
    EXPECT_EQ(bytes, text.size()) << unit;
  }
}

TEST(Tokenizer, FilesThatCannotBeRead) {
  const auto tokenizer = Tokenizer::from_file(GALLEY_TESTS_DIR "/data/no such file");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, Code::kNotFound);
  const auto folder = Tokenizer::from_file(GALLEY_TESTS_DIR "/data");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, Code::kInvalidArgument);
  const std::string large = testing::TempDir() + "too_large_tokenizer.json";
  std::ofstream(large).close();
  std::filesystem::resize_file(large, kTokenizerJsonBytesMax + 1);  // a hole, nothing is written
  const auto refused = Tokenizer::from_file(large);
  std::filesystem::remove(large);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kTooLarge);
}

}  // namespace
}  // namespace galley::recipe
