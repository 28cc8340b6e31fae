// Goal: the whole path, from bytes on a socket to a generation and back.
// Method: server, routes and a source that the test drives, over loopback, port 0.
#include <chrono>
#include <future>
#include <gtest/gtest.h>
#include <string>

#include "base/real_clock.h"
#include "gateway/fakes_for_test.h"
#include "gateway/http_server.h"
#include "gateway/routes.h"
#include "gateway/socket_client_for_test.h"

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;

class ChatServerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    options.port = 0;
    auto server = HttpServer::start(options, routes_, gateway_.clock, gateway_.ids);
    ASSERT_TRUE(server.has_value()) << to_string(server.error());
    server_ = std::move(*server);
  }
  static std::string post(std::string_view path, const std::string& body) {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }
  // Waits until no connection is taken any more.
  void wait_refusing() const {
    const auto end = RealClock().now() + 5s;
    bool taken = true;
    while (taken && RealClock().now() < end) {
      taken = SocketClient(server_->port()).connected();
    }
    EXPECT_FALSE(taken) << "still accepts";
  }

  TestGateway gateway_;
  Routes routes_{gateway_.context(), gateway_.metrics, gateway_.log};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ChatServerTest, AnswersWholeAndThenStreamedOnOneConnection) {
  start();
  SocketClient client(server_->port());
  client.send(post("/v1/chat/completions", chat_body()));
  gateway_.source.sink().on_start({.prompt_tokens = 3});
  gateway_.source.send("Hi");
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  const std::string whole = client.read_response();
  EXPECT_TRUE(whole.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_NE(whole.find(R"("content":"Hi")"), std::string::npos);
  gateway_.source.wait_ended(1);

  client.send(post("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  client.read_until("text/event-stream");
  gateway_.source.sink().on_start({.prompt_tokens = 3});
  gateway_.source.send("x");
  client.read_until(R"("content":"x")");  // arrives while the generation goes on
  gateway_.source.send("y");
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  client.read_until(R"("content":"y")");
  client.read_until("data: [DONE]\n\n\r\n0\r\n\r\n");
}

TEST_F(ChatServerTest, AGenerationHoldsNoPlaceForItsBody) {
  const std::string request =
      post("/v1/chat/completions", chat_body(R"(, "stream": true)", std::string(100, 'a')));
  start({.bodies_bytes_max = request.size()});
  SocketClient first(server_->port());
  first.send(request);
  first.read_until("text/event-stream");
  SocketClient second(server_->port());
  second.send(request);
  second.read_until("text/event-stream");
}

TEST_F(ChatServerTest, ADisconnectCancelsInEveryPhase) {
  start();
  int ended = 0;
  for (const std::string_view more : {"", R"(, "stream": true)"}) {
    for (const bool tokens : {false, true}) {
      SocketClient client(server_->port());
      client.send(post("/v1/chat/completions", chat_body(more)));
      gateway_.source.sink().on_start({.prompt_tokens = 3});
      if (tokens) {
        gateway_.source.send("Hi");
      }
      client.close();
      gateway_.source.wait_ended(++ended);
    }
  }
}

TEST_F(ChatServerTest, ASilentStreamGetsComments) {
  start({.keep_alive_interval = 10ms});
  SocketClient client(server_->port());
  client.send(post("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  client.read_until(": keep-alive\n\n");
  client.read_until(": keep-alive\n\n");
}

TEST_F(ChatServerTest, BeforeADrainANewConnectionIsToldAndARunningReplyFinishes) {
  start({.linger_timeout = 10ms});
  SocketClient running(server_->port());
  running.send(post("/v1/chat/completions", chat_body()));
  gateway_.source.sink().on_start({.prompt_tokens = 3});
  routes_.set_draining();
  server_->close_after_answers();

  SocketClient balancer(server_->port());
  balancer.send("GET /ready HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string ready = balancer.read_all();
  EXPECT_TRUE(ready.starts_with("HTTP/1.1 503 ")) << ready;
  EXPECT_NE(ready.find("connection: close\r\n"), std::string::npos);
  SocketClient late(server_->port());
  late.send(post("/v1/chat/completions", chat_body()));
  const std::string refused = late.read_all();
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 ")) << refused;
  EXPECT_NE(refused.find("retry-after: 1\r\n"), std::string::npos);
  EXPECT_NE(refused.find("connection: close\r\n"), std::string::npos);

  gateway_.source.send("Hi");
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  const std::string whole = running.read_all();
  EXPECT_TRUE(whole.starts_with("HTTP/1.1 200 ")) << whole;
  EXPECT_NE(whole.find("connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(server_->drain(5s));
}

TEST_F(ChatServerTest, ADrainFinishesAStream) {
  start();
  SocketClient client(server_->port());
  client.send(post("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  client.read_until("text/event-stream");
  gateway_.source.sink().on_start({.prompt_tokens = 3});
  auto drained = std::async(std::launch::async, [&] { return server_->drain(5s); });
  wait_refusing();
  EXPECT_EQ(drained.wait_for(0s), std::future_status::timeout);
  gateway_.source.send("last");
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  EXPECT_TRUE(client.read_all().ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
  EXPECT_TRUE(drained.get());
}

TEST_F(ChatServerTest, AtTheLimitOfADrainRepliesEndWithTheirProtocolsError) {
  start();
  SocketClient whole(server_->port());
  whole.send(post("/v1/chat/completions", chat_body()));
  gateway_.source.sink();
  gateway_.source.forget();
  SocketClient stream(server_->port());
  stream.send(post("/v1/chat/completions", chat_body(R"(, "stream": true)")));
  stream.read_until("text/event-stream");
  gateway_.source.sink().on_start({.prompt_tokens = 3});
  gateway_.source.send("Hi");
  stream.read_until(R"("content":"Hi")");
  auto drained = std::async(std::launch::async, [&] { return server_->drain(10ms); });

  const std::string told = whole.read_all();
  EXPECT_TRUE(told.starts_with("HTTP/1.1 503 ")) << told;
  EXPECT_NE(told.find("retry-after: 1\r\n"), std::string::npos);
  EXPECT_NE(told.find(R"({"error":{"message":"The server is stopping. Retry later.",)"),
            std::string::npos)
      << told;
  const std::string rest = stream.read_all();
  EXPECT_NE(rest.find(R"(data: {"error":{"message":"The server is stopping. Retry later.",)"),
            std::string::npos)
      << rest;
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(rest.ends_with("\n\n\r\n0\r\n\r\n")) << rest;
  EXPECT_FALSE(drained.get());
  EXPECT_EQ(gateway_.source.ended(), 2);
  server_.reset();
  const std::string text = gateway_.metrics.render();
  EXPECT_NE(text.find("galley_failed_generations_total 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("galley_cancelled_generations_total 0\n"), std::string::npos) << text;
}

TEST_F(ChatServerTest, ABodyThatCanNeverFitIsRefusedForGood) {
  start({.bodies_bytes_max = 100});
  SocketClient client(server_->port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n");
  EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 413 "));
  SocketClient chunked(server_->port());
  chunked.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n");
  EXPECT_TRUE(chunked.read_all().starts_with("HTTP/1.1 413 "));
}

TEST_F(ChatServerTest, TheLogNamesTheMethodAsSent) {
  start();
  SocketClient client(server_->port());
  client.send("HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 200 "));
  server_.reset();
  ASSERT_EQ(gateway_.log_lines.size(), 1U);
  EXPECT_NE(gateway_.log_lines[0].find("HEAD"), std::string::npos) << gateway_.log_lines[0];
}

TEST_F(ChatServerTest, EndingTheServerCancelsWhatRuns) {
  start();
  SocketClient client(server_->port());
  client.send(post("/v1/chat/completions", chat_body()));
  gateway_.source.sink();
  server_.reset();
  EXPECT_EQ(gateway_.source.ended(), 1);
}

TEST_F(ChatServerTest, ErrorsAreProtocolObjectsWithTheirStatus) {
  start();
  SocketClient client(server_->port());
  client.send(post("/v1/chat/completions", "{\"model\": 1}"));
  EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 400 Bad Request\r\n"));
  client.send(post("/v1/messages", "{}"));
  const std::string bad = client.read_response();
  EXPECT_TRUE(bad.starts_with("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_NE(bad.find(R"({"type":"error","error":{)"), std::string::npos);
  client.send(post("/v1/embeddings", "{}"));
  EXPECT_TRUE(client.read_response().starts_with("HTTP/1.1 501 Not Implemented\r\n"));
}

}  // namespace
}  // namespace galley::gateway
