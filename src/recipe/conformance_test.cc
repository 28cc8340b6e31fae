// Goal: the codec equals the reference on every golden record and vector, and the checker itself
// can fail. Method: check_file over tests/golden with the V4 vocabulary; then records with one
// wrong value each.
#include "recipe/conformance.h"

#include <array>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

const ConformanceTokenizers& tokenizers() {
  static const ConformanceTokenizers kTokenizers = [] {
    const auto load = [](ModelVersion version) {
      const auto tokenizer = v4_tokenizer_for_test(version);
      EXPECT_TRUE(tokenizer) << to_string(tokenizer.error());
      return tokenizer ? *tokenizer : nullptr;
    };
    return ConformanceTokenizers{.v4 = load(ModelVersion::kV4), .v41 = load(ModelVersion::kV41)};
  }();
  return kTokenizers;
}

void expect_all_pass(const std::string& file, std::size_t records, std::size_t not_applicable) {
  ASSERT_NE(tokenizers().v4, nullptr);
  const auto checks = check_file(std::string(GALLEY_TESTS_DIR) + "/golden/" + file, tokenizers());
  ASSERT_TRUE(checks) << to_string(checks.error());
  EXPECT_EQ(checks->size(), records);
  std::size_t skipped = 0;
  for (const RecordCheck& check : *checks) {
    skipped += check.not_applicable.empty() ? 0U : 1U;
    for (const std::string& difference : check.differences) {
      ADD_FAILURE() << check.id << ": " << difference;
    }
  }
  EXPECT_EQ(skipped, not_applicable);
}

TEST(Conformance, GoldenRecords) {
  expect_all_pass("recipe_golden.jsonl", 638, 0);
}
TEST(Conformance, TokenizerRecords) {
  expect_all_pass("tokenizer_golden.jsonl", 400, 0);
}
// A record that is not what the formats say fails; it does not break the checker.
TEST(Conformance, MalformedRecordsFail) {
  ASSERT_NE(tokenizers().v4, nullptr);
  for (const std::string_view kind :
       {"render", "error", "parse", "tokens", "cuts", "max_tokens", "image", "enc", "dec", "?"}) {
    for (
        const std::string_view rest :
        {R"()",
         R"(,"p":5,"v":null,"body":[],"text":7,"ids":["x",null],"splits":[1,"a"],"chunks":[[null],3],"cuts":[1,[],["a",2]])",
         R"(,"p":"chat","v":"v4.1","body":"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}","text":"abc","splits":[[-1,99],7],"cuts":[[99,3],[-1,"h"],[]],"chunks":[["a"],[-5],[1,2]],"events":[5,{"choices":[]},{"choices":[{"delta":{"tool_calls":[]}}]},{"type":"response.x.delta"},{"type":"content_block_delta"}],"hex":"zz1","rep":"a","times":-1,"w":0,"h":-3,"ids":[99999999]})"}) {
      std::string text = R"({"id":"bad","k":")" + std::string(kind) + "\"" + std::string(rest);
      text += text.back() == '}' ? "" : "}";
      const Result<Json> record = parse_json(text);
      ASSERT_TRUE(record) << text;
      EXPECT_FALSE(check_record(*record, tokenizers()).differences.empty()) << text;
    }
  }
}

TEST(Conformance, ARecordWithNothingToCompareFails) {
  ASSERT_NE(tokenizers().v4, nullptr);
  struct Case {
    std::string_view record;
    std::string_view says;
  };
  constexpr std::array<Case, 9> kCases = {{
      {R"({"k":"enc","text":"hi","special":false})", "ids: neither"},
      {R"({"k":"enc","n":0})", "text: missing"},
      {R"({"k":"dec","ids":[19923]})", "text: missing"},
      {R"({"k":"dec","text":""})", "ids: missing"},
      {R"({"k":"image","w":100,"h":100})", "tokens: missing"},
      {R"({"k":"cuts","p":"chat","v":"v4","body":"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",)"
       R"(\"content\":\"q\"}]}","text":"a","cuts":[],"whole_stop":"x"})",
       "cuts: none"},
      {R"({"k":"parse","body":"{}"})", "text: missing"},
      {R"({"k":"max_tokens","body":"{}","prompt_tokens":1,"context_limit":2})", "result: missing"},
      {R"({"k":"error","body":"{","message":"x"})", "status: missing"},
  }};
  for (const Case& c : kCases) {
    const Result<Json> record = parse_json(c.record);
    ASSERT_TRUE(record) << c.record;
    const RecordCheck check = check_record(*record, tokenizers());
    ASSERT_FALSE(check.differences.empty()) << c.record;
    EXPECT_TRUE(check.differences[0].starts_with(c.says)) << check.differences[0];
  }
}

TEST(Conformance, AVectorWithNothingToCompareFails) {
  ASSERT_NE(tokenizers().v4, nullptr);
  const std::string path = ::testing::TempDir() + "/conformance_vectors.json";
  std::ofstream(path) << R"({"description":"a file","tokenize":[{"text":"hi"}],)"
                         R"("protocol_events":[{"chunks":[],"requests":{}}],)"
                         R"("render":{"name":"x"},"surprise":[]})";
  const auto checks = check_file(path, tokenizers());
  ASSERT_TRUE(checks);
  std::vector<std::string> said;
  for (const RecordCheck& check : *checks) {
    ASSERT_EQ(check.differences.size(), 1U) << check.id;
    said.push_back(check.id + ": " +
                   check.differences[0].substr(0, check.differences[0].find(',')));
  }
  EXPECT_EQ(said, (std::vector<std::string>{
                      "tokenize[0] : ids: neither they nor their number or hash",
                      "protocol_events[0] : requests: none", "render: not a list of vectors",
                      "surprise: unknown kind of vector"}));
}

TEST(Conformance, Vectors) {
  expect_all_pass("recipe_vectors.json", 127, 2);
}

}  // namespace
}  // namespace galley::recipe
