// Goal: the server keeps its bounds and HTTP's rules, whatever bytes come.
// Method: raw sockets on loopback, port 0, a handler of the test's own; time-outs are configured
// short where one has to pass, long elsewhere. No sleeps: each wait is for something that happens.
#include "gateway/http_server.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/real_clock.h"
#include "base/virtual_loop.h"
#include "gateway/fakes_for_test.h"
#include "gateway/socket_client_for_test.h"

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;

// Answers by path; keeps the exchange of /later and /stream for the test to drive.
class TestHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> refuse_early(const HttpRequest& head) override {
    if (head.path == "/refused") {
      return HttpResponse{.status = 404, .body = "refused"};
    }
    return std::nullopt;
  }
  void handle(std::shared_ptr<Exchange> exchange) override {
    const HttpRequest& request = exchange->request();
    if (request.path == "/echo") {
      exchange->respond({.headers = {{"content-type", "text/plain"}},
                         .body = request.method + " " + request.body.text});
    } else if (request.path == "/large") {
      exchange->respond({.body = std::string(std::size_t{8} << 20U, 'x')});
    } else if (request.path == "/work") {
      const bool queued = exchange->offload(
          [exchange] { exchange->post([exchange] { exchange->respond({.body = "worked"}); }); });
      if (!queued) {
        exchange->respond({.status = 503});
      }
    } else if (request.path == "/hold") {
      const bool queued = exchange->offload([this, exchange] {
        count(&TestHandler::held_);
        wait([this]() GALLEY_REQUIRES(mutex_) { return released_ > 0; });
        exchange->post([exchange] { exchange->respond({.body = "held"}); });
      });
      EXPECT_TRUE(queued);
    } else {
      exchange->listen(std::make_shared<Listener>(*this, exchange));
      if (request.path != "/later") {  // /stream, or /deaf that does not listen
        exchange->start_stream({.headers = {{"content-type", "text/event-stream"}}});
      }
      {
        const MutexLock lock(mutex_);
        open_ = std::move(exchange);
      }
      changed_.notify_all();
    }
  }
  HttpResponse connection_error(int status,
                                std::string_view message,
                                std::string_view path) override {
    return {.status = status, .body = std::string(path) + ": " + std::string(message)};
  }
  void finished(const ExchangeSummary& summary) override {
    const MutexLock lock(mutex_);
    finished_.push_back(std::to_string(summary.status) + (summary.complete ? " " : " cut ") +
                        summary.request.path);
    changed_.notify_all();
  }

  void connection_count_changed(std::size_t count) override {
    const MutexLock lock(mutex_);
    connections_ = count;
    changed_.notify_all();
  }

  // Waits for the exchange of /later or /stream.
  std::shared_ptr<Exchange> wait_open() {
    wait([this]() GALLEY_REQUIRES(mutex_) { return open_ != nullptr; });
    const MutexLock lock(mutex_);
    return std::exchange(open_, nullptr);
  }
  void wait_gone(int count) {
    wait([this, count]() GALLEY_REQUIRES(mutex_) { return gone_ >= count; });
  }
  void wait_keep_alive() {
    wait([this]() GALLEY_REQUIRES(mutex_) { return keep_alives_ > 0; });
  }
  // For tasks of /hold, which wait for release().
  void wait_held() {
    wait([this]() GALLEY_REQUIRES(mutex_) { return held_ > 0; });
  }
  void release() { count(&TestHandler::released_); }
  void wait_connections(std::size_t count) {
    wait([this, count]() GALLEY_REQUIRES(mutex_) { return connections_ == count; });
  }
  void wait_finished(std::string_view line) {
    wait([this, line]() GALLEY_REQUIRES(mutex_) {
      return std::ranges::find(finished_, line) != finished_.end();
    });
  }
  int gone() {
    const MutexLock lock(mutex_);
    return gone_;
  }
  // How many of them could still offload work.
  int gone_and_offloading() {
    const MutexLock lock(mutex_);
    return gone_and_offloading_;
  }

 private:
  struct Listener final : ExchangeListener {
    Listener(TestHandler& test_handler, std::shared_ptr<Exchange> its_exchange)
        : handler(test_handler), exchange(std::move(its_exchange)) {}
    void on_gone() override {
      if (exchange->offload([] {})) {
        handler.count(&TestHandler::gone_and_offloading_);
      }
      exchange = nullptr;
      handler.count(&TestHandler::gone_);
    }
    void on_room() override {}
    void on_stop() override {
      if (exchange->request().path == "/later") {
        exchange->respond({.status = 503, .body = "stopped"});
      } else if (exchange->request().path == "/stream") {
        exchange->write("stopped");
        exchange->end_stream();
      }
    }
    void on_keep_alive() override { handler.count(&TestHandler::keep_alives_); }
    TestHandler& handler;
    std::shared_ptr<Exchange> exchange;
  };
  void count(int TestHandler::* counter) {
    const MutexLock lock(mutex_);
    ++(this->*counter);
    changed_.notify_all();
  }
  template <class Condition>
  void wait(Condition condition) {
    const auto end = RealClock().now() + 5s;
    const MutexLock lock(mutex_);
    while (!condition() && RealClock().now() < end) {
      changed_.wait_for(mutex_, 100ms);
    }
    EXPECT_TRUE(condition()) << "did not happen in time";
  }

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Exchange> open_ GALLEY_GUARDED_BY(mutex_);
  std::vector<std::string> finished_ GALLEY_GUARDED_BY(mutex_);
  int gone_ GALLEY_GUARDED_BY(mutex_) = 0;
  int gone_and_offloading_ GALLEY_GUARDED_BY(mutex_) = 0;
  int held_ GALLEY_GUARDED_BY(mutex_) = 0;
  int released_ GALLEY_GUARDED_BY(mutex_) = 0;
  std::size_t connections_ GALLEY_GUARDED_BY(mutex_) = 0;
  int keep_alives_ GALLEY_GUARDED_BY(mutex_) = 0;
};

class HttpServerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    options.port = 0;
    auto server = HttpServer::start(options, handler_, clock_, ids_);
    ASSERT_TRUE(server.has_value()) << to_string(server.error());
    server_ = std::move(*server);
  }
  // One request on its own connection; everything the server says.
  std::string ask(std::string_view bytes) {
    SocketClient client(server_->port());
    client.send(bytes);
    return client.read_all();
  }

  TestHandler handler_;
  VirtualLoop clock_;
  CountingIds ids_;
  std::unique_ptr<HttpServer> server_;
};

std::string status(std::string_view response) {
  return std::string(response.substr(std::min<std::size_t>(9, response.size()), 3));
}

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  start();
  SocketClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_EQ(client.read_response(),
            "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-type: "
            "text/plain\r\nx-request-id: req_1\r\ncontent-length: 10\r\n\r\nPOST hello");
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-7\r\nConnection: close\r\n\r\n");
  const std::string second = client.read_all();
  EXPECT_NE(second.find("x-request-id: mine-7\r\n"), std::string::npos);
  EXPECT_NE(second.find("connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(second.ends_with("\r\n\r\nGET "));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  SocketClient client(server_->port());
  client.send(
      "GET /later HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n2"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n3");
  const auto first = handler_.wait_open();
  first->post([first] { first->respond({.body = "one"}); });
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\none"));
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\nPOST 2"));
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\nPOST 3"));
}

TEST_F(HttpServerTest, APipelineBeyondItsBoundStillGetsEveryAnswer) {
  start();
  SocketClient client(server_->port());
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto first = handler_.wait_open();
  const std::string body(std::size_t{300} << 10U, 'b');
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  first->post([first] { first->respond({.body = "one"}); });
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\none"));
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\nPOST " + body));
}

TEST_F(HttpServerTest, ReadsOverEmptyLinesBeforeARequest) {
  start();
  const std::string_view request = "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(status(ask("\r\n" + std::string(request))), "200");
  EXPECT_EQ(status(ask("\r\n\r\n\r\n\r\n" + std::string(request))), "200");
  EXPECT_EQ(status(ask("\r\n\r\n\r\n\r\n\r\n" + std::string(request))), "400");
  EXPECT_EQ(status(ask("\n" + std::string(request))), "400");
  SocketClient client(server_->port());  // behind a body, as some clients send it, and in halves
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1\r");
  EXPECT_TRUE(client.read_response().ends_with("POST 1"));
  client.send("\n" + std::string(request));
  EXPECT_EQ(status(client.read_all()), "200");
}

TEST_F(HttpServerTest, EmptyLinesDoNotBeginARequest) {
  start({.idle_timeout = 30ms});
  EXPECT_EQ(ask("\r\n"), "");  // a begun one would end in 408
  EXPECT_EQ(ask("\r"), "");
}

TEST_F(HttpServerTest, TakesTheAbsoluteFormOfATarget) {
  start();
  EXPECT_TRUE(ask("POST http://other:1/echo?q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                  "Content-Length: 2\r\n\r\nhi")
                  .ends_with("POST hi"));
}

TEST_F(HttpServerTest, HeadHasTheHeadersOfGetAndNoBody) {
  start();
  SocketClient client(server_->port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.read_until("\r\n\r\n").find("content-length: 5\r\n"), std::string::npos);
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");  // were there a body, this would not match
  EXPECT_TRUE(client.read_response().ends_with("\r\n\r\nGET "));
}

TEST_F(HttpServerTest, StreamsInChunks) {
  start();
  SocketClient client(server_->port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto stream = handler_.wait_open();
  EXPECT_NE(client.read_until("\r\n\r\n").find("transfer-encoding: chunked"), std::string::npos);
  stream->post([stream] { stream->write("data: 1\n\n"); });
  EXPECT_EQ(client.read_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  stream->post([stream] {
    stream->write("x");
    stream->end_stream();
  });
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "1\r\nx\r\n0\r\n\r\n");
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");  // the connection lives on
  EXPECT_TRUE(client.read_response().ends_with("GET "));
  EXPECT_EQ(handler_.gone(), 0);
}

TEST_F(HttpServerTest, AStreamToHttp10EndsWithTheConnection) {
  start();
  SocketClient client(server_->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto stream = handler_.wait_open();
  stream->post([stream] {
    stream->write("data");
    stream->end_stream();
  });
  const std::string all = client.read_all();
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_TRUE(all.ends_with("connection: close\r\n\r\ndata"));
}

TEST_F(HttpServerTest, ABrokenStreamHasNoEndMark) {
  start();
  SocketClient client(server_->port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto stream = handler_.wait_open();
  client.read_until("\r\n\r\n");
  stream->post([stream] { stream->abort(); });
  EXPECT_EQ(client.read_all(), "");
  handler_.wait_finished("200 cut /stream");
}

TEST_F(HttpServerTest, RunsWorkElsewhereWithinABound) {
  start({.codec_threads = 1, .codec_tasks_waiting = 1});
  const std::string_view work = "GET /work HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  SocketClient running(server_->port());
  running.send("GET /hold HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  handler_.wait_held();
  SocketClient waiting(server_->port());
  waiting.send(work);
  // One waits; of the two, whichever is read last is refused.
  SocketClient other(server_->port());
  other.send(work);
  EXPECT_EQ(status(ask(work)), "503");
  handler_.release();
  EXPECT_TRUE(running.read_all().ends_with("held"));
  const std::string both = waiting.read_all() + other.read_all();
  EXPECT_NE(both.find("worked"), std::string::npos);
  EXPECT_NE(both.find("503"), std::string::npos);
}

TEST_F(HttpServerTest, RefusesWhatCouldBeReadInTwoWays) {
  start();
  const auto post = [](std::string_view headers, std::string_view body = "") {
    return "POST /echo HTTP/1.1\r\nHost: x\r\n" + std::string(headers) + "\r\n" + std::string(body);
  };
  // Each closes the connection: ask() reads until then.
  EXPECT_EQ(status(ask(post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length: 1\r\nContent-Length: 2\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length: -1\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length: 1, 1\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length: 1\r\nContent-Length: 1\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length: 0x10\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length: 99999999999999999999\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: xchunked\r\n"))), "501");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: gzip, chunked\r\n"))), "501");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: chunked, identity\r\n"))), "501");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"))),
            "400");
  EXPECT_EQ(status(ask(post("Transfer-Encoding : chunked\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Content-Length : 1\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: chunked\r\n", "zz\r\n"))), "400");
  EXPECT_EQ(status(ask(post("Transfer-Encoding: chunked\r\n", "1\r\nab\r\n0\r\n\r\n"))), "400");
  EXPECT_EQ(status(ask("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")), "400");
}

TEST_F(HttpServerTest, ChunksEndTheirLinesInCrLf) {
  start();  // with time-outs far longer than a client waits
  const auto chunked = [](std::string_view body) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked"
           "\r\n\r\n" +
           std::string(body);
  };
  EXPECT_TRUE(ask(chunked("2;x=y\r\nab\r\n0A \r\n0123456789\r\n0\r\nt: 1\r\n\r\n"))
                  .ends_with("POST ab0123456789"));
  EXPECT_EQ(status(ask(chunked("2\nab\n0\n\n"))), "400");
  EXPECT_EQ(status(ask(chunked("2\r\nab\n"))), "400");
  EXPECT_EQ(status(ask(chunked("2\r\nab\r\n0\n"))), "400");
  EXPECT_EQ(status(ask(chunked("0\r\nt: 1\n"))), "400");
}

TEST_F(HttpServerTest, RefusesCompressedBodies) {
  start();
  const auto post = [](std::string_view coding) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: " +
           std::string(coding) + "\r\nContent-Length: 1\r\n\r\nx";
  };
  const std::string reply = ask(post("gzip"));
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n")) << reply;
  EXPECT_NE(reply.find("/echo: A request body must not be compressed"), std::string::npos);
  EXPECT_EQ(status(ask(post("identity, gzip"))), "415");
  EXPECT_EQ(status(ask(post("identity\r\nContent-Encoding: br"))), "415");
  EXPECT_EQ(status(ask(post("Identity"))), "200");
}

// RFC 9112 6.3: what follows is the next request.
TEST_F(HttpServerTest, APostThatSaysNothingOfABodyHasNone) {
  start();
  const std::string two =
      ask("POST /echo HTTP/1.1\r\nHost: x\r\n\r\n"
          "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(two.find("HTTP/1.1 200", two.find("HTTP/1.1 200") + 1), std::string::npos) << two;
}

TEST_F(HttpServerTest, RefusesMalformedHeads) {
  start();
  EXPECT_EQ(status(ask("GET /echo HTTP/1.1\r\n\r\n")), "400");  // no Host
  EXPECT_EQ(status(ask("GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")), "400");
  EXPECT_EQ(status(ask("GET /echo HTTP/2.0\r\nHost: a\r\n\r\n")), "505");
  EXPECT_EQ(status(ask("GET /echo\r\n\r\n")), "400");
  EXPECT_EQ(status(ask("\x16\x03\x01\x02\r\n\r\n")), "400");  // somebody speaks TLS
  EXPECT_EQ(status(ask("GET /echo HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n")), "400");
  EXPECT_EQ(status(ask("GET /echo HTTP/1.1\nHost: x\n\n")), "505");  // the line has no end
  EXPECT_EQ(status(ask("GET /echo HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n")), "417");
}

TEST_F(HttpServerTest, HoldsItsSizes) {
  start({.header_bytes_max = 4096,
         .header_count_max = 10,
         .target_bytes_max = 100,
         .body_bytes_max = 1000});
  const auto get = [](std::string_view target, std::string_view headers) {
    return "GET " + std::string(target) + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
           std::string(headers) + "\r\n";
  };
  const std::string target = "/echo?" + std::string(94, 'q');
  EXPECT_EQ(status(ask(get(target, ""))), "200");
  EXPECT_EQ(status(ask(get(target + "q", ""))), "414");
  EXPECT_EQ(status(ask(get(std::string(5000, '/'), ""))), "414");
  EXPECT_EQ(status(ask(get("/echo", "a: " + std::string(3900, 'v') + "\r\n"))), "200");
  EXPECT_EQ(status(ask(get("/echo", "a: " + std::string(4100, 'v') + "\r\n"))), "431");
  std::string headers;
  for (int i = 0; i < 8; ++i) {
    headers += "a: b\r\n";
  }
  EXPECT_EQ(status(ask(get("/echo", headers))), "200");  // with Host and Connection: ten
  EXPECT_EQ(status(ask(get("/echo", headers + "a: b\r\n"))), "431");
  const auto post = [](std::size_t bytes) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
           std::to_string(bytes) + "\r\n\r\n" + std::string(bytes, 'b');
  };
  EXPECT_EQ(status(ask(post(1000))), "200");
  EXPECT_EQ(status(ask(post(1001))), "413");
  EXPECT_NE(ask(post(1001)).find("It may have 1000 bytes."), std::string::npos);
  const auto chunked = [](std::string_view size, std::size_t bytes) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked"
           "\r\n\r\n" +
           std::string(size) + "\r\n" + std::string(bytes, 'b') + "\r\n0\r\n\r\n";
  };
  EXPECT_EQ(status(ask(chunked("3e8", 1000))), "200");
  EXPECT_EQ(status(ask(chunked("3e9", 1001))), "413");
}

TEST_F(HttpServerTest, BodiesShareABudget) {
  start({.bodies_bytes_max = 1000});
  SocketClient holder(server_->port());
  holder.send("POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 600\r\n\r\n" +
              std::string(600, 'a'));
  const auto held = handler_.wait_open();
  const std::string second =
      "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
      "401\r\n\r\n" +
      std::string(401, 'b');
  EXPECT_EQ(status(ask(second)), "503");
  held->post([held] { held->respond({}); });
  holder.read_response();
  EXPECT_EQ(status(ask(second)), "200");
}

TEST_F(HttpServerTest, RefusesBeforeTheBodyIsSent) {
  start();
  const std::string reply =
      ask("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
          "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(status(reply), "404");
  EXPECT_NE(reply.find("connection: close"), std::string::npos);
  SocketClient client(server_->port());  // without a body the connection stays
  client.send("GET /refused HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(status(client.read_response()), "404");
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(status(client.read_response()), "200");
}

TEST_F(HttpServerTest, AsksForTheBodyOnlyWhenExpected) {
  start();
  SocketClient client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_TRUE(client.read_response().ends_with("POST ok"));
}

TEST_F(HttpServerTest, SlowHeadersAndBodiesEndIn408) {
  start({.header_timeout = 30ms, .body_timeout = 30ms});
  EXPECT_EQ(status(ask("GET /echo HTTP/1.1\r\nHos")), "408");
  EXPECT_EQ(status(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab")), "408");
}

TEST_F(HttpServerTest, DripFeedingDoesNotExtendTheDeadline) {
  start({.header_timeout = 60ms});
  SocketClient client(server_->port());
  const auto begin = RealClock().now();
  client.send("GET /echo HTTP/1.1\r\n");
  // A header every few milliseconds, for as long as the server takes them.
  std::string reply;
  while (reply.empty() && client.send("a: b\r\n") && RealClock().now() - begin < 5s) {
    reply = client.try_read();
  }
  EXPECT_EQ(status(reply), "408");
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedSilently) {
  start({.idle_timeout = 30ms});
  EXPECT_EQ(ask(""), "");
  SocketClient client(server_->port());
  client.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  client.read_response();
  EXPECT_EQ(client.read_all(), "");
}

TEST_F(HttpServerTest, TellsHowManyConnectionsAreOpen) {
  start({.linger_timeout = 10ms});
  SocketClient first(server_->port());
  SocketClient second(server_->port());
  handler_.wait_connections(2);
  first.close();
  handler_.wait_connections(1);
  EXPECT_EQ(server_->connection_count(), 1U);
}

TEST_F(HttpServerTest, OneConnectionTooManyIsToldSo) {
  start({.connections_max = 1});
  SocketClient first(server_->port());
  first.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  first.read_response();
  EXPECT_EQ(status(SocketClient(server_->port()).read_all()), "503");
  first.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(status(first.read_all()), "200");
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticedInEveryPhase) {
  start();
  int count = 0;
  for (const std::string_view path : {"/later", "/stream"}) {
    for (const bool hard : {false, true}) {
      SocketClient client(server_->port());
      client.send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n");
      const auto exchange = handler_.wait_open();
      hard ? client.reset() : client.close();
      handler_.wait_gone(++count);
      EXPECT_TRUE(exchange->gone());
      std::promise<void> done;
      exchange->post([&] {  // late answers are accepted and dropped
        path == "/later" ? exchange->respond({}) : exchange->write("late");
        done.set_value();
      });
      done.get_future().wait();
    }
  }
}

TEST_F(HttpServerTest, HalfAConnectionIsEnoughForAnAnswerThatIsReady) {
  start();
  SocketClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
  client.shut_down_sending();
  EXPECT_TRUE(client.read_all().ends_with("POST hi"));
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsCutOff) {
  start({.write_timeout = 50ms});
  SocketClient client(server_->port());
  client.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  handler_.wait_finished("200 cut /large");
}

TEST_F(HttpServerTest, AQuietStreamIsReported) {
  start({.keep_alive_interval = 10ms});
  SocketClient client(server_->port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto stream = handler_.wait_open();
  handler_.wait_keep_alive();
}

TEST_F(HttpServerTest, DrainsRunningRequestsAndClosesIdleConnections) {
  start({.linger_timeout = 1h});  // which a drain does not wait for
  SocketClient idle(server_->port());
  idle.send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.read_response();
  SocketClient busy(server_->port());
  busy.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = handler_.wait_open();
  auto drained = std::async(std::launch::async, [&] { return server_->drain(5s); });
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_FALSE(SocketClient(server_->port()).connected());
  exchange->post([exchange] { exchange->respond({.body = "done"}); });
  EXPECT_TRUE(busy.read_all().ends_with("done"));
  EXPECT_TRUE(drained.get());
}

TEST_F(HttpServerTest, ADrainIsBoundedAndDestructionCuts) {
  start({.linger_timeout = 20s, .stop_timeout = 10ms});
  SocketClient busy(server_->port());
  busy.send("GET /deaf HTTP/1.1\r\nHost: x\r\n\r\n");
  handler_.wait_open();
  SocketClient uploading(server_->port());
  uploading.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
  uploading.read_until("100 Continue\r\n\r\n");
  uploading.send("half");
  SocketClient silent(server_->port());  // does not read what it asked for
  silent.send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  silent.read_until("\r\n\r\n");
  auto drained = std::async(std::launch::async, [&] { return server_->drain(10ms); });
  ASSERT_EQ(drained.wait_for(5s), std::future_status::ready);
  EXPECT_FALSE(drained.get());
  server_.reset();
  EXPECT_EQ(handler_.gone(), 1);
  EXPECT_EQ(busy.read_all().find("0\r\n\r\n"), std::string::npos);
  EXPECT_EQ(uploading.read_all(), "");
  handler_.wait_finished("200 cut /large");
}

TEST_F(HttpServerTest, AtTheLimitOfADrainAnswersEndThemselves) {
  start({.linger_timeout = 1h, .stop_timeout = 20s});
  SocketClient whole(server_->port());
  whole.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  handler_.wait_open();
  SocketClient stream(server_->port());
  stream.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  handler_.wait_open();
  stream.read_until("\r\n\r\n");
  auto drained = std::async(std::launch::async, [&] { return server_->drain(10ms); });
  const std::string told = whole.read_all();
  EXPECT_EQ(status(told), "503");
  EXPECT_TRUE(told.ends_with("\r\n\r\nstopped"));
  EXPECT_EQ(stream.read_all(), "7\r\nstopped\r\n0\r\n\r\n");
  // Both clients keep their sockets open, which costs no time.
  EXPECT_EQ(drained.wait_for(5s), std::future_status::ready);
  EXPECT_FALSE(drained.get());
  EXPECT_EQ(handler_.gone(), 0);
}

TEST_F(HttpServerTest, AServerThatEndsTakesNoMoreWork) {
  start();
  for (const bool ends : {false, true}) {
    SocketClient client(server_->port());
    client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
    handler_.wait_open();
    ends ? server_.reset() : client.close();
    handler_.wait_gone(ends ? 2 : 1);
    EXPECT_EQ(handler_.gone_and_offloading(), 1);  // the one whose client left
  }
}

// For the sanitizers: whichever of the two comes first, what a body started ends before the server.
TEST_F(HttpServerTest, AServerMayEndWhileABodyCompletes) {
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    start({.codec_threads = 1});
    SocketClient client(server_->port());
    client.send(
        "POST /work HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n");
    client.read_until("\r\n\r\n");
    client.send("b");
    server_.reset();
    const std::string reply = client.read_all();
    EXPECT_TRUE(reply.empty() || status(reply) == "200" || status(reply) == "503") << reply;
  }
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  start();
  auto taken = HttpServer::start({.port = server_->port()}, handler_, clock_, ids_);
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, Code::kUnavailable);
  auto odd = HttpServer::start({.address = "localhost", .port = 0}, handler_, clock_, ids_);
  ASSERT_FALSE(odd.has_value());
  EXPECT_EQ(odd.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace galley::gateway
