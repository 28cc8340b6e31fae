// Goal: a script answers by prompt or in order, exactly as written, and a bad one says where.
// Method: JSONL texts.
#include "gateway/sources/scripted.h"

#include <gtest/gtest.h>

#include "gateway/sources/recording_sink_for_test.h"

namespace galley::gateway {
namespace {

VirtualLoop& loop() {
  static VirtualLoop the_loop;
  return the_loop;
}

std::unique_ptr<ScriptedSource> script(std::string_view jsonl) {
  auto source = ScriptedSource::from_jsonl(jsonl, *small_tokenizer(), loop());
  EXPECT_TRUE(source.has_value()) << to_string(source.error());
  return std::move(*source);
}

RecordingSink play(ScriptedSource& source,
                   std::vector<TokenId> prompt = {1, 2},
                   std::int64_t max_tokens = 100) {
  RecordingSink sink;
  const auto active =
      source.start({.prompt = std::move(prompt), .max_tokens = max_tokens, .stop_ids = {1}}, sink);
  EXPECT_TRUE(active.has_value());
  EXPECT_TRUE(loop().run_until_quiet());
  return sink;
}

TEST(ScriptedSource, HashesPromptsAsTheGoldensDo) {
  EXPECT_EQ(prompt_hash({}), "cbf29ce484222325");
  // FNV-1a 64 of the bytes 61 00 00 00.
  const std::vector<TokenId> one{0x61};
  EXPECT_EQ(prompt_hash(one), "ac804b820e4fe984");
}

TEST(ScriptedSource, AnswersInOrder) {
  const auto source = script(
      "{\"text\": \"one</think>\", \"cached_tokens\": 1}\n\n{\"tokens\": [5, 6], \"finish\": "
      "\"length\", \"cached_tokens\": 999}");
  const RecordingSink first = play(*source);
  EXPECT_EQ(first.ids, tokens_of("one</think>"));
  EXPECT_EQ(first.ids.back(), tokens_of("</think>")[0]);
  EXPECT_EQ(first.started->prompt_tokens, 2);
  EXPECT_EQ(first.started->cached_tokens, 1);
  EXPECT_EQ(first.finish, recipe::SourceFinish::kStop);
  const RecordingSink second = play(*source);
  EXPECT_EQ(second.ids, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(second.finish, recipe::SourceFinish::kLength);
  EXPECT_EQ(second.started->cached_tokens, 2);  // no more than the prompt has
  RecordingSink third;
  EXPECT_EQ(source->start({.max_tokens = 1}, third).error().code, Code::kUnavailable);
  EXPECT_EQ(third.calls, 0);
}

TEST(ScriptedSource, AnswersByPromptAnyNumberOfTimes) {
  const std::vector<TokenId> known{7, 8, 9};
  const auto source = script("{\"tokens\": [3]}\n{\"tokens\": [4], \"prompt_hash\": \"" +
                             prompt_hash(known) + "\"}\n");
  EXPECT_EQ(play(*source, known).ids, std::vector<TokenId>{4});
  EXPECT_EQ(play(*source, known).ids, std::vector<TokenId>{4});
  EXPECT_EQ(play(*source, {1}).ids, std::vector<TokenId>{3});
}

TEST(ScriptedSource, KeepsTheLimitsOfAGeneration) {
  const auto source = script("{\"tokens\": [5, 6, 1, 7]}\n{\"tokens\": [5, 6]}");
  const RecordingSink stopped = play(*source);
  EXPECT_EQ(stopped.ids, (std::vector<TokenId>{5, 6}));  // 1 is a stop id
  EXPECT_EQ(stopped.finish, recipe::SourceFinish::kStop);
  const RecordingSink cut = play(*source, {2}, 1);
  EXPECT_EQ(cut.ids, std::vector<TokenId>{5});
  EXPECT_EQ(cut.finish, recipe::SourceFinish::kLength);
}

TEST(ScriptedSource, HasNoLogprobs) {
  const auto source = script(R"({"tokens": [5]})");
  RecordingSink sink;
  const auto active =
      source->start({.prompt = {1}, .sampling = {.logprobs = true}, .max_tokens = 1}, sink);
  ASSERT_FALSE(active.has_value());
  EXPECT_EQ(active.error().code, Code::kUnimplemented);
  EXPECT_EQ(active.error().where, "logprobs");
}

TEST(ScriptedSource, CanFail) {
  const auto source = script(R"({"tokens": [5], "error": "the worker died"})");
  const RecordingSink sink = play(*source);
  EXPECT_EQ(sink.ids, std::vector<TokenId>{5});
  EXPECT_FALSE(sink.finish.has_value());
  EXPECT_EQ(sink.error->what, "the worker died");
}

TEST(ScriptedSource, ABadScriptSaysWhere) {
  for (const std::string_view bad :
       {"{", "[]", R"({"tokens": 5})", R"({"tokens": [-1]})", R"({"tokens": [4096]})",
        R"({"text": 1})", R"({"finish": "done"})", R"({"cached_tokens": -1})", R"({"delay": 1})"}) {
    const auto source =
        ScriptedSource::from_jsonl("{}\n" + std::string(bad), *small_tokenizer(), loop());
    ASSERT_FALSE(source.has_value()) << bad;
    EXPECT_TRUE(source.error().what.starts_with("script line 2: ")) << source.error().what;
  }
}

}  // namespace
}  // namespace galley::gateway
