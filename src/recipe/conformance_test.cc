// Goal: the codec equals the reference on every golden record and vector, and the checker itself can fail. Method:
// check_file over tests/golden with the V4 vocabulary; then records with one wrong value each.
#include "recipe/conformance.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "recipe/control.h"

namespace galley::recipe {
namespace {

const ConformanceTokenizers& tokenizers() {
  static const ConformanceTokenizers kTokenizers = [] {
    const char* const path = std::getenv("GALLEY_V4_TOKENIZER");
    const auto load = [&](const TokenizerOptions& options) {
      auto tokenizer = Tokenizer::from_file(path == nullptr ? "" : path, options);
      EXPECT_TRUE(tokenizer) << "GALLEY_V4_TOKENIZER must name the V4 tokenizer.json (scripts/setup.sh test)";
      return tokenizer ? *tokenizer : nullptr;
    };
    return ConformanceTokenizers{.v4 = load({}), .v41 = load({.rename = v41_renames()})};
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

TEST(Conformance, GoldenRecords) { expect_all_pass("recipe_golden.jsonl", 638, 0); }
TEST(Conformance, TokenizerRecords) { expect_all_pass("tokenizer_golden.jsonl", 400, 0); }
TEST(Conformance, Vectors) { expect_all_pass("recipe_vectors.json", 127, 2); }

}  // namespace
}  // namespace galley::recipe
