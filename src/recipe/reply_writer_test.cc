// Goal: the writer gives the bytes of parser and encoder tied together, a whole reply exactly once
// and only at its end, and nothing after the end.
// Method: short text replies in each protocol, streamed and whole, ended in every way.

#include "recipe/reply_writer.h"

#include <gtest/gtest.h>
#include <string>

#include "recipe/clock_for_test.h"
#include "recipe/json.h"
#include "recipe/random_ids.h"

namespace galley::recipe {
namespace {

class ReplyWriterTest : public ::testing::Test {
 protected:
  Request request(Protocol protocol, bool stream) {
    Request out;
    out.protocol = protocol;
    out.model = "m";
    out.stream = stream;
    out.output.stop_sequences = {"END"};
    return out;
  }
  ReplyInfo info() { return {.id = "r", .created_s = 5, .call_ids = &ids_, .clock = &clock_}; }

  RandomIds ids_{Seed(1)};
  FixedClock clock_{9};
};

TEST_F(ReplyWriterTest, NewIdsSayWhatTheyName) {
  EXPECT_TRUE(new_reply_id(Protocol::kChat, ids_).starts_with("chatcmpl-"));
  EXPECT_TRUE(new_reply_id(Protocol::kResponses, ids_).starts_with("resp_"));
  const std::string id = new_reply_id(Protocol::kMessages, ids_);
  EXPECT_TRUE(id.starts_with("msg_"));
  EXPECT_EQ(id.size(), 24U);
  EXPECT_NE(new_reply_id(Protocol::kMessages, ids_), id);
}

TEST_F(ReplyWriterTest, AWholeReplyAppearsOnceAtTheEnd) {
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    const Request asked = request(protocol, false);
    ReplyWriter writer(asked, nullptr, info());
    EXPECT_FALSE(writer.streams());
    writer.start({});
    writer.feed_text("Hi", 1);
    writer.keep_alive();
    EXPECT_EQ(writer.bytes(), "");
    writer.finish(SourceFinish::kStop);
    EXPECT_TRUE(writer.ended());
    EXPECT_TRUE(parse_json(writer.bytes()));
    EXPECT_NE(writer.bytes().find("\"Hi\""), std::string::npos);
    const std::string body = writer.bytes();
    writer.finish(SourceFinish::kStop);
    writer.fail({Code::kInternal, "late", {}});
    writer.feed_text("more", 1);
    EXPECT_EQ(writer.bytes(), body);
  }
}

TEST_F(ReplyWriterTest, AStreamGrowsAsItIsFedAndStaysAsItEnded) {
  const Request asked = request(Protocol::kChat, true);
  ReplyWriter writer(asked, nullptr, info());
  EXPECT_TRUE(writer.streams());
  writer.start({});
  writer.feed_text("Hi", 1);
  EXPECT_NE(writer.bytes().find("\"Hi\""), std::string::npos);
  writer.bytes().clear();
  writer.keep_alive();
  EXPECT_EQ(writer.bytes(), ": keep-alive\n\n");
  writer.finish(SourceFinish::kStop);
  EXPECT_TRUE(writer.bytes().ends_with("data: [DONE]\n\n"));
  writer.bytes().clear();
  writer.keep_alive();
  writer.finish(SourceFinish::kStop);
  EXPECT_EQ(writer.bytes(), "");
}

TEST_F(ReplyWriterTest, TheCallerMayChooseStreamOrWhole) {
  const Request asked = request(Protocol::kChat, true);
  EXPECT_FALSE(ReplyWriter(asked, nullptr, info(), false).streams());
  EXPECT_TRUE(ReplyWriter(request(Protocol::kChat, false), nullptr, info(), true).streams());
}

TEST_F(ReplyWriterTest, AnErrorEndsAReplyInItsOwnForm) {
  const Error error{Code::kUnavailable, "the engine left", {}};
  const Request streamed = request(Protocol::kMessages, true);
  ReplyWriter stream(streamed, nullptr, info());
  stream.fail(error);
  EXPECT_TRUE(stream.bytes().starts_with("event: error\n")) << stream.bytes();
  const Request asked = request(Protocol::kMessages, false);
  ReplyWriter whole(asked, nullptr, info());
  whole.feed_text("Hi", 1);
  whole.fail(error);
  EXPECT_EQ(whole.bytes(), error_body(Protocol::kMessages, Compat::kGalley, error));
  EXPECT_TRUE(whole.ended());
}

TEST_F(ReplyWriterTest, AReplyThatMetItsStopStringIsCompleteWhateverComes) {
  const Request asked = request(Protocol::kChat, false);
  ReplyWriter writer(asked, nullptr, info());
  writer.feed_text("Hi END", 1);
  EXPECT_TRUE(writer.finished());
  EXPECT_FALSE(writer.ended());
  writer.fail({Code::kUnavailable, "the engine left", {}});
  EXPECT_NE(writer.bytes().find("\"finish_reason\":\"stop\""), std::string::npos);
}

TEST_F(ReplyWriterTest, AResponseSaysWhenItWasCompleted) {
  const Request asked = request(Protocol::kResponses, false);
  const auto completed_at = [](ReplyWriter& writer) {
    writer.finish(std::nullopt);
    return *parse_json(writer.bytes())->find("completed_at")->int64();
  };
  ReplyWriter stopped(asked, nullptr, info());
  clock_.set(12);
  stopped.feed_text("Hi END", 1);
  clock_.set(20);  // when the stop string matched counts, not when the body is asked for
  EXPECT_EQ(completed_at(stopped), 12);
  ReplyWriter timeless(asked, nullptr, {.id = "r", .created_s = 5, .call_ids = &ids_});
  EXPECT_EQ(completed_at(timeless), 5);
}

}  // namespace
}  // namespace galley::recipe
