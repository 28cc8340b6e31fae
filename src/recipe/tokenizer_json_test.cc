// Goal: a tokenizer.json is read whole or refused with the place named; nothing in it is ignored.
// Method: a valid small file, changed in one place per row.
#include "recipe/tokenizer_json.h"

#include <gtest/gtest.h>
#include <string>

#include "recipe/json.h"
#include "recipe/limits.h"
#include "recipe/pretokenizer.h"
#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

// The 256 bytes as ids 0..255 in the order of their spellings' code points, "ab" 256, "abc" 257,
// and two added tokens.
std::string valid_json() {
  std::string vocabulary;
  unsigned id = 0;
  for (unsigned code_point = 0x21; code_point != 0x144; ++code_point) {
    if ((code_point > 0x7E && code_point < 0xA1) || code_point == 0xAD) {
      continue;
    }
    std::string spelling;
    if (code_point < 0x80) {
      append_json_string(std::string(1, static_cast<char>(code_point)), spelling);
    } else {
      append_json_string(std::string{static_cast<char>(0xC0U | code_point >> 6U),
                                     static_cast<char>(0x80U | (code_point & 0x3FU))},
                         spelling);
    }
    vocabulary += spelling + ":" + std::to_string(id++) + ",";
  }
  std::string json = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)"
                     R"({"id":258,"content":"<x>","single_word":false,"lstrip":false,)"
                     R"("rstrip":false,"normalized":false,"special":true},)"
                     R"({"id":259,"content":"<y>"}],"normalizer":null,"pre_tokenizer":)"
                     R"({"type":"Sequence","pretokenizers":[)";
  for (const std::string_view pattern : {kNumberPattern, kEastPattern, kWordPattern}) {
    json += R"({"type":"Split","pattern":{"Regex":)" + to_json(Json(pattern)) +
            R"(},"behavior":"Isolated","invert":false},)";
  }
  return json +
         R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
         R"("use_regex":false}]},"post_processor":null,"decoder":{"type":"ByteLevel"},)"
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,)"
         R"("byte_fallback":false,"vocab":{)" +
         vocabulary + R"("ab":256,"abc":257},"merges":[["a","b"],["ab","c"]]}})";
}

std::string replace(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_of(std::string_view json, const TokenizerOptions& options = {}) {
  const Result<TokenizerJson> file = read_tokenizer_json(json, options);
  return file ? "no error" : file.error().where + " " + file.error().what;
}

TEST(TokenizerJson, ReadsEverything) {
  const Result<TokenizerJson> file = read_tokenizer_json(valid_json(), {});
  ASSERT_TRUE(file) << to_string(file.error());
  ASSERT_EQ(file->merges.size(), 2U);
  EXPECT_EQ(file->merges[0].left, 'a');
  EXPECT_EQ(file->merges[0].right, 'b');
  EXPECT_EQ(file->merges[1].left, 256U);
  EXPECT_EQ(file->merges[1].right, 'c');
  ASSERT_EQ(file->symbol_tokens.size(), 258U);
  EXPECT_EQ(file->symbol_tokens['!'], 0U);
  EXPECT_EQ(file->symbol_tokens[0xAD], 255U);
  EXPECT_EQ(file->symbol_tokens[0], 188U);
  EXPECT_EQ(file->symbol_tokens[257], 257U);
  ASSERT_EQ(file->offsets.size(), 261U);
  const auto bytes = [&](TokenId id) {
    return file->bytes.substr(file->offsets[id], file->offsets[id + 1] - file->offsets[id]);
  };
  EXPECT_EQ(bytes(0), "!");
  EXPECT_EQ(bytes(188), std::string(1, '\0'));
  EXPECT_EQ(bytes(257), "abc");
  EXPECT_EQ(bytes(259), "<y>");
  const std::vector<std::pair<std::string, TokenId>> added = {{"<x>", 258}, {"<y>", 259}};
  EXPECT_EQ(file->added, added);
}

TEST(TokenizerJson, AcceptsWhatMeansTheSame) {
  const std::string json = valid_json();
  for (const std::string& same : {
           replace(json, R"(["a","b"],["ab","c"])", R"("a b","ab c")"),
           replace(json, R"("normalizer":null)",
                   R"("normalizer":{"type":"Sequence","normalizers":[]})"),
           replace(json, R"("normalizer":null,)", ""),
           replace(json, R"("post_processor":null)", R"("post_processor":{"type":"ByteLevel"})"),
           replace(json, R"("fuse_unk":false)",
                   R"("continuing_subword_prefix":"","ignore_merges":false)"),
           replace(json, to_json(Json(kWordPattern)), to_json(Json(kWordPatternRaw))),
       }) {
    const Result<TokenizerJson> file = read_tokenizer_json(same, {});
    ASSERT_TRUE(file) << to_string(file.error());
    EXPECT_EQ(file->merges.size(), 2U);
  }
}

TEST(TokenizerJson, RefusesByName) {
  struct Row {
    std::string_view from;
    std::string_view to;
    std::string_view error;  // its beginning
  };
  constexpr Row kRows[] = {
      {R"("version":"1.0")", R"("version":"2.0")", "version must be 1.0, not 2.0"},
      {R"("version":"1.0",)", "", "version is missing"},
      {R"("version")", R"("vision":1,"version")", "vision is not supported"},
      {R"("padding":null)", R"("padding":null,"padding":null)", "padding is there twice"},
      {R"("padding":null)", R"("padding":{"length":3})", "padding is not supported"},
      {R"("truncation":null)", R"("truncation":true)", "truncation is not supported"},
      {R"("normalizer":null)", R"("normalizer":{"type":"NFC"})",
       "normalizer.type must be Sequence"},
      {R"("normalizer":null)", R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]})",
       "normalizer.normalizers must be empty"},
      {R"(\\p{N}{1,3})", R"(\\p{N}{1,4})",
       "pre_tokenizer.pretokenizers[0].pattern.Regex unknown pattern \\p{N}{1,4}"},
      {R"("behavior":"Isolated")", R"("behavior":"Removed")",
       "pre_tokenizer.pretokenizers[0].behavior must be Isolated, not Removed"},
      {R"("invert":false)", R"("invert":true)",
       "pre_tokenizer.pretokenizers[0].invert must be false, not true"},
      {R"({"type":"Split")", R"({"type":"Digits")",
       "pre_tokenizer.pretokenizers[0].type must be Split, not Digits"},
      {R"("use_regex":false)", R"("use_regex":true)",
       "pre_tokenizer.pretokenizers[3].use_regex must be false, not true"},
      {R"("add_prefix_space":false)", R"("add_prefix_space":true)",
       "pre_tokenizer.pretokenizers[3].add_prefix_space must be false, not true"},
      {R"("pretokenizers":[)", R"("pretokenizers":[{},)",
       "pre_tokenizer.pretokenizers must have 4 steps"},
      {R"("post_processor":null)", R"("post_processor":{"type":"Whatever"})",
       "post_processor.type must be ByteLevel, not Whatever"},
      {R"("decoder":{"type":"ByteLevel"})", R"("decoder":null)", "decoder is not an object"},
      {R"("type":"BPE")", R"("type":"Unigram")", "model.type must be BPE, not Unigram"},
      {R"("dropout":null)", R"("dropout":0.1)", "model.dropout is not supported"},
      {R"("unk_token":null)", R"("unk_token":"<unk>")", "model.unk_token is not supported"},
      {R"("byte_fallback":false)", R"("byte_fallback":true)", "model.byte_fallback is not"},
      {R"("fuse_unk":false)", R"("ignore_merges":true)", "model.ignore_merges is not supported"},
      {R"("fuse_unk":false)", R"("scores":[])", "model.scores is not supported"},
      {R"("ab":256)", R"("ab":"256")", "model.vocab id of \"ab\" is not an integer"},
      {R"("ab":256)", R"("ab":-1)", "model.vocab id of \"ab\" is not an integer"},
      {R"("ab":256)", R"("ab":2097152)", "model.vocab id of \"ab\" is not an integer"},
      {R"("ab":256)", R"("ab":255)", "model.vocab id 255 is taken"},
      {R"("ab":256)", R"("ab":256,"ab":260)", "model.vocab \"ab\" is there twice"},
      {R"("ab":256)", R"("":260,"ab":256)", "model.vocab token 260 is empty or longer"},
      {R"("ab":256)", R"("ab":256,"汉":260)", "model.vocab token 260 is not byte-level text"},
      {R"("ab":256)", "\"ab\":256,\"a\xC2\xAD\":260", "model.vocab token 260 is not byte-level"},
      {R"("!":0,)", "", "model.vocab has no token for byte 0x21"},
      {R"(["a","b"])", R"(["a"])", "model.merges[0] is not a pair of tokens"},
      {R"(["a","b"])", R"("ab")", "model.merges[0] is not a pair of tokens"},
      {R"(["a","b"])", R"(7)", "model.merges[0] is not a pair of tokens"},
      {R"(["a","b"])", R"("a b c")", "model.merges[0] \"a\", \"b c\" or both joined are not in"},
      {R"(["a","b"])", R"(["a","c"])", "model.merges[0] \"a\", \"c\" or both joined are not in"},
      {R"(["a","b"],)", "", "model.merges[0] \"ab\" or \"c\" is made by no earlier merge"},
      {R"(["ab","c"])", R"(["a","b"])", "model.merges[1] \"ab\" is made by an earlier merge"},
      {R"("lstrip":false)", R"("lstrip":true)", "added_tokens[0].lstrip is not supported"},
      {R"("id":259)", R"("id":258)", "added_tokens[1] id 258 is taken"},
      {R"("id":259)", R"("id":257)", "added_tokens[1] id 257 is taken"},
      {R"("id":259)", R"("id":1e9)", "added_tokens[1].id has the wrong type"},
      {R"("id":259)", R"("id":2097152)", "added_tokens[1] has an id or a length out of bounds"},
      {R"("content":"<y>")", R"("content":"")", "added_tokens[1] has an id or a length out of"},
      {R"("content":"<y>")", R"("content":"<x>")", "added_tokens \"<x>\" is there twice"},
      {R"("content":"<y>")", R"("content":"abc")", "added_tokens[1] has id 257 in the vocabulary"},
      {R"(,"content":"<y>")", "", "added_tokens[1].content is missing"},
      {R"("id":258)", R"("id":260)", "added_tokens[0] id 260 leaves a gap or comes out of order: "},
      {R"("id":259)", R"("id":261)",
       "added_tokens[1] id 261 leaves a gap or comes out of order: the next one is 259"},
      {R"("abc":257)", R"("abc":258)", "added_tokens[0] id 258 is taken"},
  };
  const std::string json = valid_json();
  for (const Row& row : kRows) {
    EXPECT_EQ(error_of(replace(json, row.from, row.to)).substr(0, row.error.size()), row.error);
  }
}

TEST(TokenizerJson, RefusesWhatIsNoFile) {
  for (const std::string_view json : {"", "null", "[]", "7", "{", "{}", "{\"version\":", "\xFF"}) {
    EXPECT_NE(error_of(json), "no error") << json;
  }
  const std::string json = valid_json();
  for (std::size_t size = 0; size < json.size(); size += 37) {
    EXPECT_NE(error_of(std::string_view(json).substr(0, size)), "no error") << size;
  }
  EXPECT_NE(error_of(std::string(100'000, '[')), "no error");
  EXPECT_EQ(error_of(std::string(kTokenizerJsonBytesMax + 1, ' ')), " larger than 67108864 bytes");
}

TEST(TokenizerJson, AnAddedTokenMayBeInTheVocabularyToo) {
  const Result<TokenizerJson> file =
      read_tokenizer_json(replace(valid_json(), R"("ab":256)", R"("<x>":258,"ab":256)"), {});
  ASSERT_TRUE(file) << to_string(file.error());
  EXPECT_EQ(file->added.size(), 2U);
}

TEST(TokenizerJson, AnIdThatTheVocabularyLeavesOutIsNoToken) {
  std::string json = replace(valid_json(), R"("abc":257)", R"("abc":257,"<x>":300,"<y>":301)");
  json = replace(replace(json, R"("id":258)", R"("id":300)"), R"("id":259)", R"("id":301)");
  const auto tokenizer = Tokenizer::from_json(json);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  EXPECT_EQ((*tokenizer)->vocabulary_size(), 302U);
  EXPECT_EQ((*tokenizer)->decode(std::vector<TokenId>{257, 258, 299, 301}), "abc<y>");
  EXPECT_FALSE((*tokenizer)->is_added(299));
  // 258 tokens: the added ones are numbered from there, into the gap.
  EXPECT_EQ(error_of(replace(valid_json(), R"("abc":257)", R"("abc":260)")), "no error");
}

TEST(TokenizerJson, TokensOfTheLongestLength) {
  const std::string json = valid_json();
  const auto with = [&](std::size_t bytes) {
    return replace(json, R"("content":"<y>")", R"("content":")" + std::string(bytes, 'y') + R"(")");
  };
  EXPECT_EQ(error_of(with(kTokenBytesMax)), "no error");
  EXPECT_NE(error_of(with(kTokenBytesMax + 1)), "no error");
}

TEST(TokenizerJson, Renames) {
  const std::string json = valid_json();
  // All at once: names may be swapped.
  const Result<TokenizerJson> file =
      read_tokenizer_json(json, {.rename = {{258, "<y>"}, {259, "<x>"}}});
  ASSERT_TRUE(file) << to_string(file.error());
  const std::vector<std::pair<std::string, TokenId>> added = {{"<x>", 259}, {"<y>", 258}};
  EXPECT_EQ(file->added, added);
  EXPECT_EQ(file->bytes.substr(file->offsets[258]), "<y><x>");

  EXPECT_EQ(error_of(json, {.rename = {{258, "<y>"}}}), "added_tokens \"<y>\" is there twice");
  EXPECT_EQ(error_of(json, {.rename = {{257, "<z>"}}}), "added_tokens cannot rename token 257");
  EXPECT_EQ(error_of(json, {.rename = {{258, ""}}}), "added_tokens cannot rename token 258");
}

}  // namespace
}  // namespace galley::recipe
