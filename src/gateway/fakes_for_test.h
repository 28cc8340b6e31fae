#pragma once

#include <deque>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/virtual_loop.h"
#include "gateway/codec.h"
#include "gateway/exchange.h"
#include "gateway/generation_reply.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

// What tests of the gateway put in place of sockets, models and chance.
namespace galley::gateway {

inline std::shared_ptr<const recipe::Tokenizer> small_tokenizer() {
  static const auto kTokenizer =
      recipe::Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json").value();
  return kTokenizer;
}

inline std::vector<TokenId> tokens_of(std::string_view text) {
  std::vector<TokenId> ids;
  small_tokenizer()->encode_with_added(text, ids);
  return ids;
}

class CountingIds final : public recipe::IdSource {
 public:
  std::string next_id() override { return std::to_string(++count_); }

 private:
  int count_ = 0;
};

// An exchange in memory. Posted and offloaded tasks wait for run().
class FakeExchange final : public Exchange {
 public:
  explicit FakeExchange(HttpRequest request = {}) : request_(std::move(request)) {}

  HttpRequest& request() override { return request_; }
  void respond(HttpResponse new_response) override {
    EXPECT_FALSE(started);
    started = ended = true;
    response = std::move(new_response);
  }
  void start_stream(HttpResponse head) override {
    EXPECT_FALSE(started);
    started = true;
    response = std::move(head);
  }
  void write(std::string_view bytes) override {
    response.body += bytes;
    unsent += bytes.size();
  }
  [[nodiscard]] std::size_t unsent_bytes() const override { return unsent; }
  void end_stream() override { ended = true; }
  void abort() override { aborted = true; }
  [[nodiscard]] bool gone() const override { return is_gone; }
  void listen(std::shared_ptr<ExchangeListener> new_listener) override {
    listener = std::move(new_listener);
    if (stopping) {
      std::shared_ptr(listener)->on_stop();
    }
  }
  void post(std::move_only_function<void()> task) override { tasks_.push_back(std::move(task)); }
  bool offload(std::move_only_function<void()> task) override {
    if (full) {
      return false;
    }
    post(std::move(task));
    return true;
  }

  void run() {
    while (!tasks_.empty()) {
      run_one();
    }
  }
  void run_one() {
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
  }
  // The socket took everything.
  void send_all() {
    unsent = 0;
    listener->on_room();
  }
  void leave() {
    is_gone = true;
    std::exchange(listener, nullptr)->on_gone();
  }

  HttpResponse response;
  std::shared_ptr<ExchangeListener> listener;
  std::size_t unsent = 0;
  bool started = false;
  bool ended = false;
  bool aborted = false;
  bool is_gone = false;
  bool full = false;
  bool stopping = false;

 private:
  HttpRequest request_;
  std::deque<std::move_only_function<void()>> tasks_;
};

// A source that the test drives: it keeps the sink of the last generation.
class ManualSource final : public recipe::TokenSource {
 public:
  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override {
    if (refusal) {
      return std::unexpected(*refusal);
    }
    const MutexLock lock(mutex_);
    last = std::move(generation);
    sink_ = &sink;
    sinks.push_back(&sink);
    changed_.notify_all();
    return std::make_unique<Active>(*this);
  }
  [[nodiscard]] bool enforces_grammars() const override { return enforces; }
  [[nodiscard]] bool ready() const override { return is_ready; }
  [[nodiscard]] std::string_view description() const override { return "manual"; }

  // The sink of the generation under way; waits for one.
  recipe::TokenSink& sink() {
    wait([this]() GALLEY_REQUIRES(mutex_) { return sink_ != nullptr; });
    const MutexLock lock(mutex_);
    return *sink_;
  }
  // sink() then waits for the next generation.
  void forget() {
    const MutexLock lock(mutex_);
    sink_ = nullptr;
  }
  void send(std::string_view text) {
    const std::vector<TokenId> ids = tokens_of(text);
    sink().on_tokens(ids, {});
  }
  [[nodiscard]] int ended() {
    const MutexLock lock(mutex_);
    return ended_;
  }
  void wait_ended(int count) {
    wait([this, count]() GALLEY_REQUIRES(mutex_) { return ended_ >= count; });
  }

  recipe::Generation last;
  std::vector<recipe::TokenSink*> sinks;  // of all generations
  std::optional<Error> refusal;
  bool is_ready = true;
  bool enforces = false;

 private:
  struct Active final : recipe::ActiveGeneration {
    explicit Active(ManualSource& manual) : source(manual) {}
    ~Active() override {
      const MutexLock lock(source.mutex_);
      ++source.ended_;
      source.sink_ = nullptr;
      source.changed_.notify_all();
    }
    ManualSource& source;
  };
  template <class Condition>
  void wait(Condition condition) {
    const MutexLock lock(mutex_);
    for (int i = 0; i < 50 && !condition(); ++i) {
      changed_.wait_for(mutex_, std::chrono::milliseconds(100));
    }
    ASSERT_TRUE(condition()) << "did not happen in time";
  }

  Mutex mutex_;
  CondVar changed_;
  recipe::TokenSink* sink_ GALLEY_GUARDED_BY(mutex_) = nullptr;
  int ended_ GALLEY_GUARDED_BY(mutex_) = 0;
};

// Everything a reply needs, around a manual source.
struct TestGateway {
  VirtualLoop clock{UnixTime(std::chrono::seconds(1'700'000'000))};
  Metrics metrics;
  Log log{clock, {.write = [this](std::string_view line) { log_lines.emplace_back(line); }}};
  std::vector<std::string> log_lines;
  CountingIds ids;
  ManualSource source;
  std::unique_ptr<Codec> codec = Codec::create(small_tokenizer(), {}, 2000).value();

  [[nodiscard]] ReplyContext context(ReplyLimits limits = {}) {
    return {.codec = *codec,
            .source = source,
            .clock = clock,
            .ids = ids,
            .metrics = ReplyMetrics(metrics),
            .limits = limits};
  }
};

// A small chat body. `more` is put behind the messages: R"(, "stream": true)".
inline std::string chat_body(std::string_view more = "", std::string_view text = "Hello") {
  return R"({"model": "DeepSeek-V4.1-Flash", "thinking": {"type": "disabled"}, )"
         R"("messages": [{"role": "user", "content": ")" +
         std::string(text) + R"("}])" + std::string(more) + "}";
}

}  // namespace galley::gateway
