// Goal: the echo says what it is, repeats the last user turn, and keeps the limits of a generation.
// Method: prompts as token ids, answers decoded again.
#include "gateway/sources/echo.h"

#include <gtest/gtest.h>

#include "gateway/sources/recording_sink_for_test.h"

namespace galley::gateway {
namespace {

recipe::Generation generation(std::string_view prompt, std::int64_t max_tokens = 1000) {
  return {.prompt = tokens_of(prompt),
          .max_tokens = max_tokens,
          .stop_ids = tokens_of("<｜end▁of▁sentence｜>")};
}

std::string echo(std::string_view prompt, std::int64_t max_tokens = 1000) {
  VirtualLoop loop;
  EchoSource source(small_tokenizer(), loop);
  RecordingSink sink;
  const auto active = source.start(generation(prompt, max_tokens), sink);
  EXPECT_TRUE(active.has_value());
  EXPECT_TRUE(loop.run_until_quiet());
  return sink.text();
}

TEST(EchoSource, RepeatsTheLastUserTurn) {
  EXPECT_EQ(echo("<｜User｜>one<｜Assistant｜></think>two<｜end▁of▁sentence｜><｜User｜>three"
                 "<｜Assistant｜></think>"),
            "No model is loaded. You said: three");
  EXPECT_EQ(echo("no turn at all"), "No model is loaded. You said: ");
  EXPECT_EQ(echo(""), "No model is loaded. You said: ");
}

TEST(EchoSource, ThinksWhereThePromptSaysSo) {
  EXPECT_EQ(echo("<｜User｜>Hi<｜Assistant｜><think>"),
            "No model is loaded, so there is nothing to think about.</think>"
            "No model is loaded. You said: Hi");
}

TEST(EchoSource, LeavesControlTokensOutAndStaysShort) {
  EXPECT_EQ(echo("<｜User｜>a<｜deepseek_image｜>b<｜Assistant｜></think>"),
            "No model is loaded. You said: ab");
  std::string prompt = "<｜User｜>";
  for (int i = 0; i < 3000; ++i) {
    prompt += " word";
  }
  EXPECT_LT(echo(prompt + "<｜Assistant｜></think>", 100'000).size(), 2500U);
}

TEST(EchoSource, StopsAtMaxTokens) {
  VirtualLoop loop;
  EchoSource source(small_tokenizer(), loop);
  const std::size_t length =
      tokens_of("No model is loaded. You said: ").size() + tokens_of("Hi").size();
  for (const std::size_t max : {std::size_t{1}, length - 1, length, length + 1}) {
    RecordingSink sink;
    const auto active = source.start(
        generation("<｜User｜>Hi<｜Assistant｜></think>", static_cast<std::int64_t>(max)), sink);
    EXPECT_TRUE(active.has_value());
    EXPECT_TRUE(loop.run_until_quiet());
    EXPECT_EQ(sink.ids.size(), std::min(max, length));
    EXPECT_EQ(sink.finish,
              max < length ? recipe::SourceFinish::kLength : recipe::SourceFinish::kStop);
  }
}

TEST(EchoSource, RefusesWhatNeedsAModel) {
  VirtualLoop loop;
  EchoSource source(small_tokenizer(), loop);
  RecordingSink sink;
  const auto where = [&](const recipe::Generation& generation) {
    const Error error = source.start(generation, sink).error();
    EXPECT_EQ(error.code, Code::kUnimplemented);
    return error.where;
  };
  recipe::Generation logprobs = generation("x");
  logprobs.sampling.logprobs = true;
  EXPECT_EQ(where(logprobs), "logprobs");
  recipe::Generation images = generation("x");
  images.images.emplace_back();
  EXPECT_EQ(where(images), "messages");
  EXPECT_EQ(sink.calls, 0);
}

}  // namespace
}  // namespace galley::gateway
