// Goal: a mask allows what the grammar allows, wherever the grammar begins; taking tokens back
// leaves no trace; what cannot be enforced, or would cost too much, is refused. Method: a
// vocabulary of all bytes, some longer tokens and a few control tokens; texts spelled in random
// ways.
#include "engine/grammar.h"

#include <algorithm>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/random.h"
#include "recipe/limits.h"
#include "recipe/schema_enforce.h"
#include "recipe/schema_limits.h"

namespace galley::engine {
namespace {

using recipe::AnswerGrammar;
using Kind = AnswerGrammar::Kind;

constexpr TokenId kEnd = 256;
constexpr TokenId kThink = 257;  // like </think>
constexpr TokenId kMark = 258;   // like the mark of a call
constexpr TokenId kFirstLong = 259;

std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.emplace_back(1, static_cast<char>(byte));
    }
    for (const char* const control : {"<end>", "</think>", "|mark|"}) {
      tokens.push_back("\xff" + std::string(control));
    }
    for (const char* const text : {"{\"", "\":", "true", "\",\"", "\n\n<", " <", "ab", "</"}) {
      tokens.emplace_back(text);
    }
    return GrammarVocabulary::create(tokens, kEnd).value();
  }();
  return made;
}

std::shared_ptr<const Grammar> compiled(const AnswerGrammar& source) {
  auto grammar = Grammar::compile(vocabulary(), source);
  EXPECT_TRUE(grammar) << to_string(grammar.error());
  return *grammar;
}

std::string refusal(Kind kind, std::string text) {
  const auto grammar = Grammar::compile(vocabulary(), {.kind = kind, .text = std::move(text)});
  return grammar ? "" : grammar.error().what;
}

std::vector<MaskWord> mask_of(Matcher& matcher) {
  std::vector<MaskWord> mask(vocabulary()->mask_words());
  const auto filled = matcher.fill(mask);
  EXPECT_TRUE(filled) << to_string(filled.error());
  return mask;
}

std::vector<TokenId> allowed(Matcher& matcher) {
  const std::vector<MaskWord> mask = mask_of(matcher);
  std::vector<TokenId> out;
  for (TokenId id = 0; id < vocabulary()->size(); ++id) {
    if (allows(mask, id)) {
      out.push_back(id);
    }
  }
  return out;
}

// Byte by byte, until one is not allowed. Control tokens as \x01 .. \x03.
bool accepts(Matcher& matcher, std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const TokenId id = byte >= 1 && byte <= 3 ? kEnd + byte - 1U : byte;
    if (!allows(mask_of(matcher), id)) {
      return false;
    }
    EXPECT_TRUE(matcher.accept(id));
  }
  return true;
}

bool matches(const AnswerGrammar& source, std::string_view text) {
  const auto matcher = Matcher::begin(compiled(source));
  return accepts(*matcher, text) && allows(mask_of(*matcher), kEnd);
}

TEST(Grammar, SchemasRegularExpressionsAndGrammars) {
  const AnswerGrammar schema{
      .kind = Kind::kJsonSchema,
      .text = R"({"type":"object","properties":{"a":{"type":"integer","minimum":3}},)"
              R"("required":["a"],"additionalProperties":false})"};
  EXPECT_TRUE(matches(schema, R"({"a":17})"));
  EXPECT_TRUE(matches(schema, R"({ "a" : 3 })"));
  EXPECT_FALSE(matches(schema, R"({"a":2})"));
  EXPECT_FALSE(matches(schema, R"({"a":17,"b":1})"));
  EXPECT_FALSE(matches(schema, R"({})"));
  // C064: open where nothing closes it.
  const AnswerGrammar open{.kind = Kind::kJsonSchema,
                           .text = R"({"properties":{"a":{"type":"null"}},"type":"object"})"};
  EXPECT_TRUE(matches(open, R"({"a":null,"b":[1]})"));
  EXPECT_FALSE(matches(open, R"({"a":1})"));
  const AnswerGrammar regex{.kind = Kind::kRegex, .text = "(yes|no)!?"};
  EXPECT_TRUE(matches(regex, "yes"));
  EXPECT_TRUE(matches(regex, "no!"));
  EXPECT_FALSE(matches(regex, "nope"));
  const AnswerGrammar lark{.kind = Kind::kLark,
                           .text = "start: \"(\" inner \")\"\ninner: start | /[a-z]+/\n"};
  EXPECT_TRUE(matches(lark, "((x))"));
  EXPECT_FALSE(matches(lark, "((x)"));
}

TEST(Grammar, ControlTokensAreNoText) {
  const auto any = Matcher::begin(compiled({.kind = Kind::kRegex, .text = "(?s:.)*"}));
  const std::vector<MaskWord> mask = mask_of(*any);
  EXPECT_TRUE(allows(mask, 'x'));
  EXPECT_TRUE(allows(mask, kEnd));
  EXPECT_FALSE(allows(mask, kThink));
  EXPECT_FALSE(allows(mask, kMark));
  EXPECT_FALSE(allows(mask, static_cast<TokenId>(vocabulary()->size())));
  EXPECT_FALSE(allows(mask, 1U << 20U));
  // By id they are whatever a grammar says.
  const AnswerGrammar call{.kind = Kind::kLark,
                           .text =
                               "start: \"<\" <[258]> \"a\" VALUE <[258]> \">\"\n"
                               "VALUE: /(?s:.)*<\\//\n"};
  EXPECT_TRUE(matches(call,
                      "<\x03"
                      "a</div></\x03>"));
  EXPECT_FALSE(matches(call,
                       "<\x03"
                       "a</div>\x03>"));
}

TEST(Grammar, OnlyTheEndBehindACompleteText) {
  const auto matcher = Matcher::begin(compiled({.kind = Kind::kRegex, .text = "ab?"}));
  ASSERT_TRUE(accepts(*matcher, "a"));
  EXPECT_EQ(allowed(*matcher), (std::vector<TokenId>{'b', kEnd}));
  ASSERT_TRUE(accepts(*matcher, "b"));
  EXPECT_EQ(allowed(*matcher), std::vector<TokenId>{kEnd});
  ASSERT_TRUE(matcher->rollback(1));
  EXPECT_EQ(allowed(*matcher), (std::vector<TokenId>{'b', kEnd}));
}

TEST(Grammar, BeginsBehindItsTrigger) {
  const auto matcher = Matcher::begin(
      compiled({.kind = Kind::kRegex, .text = "ok", .trigger = {kThink}, .forbidden = {kEnd}}));
  EXPECT_FALSE(matcher->unrestricted());
  const std::vector<MaskWord> free = mask_of(*matcher);
  EXPECT_FALSE(allows(free, kEnd));
  EXPECT_TRUE(allows(free, kThink));
  EXPECT_TRUE(allows(free, kMark));
  EXPECT_FALSE(allows(free, static_cast<TokenId>(vocabulary()->size())));
  EXPECT_TRUE(accepts(*matcher, "anything\x02"));
  EXPECT_EQ(allowed(*matcher), std::vector<TokenId>{'o'});
  EXPECT_TRUE(accepts(*matcher, "ok"));
  EXPECT_EQ(allowed(*matcher), std::vector<TokenId>{kEnd});
  const auto lazy = Matcher::begin(
      compiled({.kind = Kind::kRegex, .text = "ok", .trigger = {kMark}, .behind = "<"}));
  EXPECT_TRUE(lazy->unrestricted());
  EXPECT_TRUE(accepts(*lazy, "text \x03 more"));  // no "<" stands before the mark
  EXPECT_TRUE(lazy->unrestricted());
  ASSERT_TRUE(accepts(*lazy, "<\x03"));
  EXPECT_FALSE(lazy->unrestricted());
  EXPECT_EQ(allowed(*lazy), std::vector<TokenId>{'o'});
}

TEST(Grammar, ABoundTokenForcesTheTrigger) {
  const auto grammar = compiled({.kind = Kind::kRegex,
                                 .text = "ok",
                                 .trigger = {'\n', '<', kMark},
                                 .bound = kThink,
                                 .forbidden = {kEnd},
                                 .guarded = true});
  const auto matcher = Matcher::begin(grammar);
  EXPECT_TRUE(accepts(*matcher, "hm\n"));
  EXPECT_FALSE(allows(mask_of(*matcher), kMark));
  EXPECT_TRUE(accepts(*matcher, "\x02"));
  for (const TokenId forced : {TokenId{'\n'}, TokenId{'<'}, kMark}) {
    EXPECT_EQ(allowed(*matcher), std::vector<TokenId>{forced});
    ASSERT_TRUE(matcher->accept(forced));
  }
  EXPECT_EQ(allowed(*matcher), std::vector<TokenId>{'o'});
  // By itself, too; beginnings that overlap are seen.
  const auto other = Matcher::begin(grammar);
  EXPECT_TRUE(accepts(*other, "a\n\n<\x03"));
  EXPECT_EQ(allowed(*other), std::vector<TokenId>{'o'});
}

TEST(Grammar, GoesOnBehindWhatWasSaid) {
  const AnswerGrammar source{.kind = Kind::kRegex, .text = "hello world", .begun = {'h', 'e'}};
  EXPECT_TRUE(matches(source, "llo world"));
  AnswerGrammar wrong = source;
  wrong.begun = {'x'};
  EXPECT_FALSE(Grammar::compile(vocabulary(), wrong));
}

// T10.2: whatever was accepted and taken back, the state is that of a fresh matcher that was given
// what is left.
TEST(Grammar, T10_2RollbackEqualsAFreshReplay) {
  const std::vector<AnswerGrammar> sources = {
      {.kind = Kind::kJsonSchema, .text = R"({"type":"object"})"},
      {.kind = Kind::kJsonSchema, .text = R"({"type":"array","items":{"type":"integer"}})"},
      {.kind = Kind::kRegex, .text = "(ab|a)*b?"},
      {.kind = Kind::kJsonSchema,
       .text = R"({"type":"boolean"})",
       .trigger = {'a', 'b', 'a', kMark},
       .bound = kThink,
       .forbidden = {kEnd},
       .guarded = true},
      {.kind = Kind::kRegex, .text = "a*", .trigger = {kMark}, .behind = "<"},
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto grammar = compiled(sources[i]);
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE("grammar " + std::to_string(i) + " seed " + std::to_string(seed));
      Random random(Seed(seed), i);
      auto matcher = Matcher::begin(grammar);
      std::vector<TokenId> said;
      for (int turn = 0; turn < 60; ++turn) {
        std::vector<TokenId> legal = allowed(*matcher);
        std::erase(legal, kEnd);
        if (!legal.empty() && random.next_below(3) > 0) {
          // Triggers are long and rare: they are helped.
          const TokenId wanted =
              std::vector<TokenId>{'a', 'b', 'a', kMark, kThink, '<'}[random.next_below(6)];
          const bool helped =
              random.next_below(2) == 0 && std::ranges::find(legal, wanted) != legal.end();
          const TokenId token = helped ? wanted : legal[random.next_below(legal.size())];
          ASSERT_TRUE(matcher->accept(token));
          said.push_back(token);
        } else {
          const std::size_t back = random.next_below(std::min<std::uint64_t>(8, said.size()) + 1);
          ASSERT_TRUE(matcher->rollback(back));
          said.resize(said.size() - back);
        }
        if (random.next_below(8) == 0) {
          matcher = matcher->clone();
        }
        const auto fresh = Matcher::begin(grammar);
        for (const TokenId token : said) {
          ASSERT_TRUE(fresh->accept(token));
        }
        ASSERT_EQ(allowed(*matcher), allowed(*fresh));
        ASSERT_EQ(matcher->unrestricted(), fresh->unrestricted());
        ASSERT_EQ(matcher->length(), said.size());
      }
    }
  }
}

TEST(Grammar, MatchersOfOneGrammarAreApart) {
  const auto grammar = compiled({.kind = Kind::kRegex, .text = "ab|cd"});
  const auto one = Matcher::begin(grammar);
  const auto other = Matcher::begin(grammar);
  ASSERT_TRUE(one->accept('a'));
  EXPECT_EQ(allowed(*other), (std::vector<TokenId>{'a', 'c', kFirstLong + 6}));
  EXPECT_EQ(allowed(*one), std::vector<TokenId>{'b'});
}

TEST(Grammar, AWrongTokenFailsItsMatcherOnly) {
  const auto grammar = compiled({.kind = Kind::kRegex, .text = "ab"});
  const auto one = Matcher::begin(grammar);
  const auto wrong = one->accept('x');
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInternal);
  std::vector<MaskWord> mask(vocabulary()->mask_words());
  EXPECT_FALSE(one->fill(mask));
  EXPECT_EQ(allowed(*Matcher::begin(grammar)), (std::vector<TokenId>{'a', kFirstLong + 6}));
}

// What recipe/schema_limits.h lets through at its bounds can be compiled, and answers be begun.
TEST(Grammar, SchemasAtTheirLimits) {
  const auto begins = [](std::string schema, std::string_view answer) {
    const auto matcher =
        Matcher::begin(compiled({.kind = Kind::kJsonSchema, .text = std::move(schema)}));
    return accepts(*matcher, answer);
  };
  EXPECT_TRUE(
      begins(R"({"type":"integer","minimum":-9007199254740991,"maximum":-9007199254740990})",
             "-900719925474099"));
  EXPECT_TRUE(begins(R"({"type":"integer","maximum":9007199254740991,"minimum":-9007199254740991})",
                     "9007199254740991"));
  EXPECT_TRUE(begins(R"({"type":"integer","multipleOf":19997})", "39994"));
  EXPECT_FALSE(begins(R"({"type":"number","exclusiveMinimum":0,"maximum":1})", "0,"));
  std::string optional = R"({"type":"object","additionalProperties":false,"properties":{"k":{})";
  for (std::size_t i = 1; i < recipe::kSchemaPropertiesMax; ++i) {
    optional += fmt::format(R"(,"k{}":{{"type":"integer"}})", i);
  }
  EXPECT_TRUE(begins(optional + "}}", R"({"k7":1,"k)"));
  std::string values = R"({"enum":[[0])";
  for (std::size_t i = 1; i + 1 < recipe::kSchemaValuesMax; i += 2) {
    values += fmt::format(R"(,[{}],{{"a":{}}})", i, i);
  }
  EXPECT_TRUE(begins(values + "]}", "[7"));
  std::string objects = R"({"anyOf":[{"const":[-1]})";
  for (std::size_t i = 1; i < recipe::kSchemaAlternativesMax; ++i) {
    objects +=
        fmt::format(R"(,{{"type":"object","properties":{{"a":{{"const":{}}},"b":{{}}}}}})", i);
  }
  EXPECT_TRUE(begins(objects + "]}", R"({"a":7,"b)"));
  std::string names =
      R"({"type":"object","additionalProperties":false,"patternProperties":{"^k":{})";
  for (std::size_t i = 1; i < recipe::kSchemaPatternKeysMax; ++i) {
    names += fmt::format(R"(,"^j{}a":{{"type":"integer"}})", i);
  }
  EXPECT_TRUE(begins(names + "}}", R"({"k1":)"));
  std::string choices = "start: CHOICE\nCHOICE: \"w0\"";
  for (int i = 1; i < 4096; ++i) {
    choices += fmt::format(" | \"w{}\"", i);
  }
  EXPECT_TRUE(matches({.kind = Kind::kLark, .text = choices + "\n"}, "w4095"));
}

TEST(Grammar, WhatCannotBeEnforcedIsRefusedByName) {
  EXPECT_NE(refusal(Kind::kJsonSchema, R"({"not":{"type":"string"}})").find("not"),
            std::string::npos);
  EXPECT_NE(refusal(Kind::kRegex, "ab("), "");
  EXPECT_NE(refusal(Kind::kLark, "start: nothing"), "");
  EXPECT_NE(refusal(Kind::kJsonSchema, "{"), "");
  EXPECT_NE(refusal(Kind::kRegex, std::string("a\0b", 3)), "");
  EXPECT_NE(refusal(Kind::kRegex, std::string(kGrammarBytesMax + 1, 'a')), "");
}

// The longest chains that the bounds of schemas and of texts let in.
TEST(Grammar, TheDeepestFitsTheStackItIsCompiledOn) {
  const auto chain = [](std::string_view head, std::string_view tail, std::size_t links) {
    std::string out = R"({"$ref":"#/$defs/0","$defs":{)";
    for (std::size_t i = 0; i < links; ++i) {
      out.append("\"").append(std::to_string(i)).append("\":").append(head).append("\"#/$defs/");
      out.append(std::to_string(i + 1)).append("\"").append(tail).append(",");
    }
    return out.append("\"").append(std::to_string(links)).append(R"(":{"type":"null"}}})");
  };
  constexpr std::size_t kNodes = recipe::kSchemaNodesMax - 2;
  EXPECT_EQ(refusal(Kind::kJsonSchema, chain(R"({"$ref":)", "}", kNodes)), "");
  EXPECT_EQ(refusal(Kind::kJsonSchema, chain(R"({"anyOf":[{"$ref":)", "}]}", kNodes / 2)), "");
  EXPECT_EQ(
      refusal(Kind::kJsonSchema, chain(R"({"type":"array","items":{"$ref":)", "}}", kNodes / 2)),
      "");
  EXPECT_NE(refusal(Kind::kJsonSchema, chain(R"({"minLength":1,"$ref":)", "}", kNodes)), "");
  std::string rules = "start: a0\n";
  std::size_t count = 0;
  while (rules.size() < recipe::kGuidedTextBytesMax) {
    rules.append("a").append(std::to_string(count)).append(": a");
    rules.append(std::to_string(++count)).append("\n");
  }
  EXPECT_EQ(refusal(Kind::kLark, rules + "a" + std::to_string(count) + ": \"x\"\n"), "");
}

}  // namespace
}  // namespace galley::engine
