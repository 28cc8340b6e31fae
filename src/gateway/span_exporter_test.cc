// Goal: a collector gets what OTLP says, and one that takes nothing costs no more than spans.
// Method: the JSON itself, and a collector of the test's own on a socket.
#include "gateway/span_exporter.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <memory>

#include "base/real_clock.h"
#include "gateway/sources/fake_engine_for_test.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using Peer = FakeEngine::Peer;

Span some_span() {
  return {.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736",
          .parent_id = "00f067aa0ba902b7",
          .span_id = "0000000000000001",
          .name = "POST /x",
          .begun = UnixTime(std::chrono::seconds(1'700'000'000)),
          .ended = UnixTime(std::chrono::seconds(1'700'000'002)),
          .first_token = UnixTime(std::chrono::milliseconds(1'700'000'000'500)),
          .failed = true,
          .attributes = {{"http.route", "/x"},
                         {"http.response.status_code", std::int64_t{200}},
                         {"galley.complete", true}}};
}

TEST(SpanExporter, TheFormIsOtlps) {
  const Span span = some_span();
  EXPECT_EQ(
      otlp_json({&span, 1}),
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"galley"}}]},)"
      R"("scopeSpans":[{"scope":{"name":"galley"},"spans":[{"traceId":"4bf92f3577b34da6a3ce929d0e0e4736",)"
      R"("spanId":"0000000000000001","name":"POST /x","kind":2,"startTimeUnixNano":"1700000000000000000",)"
      R"("endTimeUnixNano":"1700000002000000000","attributes":[{"key":"http.route","value":{"stringValue":"/x"}},)"
      R"({"key":"http.response.status_code","value":{"intValue":"200"}},)"
      R"({"key":"galley.complete","value":{"boolValue":true}}],)"
      R"("events":[{"timeUnixNano":"1700000000500000000","name":"first_token"}],)"
      R"("parentSpanId":"00f067aa0ba902b7","status":{"code":2}}]}]}]})");
}

class Exporting : public testing::Test {
 protected:
  // Adds `count` spans that begin traces, and ends the exporter, which sends what waits.
  void send(const std::string& url, std::size_t count) {
    SpanExporter exporter(url, Seed{7}, clock_, metrics_, log_);
    for (std::size_t i = 0; i < count; ++i) {
      Span span = some_span();
      span.trace_id.clear();
      span.parent_id.clear();
      exporter.add(std::move(span));
    }
  }
  bool counts(const std::string& line) {
    return metrics_.render().find("\n" + line + "\n") != std::string::npos;
  }

  RealClock clock_;
  Metrics metrics_;
  std::vector<std::string> lines_;
  Log log_{clock_, {.write = [this](std::string_view line) { lines_.emplace_back(line); }}};
};

TEST_F(Exporting, ACollectorGetsThem) {
  FakeEngine collector({[](const Peer& peer) { peer.refuse(200, "{}"); }});
  send(collector.url(), 3);
  EXPECT_TRUE(counts("galley_spans_sent_total 3")) << metrics_.render();
  const std::string question = collector.questions().at(0);
  EXPECT_TRUE(question.starts_with("POST /v1/traces ")) << question;
  const std::size_t at = question.find("\"traceId\":\"");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(question.substr(at + 11, 32).find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST_F(Exporting, WhatItDoesNotTakeIsCountedAndToldOnce) {
  FakeEngine collector({[](const Peer& peer) { peer.refuse(503, "full"); }});
  send(collector.url(), 2000);
  EXPECT_TRUE(counts("galley_spans_dropped_total 2000")) << metrics_.render();
  EXPECT_EQ(lines_.size(), 1U);
}

TEST_F(Exporting, MoreThanFitAreDropped) {
  FakeEngine collector({[](const Peer& peer) { peer.wait_gone(); }});
  {
    SpanExporter exporter(collector.url(), Seed{7}, clock_, metrics_, log_);
    for (std::size_t i = 0; i < SpanExporter::kWaitingMax + SpanExporter::kBatchMax + 10; ++i) {
      exporter.add(some_span());
    }
    EXPECT_FALSE(counts("galley_spans_dropped_total 0")) << metrics_.render();
  }
  EXPECT_TRUE(counts("galley_spans_sent_total 0")) << metrics_.render();
}

TEST(SpanExporter, ReadsHowManyAreRejected) {
  EXPECT_EQ(rejected_spans("{}", 5), 0U);
  EXPECT_EQ(rejected_spans("no JSON", 5), 0U);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{}})", 5), 0U);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{"rejectedSpans":"2"}})", 5), 2U);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{"rejectedSpans":3}})", 5), 3U);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{"rejectedSpans":"99"}})", 5), 5U);
  EXPECT_EQ(rejected_spans(R"({"partialSuccess":{"rejectedSpans":-1}})", 5), 0U);
}

TEST_F(Exporting, WhatIsRejectedIsNotSent) {
  FakeEngine collector({[](const Peer& peer) {
    peer.refuse(200, R"({"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}})");
  }});
  send(collector.url(), 1);
  EXPECT_TRUE(counts("galley_spans_dropped_total 1")) << metrics_.render();
  EXPECT_TRUE(counts("galley_spans_sent_total 0"));
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_NE(lines_[0].find("too old"), std::string::npos) << lines_[0];
}

// It would be done after 15 s: a bound on silence alone waits for it.
TEST_F(Exporting, ACollectorThatTricklesIsNotWaitedFor) {
  FakeEngine collector({[](const Peer& peer) {
    Mutex mutex;
    CondVar never;
    const MutexLock lock(mutex);
    bool open = peer.send("HTTP/1.1 200 OK\r\ncontent-length: 300\r\n\r\n");
    for (int i = 0; i < 300 && open; ++i) {
      never.wait_for(mutex, std::chrono::milliseconds(50));
      open = peer.send(" ");
    }
  }});
  send(collector.url(), 1);
  EXPECT_TRUE(counts("galley_spans_dropped_total 1")) << metrics_.render();
}

// A clock that stands unless it is told to go, and knows whether it was asked.
class HandClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const override {
    asked_ = true;
    return TimeNs(std::chrono::seconds(seconds_.load()));
  }
  [[nodiscard]] UnixTime unix_time() const override { return {}; }
  void go(int seconds) { seconds_ += seconds; }
  [[nodiscard]] bool asked() const { return asked_; }

 private:
  std::atomic<int> seconds_ = 0;
  mutable std::atomic<bool> asked_ = false;
};

TEST_F(Exporting, ASlowCollectorGetsWhatItTakesInTimeAtTheEnd) {
  HandClock clock;
  FakeEngine collector({[&](const Peer& peer) {
    Mutex mutex;
    CondVar never;
    const MutexLock lock(mutex);
    while (!clock.asked()) {  // the exporter ends
      never.wait_for(mutex, std::chrono::milliseconds(1));
    }
    clock.go(3);
    peer.refuse(200, "{}");
  }});
  {
    SpanExporter exporter(collector.url(), Seed{7}, clock, metrics_, log_);
    for (std::size_t i = 0; i < SpanExporter::kWaitingMax; ++i) {
      exporter.add(some_span());
    }
  }
  EXPECT_FALSE(counts("galley_spans_dropped_total 0")) << metrics_.render();
  EXPECT_FALSE(counts("galley_spans_sent_total 0")) << metrics_.render();
  EXPECT_LE(collector.questions().size(), 3U);
}

}  // namespace
}  // namespace galley::gateway
