// Goal: whatever another engine's server does, each generation has the tokens that were drawn, once
// and in order, and ends once; what cannot go on as if nothing had happened ends with an error that
// names the engine and what it said.
// Method: a server of the test's own on a socket, in all three dialects.
#include "gateway/sources/foreign.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>

#include "base/real_clock.h"
#include "gateway/sources/fake_engine_for_test.h"
#include "gateway/sources/recording_sink_for_test.h"

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;
using Peer = FakeEngine::Peer;
using recipe::SourceFinish;

constexpr TokenId kStop = 1;

std::string joined(std::span<const TokenId> ids) {
  std::string out;
  for (const TokenId id : ids) {
    out += (out.empty() ? "" : ",") + std::to_string(id);
  }
  return out;
}

// An event that brings the last of `ids`, the first `known` of which were there.
std::string event_of(std::string_view dialect,
                     std::span<const TokenId> ids,
                     std::size_t known,
                     std::string_view finish = "") {
  const std::string fresh = joined(ids.subspan(known));
  if (dialect == "llama.cpp") {
    return fmt::format(R"({{"tokens":[{}],"tokens_predicted":{},"stop":{},"stop_type":"{}"}})",
                       fresh, ids.size(), finish.empty() ? "false" : "true",
                       finish == "stop" ? "eos" : "limit");
  }
  if (dialect == "vllm") {
    return fmt::format(R"({{"choices":[{{"token_ids":[{}],"finish_reason":{}}}]}})", fresh,
                       finish.empty() ? "null" : fmt::format("\"{}\"", finish));
  }
  return fmt::format(
      R"({{"output_ids":[{}],"meta_info":{{"completion_tokens":{},"finish_reason":{}}}}})",
      joined(ids), ids.size(), finish.empty() ? "null" : fmt::format(R"({{"type":"{}"}})", finish));
}

// A sink whose state other threads may look at, and wait for.
class WaitingSink final : public recipe::TokenSink {
 public:
  void on_start(const recipe::Started& started) override {
    const MutexLock lock(mutex_);
    seen_.on_start(started);
  }
  void on_tokens(std::span<const TokenId> ids,
                 std::span<const recipe::TokenLogprob> logprobs) override {
    const MutexLock lock(mutex_);
    seen_.on_tokens(ids, logprobs);
    changed_.notify_all();
  }
  void on_finish(SourceFinish reason) override {
    const MutexLock lock(mutex_);
    seen_.on_finish(reason);
    changed_.notify_all();
  }
  void on_error(Error error) override {
    const MutexLock lock(mutex_);
    seen_.on_error(std::move(error));
    changed_.notify_all();
  }
  // Once it is over, or has as many tokens.
  RecordingSink wait(std::size_t tokens = 1'000'000) {
    const MutexLock lock(mutex_);
    for (int i = 0; i < 100 && !seen_.finish && !seen_.error && seen_.ids.size() < tokens; ++i) {
      changed_.wait_for(mutex_, 100ms);
    }
    return seen_;
  }
  // Once it is over.
  Error error() { return wait().error.value_or(Error{.code = {}, .what = "(none)"}); }

 private:
  Mutex mutex_;
  CondVar changed_;
  RecordingSink seen_ GALLEY_GUARDED_BY(mutex_);
};

template <class Condition>
bool eventually(Condition condition) {
  Mutex mutex;
  CondVar never;
  const MutexLock lock(mutex);
  for (int i = 0; i < 500 && !condition(); ++i) {
    never.wait_for(mutex, 10ms);
  }
  return condition();
}

recipe::Generation generation_of(std::int64_t max_tokens = 100) {
  recipe::Generation generation;
  generation.prompt = {5, 6, 7};
  generation.max_tokens = max_tokens;
  generation.stop_ids = {kStop};
  generation.request_id = "req_9";
  return generation;
}

class Foreign : public testing::TestWithParam<std::string_view> {
 protected:
  // A source for `engine` that is ready.
  ForeignSource& source(FakeEngine& engine, ForeignOptions options = {}) {
    options.url = engine.url();
    auto made = ForeignSource::create(make_dialect(GetParam(), small_tokenizer()),
                                      small_tokenizer(), clock_, metrics_, log_, options);
    source_ = std::move(*made);
    EXPECT_TRUE(eventually([&] { return source_->ready(); }));
    return *source_;
  }
  // A script that sends `ids`, one an event, and the end where it is said.
  static FakeEngine::Script says(std::vector<TokenId> ids, std::string_view finish) {
    return [ids = std::move(ids), finish](const Peer& peer) {
      peer.begin_stream();
      for (std::size_t i = 1; i <= ids.size(); ++i) {
        peer.event(event_of(GetParam(), std::span(ids).first(i), i - 1));
      }
      if (!finish.empty()) {
        peer.event(event_of(GetParam(), ids, ids.size(), finish));
        peer.event("[DONE]");
      }
    };
  }
  static FakeEngine::Script refuses(int status, std::string_view body) {
    return [=](const Peer& peer) { peer.refuse(status, body); };
  }

  RealClock clock_;
  Metrics metrics_;
  Log log_{clock_, {.write = [](std::string_view) {}}};
  WaitingSink sink_;

 private:
  std::unique_ptr<ForeignSource> source_;
};

INSTANTIATE_TEST_SUITE_P(Dialects, Foreign, testing::ValuesIn(kDialectNames), [](const auto& one) {
  std::string name(one.param);
  std::erase(name, '.');
  return name;
});

TEST_P(Foreign, AnswersWithItsTokens) {
  FakeEngine engine({says({10, 11, 12}, "length")});
  const auto active = source(engine).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  const RecordingSink seen = sink_.wait();
  EXPECT_EQ(seen.ids, (std::vector<TokenId>{10, 11, 12}));
  EXPECT_EQ(seen.finish, SourceFinish::kLength);
  EXPECT_EQ(seen.started->prompt_tokens, 3);
  const std::string question = engine.questions().at(0);
  EXPECT_NE(question.find("[5,6,7]"), std::string::npos) << question;
  EXPECT_NE(question.find("x-request-id: req_9"), std::string::npos) << question;
}

TEST_P(Foreign, AStopIdEndsTheAnswerAndTheRequest) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    const std::vector<TokenId> ids{10, kStop, 11};
    peer.event(event_of(GetParam(), std::span(ids).first(1), 0));
    peer.event(event_of(GetParam(), std::span(ids).first(2), 1));
    peer.wait_gone();
  }});
  const auto active = source(engine).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  const RecordingSink seen = sink_.wait();
  EXPECT_EQ(seen.ids, std::vector<TokenId>{10});
  EXPECT_EQ(seen.finish, SourceFinish::kStop);
  EXPECT_TRUE(eventually([&] { return engine.ended() == 1; }));
}

TEST_P(Foreign, WhatNeverEndsIsCut) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    std::vector<TokenId> ids;
    do {
      ids.push_back(20);
    } while (peer.event(event_of(GetParam(), ids, ids.size() - 1)));
  }});
  const auto active = source(engine).start(generation_of(5), sink_);
  ASSERT_TRUE(active);
  const RecordingSink seen = sink_.wait();
  EXPECT_EQ(seen.ids.size(), 5U);
  EXPECT_EQ(seen.finish, SourceFinish::kLength);
  EXPECT_TRUE(eventually([&] { return engine.ended() == 1; }));
}

TEST_P(Foreign, ACutStreamGoesOnBehindWhatWasDelivered) {
  FakeEngine engine({says({10, 11}, ""), says({}, ""), says({12, 13}, "stop")});
  const auto active = source(engine).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  const RecordingSink seen = sink_.wait();
  EXPECT_EQ(seen.ids, (std::vector<TokenId>{10, 11, 12, 13}));
  EXPECT_EQ(seen.finish, SourceFinish::kStop);
  ASSERT_EQ(engine.questions().size(), 3U);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const std::string question = engine.questions()[i];
    EXPECT_NE(question.find("[5,6,7,10,11]"), std::string::npos) << question;
    EXPECT_NE(question.find(":98"), std::string::npos) << question;
  }
}

TEST_P(Foreign, ACutStreamThatCannotGoOnIsAnError) {
  FakeEngine engine({says({10, 11}, ""), says({12}, "stop")});
  recipe::Generation generation = generation_of();
  generation.sampling.seed = 4;
  const auto active = source(engine).start(std::move(generation), sink_);
  ASSERT_TRUE(active);
  const RecordingSink seen = sink_.wait();
  EXPECT_EQ(seen.ids, (std::vector<TokenId>{10, 11}));
  ASSERT_TRUE(seen.error);
  EXPECT_EQ(seen.error->code, Code::kUnavailable);
  EXPECT_NE(seen.error->what.find("its stream ended before the answer did"), std::string::npos);
  EXPECT_EQ(engine.questions().size(), 1U);
}

TEST_P(Foreign, AFullEngineIsAskedAgainButNotForEver) {
  FakeEngine engine({refuses(503, R"({"error":{"message":"Loading model"}})"), says({10}, "stop"),
                     refuses(503, R"({"error":{"message":"Loading model"}})")});
  ForeignSource& asked = source(engine);
  const auto first = asked.start(generation_of(), sink_);
  ASSERT_TRUE(first);
  EXPECT_EQ(sink_.wait().ids, std::vector<TokenId>{10});
  WaitingSink other;
  const auto second = asked.start(generation_of(), other);
  ASSERT_TRUE(second);
  EXPECT_EQ(other.error().code, Code::kUnavailable);
  EXPECT_NE(other.error().what.find("503: Loading model"), std::string::npos) << other.error().what;
  EXPECT_EQ(engine.questions().size(), 6U);
}

TEST_P(Foreign, RefusalsAreToldOnceAndByName) {
  struct Case {
    int status;
    Code code;
  };
  for (const Case& each : {Case{400, Code::kInvalidArgument}, Case{401, Code::kUnavailable},
                           Case{429, Code::kOverloaded}}) {
    FakeEngine engine({refuses(each.status, R"({"error":{"message":"not so"}})")});
    WaitingSink sink;
    const auto active = source(engine).start(generation_of(), sink);
    ASSERT_TRUE(active);
    EXPECT_EQ(sink.error().code, each.code) << each.status;
    const std::string name(make_dialect(GetParam(), small_tokenizer())->name());
    EXPECT_TRUE(sink.error().what.starts_with(name)) << sink.error().what;
    EXPECT_NE(sink.error().what.find("not so"), std::string::npos) << sink.error().what;
    if (each.status != 401) {
      EXPECT_EQ(engine.questions().size(), 1U) << each.status;
    }
  }
}

TEST_P(Foreign, RubbishIsAnError) {
  const std::vector<TokenId> unknown{3'000'000'000};
  for (const std::string& event : {std::string("{\"tokens\": [1,"), std::string("{}"),
                                   std::string("[]"), event_of(GetParam(), unknown, 0)}) {
    FakeEngine engine({[&event](const Peer& peer) {
      peer.begin_stream();
      peer.event(event);
      peer.wait_gone();
    }});
    WaitingSink sink;
    const auto active = source(engine).start(generation_of(), sink);
    ASSERT_TRUE(active);
    EXPECT_EQ(sink.error().code, Code::kInternal) << event;
    EXPECT_EQ(engine.questions().size(), 1U);
  }
}

TEST_P(Foreign, AnEventWithoutEndIsNotTheClientsFault) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    peer.send("data: ");
    while (peer.send(std::string(std::size_t{1} << 20U, 'x'))) {
    }
  }});
  const auto active = source(engine).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  EXPECT_EQ(sink_.error().code, Code::kUnavailable);
  EXPECT_EQ(engine.questions().size(), 1U);
}

TEST_P(Foreign, AnErrorInTheStreamIsOne) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    peer.event(R"({"error":{"code":400,"message":"prompt too long"}})");
    peer.event("[DONE]");
  }});
  const auto active = source(engine).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  EXPECT_EQ(sink_.error().code, Code::kInvalidArgument);
  EXPECT_NE(sink_.error().what.find("prompt too long"), std::string::npos);
}

TEST_P(Foreign, SilenceIsAFailure) {
  FakeEngine engine({[](const Peer& peer) {
                       peer.begin_stream();
                       while (peer.send(": alive\n\n")) {  // bytes, and no progress
                       }
                     },
                     says({10}, "stop")});
  const auto active = source(engine, {.silence_max = 200ms}).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  EXPECT_EQ(sink_.wait().ids, std::vector<TokenId>{10});
  EXPECT_EQ(engine.questions().size(), 2U);
}

TEST_P(Foreign, CancellingClosesTheConnection) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    const std::vector<TokenId> ids{10};
    peer.event(event_of(GetParam(), ids, 0));
    peer.wait_gone();
  }});
  auto active = source(engine).start(generation_of(), sink_);
  ASSERT_TRUE(active);
  sink_.wait(1);
  active->reset();
  EXPECT_TRUE(eventually([&] { return engine.ended() == 1; }));
  const RecordingSink seen = sink_.wait(1);
  EXPECT_FALSE(seen.finish || seen.error);
}

TEST_P(Foreign, ADeadlineEndsIt) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    peer.wait_gone();
  }});
  recipe::Generation generation = generation_of();
  generation.deadline = clock_.now() + 300ms;
  const auto active = source(engine).start(std::move(generation), sink_);
  ASSERT_TRUE(active);
  EXPECT_EQ(sink_.error().code, Code::kDeadlineExceeded);
  EXPECT_TRUE(eventually([&] { return engine.ended() == 1; }));
}

TEST_P(Foreign, AnIllEngineIsNotAsked) {
  FakeEngine engine({says({10}, "stop")});
  ForeignSource& asked = source(engine);
  engine.health = 503;
  EXPECT_TRUE(eventually([&] { return !asked.ready(); }));
  const auto refused = asked.start(generation_of(), sink_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  engine.health = 200;
  EXPECT_TRUE(eventually([&] { return asked.ready(); }));
}

TEST_P(Foreign, ARequestWaitsForAnEngineThatHasGoneButNotForEver) {
  FakeEngine* engine_of_scripts = nullptr;
  const auto goes = [&](const Peer& peer) {
    engine_of_scripts->health = 503;
    says({10}, "")(peer);
  };
  FakeEngine engine({goes, says({11}, "stop"), goes});
  engine_of_scripts = &engine;
  ForeignSource& asked = source(engine, {.gone_max = 2s});
  const auto first = asked.start(generation_of(), sink_);
  ASSERT_TRUE(first);
  EXPECT_TRUE(eventually([&] { return !asked.ready(); }));
  EXPECT_EQ(engine.questions().size(), 1U);
  engine.health = 200;
  EXPECT_EQ(sink_.wait().ids, (std::vector<TokenId>{10, 11}));
  EXPECT_TRUE(eventually([&] { return asked.ready(); }));
  WaitingSink other;
  const auto second = asked.start(generation_of(), other);
  ASSERT_TRUE(second);
  EXPECT_NE(other.error().what.find("is gone"), std::string::npos) << other.error().what;
  EXPECT_EQ(engine.questions().size(), 3U);
}

TEST_P(Foreign, MoreThanMayBeAreRefused) {
  FakeEngine engine({[](const Peer& peer) {
    peer.begin_stream();
    peer.wait_gone();
  }});
  ForeignSource& asked = source(engine, {.requests_max = 1});
  auto first = asked.start(generation_of(), sink_);
  ASSERT_TRUE(first);
  WaitingSink other;
  const auto second = asked.start(generation_of(), other);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kOverloaded);
  first->reset();
  std::unique_ptr<recipe::ActiveGeneration> third;
  EXPECT_TRUE(eventually([&] {
    auto started = third ? Result<decltype(third)>() : asked.start(generation_of(), other);
    third = third || !started ? std::move(third) : *std::move(started);
    return third != nullptr;
  }));
}

TEST(ForeignSource, WantsAnAddressWithoutAPassword) {
  const RealClock clock;
  Metrics metrics;
  Log log(clock, {.write = [](std::string_view) {}});
  for (const std::string url : {"127.0.0.1:8000", "http://cook:hunter2@127.0.0.1:8000"}) {
    const auto made = ForeignSource::create(make_dialect("vllm", small_tokenizer()),
                                            small_tokenizer(), clock, metrics, log, {.url = url});
    ASSERT_FALSE(made) << url;
    EXPECT_EQ(made.error().where, "engine.url");
    EXPECT_EQ(made.error().what.find("hunter2"), std::string::npos);
  }
}

}  // namespace
}  // namespace galley::gateway
