#include "plan/grammar_pool.h"

#include <fmt/core.h>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "plan/hash_device.h"

namespace galley::plan {
namespace {

using engine::Grammar;
using engine::GrammarVocabulary;
using recipe::AnswerGrammar;

constexpr std::size_t kGrammars = 48;
constexpr TokenId kBound = 1;
constexpr TokenId kMark = 2;  // last of some triggers

// Pieces of JSON first, in several lengths, so that one text has many spellings.
std::shared_ptr<const GrammarVocabulary> vocabulary() {
  std::vector<std::string> tokens = {"\xff<stop>", "\xff<bound>", "\xff<mark>"};
  for (const char* const piece :
       {"{\"", "\":", "\",\"", "\"}", "true", "false", "null", "[[", "]]",    "},{", ",\"", "12",
        "-1",  "0.",  "ab",    "ba",  "abc",  "\":\"", "{}",   "[]", "\"a\"", " ",   "\n"}) {
    tokens.emplace_back(piece);
  }
  for (char c = '!'; c <= '~'; ++c) {
    tokens.emplace_back(1, c);
  }
  for (int i = 0; tokens.size() < kGrammarVocabulary; ++i) {
    tokens.push_back(fmt::format("{}{}", static_cast<char>('a' + i % 26), i));
  }
  return GrammarVocabulary::create(tokens, HashModel::kStop).value();
}

std::string schema(Random& random, int depth) {
  switch (random.next_below(depth > 0 ? 7 : 5)) {
    case 0:
      return R"({"type":"boolean"})";
    case 1:
      return fmt::format(R"({{"type":"integer","minimum":0,"maximum":{}}})",
                         9 + random.next_below(1000));
    case 2:
      return fmt::format(R"({{"type":"string","maxLength":{}}})", 1 + random.next_below(12));
    case 3:
      return R"({"enum":["a","ab","abc",null,12]})";
    case 4:
      return R"({"type":"string","pattern":"^(ab|ba){1,4}$"})";
    case 5:
      return fmt::format(R"({{"type":"array","items":{},"maxItems":{}}})",
                         schema(random, depth - 1), 1 + random.next_below(4));
    default: {
      std::string properties;
      std::string required;
      const std::uint64_t count = 1 + random.next_below(3);
      for (std::uint64_t i = 0; i < count; ++i) {
        const char name = static_cast<char>('a' + i);
        properties +=
            fmt::format(R"({}"{}":{})", i == 0 ? "" : ",", name, schema(random, depth - 1));
        if (random.next_below(2) == 0) {
          required += fmt::format(R"({}"{}")", required.empty() ? "" : ",", name);
        }
      }
      return fmt::format(
          R"({{"type":"object","properties":{{{}}},"required":[{}],"additionalProperties":false}})",
          properties, required);
    }
  }
}

std::vector<std::shared_ptr<const Grammar>> make() {
  const auto tokens = vocabulary();
  std::vector<std::shared_ptr<const Grammar>> out;
  for (std::size_t i = 0; i < kGrammars; ++i) {
    Random random(Seed(i), 0);
    AnswerGrammar source{.kind = AnswerGrammar::Kind::kJsonSchema, .text = schema(random, 3)};
    if (i % 3 > 0) {
      // Likely ones, since nobody helps them to come.
      source.forbidden = {HashModel::kStop};
      source.guarded = i % 2 == 0;
      source.trigger = {static_cast<TokenId>(3 + random.next_below(20))};
      if (i % 3 == 2) {
        source.bound = kBound;
        source.trigger.push_back(3 + static_cast<TokenId>(random.next_below(20)));
        source.trigger.push_back(kMark);
      }
    }
    auto grammar = Grammar::compile(tokens, source);
    GALLEY_ASSERT(grammar.has_value());
    out.push_back(*std::move(grammar));
  }
  return out;
}

}  // namespace

const std::vector<std::shared_ptr<const Grammar>>& grammar_pool() {
  static const auto pool = make();
  return pool;
}

}  // namespace galley::plan
