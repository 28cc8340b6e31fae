// Goal: a Response that was kept can be named, read, listed and deleted by its tenant, and a store
// that fails costs nobody an answer.
// Method: the routes without sockets, over a store in memory or one that fails; the store's tasks
// run when the test says so.
#include "gateway/response_routes.h"

#include <deque>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "gateway/fakes_for_test.h"
#include "gateway/routes.h"
#include "gateway/sqlite_response_store.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using recipe::Json;

class FailingStore final : public ResponseStore {
 public:
  Result<void> put(const StoredResponse&) override { return std::unexpected(error()); }
  Result<StoredResponse> get(std::string_view, std::string_view) override {
    return std::unexpected(error());
  }
  Result<void> remove(std::string_view, std::string_view) override {
    return std::unexpected(error());
  }

 private:
  static Error error() { return {.code = Code::kUnavailable, .what = "the disk is on fire"}; }
};

class ResponseRoutesTest : public testing::Test {
 protected:
  void SetUp() override { use(*store_); }
  void TearDown() override {
    for (const auto& exchange : exchanges_) {
      exchange->listener.reset();
    }
  }
  void use(ResponseStore& store) {
    gateway_.codec =
        Codec::create(small_tokenizer(), {.default_thinking = false, .keeps_responses = true}, 2000)
            .value();
    desk_ = std::make_unique<ResponseDesk>(
        store,
        [this](ResponseDesk::Task&& task) {
          if (full_) {
            return false;
          }
          disk_.push_back(std::move(task));
          return true;
        },
        gateway_.metrics, gateway_.log);
    ReplyContext context = gateway_.context();
    context.responses = desk_.get();
    ApiKeys keys;
    ASSERT_TRUE(keys.add({.name = "alice", .hash = cache::sha256("one")}));
    ASSERT_TRUE(keys.add({.name = "bob", .hash = cache::sha256("two")}));
    routes_ = std::make_unique<Routes>(context, gateway_.metrics, gateway_.log,
                                       RouteOptions{.keys = std::move(keys)});
  }
  std::shared_ptr<FakeExchange> send(std::string method,
                                     std::string path,
                                     std::string query = "",
                                     std::string body = "",
                                     std::string key = "one") {
    const auto exchange =
        std::make_shared<FakeExchange>(HttpRequest{.id = "req_1",
                                                   .method = std::move(method),
                                                   .path = std::move(path),
                                                   .query = std::move(query),
                                                   .headers = {{"authorization", "Bearer " + key}},
                                                   .body = {.text = std::move(body)}});
    exchanges_.push_back(exchange);
    if (auto early = routes_->refuse_early(exchange->request())) {
      exchange->respond(std::move(*early));
    } else {
      routes_->handle(exchange);
    }
    work(*exchange);
    return exchange;
  }
  void work(FakeExchange& exchange) {
    exchange.run();
    while (!disk_.empty()) {
      auto task = std::move(disk_.front());
      disk_.pop_front();
      task();
      exchange.run();
    }
  }
  HttpResponse ask(std::string method, std::string path, std::string query = "") {
    return send(std::move(method), std::move(path), std::move(query))->response;
  }
  // The Response, once the source has said `text`.
  Json create(std::string_view more, std::string_view text = "Hi", std::string key = "one") {
    gateway_.source.forget();
    const auto exchange =
        send("POST", "/v1/responses", "",
             fmt::format(R"({{"model":"DeepSeek-V4.1-Flash","input":"Hello"{}}})", more),
             std::move(key));
    gateway_.source.sink().on_start({.prompt_tokens = 10});
    gateway_.source.send(text);
    gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
    work(*exchange);
    EXPECT_EQ(exchange->response.status, 200) << exchange->response.body;
    last_ = exchange;
    return recipe::parse_json(exchange->response.body).value_or(Json());
  }
  static std::string id_of(const Json& response) { return *response.find("id")->string(); }
  static std::string header(const HttpResponse& response, std::string_view name) {
    for (const HttpHeader& header : response.headers) {
      if (header.name == name) {
        return header.value;
      }
    }
    return "";
  }
  static std::string code(const HttpResponse& response) {
    const auto json = recipe::parse_json(response.body);
    const Json* const error = json ? json->find("error") : nullptr;
    return error == nullptr ? response.body : *error->find("code")->string();
  }
  std::string prompt() { return small_tokenizer()->decode(gateway_.source.last.prompt); }

  TestGateway gateway_;
  std::unique_ptr<SqliteResponseStore> store_ =
      SqliteResponseStore::open(":memory:", {}, gateway_.clock).value();
  bool full_ = false;
  std::deque<ResponseDesk::Task> disk_;
  std::unique_ptr<ResponseDesk> desk_;
  std::unique_ptr<Routes> routes_;
  std::vector<std::shared_ptr<FakeExchange>> exchanges_;
  std::shared_ptr<FakeExchange> last_;
};

TEST_F(ResponseRoutesTest, AResponseIsKeptUnlessARequestSaysNo) {
  const Json kept = create("");
  EXPECT_EQ(*kept.find("store"), Json(true));
  const HttpResponse read = ask("GET", "/v1/responses/" + id_of(kept));
  EXPECT_EQ(read.status, 200);
  EXPECT_EQ(recipe::parse_json(read.body), kept);
  const Json gone = create(R"(,"store":false)");
  EXPECT_EQ(*gone.find("store"), Json(false));
  EXPECT_EQ(ask("GET", "/responses/" + id_of(gone)).status, 404);
}

TEST_F(ResponseRoutesTest, AStreamIsKeptBeforeItEnds) {
  const auto exchange = send("POST", "/v1/responses", "",
                             R"({"model":"DeepSeek-V4.1-Flash","input":"Hello","stream":true})");
  gateway_.source.sink().on_start({.prompt_tokens = 10});
  gateway_.source.send("Hi");
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  exchange->run();
  EXPECT_FALSE(exchange->ended);
  EXPECT_EQ(exchange->response.body.find("response.completed"), std::string::npos);
  EXPECT_EQ(gateway_.source.ended(), 1) << "a full disk holds no slot of the engine";
  work(*exchange);
  EXPECT_TRUE(exchange->ended);
  const std::string& body = exchange->response.body;
  constexpr std::string_view kBegin = R"("type":"response.completed","response":)";
  const std::size_t at = body.find(kBegin);
  ASSERT_NE(at, std::string::npos) << body;
  const std::string rest = body.substr(at + kBegin.size());
  const auto kept = recipe::parse_json(rest.substr(0, rest.rfind(",\"sequence_number\"")));
  ASSERT_TRUE(kept) << rest;
  EXPECT_EQ(recipe::parse_json(ask("GET", "/v1/responses/" + id_of(*kept)).body), *kept);
}

TEST_F(ResponseRoutesTest, AConversationGoesOnByName) {
  const Json first = create("", "Hi");
  const Json second = create(
      fmt::format(R"(,"previous_response_id":"{}","instructions":"Be kind.")", id_of(first)), "Ho");
  EXPECT_EQ(prompt(),
            "<｜begin▁of▁sentence｜><｜System｜>Be kind.<｜User｜>Hello<｜Assistant｜></think>Hi"
            "<｜end▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>");
  EXPECT_EQ(*second.find("previous_response_id"), Json(id_of(first)));
  // Instructions are of one turn.
  create(fmt::format(R"(,"previous_response_id":"{}")", id_of(second)));
  EXPECT_EQ(prompt(),
            "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>Hi<｜end▁of▁sentence｜>"
            "<｜User｜>Hello<｜Assistant｜></think>Ho<｜end▁of▁sentence｜>"
            "<｜User｜>Hello<｜Assistant｜></think>");
}

TEST_F(ResponseRoutesTest, AnErrorNamesTheItemThatWasSent) {
  const Json first = create("");
  const auto exchange = send(
      "POST", "/v1/responses", "",
      fmt::format(
          R"({{"model":"DeepSeek-V4.1-Flash","previous_response_id":"{}","input":[{{"role":"user","content":"a"}},{{"type":"function_call_output","call_id":"x","output":"y"}}]}})",
          id_of(first)));
  EXPECT_EQ(exchange->response.status, 400);
  EXPECT_NE(exchange->response.body.find("input[1].call_id"), std::string::npos)
      << exchange->response.body;
}

TEST_F(ResponseRoutesTest, AResponseNobodyKnowsIsAnError) {
  const auto exchange =
      send("POST", "/v1/responses", "",
           R"({"model":"DeepSeek-V4.1-Flash","input":"x","previous_response_id":"resp_9"})");
  EXPECT_EQ(exchange->response.status, 400);
  EXPECT_EQ(code(exchange->response), "previous_response_not_found");
  // Nobody may get an answer that has forgotten the conversation.
  const auto spelled =
      send("POST", "/v1/responses", "",
           R"({"model":"DeepSeek-V4.1-Flash","input":"x","previous_respons\u0065_id":"resp_9"})");
  EXPECT_EQ(spelled->response.status, 400) << spelled->response.body;
  EXPECT_EQ(ask("GET", "/v1/responses/resp_9").status, 404);
  EXPECT_EQ(ask("DELETE", "/v1/responses/resp_9").status, 404);
  EXPECT_EQ(ask("POST", "/v1/responses/resp_9/cancel").status, 404);
  EXPECT_EQ(ask("GET", "/v1/responses/resp_9/input_items").status, 404);
}

TEST_F(ResponseRoutesTest, AnotherKeysResponseIsNotThere) {
  const std::string path = "/v1/responses/" + id_of(create(""));
  for (const std::string method : {"GET", "DELETE"}) {
    EXPECT_EQ(send(method, path, "", "", "two")->response.status, 404);
  }
  EXPECT_EQ(send("GET", path + "/input_items", "", "", "two")->response.status, 404);
  EXPECT_EQ(send("GET", path, "", "", "three")->response.status, 401);
  EXPECT_EQ(ask("GET", path).status, 200);
}

TEST_F(ResponseRoutesTest, DeletedIsGone) {
  const std::string id = id_of(create(""));
  const HttpResponse deleted = ask("DELETE", "/v1/responses/" + id);
  EXPECT_EQ(deleted.body, fmt::format(R"({{"id":"{}","object":"response","deleted":true}})", id));
  EXPECT_EQ(ask("GET", "/v1/responses/" + id).status, 404);
}

TEST_F(ResponseRoutesTest, CancelAnswersAsForAnyResponseThatDoesNotRun) {
  const HttpResponse response = ask("POST", "/v1/responses/" + id_of(create("")) + "/cancel");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("Cannot cancel a synchronous response."), std::string::npos);
}

TEST_F(ResponseRoutesTest, ItemsArePaged) {
  const std::string first = id_of(create(""));
  const std::string id = id_of(create(fmt::format(R"(,"previous_response_id":"{}")", first)));
  const std::string path = "/v1/responses/" + id + "/input_items";
  const auto page = recipe::parse_json(ask("GET", path, "order=asc&limit=2").body);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->find("data")->array()->size(), 2U);
  EXPECT_EQ(*page->find("has_more"), Json(true));
  const auto rest = recipe::parse_json(
      ask("GET", path, "order=asc&limit=2&after=" + *page->find("last_id")->string()).body);
  EXPECT_EQ(rest->find("data")->array()->size(), 1U);
  for (const std::string query : {"limit=0", "limit=101", "limit=x", "limit=", "order=up"}) {
    EXPECT_EQ(ask("GET", path, query).status, 400) << query;
  }
  EXPECT_EQ(ask("GET", path, "limit=100").status, 200);
  EXPECT_EQ(ask("GET", "/v1/responses/" + id, "stream=true").status, 400);
}

TEST_F(ResponseRoutesTest, ADiskThatFailsCostsNoAnswer) {
  FailingStore failing;
  use(failing);
  const Json response = create("", "Hi");
  EXPECT_NE(recipe::to_json(response).find("\"text\":\"Hi\""), std::string::npos);
  EXPECT_EQ(header(last_->response, "x-galley-note"),
            "the response was not stored: the disk is on fire");
  EXPECT_NE(gateway_.metrics.render().find("galley_responses_not_kept_total 1"), std::string::npos);
  EXPECT_NE(gateway_.log_lines.back().find("on fire"), std::string::npos);
  const HttpResponse read = ask("GET", "/v1/responses/resp_1");
  EXPECT_EQ(read.status, 503);
  EXPECT_NE(read.body.find("on fire"), std::string::npos);
  const auto named =
      send("POST", "/v1/responses", "",
           R"({"model":"DeepSeek-V4.1-Flash","input":"x","previous_response_id":"resp_9"})");
  EXPECT_EQ(named->response.status, 503);
}

TEST_F(ResponseRoutesTest, TooMuchWaitingForTheDiskIsSaid) {
  full_ = true;
  create("", "Hi");
  EXPECT_NE(header(last_->response, "x-galley-note").find("Too many responses wait"),
            std::string::npos);
  EXPECT_EQ(ask("GET", "/v1/responses/resp_1").status, 429);
  EXPECT_EQ(send("POST", "/v1/responses", "",
                 R"({"model":"DeepSeek-V4.1-Flash","input":"x","previous_response_id":"resp_9"})")
                ->response.status,
            429);
}

TEST_F(ResponseRoutesTest, AClientThatLeavesWhileItsReplyIsStoredHurtsNobody) {
  const auto exchange =
      send("POST", "/v1/responses", "", R"({"model":"DeepSeek-V4.1-Flash","input":"Hello"})");
  gateway_.source.sink().on_start({.prompt_tokens = 10});
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  exchange->run();
  EXPECT_EQ(disk_.size(), 1U);
  exchange->leave();
  work(*exchange);
  EXPECT_FALSE(exchange->started);
  EXPECT_EQ(store_->count(), 1U);
}

}  // namespace
}  // namespace galley::gateway
