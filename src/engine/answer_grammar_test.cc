// Goal: whatever an answer's grammar allows is an answer of the wanted form, in every protocol:
// calls that the output parser reads without loss, JSON that fits. Method: requests as clients send
// them, random tokens among those allowed, read by the real output parser.
#include "recipe/answer_grammar.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/grammar_compiler.h"
#include "recipe/control.h"
#include "recipe/json.h"
#include "recipe/output_parser.h"
#include "recipe/reply_for_test.h"
#include "recipe/request.h"
#include "recipe/tokenizer_for_test.h"

namespace galley::engine {
namespace {

using recipe::Control;
using recipe::Protocol;
using recipe::Request;

constexpr std::string_view kTools =
    R"([{"type":"function","function":{"name":"search","parameters":{"type":"object","properties":)"
    R"({"query":{"type":"string"},"count":{"type":"integer"}}}}},)"
    R"({"type":"function","function":{"name":"now"}}])";
constexpr std::string_view kStrictTools =
    R"([{"type":"function","function":{"name":"book","strict":true,"parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"},"class":{"type":"string","enum":["a","b c"]},)"
    R"("nights":{"type":"integer","minimum":1,"maximum":9},"note":{"type":["string","null"]},)"
    R"("extra":{"type":"object","properties":{"deep":{"type":"boolean"}},"required":["deep"],)"
    R"("additionalProperties":false}},"required":["city","class","nights","note","extra"],)"
    R"("additionalProperties":false}}},)"
    R"({"type":"function","function":{"name":"ping","strict":true,"parameters":{"type":"object",)"
    R"("properties":{},"additionalProperties":false}}}])";

std::shared_ptr<const recipe::Tokenizer> tokenizer() {
  return recipe::small_tokenizer_for_test(GALLEY_TESTS_DIR).value();
}

const recipe::ControlIds& controls() {
  static const auto ids =
      recipe::ControlIds::find(*tokenizer(), recipe::ModelVersion::kV41).value();
  return ids;
}

Result<Request> parsed(Protocol protocol, const std::string& body) {
  recipe::CodecOptions options;
  options.models = {{"m", recipe::ModelVersion::kV41}, {"v4", recipe::ModelVersion::kV4}};
  return recipe::parse_request(protocol, body, options);
}

Request chat(const std::string& more, std::string_view model = "m") {
  auto request = parsed(Protocol::kChat, R"({"model":")" + std::string(model) +
                                             R"(","messages":[{"role":"user","content":"json"}])" +
                                             more + "}");
  EXPECT_TRUE(request) << to_string(request.error());
  return *std::move(request);
}

GrammarCompiler& compiler() {
  static GrammarCompiler one(tokenizer());
  return one;
}

std::shared_ptr<const Grammar> compiled(const Request& request) {
  auto source = recipe::answer_grammar(request, controls(), *tokenizer());
  EXPECT_TRUE(source) << to_string(source.error());
  recipe::Generation generation;
  generation.grammar = *std::move(source);
  auto grammar = compiler().grammar_of(generation);
  EXPECT_TRUE(grammar) << to_string(grammar.error()) << "\n" << generation.grammar.text;
  return *grammar;
}

std::optional<TokenId> token_of(std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer()->encode(text, ids);
  return ids.size() == 1 ? std::optional(ids.front()) : std::nullopt;
}

// Random, but it comes to an end: after a while what closes things is preferred.
recipe::Transcript answer(const Request& request, std::uint64_t seed) {
  constexpr int kTokensMax = 3000;
  Random random(Seed(seed), 0);
  const auto grammar = compiled(request);
  const auto matcher = Matcher::begin(grammar);
  const TokenId end = controls()[Control::kEos];
  std::vector<TokenId> closers = {end, controls()[Control::kThinkClose],
                                  controls()[Control::kDsml]};
  for (const std::string_view text : {"\"", "</", "<", "}", "]", ">", "\n", "true", "1", "a"}) {
    if (const auto id = token_of(text)) {
      closers.push_back(*id);
    }
  }
  std::vector<MaskWord> mask(grammar->vocabulary().mask_words());
  std::vector<TokenId> said;
  bool ended = false;
  while (!ended && said.size() < kTokensMax) {
    const auto filled = matcher->fill(mask);
    EXPECT_TRUE(filled) << to_string(filled.error());
    if (!filled) {
      break;
    }
    std::vector<TokenId> legal;
    for (TokenId id = 0; id < grammar->vocabulary().size(); ++id) {
      if (allows(mask, id)) {
        legal.push_back(id);
      }
    }
    TokenId token = legal[random.next_below(legal.size())];
    if (random.next_below(100) < std::min<std::size_t>(90, 2 * said.size())) {
      const std::size_t first = random.next_below(closers.size());
      for (std::size_t i = 0; i < closers.size(); ++i) {
        const TokenId closer = closers[(first + i) % closers.size()];
        if (allows(mask, closer)) {
          token = closer;
          break;
        }
      }
    }
    ended = token == end;
    if (!ended) {
      EXPECT_TRUE(matcher->accept(token));
      said.push_back(token);
    }
  }
  EXPECT_TRUE(ended) << tokenizer()->decode(said);
  recipe::TranscriptSink sink;
  const auto parser = recipe::OutputParser::create(request, tokenizer(), sink);
  EXPECT_TRUE(parser->feed_tokens(said));
  parser->finish(recipe::SourceFinish::kStop);
  EXPECT_EQ(sink.transcript.problem, "");
  if (testing::Test::HasFailure()) {
    ADD_FAILURE() << tokenizer()->decode(said);
  }
  return sink.transcript;
}

std::string thinking(bool on) {
  return std::string(R"(,"thinking":{"type":")") + (on ? "enabled" : "disabled") + R"("})";
}

TEST(AnswerGrammar, ForcedCallsAreCallsOfDeclaredTools) {
  for (const bool thinks : {true, false}) {
    for (const std::string_view model : {"m", "v4"}) {
      const Request request = chat(
          R"(,"tools":)" + std::string(kTools) + R"(,"tool_choice":"required")" + thinking(thinks),
          model);
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        SCOPED_TRACE(std::string(model) + (thinks ? " thinks " : " ") + std::to_string(seed));
        const recipe::Transcript said = answer(request, seed);
        EXPECT_EQ(said.reason, recipe::FinishReason::kToolCalls);
        EXPECT_EQ(said.content, "");
        ASSERT_FALSE(said.calls.empty());
        for (const auto& call : said.calls) {
          EXPECT_TRUE(call.name == "search" || call.name == "now") << call.name;
          EXPECT_TRUE(recipe::parse_json(call.arguments)) << call.arguments;
        }
      }
    }
  }
}

TEST(AnswerGrammar, StrictCallsFitTheirSchema) {
  for (const bool thinks : {true, false}) {
    const Request request =
        chat(R"(,"tools":)" + std::string(kStrictTools) +
             R"(,"tool_choice":"required","parallel_tool_calls":false)" + thinking(thinks));
    int books = 0;
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      SCOPED_TRACE(seed);
      const recipe::Transcript said = answer(request, seed);
      ASSERT_EQ(said.calls.size(), 1U);
      const auto arguments = recipe::parse_json(said.calls[0].arguments);
      ASSERT_TRUE(arguments) << said.calls[0].arguments;
      if (said.calls[0].name == "ping") {
        EXPECT_EQ(said.calls[0].arguments, "{}");
        continue;
      }
      ++books;
      EXPECT_EQ(said.calls[0].name, "book");
      EXPECT_EQ(arguments->object()->size(), 5U);
      EXPECT_NE(arguments->find("city")->string(), nullptr);
      const std::string grade = *arguments->find("class")->string();
      EXPECT_TRUE(grade == "a" || grade == "b c") << grade;
      const std::int64_t nights = *arguments->find("nights")->int64();
      EXPECT_TRUE(nights >= 1 && nights <= 9) << nights;
      EXPECT_NE(arguments->find("extra")->find("deep")->boolean(), nullptr);
    }
    EXPECT_GT(books, 4);
  }
}

// Whether a strict tool's only parameter may be that JSON, or is refused.
std::string strict_verdict(const std::string& schema, std::string_view value) {
  const Request request =
      chat(R"(,"tools":[{"type":"function","function":{"name":"t","strict":true,"parameters":)" +
           schema + R"(}}],"tool_choice":"required")" + thinking(false));
  const auto source = recipe::answer_grammar(request, controls(), *tokenizer());
  if (!source) {
    return source.error().where + ": " + source.error().what;
  }
  recipe::Generation generation;
  generation.grammar = *source;
  const auto grammar = compiler().grammar_of(generation);
  if (!grammar) {
    return grammar.error().what;
  }
  const auto matcher = Matcher::begin(*grammar);
  std::vector<TokenId> said;
  const auto spell = [&](std::string_view text) { tokenizer()->encode(text, said); };
  const auto tag = [&](std::string_view before, std::string_view behind) {
    spell(before);
    said.push_back(controls()[Control::kDsml]);
    spell(behind);
  };
  if (!request.output.in_tool_block) {
    tag("\n\n<", " calls>\n");
  }
  tag("<", " invoke name=\"t\">\n");
  tag("<", " parameter name=\"a\" string=\"false\">" + std::string(value) + "</");
  std::vector<MaskWord> mask(grammar.value()->vocabulary().mask_words());
  for (const TokenId token : said) {
    if (!matcher->fill(mask) || !allows(mask, token)) {
      return "no";
    }
    EXPECT_TRUE(matcher->accept(token));
  }
  return "yes";
}

// Each parameter is a document of its own in the grammar; what its references mean stays.
TEST(AnswerGrammar, ReferencesOfAStrictToolMeanWhatTheyMeantInItsSchema) {
  const auto schema = [](const std::string& a, const std::string& more = "") {
    return R"({"type":"object","properties":{"a":)" + a +
           R"(},"required":["a"],"additionalProperties":false)" + more + "}";
  };
  const std::string tree = schema(R"({"type":"array","items":{"$ref":"#"}})");
  EXPECT_EQ(strict_verdict(tree, R"([{"a":[{"a":[]}]}])"), "yes");
  EXPECT_EQ(strict_verdict(tree, "[[]]"), "no");
  EXPECT_EQ(strict_verdict(tree, R"([{"b":[]}])"), "no");
  const std::string list = schema(R"({"type":"array","items":{"$ref":"#/properties/a"}})");
  EXPECT_EQ(strict_verdict(list, "[[],[[]]]"), "yes");
  EXPECT_EQ(strict_verdict(list, R"([{"a":[]}])"), "no");
  const std::string defined = schema(
      R"({"$ref":"#/$defs/x"})",
      R"(,"$defs":{"x":{"type":"array","items":{"$ref":"#/$defs/y"}},"y":{"type":"boolean"}})");
  EXPECT_EQ(strict_verdict(defined, "[true]"), "yes");
  EXPECT_EQ(strict_verdict(defined, "[1]"), "no");
  // Out of a definition to the top.
  const std::string both = schema(R"({"$ref":"#/$defs/x"})",
                                  R"(,"$id":"http://x/y","$defs":{"x":{"type":"array","items":)"
                                  R"({"$ref":"http://x/y#/properties/a"}}})");
  EXPECT_EQ(strict_verdict(both, "[[[]]]"), "yes");
  EXPECT_EQ(strict_verdict(both, "[{}]"), "no");
  EXPECT_EQ(strict_verdict(schema(R"({"$ref":"#/foo"})", R"(,"foo":{"not":{}})"), "1"),
            "tools[0].properties.a.$ref: Invalid schema for function 't': `$ref` to a place "
            "where no keyword puts a schema cannot be enforced by a strict tool");
}

// C009: nothing is asked of text, everything of a block once it opens.
TEST(AnswerGrammar, C009_TextIsFreeUntilABlockOpens) {
  const Request request = chat(R"(,"tools":)" + std::string(kTools) + thinking(false));
  const auto grammar = compiled(request);
  const auto matcher = Matcher::begin(grammar);
  EXPECT_TRUE(matcher->unrestricted());
  std::vector<TokenId> text;
  tokenizer()->encode("Let me see.\n\n<", text);
  text.push_back(controls()[Control::kDsml]);
  for (const TokenId token : text) {
    EXPECT_TRUE(matcher->unrestricted());
    ASSERT_TRUE(matcher->accept(token));
  }
  EXPECT_FALSE(matcher->unrestricted());
  std::vector<MaskWord> mask(grammar->vocabulary().mask_words());
  ASSERT_TRUE(matcher->fill(mask));
  EXPECT_FALSE(allows(mask, controls()[Control::kEos]));
  EXPECT_FALSE(allows(mask, *token_of("a")));
}

TEST(AnswerGrammar, OnlyTheNamedToolMayBeCalled) {
  const Request request = chat(R"(,"tools":)" + std::string(kTools) +
                               R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    for (const auto& call : answer(request, seed).calls) {
      EXPECT_EQ(call.name, "now");
    }
  }
}

TEST(AnswerGrammar, FormatsAreTheSameInEveryProtocol) {
  const std::string schema =
      R"({"type":"object","properties":{"n":{"type":"integer"},"ok":{"type":"boolean"}},)"
      R"("required":["n","ok"],"additionalProperties":false})";
  const std::vector<std::pair<Protocol, std::string>> bodies = {
      {Protocol::kChat, R"({"model":"m","messages":[{"role":"user","content":"x"}],)"
                        R"("response_format":{"type":"json_schema","json_schema":{"name":"s",)"
                        R"("schema":)" +
                            schema + "}}}"},
      {Protocol::kResponses, R"({"model":"m","input":"x","text":{"format":{"type":"json_schema",)"
                             R"("name":"s","schema":)" +
                                 schema + "}}}"},
      {Protocol::kMessages, R"({"model":"m","max_tokens":900,"messages":[{"role":"user",)"
                            R"("content":"x"}],"output_config":{"format":{"type":"json_schema",)"
                            R"("schema":)" +
                                schema + "}}}"},
      {Protocol::kChat, R"({"model":"m","messages":[{"role":"user","content":"x"}],)"
                        R"("guided_json":)" +
                            schema + "}"},
      {Protocol::kCompletions,
       R"({"model":"m","prompt":"x","structured_outputs":{"json":)" + schema + "}}"},
  };
  for (const auto& [protocol, body] : bodies) {
    SCOPED_TRACE(body);
    const auto request = parsed(protocol, body);
    ASSERT_TRUE(request) << to_string(request.error());
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const recipe::Transcript said = answer(*request, seed);
      const auto value = recipe::parse_json(said.content);
      ASSERT_TRUE(value) << said.content;
      EXPECT_EQ(value->object()->size(), 2U);
      EXPECT_NE(value->find("n")->int64(), nullptr);
      EXPECT_NE(value->find("ok")->boolean(), nullptr);
    }
  }
}

TEST(AnswerGrammar, AFormatBesideToolsIsAnswerOrCall) {
  const Request request = chat(R"(,"tools":)" + std::string(kTools) +
                               R"(,"response_format":{"type":"json_object"})" + thinking(false));
  int calls = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const recipe::Transcript said = answer(request, seed);
    calls += said.calls.empty() ? 0 : 1;
    if (said.calls.empty()) {
      EXPECT_TRUE(recipe::parse_json(said.content)) << said.content;
    }
  }
  EXPECT_GT(calls, 0);
  EXPECT_LT(calls, 16);
}

TEST(AnswerGrammar, WhatVllmsClientsSend) {
  const Request choice = chat(R"(,"guided_choice":["red","dark blue"])" + thinking(false));
  const Request regex = chat(R"(,"guided_regex":"[ab]{3}c")" + thinking(true));
  const Request grammar =
      chat(R"(,"guided_grammar":"start: \"(\" start? \")\"\n")" + thinking(false));
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const std::string color = answer(choice, seed).content;
    EXPECT_TRUE(color == "red" || color == "dark blue") << color;
    const std::string four = answer(regex, seed).content;
    EXPECT_TRUE(four.size() == 4 && four[3] == 'c') << four;
    const std::string brackets = answer(grammar, seed).content;
    EXPECT_EQ(std::ranges::count(brackets, '('), std::ranges::count(brackets, ')'));
  }
  EXPECT_EQ(to_string(parsed(Protocol::kChat,
                             R"({"model":"m","messages":[{"role":"user","content":"x"}],)"
                             R"("guided_regex":"a","guided_choice":["b"]})")
                          .error())
                .contains("guided_regex"),
            true);
}

TEST(AnswerGrammar, GoesOnFromThePromptsAnswer) {
  const auto request =
      parsed(Protocol::kChat,
             R"x({"model":"m","thinking":{"type":"disabled"},"guided_regex":"color: (red|blue)",)x"
             R"("messages":[{"role":"user","content":"x"},)"
             R"({"role":"assistant","content":"color: r","prefix":true}]})");
  ASSERT_TRUE(request) << to_string(request.error());
  EXPECT_EQ(answer(*request, 1).content, "ed");
}

TEST(AnswerGrammar, C063_RunsOfBlanksAreBounded) {
  const auto grammar =
      compiled(chat(R"(,"response_format":{"type":"json_object"})" + thinking(false)));
  const auto matcher = Matcher::begin(grammar);
  ASSERT_TRUE(matcher->accept(*token_of("{")));
  std::vector<MaskWord> mask(grammar->vocabulary().mask_words());
  const TokenId blank = *token_of("\n");
  int blanks = 0;
  for (; blanks < 100; ++blanks) {
    ASSERT_TRUE(matcher->fill(mask));
    if (!allows(mask, blank)) {
      break;
    }
    ASSERT_TRUE(matcher->accept(blank));
  }
  EXPECT_EQ(blanks, 40);
  EXPECT_TRUE(allows(mask, *token_of("\"")));
}

std::string refusal(const std::string& more) {
  const auto source = recipe::answer_grammar(chat(more), controls(), *tokenizer());
  return source ? "" : source.error().where + ": " + source.error().what;
}

TEST(AnswerGrammar, WhatIsNotEnforcedIsRefusedByName) {
  const auto with_schema = [](const std::string& schema) {
    return R"(,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" +
           schema + "}}";
  };
  EXPECT_EQ(refusal(with_schema(R"({"properties":{"a":{"not":{"type":"null"}}}})")),
            "response_format.properties.a.not: Invalid json schema: `not` cannot be enforced");
  EXPECT_EQ(refusal(with_schema(R"({"type":"array","items":{"anyOf":[{},{"uniqueItems":true}]}})")),
            "response_format.items.anyOf[1].uniqueItems: Invalid json schema: `uniqueItems` cannot "
            "be enforced");
  EXPECT_EQ(refusal(with_schema(R"({"type":"array","uniqueItems":false,"deprecated":true})")), "");
  EXPECT_NE(refusal(with_schema(R"({"type":"object","x-guidance":{"lenient":true}})")), "");
  EXPECT_NE(
      refusal(R"(,"response_format":{"type":"regex","regex":"a"},"tools":)" + std::string(kTools)),
      "");
  const auto grammar = [](const std::string& text) {
    return refusal(R"(,"guided_grammar":")" + text + R"(")");
  };
  for (const std::string text :
       {R"(start: %json {\"not\":{}})", R"(start: \"a\" <[1]> \"b\")", R"(start: <|User|> \"x\")",
        R"(start: \"a\" // x\n <[1]>)", R"(%llguidance {}\nstart: \"a\")"}) {
    EXPECT_NE(grammar(text).find("is not allowed in a request's grammar"), std::string::npos)
        << text << grammar(text);
  }
  EXPECT_EQ(grammar(R"(start: \"<[1]>\" /<a\\/>%json/ // <|User|>\n)"), "");
}

}  // namespace
}  // namespace galley::engine
