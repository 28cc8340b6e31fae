// What grammars cost at a real vocabulary (spec runtime T10.3): the time of one mask along answers,
// and of compiling grammars, hostile ones too. Prints one line each.
//
//   grammar_bench TOKENIZER_JSON [ANSWERS]
#include <algorithm>
#include <bit>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "engine/grammar.h"
#include "recipe/control.h"
#include "recipe/tokenizer.h"

namespace galley::engine {
namespace {

using recipe::AnswerGrammar;
using Kind = AnswerGrammar::Kind;

struct Case {
  std::string name;
  AnswerGrammar grammar;
};

// A piece of every keyword that agents' schemas use.
std::vector<Case> usual(TokenId mark) {
  const std::string person =
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer",)"
      R"("minimum":0,"maximum":150},"mail":{"type":"string","format":"email"},"tags":{"type":)"
      R"("array","items":{"enum":["a","b","long tag"]},"maxItems":5}},"required":["name","age",)"
      R"("mail","tags"],"additionalProperties":false})";
  std::string wide = R"({"type":"object","additionalProperties":false,"properties":{)";
  std::string required;
  for (int i = 0; i < 60; ++i) {
    wide += fmt::format(R"({}"field_{}":{{"type":["string","null"]}})", i == 0 ? "" : ",", i);
    required += fmt::format(R"({}"field_{}")", i == 0 ? "" : ",", i);
  }
  wide += R"(},"required":[)" + required + "]}";
  const std::string tree =
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":)"
      R"("number"},"children":{"type":"array","items":{"$ref":"#/$defs/node"},"maxItems":2}},)"
      R"("required":["value"],"additionalProperties":false}}})";
  const std::string m = fmt::format("<[{}]>", mark);
  const std::string call = "start: call+ \"</\" " + m + " \" calls>\"\ncall: \"<\" " + m +
                           " \" invoke name=\\\"\" (\"search\" | \"fetch\") \"\\\">\\n\" param* "
                           "\"</\" " +
                           m + " \" invoke>\\n\"\nparam: \"<\" " + m +
                           " \" parameter name=\\\"\" KEY \"\\\" string=\\\"true\\\">\" TEXT " + m +
                           " \" parameter>\\n\"\nKEY: /[a-z]+/\nTEXT: /(?s:.)*<\\//\n";
  return {{"person", {.kind = Kind::kJsonSchema, .text = person}},
          {"60 fields", {.kind = Kind::kJsonSchema, .text = wide}},
          {"tree", {.kind = Kind::kJsonSchema, .text = tree}},
          {"any object", {.kind = Kind::kJsonSchema, .text = R"({"type":"object"})"}},
          {"regex", {.kind = Kind::kRegex, .text = "[A-Z][a-z]{2,20}( [A-Z][a-z]{2,20}){0,4}"}},
          {"free calls", {.kind = Kind::kLark, .text = call}}};
}

std::vector<Case> hostile() {
  std::vector<Case> out;
  out.push_back({"exponential regex", {.kind = Kind::kRegex, .text = "(a|b)*a(a|b){200}"}});
  out.push_back({"nested counts", {.kind = Kind::kRegex, .text = "((a{1,99}){1,99}){1,99}"}});
  out.push_back({"nested counts 4",
                 {.kind = Kind::kRegex, .text = "((((a|b){1,500}){1,500}c){1,500}d){1,500}"}});
  std::string optional = "(";
  for (int i = 0; i < 3000; ++i) {
    optional += "a?";
  }
  out.push_back(
      {"3000 optional", {.kind = Kind::kRegex, .text = optional + ")" + std::string(3000, 'a')}});
  std::string alternatives;
  for (int i = 0; i < 20000; ++i) {
    alternatives += fmt::format("{}x.*{}y", i == 0 ? "" : "|", i);
  }
  out.push_back({"20000 wild alternatives", {.kind = Kind::kRegex, .text = alternatives}});
  std::string deep;
  for (int i = 0; i < 120; ++i) {
    deep += R"({"type":"array","items":)";
  }
  out.push_back(
      {"120 deep", {.kind = Kind::kJsonSchema, .text = deep + "{}" + std::string(120, '}')}});
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 5000; ++i) {
    chain += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  }
  out.push_back({"5000 $refs in a chain",
                 {.kind = Kind::kJsonSchema, .text = chain + R"("d5000":{"type":"null"}}})"}});
  out.push_back({"$ref to itself", {.kind = Kind::kJsonSchema, .text = R"({"$ref":"#"})"}});
  std::string doubling = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 30; ++i) {
    doubling += fmt::format(
        R"("d{0}":{{"allOf":[{{"$ref":"#/$defs/d{1}"}},{{"$ref":"#/$defs/d{1}"}}]}},)", i, i + 1);
  }
  out.push_back({"2^30 allOf",
                 {.kind = Kind::kJsonSchema,
                  .text = doubling + R"("d30":{"type":"string","minLength":1}}})"}});
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 24; ++i) {
    product += fmt::format(
        R"({0}{{"anyOf":[{{"properties":{{"a{1}":{{"type":"string"}}}}}},{{"properties":{{"b{1}":{{"type":"string"}}}}}}]}})",
        i == 0 ? "" : ",", i);
  }
  out.push_back({"2^24 anyOf in allOf", {.kind = Kind::kJsonSchema, .text = product + "]}"}});
  std::string enumeration = R"({"enum":[)";
  for (int i = 0; enumeration.size() < 1 << 20; ++i) {
    enumeration += fmt::format(R"({}"value number {} of many")", i == 0 ? "" : ",", i * 7919);
  }
  out.push_back({"1 MB enum", {.kind = Kind::kJsonSchema, .text = enumeration + "]}"}});
  enumeration.resize(500'000);
  enumeration.resize(enumeration.rfind(','));
  out.push_back({"0.5 MB enum", {.kind = Kind::kJsonSchema, .text = enumeration + "]}"}});
  std::string long_chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  int links = 0;
  for (; long_chain.size() < 500'000; ++links) {
    long_chain += fmt::format(R"("d{}":{{"items":{{"$ref":"#/$defs/d{}"}}}},)", links, links + 1);
  }
  out.push_back({"0.5 MB of $refs in a chain",
                 {.kind = Kind::kJsonSchema,
                  .text = long_chain + fmt::format(R"("d{}":{{"type":"null"}}}}}})", links)}});
  for (const std::size_t depth : {1000U, 60'000U, 250'000U}) {
    out.push_back(
        {fmt::format("lark {} brackets deep", depth),
         {.kind = Kind::kLark,
          .text = "start: " + std::string(depth, '(') + "\"a\"" + std::string(depth, ')') + "\n"}});
    out.push_back(
        {fmt::format("regex {} brackets deep", depth),
         {.kind = Kind::kRegex, .text = std::string(depth, '(') + "a" + std::string(depth, ')')}});
  }
  out.push_back({"left recursion",
                 {.kind = Kind::kLark, .text = "start: start start | start \"a\" | \"a\"\n"}});
  out.push_back({"no word at all", {.kind = Kind::kLark, .text = "start: start \"a\"\n"}});
  out.push_back({"empty loop", {.kind = Kind::kLark, .text = "start: (\"\" | start)*\n"}});
  out.push_back({"lengths",
                 {.kind = Kind::kJsonSchema,
                  .text = R"({"type":"string","minLength":100000,"maxLength":1000000})"}});
  out.push_back(
      {"items", {.kind = Kind::kJsonSchema, .text = R"({"type":"array","minItems":1000000})"}});
  out.push_back({"multiple",
                 {.kind = Kind::kJsonSchema,
                  .text = R"({"type":"integer","multipleOf":1000003,"minimum":3})"}});
  std::string patterns = R"({"type":"object","patternProperties":{)";
  for (int i = 0; i < 400; ++i) {
    patterns += fmt::format(R"({}"a.*{}":{{"type":"string"}})", i == 0 ? "" : ",", i);
  }
  out.push_back({"400 pattern properties", {.kind = Kind::kJsonSchema, .text = patterns + "}}"}});
  std::string optionals = R"({"type":"object","properties":{)";
  for (int i = 0; i < 5000; ++i) {
    optionals += fmt::format(R"({}"p{}":{{"type":"string","pattern":"^[a-z]{{1,{}}}$"}})",
                             i == 0 ? "" : ",", i, i % 200 + 1);
  }
  out.push_back(
      {"5000 optional properties", {.kind = Kind::kJsonSchema, .text = optionals + "}}"}});
  return out;
}

double us(Duration time) {
  return static_cast<double>(time.count()) / 1000.0;
}

// One random answer, a mask a token.
void answer(const Grammar& grammar,
            Matcher& matcher,
            Random& random,
            const Clock& clock,
            std::vector<double>& times,
            std::string& failure) {
  std::vector<MaskWord> mask(grammar.vocabulary().mask_words());
  int slow = 0;
  for (int i = 0; i < 200; ++i) {
    const TimeNs begin = clock.now();
    const auto filled = matcher.fill(mask);
    times.push_back(us(clock.now() - begin));
    if (!filled) {
      failure = filled.error().what;
      return;
    }
    slow += times.back() > us(kSlowMask) ? 1 : 0;
    if (slow == kSlowMasksMax) {
      failure = "too slow: the engine ends the request here";
      return;
    }
    // Uniform among the allowed, by trial.
    TokenId token = grammar.vocabulary().end();
    const std::size_t words = mask.size();
    std::size_t at = random.next_below(words);
    for (std::size_t k = 0; k < words && token == grammar.vocabulary().end();
         ++k, at = (at + 1) % words) {
      for (MaskWord word = mask[at]; word != 0; word &= word - 1) {
        const auto id = static_cast<TokenId>(at * kMaskWordBits +
                                             static_cast<std::size_t>(std::countr_zero(word)));
        if (id != grammar.vocabulary().end()) {
          token = id;
          break;
        }
      }
    }
    if (token == grammar.vocabulary().end() || !matcher.accept(token)) {
      return;
    }
  }
}

int run(const std::string& path, int answers) {
  const auto tokenizer = recipe::Tokenizer::from_file(path);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", to_string(tokenizer.error()));
    return 1;
  }
  const RealClock clock;
  const TimeNs began = clock.now();
  const auto vocabulary =
      GrammarVocabulary::create(**tokenizer,
                                *(*tokenizer)->find_added(recipe::spelling(recipe::Control::kEos)))
          .value();
  fmt::print("vocabulary of {}: {:.0f} ms\n", vocabulary->size(), us(clock.now() - began) / 1000.0);
  const TokenId mark = *(*tokenizer)->find_added(recipe::spelling(recipe::Control::kDsml));
  std::vector<double> all;
  for (const bool bad : {false, true}) {
    for (const Case& one : bad ? hostile() : usual(mark)) {
      const TimeNs begin = clock.now();
      const auto grammar = Grammar::compile(vocabulary, one.grammar);
      const double compile_ms = us(clock.now() - begin) / 1000.0;
      if (!grammar) {
        fmt::print("{:26} {:8.1f} ms  refused: {:.110}\n", one.name, compile_ms,
                   grammar.error().what);
        std::fflush(stdout);
        continue;
      }
      std::vector<double> times;
      std::string failure;
      Random random(Seed(7), 0);
      for (int i = 0; i < (bad ? 3 : answers); ++i) {
        answer(**grammar, *Matcher::begin(*grammar), random, clock, times, failure);
      }
      std::ranges::sort(times);
      double sum = 0;
      for (const double time : times) {
        sum += time;
      }
      if (!bad) {
        all.insert(all.end(), times.begin(), times.end());
      }
      fmt::print(
          "{:26} {:8.1f} ms  {} masks: mean {:.1f} us, p99 {:.1f} us, max {:.1f} us {:.90}\n",
          one.name, compile_ms, times.size(), sum / static_cast<double>(times.size()),
          times[times.size() * 99 / 100], times.back(), failure);
      std::fflush(stdout);
    }
  }
  std::ranges::sort(all);
  double sum = 0;
  for (const double time : all) {
    sum += time;
  }
  fmt::print("all usual ones: {} masks: mean {:.1f} us, p99 {:.1f} us\n", all.size(),
             sum / static_cast<double>(all.size()), all[all.size() * 99 / 100]);
  return 0;
}

}  // namespace
}  // namespace galley::engine

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: grammar_bench TOKENIZER_JSON [ANSWERS]\n");
    return 2;
  }
  return galley::engine::run(argv[1], argc > 2 ? std::stoi(argv[2]) : 50);
}
