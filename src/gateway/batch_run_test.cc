// Goal: every entry gets one line, in its protocol's form, whatever happens to the others; a source
// that fails ends the run and takes no line with it.
// Method: the echo source on a loop of its own, and a source that answers from within start().
#include "gateway/batch_run.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <utility>

#include "base/loop_thread.h"
#include "gateway/fakes_for_test.h"
#include "gateway/sources/echo.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::Json;

constexpr std::string_view kChat = "/v1/chat/completions";
constexpr std::string_view kResponses = "/v1/responses";
constexpr std::string_view kMessages = "/v1/messages";

std::string line(std::string_view id, std::string_view url, std::string_view body) {
  return fmt::format(R"({{"custom_id":"{}","method":"POST","url":"{}","body":{}}})"
                     "\n",
                     id, url, body);
}

std::string messages_body(std::string_view text, std::string_view more = "") {
  return fmt::format(R"({{"model":"DeepSeek-V4.1-Flash","max_tokens":200,)"
                     R"("messages":[{{"role":"user","content":"{}"}}]{}}})",
                     text, more);
}

// Says "Hi" at once. Counts what is under way, and may fail.
class InstantSource final : public recipe::TokenSource {
 public:
  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override {
    kept += generation.keeps_blocks ? 1 : 0;
    if (started_++ == fails_at) {
      failed_ = true;
    }
    if (failed_) {
      return fail(Code::kUnavailable, "the device is gone");
    }
    if (live_ >= live_bound) {
      return fail(Code::kOverloaded, "too many");
    }
    sink.on_start({.prompt_tokens = 3});
    sink.on_tokens(tokens_of("Hi"), {});
    if (breaks) {
      sink.on_error({.code = Code::kInternal, .what = "a bug"});
    } else {
      sink.on_finish(recipe::SourceFinish::kStop);
    }
    ++live_;
    live_max = std::max(live_max, live_);
    return std::make_unique<Active>(*this);
  }
  [[nodiscard]] bool ready() const override { return !failed_; }
  [[nodiscard]] std::string_view description() const override { return "instant"; }
  [[nodiscard]] int live() const { return live_; }

  int fails_at = -1;
  bool breaks = false;
  int live_max = 0;
  int live_bound = 1000;  // more are refused
  int kept = 0;           // whose blocks are kept

 private:
  struct Active final : recipe::ActiveGeneration {
    explicit Active(InstantSource& instant) : source(instant) {}
    ~Active() override { --source.live_; }
    InstantSource& source;
  };

  int started_ = 0;
  int live_ = 0;
  bool failed_ = false;
};

class BatchRunTest : public testing::Test {
 protected:
  // The answers by custom_id, or "line N".
  std::map<std::string, Json> answer(std::string_view jsonl, recipe::TokenSource& source) {
    const auto entries = index_batch(jsonl);
    EXPECT_TRUE(entries.has_value());
    std::map<std::string, Json> answers;
    const auto keep = [&](std::string_view text) -> Result<void> {
      if (full) {
        return fail(Code::kUnavailable, "no space left", "out");
      }
      EXPECT_TRUE(text.ends_with("\n"));
      auto json = recipe::parse_json(text);
      EXPECT_TRUE(json.has_value()) << text;
      const Json* const id = json->find("custom_id");
      const std::string name = id->string() != nullptr
                                   ? *id->string()
                                   : fmt::format("line {}", *json->find("line")->int64());
      EXPECT_TRUE(json->find("error")->is_null());
      EXPECT_TRUE(answers.emplace(name, *json->find("response")).second) << "twice: " << text;
      return {};
    };
    const ReplyContext base = gateway_.context(kBatchReplyLimits);
    const ReplyContext context{.codec = base.codec,
                               .source = source,
                               .clock = base.clock,
                               .ids = base.ids,
                               .metrics = base.metrics,
                               .limits = base.limits};
    done =
        answer_batch(*entries, context, 3, {.write = keep, .progress = [](const BatchFigures&) {}});
    return answers;
  }
  std::map<std::string, Json> echo(std::string_view jsonl) {
    LoopThread loop;
    EchoSource source(small_tokenizer(), loop.loop());
    return answer(jsonl, source);
  }
  static std::int64_t status(const Json& response) {
    return *response.find("status_code")->int64();
  }

  TestGateway gateway_;
  bool full = false;
  Result<BatchFigures> done;
};

TEST_F(BatchRunTest, EachProtocolGetsItsWholeReply) {
  const auto answers =
      echo(line("chat", kChat, chat_body("", "one")) +
           line("responses", kResponses, R"({"model":"DeepSeek-V4.1-Flash","input":"two"})") +
           line("messages", kMessages, messages_body("three")));
  ASSERT_TRUE(done.has_value()) << to_string(done.error());
  EXPECT_EQ(done->succeeded, 3U);
  ASSERT_EQ(answers.size(), 3U);
  for (const auto& [name, response] : answers) {
    EXPECT_EQ(status(response), 200) << name;
    EXPECT_TRUE(response.find("request_id")->string()->starts_with("req_"));
  }
  const Json& chat = *answers.at("chat").find("body");
  EXPECT_EQ(*chat.find("object")->string(), "chat.completion");
  EXPECT_NE(chat.find("choices")->array()->front().find("message")->find("content")->string()->find(
                "You said: one"),
            std::string::npos);
  const Json& responses = *answers.at("responses").find("body");
  EXPECT_EQ(*responses.find("object")->string(), "response");
  EXPECT_EQ(*responses.find("status")->string(), "completed");
  EXPECT_NE(recipe::to_json(responses).find("You said: two"), std::string::npos);
  const Json& messages = *answers.at("messages").find("body");
  EXPECT_EQ(*messages.find("type")->string(), "message");
  EXPECT_NE(recipe::to_json(messages).find("You said: three"), std::string::npos);
}

TEST_F(BatchRunTest, ABadLineFailsAloneInItsProtocolsForm) {
  const auto answers =
      echo("nonsense\n" + line("url", "/v1/embeddings", "{}") +
           line("model", kChat, R"({"model":"gpt-9","messages":[{"role":"user","content":"x"}]})") +
           line("stream", kMessages, messages_body("x", R"(,"stream":true)")) +
           line("long", kChat, chat_body(R"(, "max_tokens": 10)", std::string(20'000, 'x'))) +
           line("good", kChat, chat_body()) + line("n", kChat, chat_body(R"(, "n": 17)")));
  ASSERT_TRUE(done.has_value()) << to_string(done.error());
  EXPECT_EQ(done->answered, 7U);
  EXPECT_EQ(done->succeeded, 1U);
  EXPECT_EQ(done->failed, 6U);
  ASSERT_EQ(answers.size(), 7U);
  const auto openai = [&answers](const std::string& name) -> const Json& {
    return *answers.at(name).find("body")->find("error");
  };
  EXPECT_EQ(status(answers.at("line 1")), 400);
  EXPECT_EQ(*openai("line 1").find("type")->string(), "invalid_request_error");
  EXPECT_EQ(status(answers.at("url")), 404);
  EXPECT_EQ(*openai("url").find("param")->string(), "url");
  EXPECT_EQ(status(answers.at("model")), 400);
  EXPECT_EQ(status(answers.at("long")), 400);
  EXPECT_EQ(*openai("long").find("code")->string(), "context_length_exceeded");
  EXPECT_EQ(status(answers.at("n")), 400);
  EXPECT_EQ(status(answers.at("good")), 200);
  EXPECT_EQ(status(answers.at("stream")), 400);
  const Json& anthropic = *answers.at("stream").find("body");
  EXPECT_EQ(*anthropic.find("type")->string(), "error");
  EXPECT_EQ(*anthropic.find("error")->find("message")->string(),
            "stream: `stream` is not supported in a batch");
}

TEST_F(BatchRunTest, ALineMayAskForSeveralChoices) {
  const auto answers = echo(line("a", kChat, chat_body(R"(, "n": 3)")));
  EXPECT_EQ(answers.at("a").find("body")->find("choices")->array()->size(), 3U);
}

TEST_F(BatchRunTest, WhatHasNoEffectIsNoted) {
  const auto answers = echo(line("a", kChat, chat_body(R"(, "service_tier": "flex")")) +
                            line("b", kChat, chat_body()));
  ASSERT_NE(answers.at("a").find("note"), nullptr);
  EXPECT_NE(answers.at("a").find("note")->string()->find("service_tier"), std::string::npos);
  EXPECT_EQ(answers.at("b").find("note"), nullptr);
}

TEST_F(BatchRunTest, KeepsToItsWindowAndReleasesEverything) {
  std::string jsonl;
  for (int i = 0; i < 50; ++i) {
    jsonl += line(std::to_string(i), kChat, chat_body());
  }
  InstantSource source;
  EXPECT_EQ(answer(jsonl, source).size(), 50U);
  EXPECT_EQ(source.live_max, 3);
  EXPECT_EQ(source.live(), 0);
  EXPECT_EQ(source.kept, 0);
  EXPECT_TRUE(answer("", source).empty());
  EXPECT_TRUE(done.has_value());
}

TEST_F(BatchRunTest, TheWindowCountsEveryChoice) {
  std::string jsonl;
  for (int i = 0; i < 12; ++i) {
    jsonl += line(std::to_string(i), kChat, chat_body(i % 3 == 0 ? "" : R"(, "n": 2)"));
  }
  InstantSource source;
  source.live_bound = 3;  // the window
  EXPECT_EQ(answer(jsonl, source).size(), 12U);
  EXPECT_EQ(done->succeeded, 12U);
  EXPECT_EQ(source.live_max, 3);
  EXPECT_EQ(source.live(), 0);
  // A line with more choices than the window runs alone.
  InstantSource wide;
  wide.live_bound = 5;
  jsonl += line("wide", kChat, chat_body(R"(, "n": 5)"));
  answer(jsonl, wide);
  EXPECT_EQ(done->succeeded, 13U);
  EXPECT_EQ(wide.live_max, 5);
}

TEST_F(BatchRunTest, AnAnswerThatBreaksIsItsLinesError) {
  InstantSource source;
  source.breaks = true;
  const auto answers = answer(line("a", kChat, chat_body()), source);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(status(answers.at("a")), 500);
}

TEST_F(BatchRunTest, ASourceThatFailsEndsTheRunNotTheLines) {
  std::string jsonl;
  for (int i = 0; i < 20; ++i) {
    jsonl += line(std::to_string(i), kChat, chat_body());
  }
  InstantSource source;
  source.fails_at = 10;
  const auto answers = answer(jsonl, source);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, Code::kUnavailable);
  EXPECT_NE(done.error().what.find("the device is gone"), std::string::npos);
  EXPECT_LE(answers.size(), 10U);
  for (const auto& [name, response] : answers) {
    EXPECT_EQ(status(response), 200) << name;
  }
  EXPECT_EQ(source.live(), 0);
}

TEST_F(BatchRunTest, AnOutputThatIsFullEndsTheRun) {
  full = true;
  InstantSource source;
  answer(line("a", kChat, chat_body()) + line("b", kChat, chat_body()), source);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().where, "out");
  EXPECT_EQ(source.live(), 0);
}

TEST_F(BatchRunTest, AFormatThatTheSourceDoesNotEnforceIs501) {
  const auto answers = echo(line("free", kChat, chat_body()) +
                            line("shaped", kChat, chat_body(R"(, "guided_regex": "a+")")));
  EXPECT_EQ(status(answers.at("free")), 200);
  EXPECT_EQ(status(answers.at("shaped")), 501);
}

TEST_F(BatchRunTest, AnAnswerThatCouldNotBeReadAgainIsNotWritten) {
  // The deepest schema that a line may hold comes back one level deeper than any JSON we read.
  const auto tool_line = [](std::string_view nested) {
    return line("deep", kResponses,
                fmt::format(R"({{"model":"DeepSeek-V4.1-Flash","input":"x","tools":[{{)"
                            R"("type":"function","name":"f",)"
                            R"("parameters":{{"type":"object","default":{}}}}}]}})",
                            nested));
  };
  std::string nested = "1";
  std::string deepest;
  while (recipe::parse_json(tool_line(nested)).has_value()) {
    deepest = std::exchange(nested, "[" + nested + "]");
  }
  const auto answers = echo(tool_line(deepest));
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(status(answers.at("deep")), 413);
  EXPECT_EQ(status(echo(tool_line(deepest.substr(1, deepest.size() - 2))).at("deep")), 200);
}

}  // namespace
}  // namespace galley::gateway
