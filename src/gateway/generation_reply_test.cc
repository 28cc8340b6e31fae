// Goal: tokens become one correct reply, whole or streamed, and every way to end early cancels the
// generation.
// Method: an exchange in memory and a source that the test drives; no threads.
#include "gateway/generation_reply.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "gateway/fakes_for_test.h"
#include "gateway/sources/echo.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::SourceFinish;

class GenerationReplyTest : public testing::Test {
 protected:
  // A reply and its exchange hold each other until the connection lets go.
  void TearDown() override { exchange_->listener.reset(); }
  void begin(std::string_view more = "", ReplyLimits limits = {}) {
    auto prepared = gateway_.codec->prepare(recipe::Protocol::kChat, chat_body(more));
    ASSERT_TRUE(prepared.has_value()) << to_string(prepared.error());
    GenerationReply::begin(exchange_, std::move(*prepared), gateway_.context(limits));
  }
  void start_source() {
    gateway_.source.sink().on_start({.prompt_tokens = 10, .cached_tokens = 4});
  }
  // `data:` lines so far.
  [[nodiscard]] std::size_t frames() const {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = body().find("data: ", at)) != std::string::npos; ++at) {
      ++count;
    }
    return count;
  }
  [[nodiscard]] const std::string& body() const { return exchange_->response.body; }
  [[nodiscard]] bool has_header(std::string_view name, std::string_view value) const {
    return std::ranges::any_of(exchange_->response.headers, [&](const HttpHeader& header) {
      return header.name == name && header.value == value;
    });
  }

  [[nodiscard]] bool counted(std::string_view line) {
    return gateway_.metrics.render().find(line) != std::string::npos;
  }

  TestGateway gateway_;
  std::shared_ptr<FakeExchange> exchange_ = std::make_shared<FakeExchange>();
};

TEST_F(GenerationReplyTest, AnswersWhole) {
  begin();
  start_source();
  gateway_.source.send("Hi ");
  gateway_.source.send("there");
  exchange_->run();
  EXPECT_FALSE(exchange_->started);
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  exchange_->run();
  EXPECT_TRUE(exchange_->ended);
  EXPECT_EQ(exchange_->response.status, 200);
  EXPECT_TRUE(has_header("content-type", "application/json"));
  const auto json = recipe::parse_json(body());
  ASSERT_TRUE(json.has_value()) << body();
  EXPECT_EQ(*json->find("id")->string(), "chatcmpl-1");
  EXPECT_EQ(*json->find("created")->int64(), 1'700'000'000);
  const recipe::Json& choice = json->find("choices")->array()->front();
  EXPECT_EQ(*choice.find("message")->find("content")->string(), "Hi there");
  EXPECT_EQ(*choice.find("finish_reason")->string(), "stop");
  EXPECT_EQ(*json->find("usage")->find("prompt_tokens")->int64(), 10);
  EXPECT_EQ(*json->find("usage")->find("completion_tokens")->int64(),
            static_cast<std::int64_t>(tokens_of("Hi ").size() + tokens_of("there").size()));
  EXPECT_EQ(gateway_.source.ended(), 1);
}

TEST_F(GenerationReplyTest, TellsWhatTheCacheHad) {
  const recipe::Started started{
      .prompt_tokens = 400,
      .cached_tokens = 128,
      .cache_miss = recipe::CacheMiss{.reason = recipe::MissReason::kDifferent, .token = 199}};
  begin();
  gateway_.source.sink().on_start(started);
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  exchange_->run();
  EXPECT_TRUE(has_header("x-galley-hit-tokens", "128"));
  EXPECT_TRUE(has_header("x-galley-miss", "different; token=199"));
  constexpr std::string_view kDetails =
      R"("prompt_tokens_details":{"cached_tokens":128,"cache_miss":{"reason":"different","token":199}})";
  EXPECT_NE(body().find(kDetails), std::string::npos) << body();
  EXPECT_TRUE(recipe::parse_json(body()).has_value());

  exchange_->listener.reset();
  exchange_ = std::make_shared<FakeExchange>();
  begin(R"(, "stream": true)");
  gateway_.source.sink().on_start(started);
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  exchange_->run();
  EXPECT_NE(body().find(kDetails), std::string::npos) << body();

  // The reference does not know why.
  for (const std::string_view stream : {"", R"(, "stream": true)"}) {
    exchange_->listener.reset();
    exchange_ = std::make_shared<FakeExchange>();
    auto prepared = gateway_.codec->prepare(recipe::Protocol::kChat, chat_body(stream));
    ASSERT_TRUE(prepared.has_value());
    prepared->request.compat = recipe::Compat::kRecipe02;
    GenerationReply::begin(exchange_, std::move(*prepared), gateway_.context());
    gateway_.source.sink().on_start(started);
    gateway_.source.sink().on_finish(SourceFinish::kStop);
    exchange_->run();
    EXPECT_NE(body().find(R"("prompt_cache_hit_tokens":128)"), std::string::npos) << body();
    EXPECT_EQ(body().find("\"cache_miss\""), std::string::npos) << body();
  }
}

TEST_F(GenerationReplyTest, SeveralChoicesAreOneReply) {
  begin(R"(, "n": 2)");
  ASSERT_EQ(gateway_.source.sinks.size(), 2U);
  const auto& sinks = gateway_.source.sinks;
  sinks[1]->on_start({.prompt_tokens = 10, .cached_tokens = 10});
  sinks[0]->on_start({.prompt_tokens = 10, .cached_tokens = 4});
  sinks[1]->on_tokens(tokens_of("second"), {});
  sinks[0]->on_tokens(tokens_of("the first"), {});
  sinks[1]->on_finish(SourceFinish::kLength);
  exchange_->run();
  EXPECT_FALSE(exchange_->started);
  EXPECT_EQ(gateway_.source.ended(), 1);
  sinks[0]->on_finish(SourceFinish::kStop);
  exchange_->run();
  ASSERT_TRUE(exchange_->ended);
  EXPECT_EQ(gateway_.source.ended(), 2);
  const auto json = recipe::parse_json(body());
  ASSERT_TRUE(json.has_value()) << body();
  const recipe::JsonArray& choices = *json->find("choices")->array();
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_EQ(*choices[0].find("index")->int64(), 0);
  EXPECT_EQ(*choices[0].find("message")->find("content")->string(), "the first");
  EXPECT_EQ(*choices[0].find("finish_reason")->string(), "stop");
  EXPECT_EQ(*choices[1].find("index")->int64(), 1);
  EXPECT_EQ(*choices[1].find("message")->find("content")->string(), "second");
  EXPECT_EQ(*choices[1].find("finish_reason")->string(), "length");
  // The prompt counts once.
  const recipe::Json& usage = *json->find("usage");
  EXPECT_EQ(*usage.find("prompt_tokens")->int64(), 10);
  EXPECT_EQ(*usage.find("prompt_tokens_details")->find("cached_tokens")->int64(), 4);
  EXPECT_EQ(*usage.find("completion_tokens")->int64(),
            static_cast<std::int64_t>(tokens_of("second").size() + tokens_of("the first").size()));
  EXPECT_TRUE(counted("galley_prompt_tokens_total 10\n"));
  EXPECT_TRUE(counted("galley_active_generations 0\n"));
}

TEST_F(GenerationReplyTest, SeveralChoicesStreamSideBySide) {
  for (const auto protocol : {recipe::Protocol::kChat, recipe::Protocol::kCompletions}) {
    exchange_ = std::make_shared<FakeExchange>();
    gateway_.source.sinks.clear();
    auto prepared = gateway_.codec->prepare(
        protocol, protocol == recipe::Protocol::kChat
                      ? chat_body(R"(, "n": 3, "stream": true)")
                      : R"({"model":"DeepSeek-V4.1-Flash","prompt":"x","n":3,"stream":true})");
    ASSERT_TRUE(prepared.has_value()) << to_string(prepared.error());
    GenerationReply::begin(exchange_, std::move(*prepared), gateway_.context());
    const auto& sinks = gateway_.source.sinks;
    ASSERT_EQ(sinks.size(), 3U);
    for (recipe::TokenSink* const sink : sinks) {
      sink->on_start({.prompt_tokens = 10, .cached_tokens = 0});
      sink->on_tokens(tokens_of("word"), {});
    }
    sinks[2]->on_finish(SourceFinish::kStop);
    sinks[0]->on_finish(SourceFinish::kStop);
    exchange_->run();
    EXPECT_EQ(body().find("[DONE]"), std::string::npos);
    EXPECT_EQ(body().find("completion_tokens"), std::string::npos);
    sinks[1]->on_tokens(tokens_of("last"), {});
    sinks[1]->on_finish(SourceFinish::kStop);
    exchange_->run();
    EXPECT_TRUE(exchange_->ended);
    for (const char* const index : {"\"index\":0", "\"index\":1", "\"index\":2"}) {
      EXPECT_NE(body().find(index), std::string::npos) << index;
    }
    EXPECT_EQ(body().find("[DONE]"), body().rfind("[DONE]"));
    EXPECT_NE(body().find("[DONE]"), std::string::npos);
    EXPECT_NE(body().find("\"completion_tokens\":" +
                          std::to_string(3 * tokens_of("word").size() + tokens_of("last").size())),
              std::string::npos)
        << body();
    exchange_->listener.reset();
  }
}

TEST_F(GenerationReplyTest, AnErrorOfOneChoiceEndsAll) {
  begin(R"(, "n": 3)");
  const auto& sinks = gateway_.source.sinks;
  sinks[0]->on_start({.prompt_tokens = 10, .cached_tokens = 0});
  sinks[2]->on_error({.code = Code::kUnavailable, .what = "lost"});
  exchange_->run();
  EXPECT_EQ(exchange_->response.status, 503);
  EXPECT_EQ(gateway_.source.ended(), 3);
}

TEST_F(GenerationReplyTest, StreamsAFrameAStep) {
  begin(R"(, "stream": true)");
  EXPECT_TRUE(exchange_->started);  // the head goes out before the first token
  EXPECT_TRUE(has_header("content-type", "text/event-stream; charset=utf-8"));
  EXPECT_TRUE(has_header("cache-control", "no-cache"));
  EXPECT_TRUE(has_header("x-accel-buffering", "no"));
  start_source();
  exchange_->run();
  EXPECT_EQ(frames(), 1U);
  gateway_.source.send("Hi");
  gateway_.source.send("Hi");
  exchange_->run();
  EXPECT_EQ(frames(), 3U);
  gateway_.source.sink().on_finish(SourceFinish::kLength);
  exchange_->run();
  EXPECT_NE(body().find(R"("finish_reason":"length")"), std::string::npos);
  EXPECT_TRUE(body().ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(exchange_->ended);
  EXPECT_EQ(gateway_.source.ended(), 1);
}

TEST_F(GenerationReplyTest, AStopStringEndsTheGeneration) {
  for (const std::string_view stream : {"", R"(, "stream": true)"}) {
    exchange_->listener.reset();
    exchange_ = std::make_shared<FakeExchange>();
    const int ended = gateway_.source.ended();
    begin(std::string(R"(, "stop": "END")").append(stream));
    start_source();
    gateway_.source.send("a END b");
    gateway_.source.send("c");  // a source that has not noticed yet
    exchange_->run();
    EXPECT_TRUE(exchange_->ended);
    EXPECT_NE(body().find(R"("content":"a)"), std::string::npos);
    EXPECT_EQ(body().find(R"("content":"b)"), std::string::npos);
    EXPECT_EQ(body().find(R"("content":"c)"), std::string::npos);
    EXPECT_EQ(gateway_.source.ended(), ended + 1);
  }
}

TEST_F(GenerationReplyTest, AClientThatLeavesCancels) {
  begin(R"(, "stream": true)");
  start_source();
  gateway_.source.send("Hi");
  exchange_->leave();  // with steps that nobody read yet
  EXPECT_EQ(gateway_.source.ended(), 1);
  exchange_->run();
  EXPECT_FALSE(exchange_->ended);
  EXPECT_NE(gateway_.metrics.render().find("galley_cancelled_generations_total 1"),
            std::string::npos);
}

TEST_F(GenerationReplyTest, AClientThatLeftBeforeTheStartCostsNothing) {
  exchange_->is_gone = true;
  begin();
  EXPECT_TRUE(gateway_.source.last.prompt.empty());
}

TEST_F(GenerationReplyTest, EncodesOnlyWhatTheClientTakes) {
  begin(R"(, "stream": true)", {.unsent_bytes_max = 100});
  start_source();
  for (int i = 0; i < 10; ++i) {
    gateway_.source.send("Hi");
  }
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  exchange_->run();
  const std::size_t first = frames();
  EXPECT_LT(first, 5U);
  EXPECT_FALSE(exchange_->ended);
  for (int i = 0; i < 20 && !exchange_->ended; ++i) {
    EXPECT_LT(exchange_->unsent, 1000U);
    exchange_->send_all();
  }
  EXPECT_TRUE(exchange_->ended);
  EXPECT_EQ(frames(), 13U);  // start, ten pieces, finish, [DONE]
}

TEST_F(GenerationReplyTest, AClientThatFallsTooFarBehindIsCutOff) {
  const std::size_t step_bytes = (tokens_of("Hi").size() + 1) * sizeof(TokenId);
  begin(R"(, "stream": true)", {.unsent_bytes_max = 1, .waiting_bytes_max = 3 * step_bytes});
  start_source();
  exchange_->run();  // the first frame fills the socket
  for (int i = 0; i < 3; ++i) {
    gateway_.source.send("Hi");
  }
  exchange_->run();
  EXPECT_FALSE(exchange_->aborted);
  gateway_.source.send("Hi");
  exchange_->run();
  EXPECT_TRUE(exchange_->aborted);
  EXPECT_FALSE(exchange_->ended);
  EXPECT_EQ(gateway_.source.ended(), 1);
}

TEST_F(GenerationReplyTest, ChoicesShareTheBoundOfWhatWaits) {
  const std::vector<TokenId> ids = tokens_of("Hi");
  const std::size_t step_bytes = (ids.size() + 1) * sizeof(TokenId);
  begin(R"(, "n": 2, "stream": true)",
        {.unsent_bytes_max = 1, .waiting_bytes_max = 3 * step_bytes});
  const auto& sinks = gateway_.source.sinks;
  const auto fill = [&](std::size_t first, std::size_t second) {
    for (std::size_t i = 0; i < first; ++i) {
      sinks[0]->on_tokens(ids, {});
    }
    for (std::size_t i = 0; i < second; ++i) {
      sinks[1]->on_tokens(ids, {});
    }
    exchange_->run();
  };
  sinks[0]->on_start({.prompt_tokens = 10, .cached_tokens = 0});
  sinks[1]->on_start({.prompt_tokens = 10, .cached_tokens = 10});
  exchange_->run();  // the first frame fills the socket
  fill(1, 2);
  EXPECT_FALSE(exchange_->aborted);
  for (int i = 0; i < 10; ++i) {
    exchange_->send_all();  // what was taken counts no more
  }
  fill(2, 1);
  EXPECT_FALSE(exchange_->aborted);
  fill(1, 1);
  EXPECT_TRUE(exchange_->aborted);
  EXPECT_EQ(gateway_.source.ended(), 2);
}

TEST_F(GenerationReplyTest, TokensOfASourceThatIsFarAheadAreBoundedBeforeTheyAreRead) {
  begin("", {.waiting_bytes_max = 100});
  start_source();
  for (int i = 0; i < 1000; ++i) {
    gateway_.source.send("Hi");  // nothing runs meanwhile on the connections' thread
  }
  exchange_->run();
  EXPECT_TRUE(exchange_->aborted);
  EXPECT_FALSE(exchange_->started);
  EXPECT_EQ(gateway_.source.ended(), 1);
  EXPECT_NE(gateway_.metrics.render().find("galley_cancelled_generations_total 1\n"),
            std::string::npos);
}

TEST_F(GenerationReplyTest, TheLongestReplyWaitsWithinTheBoundOfItsDefault) {
  begin(R"(, "stream": true)", {.unsent_bytes_max = 1});
  start_source();
  exchange_->run();  // the first frame fills the socket
  const TokenId id = tokens_of("Hi")[0];
  for (int i = 0; i < 393'216; ++i) {
    gateway_.source.sink().on_tokens({&id, 1}, {});
  }
  exchange_->run();
  EXPECT_FALSE(exchange_->aborted);
  EXPECT_EQ(frames(), 1U);
}

TEST_F(GenerationReplyTest, ALongAnswerLetsOthersHaveTheirTurn) {
  begin();
  start_source();
  const std::vector<TokenId> ids(3000, tokens_of("Hi")[0]);
  for (const TokenId& id : ids) {
    gateway_.source.sink().on_tokens({&id, 1}, {});
  }
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  bool ended = true;
  exchange_->run_one();  // what the source's first call posted
  exchange_->post([&] { ended = exchange_->ended; });
  exchange_->run();
  EXPECT_FALSE(ended);
  EXPECT_TRUE(exchange_->ended);
}

TEST_F(GenerationReplyTest, ASilentStreamIsKeptOpen) {
  begin(R"(, "stream": true)");
  exchange_->listener->on_keep_alive();
  EXPECT_TRUE(body().starts_with(":")) << body();
  EXPECT_TRUE(body().ends_with("\n\n"));
}

TEST_F(GenerationReplyTest, ASourceThatRefusesIsAnErrorOfTheProtocol) {
  gateway_.source.refusal = Error{.code = Code::kOverloaded, .what = "the queue is full"};
  begin(R"(, "stream": true)");
  EXPECT_EQ(exchange_->response.status, 429);
  EXPECT_TRUE(has_header("retry-after", "1"));
  EXPECT_NE(body().find("the queue is full"), std::string::npos);
}

TEST_F(GenerationReplyTest, WhatTheSourceCannotDoIs501InTheProtocolsForm) {
  VirtualLoop loop;
  EchoSource echo(small_tokenizer(), loop);
  const auto answer = [&](std::string_view more, std::string_view content) {
    const std::string body = R"({"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", )"
                             R"("content": )" +
                             std::string(content) + "}]" + std::string(more) + "}";
    auto prepared = gateway_.codec->prepare(recipe::Protocol::kChat, body);
    EXPECT_TRUE(prepared.has_value());
    ReplyContext context = gateway_.context();
    const auto exchange = std::make_shared<FakeExchange>();
    GenerationReply::begin(exchange, std::move(*prepared),
                           {.codec = context.codec,
                            .source = echo,
                            .clock = context.clock,
                            .ids = context.ids,
                            .metrics = context.metrics});
    EXPECT_EQ(exchange->response.status, 501);
    EXPECT_TRUE(exchange->response.body.starts_with(R"({"error":{"message":)"));
    return exchange->response.body;
  };
  EXPECT_NE(answer("", R"([{"type": "image_url", "image_url": {"url": "http://host/a.png"}}])")
                .find(R"("param":"messages")"),
            std::string::npos);
  EXPECT_NE(answer(R"(, "logprobs": true)", R"("Hi")").find(R"("param":"logprobs")"),
            std::string::npos);
}

TEST_F(GenerationReplyTest, AnErrorInAWholeReplyIsAStatus) {
  begin();
  start_source();
  gateway_.source.send("Hi");
  gateway_.source.sink().on_error({.code = Code::kUnavailable, .what = "the worker died"});
  exchange_->run();
  EXPECT_EQ(exchange_->response.status, 503);
  EXPECT_NE(body().find("the worker died"), std::string::npos);
  EXPECT_EQ(body().find("Hi"), std::string::npos);
  EXPECT_TRUE(counted("galley_failed_generations_total 1\n"));
  EXPECT_TRUE(counted("galley_cancelled_generations_total 0\n"));
}

TEST_F(GenerationReplyTest, AnErrorInAStreamNeverLooksComplete) {
  begin(R"(, "stream": true)");
  start_source();
  gateway_.source.send("Hi");
  gateway_.source.sink().on_error({.code = Code::kUnavailable, .what = "the worker died"});
  exchange_->run();
  EXPECT_NE(body().find(R"(data: {"error":)"), std::string::npos);
  EXPECT_EQ(body().find("[DONE]"), std::string::npos);
  EXPECT_TRUE(exchange_->ended);
}

TEST_F(GenerationReplyTest, AServerThatStopsEndsWhatRunsAndWhatBegins) {
  begin(R"(, "stream": true)");
  start_source();
  gateway_.source.send("Hi");
  exchange_->run();
  exchange_->listener->on_stop();
  EXPECT_TRUE(body().ends_with(R"("code":"service_unavailable"}})"
                               "\n\n"))
      << body();
  EXPECT_TRUE(exchange_->ended);
  EXPECT_EQ(gateway_.source.ended(), 1);
  const std::string all = body();
  exchange_->listener->on_stop();  // it is over already
  EXPECT_EQ(body(), all);
  exchange_->leave();  // before the error was sent
  EXPECT_TRUE(counted("galley_failed_generations_total 1\n"));
  EXPECT_TRUE(counted("galley_cancelled_generations_total 0\n"));

  exchange_ = std::make_shared<FakeExchange>();
  exchange_->stopping = true;
  begin();
  EXPECT_EQ(exchange_->response.status, 503);
  EXPECT_EQ(gateway_.source.ended(), 2);
  EXPECT_TRUE(counted("galley_failed_generations_total 2\n"));
}

TEST_F(GenerationReplyTest, NotesComeBackInABoundedHeader) {
  begin(R"(, "store": true)");
  start_source();
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  exchange_->run();
  std::string note;
  for (const HttpHeader& header : exchange_->response.headers) {
    note += header.name == "x-galley-note" ? header.value : "";
  }
  EXPECT_NE(note.find("store"), std::string::npos) << note;
  EXPECT_LE(note.size(), 1024U);
}

TEST_F(GenerationReplyTest, CountsTokens) {
  begin();
  start_source();
  gateway_.source.send("Hi");
  EXPECT_NE(gateway_.metrics.render().find("galley_active_generations 1\n"), std::string::npos);
  gateway_.source.sink().on_finish(SourceFinish::kStop);
  exchange_->run();
  const std::string text = gateway_.metrics.render();
  EXPECT_NE(text.find("galley_active_generations 0\n"), std::string::npos);
  EXPECT_NE(text.find("galley_prompt_tokens_total 10\n"), std::string::npos);
  EXPECT_NE(text.find("galley_cached_tokens_total 4\n"), std::string::npos);
  EXPECT_NE(text.find("galley_output_tokens_total " + std::to_string(tokens_of("Hi").size())),
            std::string::npos);
  EXPECT_NE(text.find("galley_cancelled_generations_total 0\n"), std::string::npos);
}

}  // namespace
}  // namespace galley::gateway
