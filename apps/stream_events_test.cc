// Goal: what a client of ours reads out of a stream is what the protocol says, however it is cut.
// Method: events as the codec writes them.
#include "apps/stream_events.h"

#include <gtest/gtest.h>
#include <vector>

#include "gateway/http_client.h"

namespace galley::apps {
namespace {

std::vector<std::string> read_in_pieces(std::string_view stream, std::size_t piece) {
  std::vector<std::string> out;
  gateway::SseReader reader;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    EXPECT_TRUE(reader.feed(stream.substr(at, piece),
                            [&](std::string_view data) { out.emplace_back(data); }));
  }
  return out;
}

TEST(SseReader, PiecesChangeNothing) {
  constexpr std::string_view kStream =
      ": keep-alive\n\nevent: x\ndata: {\"a\":1}\n\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n"
      "data: without an end";
  const std::vector<std::string> all{"{\"a\":1}", "two\nlines", "[DONE]"};
  for (std::size_t piece = 1; piece <= kStream.size(); ++piece) {
    EXPECT_EQ(read_in_pieces(kStream, piece), all) << piece;
  }
}

TEST(SseReader, AnEventWithoutEndIsRefused) {
  for (const std::string_view line : {"data: x", "data: x\n"}) {
    std::string piece;
    while (piece.size() < gateway::kEventBytesMax / 8) {
      piece += line;
    }
    gateway::SseReader reader;
    Result<void> fed;
    int pieces = 0;
    while (fed && ++pieces < 100) {
      fed = reader.feed(piece, [](std::string_view) {});
    }
    ASSERT_FALSE(fed);
    EXPECT_EQ(fed.error().code, Code::kTooLarge);
  }
}

TEST(StreamPart, TellsTheEndOfAStream) {
  EXPECT_TRUE(stream_part("[DONE]")->ends());
  EXPECT_TRUE(stream_part(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})")->ends());
  EXPECT_TRUE(
      stream_part(R"({"type":"message_delta","delta":{"stop_reason":"end_turn"}})")->ends());
  EXPECT_TRUE(stream_part(R"({"type":"response.completed","response":{}})")->ends());
  EXPECT_FALSE(stream_part(R"({"choices":[{"delta":{"content":"Hi"}}]})")->ends());
}

TEST(StreamPart, ReadsEachProtocol) {
  const auto chat = stream_part(
      R"({"choices":[{"index":0,"delta":{"content":"Hi","reasoning_content":null},"finish_reason":null}],"usage":null})");
  EXPECT_EQ(chat->text, "Hi");
  EXPECT_TRUE(chat->delivers());
  EXPECT_EQ(chat->finish, std::nullopt);
  const auto end = stream_part(
      R"({"choices":[{"delta":{"content":""},"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}})");
  EXPECT_EQ(end->finish, recipe::FinishReason::kLength);
  EXPECT_EQ(end->prompt_tokens, 7);
  EXPECT_EQ(end->cached_tokens, 2);
  EXPECT_EQ(end->answer_tokens, 3);
  EXPECT_FALSE(end->delivers());
  EXPECT_EQ(stream_part(R"({"choices":[{"text":"Hi"}]})")->text, "Hi");
  EXPECT_EQ(stream_part(R"({"type":"response.reasoning_text.delta","delta":"Hm"})")->reasoning,
            "Hm");
  EXPECT_TRUE(
      stream_part(R"({"type":"response.function_call_arguments.delta","delta":"{"})")->call);
  const auto completed = stream_part(
      R"({"type":"response.completed","response":{"error":null,"incomplete_details":null,"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":2}}})");
  EXPECT_EQ(completed->prompt_tokens, 5);
  EXPECT_EQ(completed->cached_tokens, 4);
  EXPECT_EQ(completed->finish, recipe::FinishReason::kStop);
  EXPECT_EQ(
      stream_part(R"({"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}})")
          ->text,
      "Hi");
  const auto message = stream_part(
      R"({"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":9}})");
  EXPECT_EQ(message->prompt_tokens, 7);
  EXPECT_EQ(message->cached_tokens, 4);
  EXPECT_EQ(message->answer_tokens, 9);
  EXPECT_FALSE(stream_part("[DONE]")->delivers());
  EXPECT_FALSE(stream_part(R"({"type":"ping"})")->delivers());
}

TEST(StreamPart, WhatBrokeIsSaid) {
  const auto broken = stream_part(R"({"error":{"message":"the device is gone"}})");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().what, "the server says: the device is gone");
  EXPECT_FALSE(stream_part(
      R"({"type":"response.failed","response":{"error":{"code":"x","message":"no"}}})"));
  EXPECT_EQ(stream_part("<html>").error().code, Code::kCorruption);
}

}  // namespace
}  // namespace galley::apps
