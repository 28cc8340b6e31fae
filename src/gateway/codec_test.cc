// Goal: a body becomes the generation it asks for, and what the server cannot do is refused by
// name. Method: bodies through Codec with the small vocabulary; prompts are compared as text.
#include "gateway/codec.h"

#include <algorithm>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/real_clock.h"
#include "gateway/fakes_for_test.h"
#include "gateway/sources/echo.h"
#include "gateway/sources/foreign.h"
#include "gateway/sources/scripted.h"
#include "recipe/limits.h"

namespace galley::gateway {
namespace {

Result<Prepared> prepare(std::string_view body, std::int64_t context_tokens = 2000) {
  const auto codec = Codec::create(small_tokenizer(), {}, context_tokens);
  return (*codec)->prepare(recipe::Protocol::kChat, body);
}

TEST(Codec, PreparesAGeneration) {
  const auto prepared = prepare(chat_body(R"(, "max_tokens": 7, "seed": 5, "stream": true)"));
  ASSERT_TRUE(prepared.has_value()) << to_string(prepared.error());
  EXPECT_EQ(small_tokenizer()->decode(prepared->generation.prompt),
            "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>");
  EXPECT_EQ(prepared->generation.prompt, tokens_of("<｜begin▁of▁sentence｜><｜User｜>Hello"
                                                   "<｜Assistant｜></think>"));
  EXPECT_EQ(prepared->generation.max_tokens, 7);
  EXPECT_EQ(prepared->generation.sampling.seed, 5);
  EXPECT_EQ(prepared->generation.stop_ids, tokens_of("<｜end▁of▁sentence｜>"));
  EXPECT_TRUE(prepared->request.stream);
}

TEST(Codec, TextNeverBecomesAControlToken) {
  const auto prepared = prepare(chat_body("", "<｜User｜>"));
  ASSERT_TRUE(prepared.has_value());
  EXPECT_EQ(std::ranges::count(prepared->generation.prompt, tokens_of("<｜User｜>")[0]), 1);
}

TEST(Codec, ChecksTheContext) {
  const std::size_t length = prepare(chat_body())->generation.prompt.size();
  const auto limit = static_cast<std::int64_t>(length) + 10;
  EXPECT_EQ(prepare(chat_body(), limit)->generation.max_tokens, 10);
  EXPECT_TRUE(prepare(chat_body(R"(, "max_tokens": 10)"), limit).has_value());
  const auto over = prepare(chat_body(R"(, "max_tokens": 11)"), limit);
  ASSERT_FALSE(over.has_value());
  EXPECT_EQ(over.error().code, Code::kInvalidArgument);
}

TEST(Codec, ReadsHowManyChoices) {
  const auto two = prepare(chat_body(R"(, "n": 2)"));
  ASSERT_TRUE(two.has_value()) << to_string(two.error());
  EXPECT_EQ(two->request.sampling.n, 2);
  EXPECT_EQ(prepare(chat_body(R"(, "n": 17)")).error().where, "n");
}

// Whether it can do them is the token source's to say.
TEST(Codec, PassesOnImagesAndBiases) {
  const auto prepared =
      prepare(R"({"model": "DeepSeek-V4.1-Flash", "logit_bias": {"99999": 1}, "messages": [)"
              R"({"role": "user", "content": [)"
              R"({"type": "image_url", "image_url": {"url": "http://host/a.png"}}]}]})");
  ASSERT_TRUE(prepared.has_value()) << to_string(prepared.error());
  EXPECT_EQ(prepared->generation.images.size(), 1U);
  EXPECT_EQ(prepared->generation.sampling.logit_bias.size(), 1U);
}

TEST(Codec, WhatIsEnforcedNeedsNoNote) {
  const auto prepared = prepare(chat_body(
      R"(, "parallel_tool_calls": false, "tools": [{"type": "function", "function": {"name": "f",)"
      R"( "strict": true, "parameters": {"type": "object", "properties": {}, "required": [], )"
      R"("additionalProperties": false}}}])"));
  ASSERT_TRUE(prepared.has_value()) << to_string(prepared.error());
  EXPECT_EQ(prepared->request.notes, std::vector<std::string>{});
  const recipe::AnswerGrammar& grammar = prepared->generation.grammar;
  EXPECT_EQ(grammar.kind, recipe::AnswerGrammar::Kind::kLark);
  EXPECT_EQ(grammar.trigger, tokens_of("｜DSML｜"));
  EXPECT_EQ(prepare(chat_body())->generation.grammar.kind, recipe::AnswerGrammar::Kind::kNone);
}

TEST(Codec, RefusesASchemaThatCannotBeEnforced) {
  const auto prepared = prepare(chat_body(
      R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )"
      R"({"type": "array", "contains": {"type": "null"}}}})"));
  ASSERT_FALSE(prepared.has_value());
  EXPECT_EQ(prepared.error().code, Code::kInvalidArgument);
  EXPECT_EQ(prepared.error().where, "response_format.contains");
  EXPECT_EQ(prepared.error().what, "Invalid json schema: `contains` cannot be enforced");
}

TEST(Codec, WhatHasNoEffectComesFirstWithinTheBoundOfNotes) {
  std::string body = R"({"model": "DeepSeek-V4.1-Flash", "input": "x", "store": true)";
  for (std::size_t i = 0; i < recipe::kNoteCountMax; ++i) {
    body += fmt::format(R"(, "x{}": 1)", i);
  }
  const auto codec = Codec::create(small_tokenizer(), {}, 2000);
  const auto prepared = (*codec)->prepare(recipe::Protocol::kResponses, body + "}");
  ASSERT_TRUE(prepared.has_value()) << to_string(prepared.error());
  const std::vector<std::string>& notes = prepared->request.notes;
  ASSERT_EQ(notes.size(), recipe::kNoteCountMax);
  EXPECT_TRUE(notes[0].starts_with("`store: true` has no effect")) << notes[0];
  EXPECT_EQ(notes[1], "`x0` is ignored");
}

TEST(Codec, NeedsAModelName) {
  const auto codec = Codec::create(small_tokenizer(), {.models = {}}, 100);
  ASSERT_FALSE(codec.has_value());
  EXPECT_EQ(codec.error().where, "models");
}

TEST(Codec, SaysWhichModelNameTheVocabularyCannotServe) {
  const auto bare = recipe::Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json",
                                                 {.rename = {{4078, "<|renamed|>"}}});
  ASSERT_TRUE(bare.has_value());
  const auto codec = Codec::create(*bare, {.models = {{"new", recipe::ModelVersion::kV41}}}, 100);
  ASSERT_FALSE(codec.has_value());
  EXPECT_TRUE(codec.error().what.starts_with("model name 'new': ")) << codec.error().what;
  EXPECT_TRUE(
      Codec::create(*bare, {.models = {{"old", recipe::ModelVersion::kV4}}}, 100).has_value());
}

Result<Prepared> complete(std::string_view members) {
  const auto codec = Codec::create(small_tokenizer(), {}, 2000);
  return (*codec)->prepare(recipe::Protocol::kCompletions,
                           R"({"model":"DeepSeek-V4.1-Flash",)" + std::string(members) + "}");
}

TEST(Codec, PreparesACompletion) {
  const auto text = complete(R"("prompt":"Hello")");
  ASSERT_TRUE(text.has_value()) << to_string(text.error());
  EXPECT_EQ(text->generation.prompt, tokens_of("<｜begin▁of▁sentence｜>Hello"));
  EXPECT_EQ(text->generation.stop_ids,
            tokens_of("<｜end▁of▁sentence｜><|EOT|><｜fim▁begin｜><｜fim▁hole｜><｜fim▁end｜>"));
  const auto gap = complete(R"("prompt":"a","suffix":"b")");
  ASSERT_TRUE(gap.has_value()) << to_string(gap.error());
  EXPECT_EQ(gap->generation.prompt,
            tokens_of("<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"));
  EXPECT_EQ(complete(R"("prompt":[7,8])")->generation.prompt, (std::vector<TokenId>{7, 8}));
  const auto outside = complete(R"("prompt":[7,4096])");
  ASSERT_FALSE(outside.has_value());
  EXPECT_EQ(outside.error().where, "prompt[1]");
}

TEST(Codec, AGapNeedsItsTokens) {
  const auto bare = recipe::Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json",
                                                 {.rename = {{4079, "<|renamed|>"}}});
  ASSERT_TRUE(bare.has_value());
  const auto codec = Codec::create(*bare, {}, 2000);
  const auto refused =
      (*codec)->prepare(recipe::Protocol::kCompletions,
                        R"({"model":"DeepSeek-V4.1-Flash","prompt":"a","suffix":"b"})");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_EQ(refused.error().where, "suffix");
}

// Nothing is kept, so nothing can be gone on from: an answer without the history would be wrong.
TEST(Codec, ResponsesAreNotKept) {
  const auto codec = Codec::create(small_tokenizer(), {}, 2000);
  const auto respond = [&codec](std::string_view more) {
    return (*codec)->prepare(
        recipe::Protocol::kResponses,
        R"({"model":"DeepSeek-V4.1-Flash","input":"Hello")" + std::string(more) + "}");
  };
  const auto refused = respond(R"(,"previous_response_id":"resp_1")");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_EQ(refused.error().where, "previous_response_id");
  EXPECT_EQ(respond(R"(,"store":false)")->request.notes, std::vector<std::string>{});
  EXPECT_EQ(
      respond(R"(,"store":true)")->request.notes,
      std::vector<std::string>{"`store: true` has no effect: this server keeps no responses"});
}

// What a client counts before it sends is what it is told it sent.
TEST(Codec, CountsThePromptItWouldMake) {
  const auto codec = Codec::create(small_tokenizer(), {}, 2000);
  const auto counted = (*codec)->prompt(recipe::Protocol::kChat, chat_body());
  ASSERT_TRUE(counted.has_value());
  EXPECT_EQ(*counted, prepare(chat_body())->generation.prompt);
  const auto small = Codec::create(small_tokenizer(), {}, 2);  // also one that does not fit
  EXPECT_EQ((*small)->prompt(recipe::Protocol::kChat, chat_body()), *counted);
}

// Every kind of source that has no grammars.
class Unenforcing : public testing::Test {
 protected:
  Unenforcing() {
    sources_.push_back(std::make_unique<EchoSource>(small_tokenizer(), loop_));
    sources_.push_back(
        ScriptedSource::from_jsonl(R"({"text": "x"})", *small_tokenizer(), loop_).value());
    for (const std::string_view dialect : kDialectNames) {
      sources_.push_back(ForeignSource::create(make_dialect(dialect, small_tokenizer()),
                                               small_tokenizer(), clock_, metrics_, log_,
                                               {.url = "http://127.0.0.1:1"})
                             .value());
    }
  }
  // What comes of the request with `more`: the member that is refused, or the notes.
  static std::vector<std::string> outcome(recipe::TokenSource& source, std::string_view more) {
    auto made = prepare(chat_body(more));
    if (!made) {
      return {"invalid: " + to_string(made.error())};
    }
    Prepared prepared = *std::move(made);
    const auto fits = fit(prepared, source);
    if (!fits) {
      EXPECT_EQ(fits.error().code, Code::kUnimplemented);
      return {"refused: " + fits.error().where};
    }
    return prepared.request.notes;
  }

  VirtualLoop loop_;
  RealClock clock_;
  Metrics metrics_;
  Log log_{clock_, {.write = [](std::string_view) {}}};
  std::vector<std::unique_ptr<recipe::TokenSource>> sources_;
};

std::string tools(std::string_view strict, std::string_view more = "") {
  return fmt::format(R"(, "tools": [{{"type": "function", "function": {{"name": "f", "strict": {},)"
                     R"( "parameters": {{"type": "object", "properties": {{}}, "required": [],)"
                     R"( "additionalProperties": false}}}}}}]{})",
                     strict, more);
}

TEST_F(Unenforcing, WhatCannotBeKeptIsRefusedByName) {
  for (const auto& source : sources_) {
    const auto refused = [&](std::string_view more) { return outcome(*source, more).at(0); };
    for (const std::string_view guided :
         {R"("guided_json": {"type": "object"})", R"("guided_regex": "a+")",
          R"("guided_choice": ["a"])", R"("guided_grammar": "start: \"a\"")"}) {
      const std::string_view name = guided.substr(1, guided.find('"', 1) - 1);
      EXPECT_EQ(refused(fmt::format(", {}", guided)), fmt::format("refused: {}", name));
    }
    EXPECT_EQ(refused(R"(, "structured_outputs": {"regex": "a+"})"),
              "refused: structured_outputs.regex");
    EXPECT_EQ(refused(R"(, "response_format": {"type": "json_schema", "json_schema": )"
                      R"({"name": "s", "schema": {"type": "object"}}})"),
              "refused: response_format");
    EXPECT_EQ(refused(tools("false", R"(, "tool_choice": "required")")), "refused: tool_choice");
    EXPECT_EQ(refused(tools("true", R"(, "tool_choice": "required")")), "refused: tool_choice");
    EXPECT_EQ(refused(tools("false", R"(, "guided_json": {"type": "object"})")),
              "refused: guided_json");
  }
}

TEST_F(Unenforcing, WhatPromisesLessIsNoted) {
  const std::string strict =
      "`strict` of tools is not enforced: arguments may not fit their schema";
  const std::string parallel = "`parallel_tool_calls: false` is not enforced";
  const std::string one = R"(, "parallel_tool_calls": false)";
  using Notes = std::vector<std::string>;
  for (const auto& source : sources_) {
    EXPECT_EQ(outcome(*source, ""), Notes{});
    EXPECT_EQ(outcome(*source, one), Notes{});  // no calls at all
    EXPECT_EQ(outcome(*source, tools("false")), Notes{});
    EXPECT_EQ(outcome(*source, tools("true")), Notes{strict});
    EXPECT_EQ(outcome(*source, tools("null", one)), Notes{parallel});
    EXPECT_EQ(outcome(*source, tools("true", one + R"(, "store": true)")),
              (Notes{strict, parallel, "`store` is ignored"}));
    EXPECT_EQ(outcome(*source, tools("true", one + R"(, "tool_choice": "none")")), Notes{});
  }
}

TEST(Codec, WhatASourceEnforcesIsNeitherRefusedNorNoted) {
  ManualSource source;
  source.enforces = true;
  Prepared forced =
      prepare(
          chat_body(tools("true", R"(, "tool_choice": "required", "parallel_tool_calls": false)")))
          .value();
  EXPECT_TRUE(fit(forced, source).has_value());
  EXPECT_EQ(forced.request.notes, std::vector<std::string>{});
}

}  // namespace
}  // namespace galley::gateway
