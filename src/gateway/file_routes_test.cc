// Goal: files and batches over HTTP: forms in, objects out, errors by name, each tenant its own.
// Method: the routes without sockets; the disk's tasks run at once.
#include "gateway/file_routes.h"

#include <filesystem>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "gateway/fakes_for_test.h"
#include "gateway/routes.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

namespace fs = std::filesystem;
using recipe::Json;

class FileRoutesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("galley_file_routes_{}_{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    store_ = FileStore::open(folder_, {}, gateway_.clock).value();
    worker_ = std::make_unique<BatchWorker>(*store_, gateway_.context(), BatchWorkerOptions{},
                                            gateway_.metrics, gateway_.log, BatchWorker::Idle());
    desk_ =
        std::make_unique<FileDesk>(FileDesk{.store = *store_,
                                            .worker = *worker_,
                                            .clock = gateway_.clock,
                                            .ids = gateway_.ids,
                                            .run = [this](std::move_only_function<void()>&& task) {
                                              if (!full_) {
                                                task();
                                              }
                                              return !full_;
                                            }});
    ApiKeys keys;
    ASSERT_TRUE(keys.add({.name = "alice", .hash = cache::sha256("one")}));
    ASSERT_TRUE(keys.add({.name = "bob", .hash = cache::sha256("two")}));
    routes_ = std::make_unique<Routes>(gateway_.context(), gateway_.metrics, gateway_.log,
                                       RouteOptions{.keys = std::move(keys), .files = desk_.get()});
  }
  void TearDown() override {
    for (const auto& exchange : exchanges_) {
      exchange->listener.reset();
    }
    worker_.reset();
    store_.reset();
    fs::remove_all(folder_);
  }
  std::shared_ptr<FakeExchange> send(std::string method,
                                     std::string path,
                                     std::string query = "",
                                     std::string body = "",
                                     std::string type = "application/json",
                                     std::string key = "one") {
    const auto exchange = std::make_shared<FakeExchange>(
        HttpRequest{.id = "req_1",
                    .method = std::move(method),
                    .path = std::move(path),
                    .query = std::move(query),
                    .headers = {{"authorization", "Bearer " + key}, {"content-type", type}},
                    .body = {.text = std::move(body)}});
    exchanges_.push_back(exchange);
    if (auto early = routes_->refuse_early(exchange->request())) {
      exchange->respond(std::move(*early));
    } else {
      routes_->handle(exchange);
    }
    exchange->run();
    return exchange;
  }
  HttpResponse ask(std::string method,
                   std::string path,
                   std::string query = "",
                   std::string body = "") {
    return send(std::move(method), std::move(path), std::move(query), std::move(body))->response;
  }
  HttpResponse upload(std::string_view content,
                      std::string_view purpose = "batch",
                      std::string_view more = "",
                      std::string key = "one") {
    return send("POST", "/v1/files", "",
                fmt::format("--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{}\r\n"
                            "{}--b\r\nContent-Disposition: form-data; name=\"file\"; "
                            "filename=\"in.jsonl\"\r\n\r\n{}\r\n--b--\r\n",
                            purpose, more, content),
                "multipart/form-data; boundary=b", std::move(key))
        ->response;
  }
  std::string upload_id(std::string_view content) { return text(upload(content), "id"); }
  static std::string text(const HttpResponse& response, std::string_view key) {
    const auto json = recipe::parse_json(response.body);
    const Json* const value = json ? json->find(key) : nullptr;
    return value == nullptr || value->string() == nullptr ? response.body : *value->string();
  }
  static std::string param(const HttpResponse& response) {
    const auto json = recipe::parse_json(response.body);
    const Json* const error = json ? json->find("error") : nullptr;
    const Json* const value = error == nullptr ? nullptr : error->find("param");
    return value == nullptr || value->string() == nullptr ? response.body : *value->string();
  }
  static std::string batch_body(std::string_view file, std::string_view more = "") {
    return fmt::format(
        R"({{"input_file_id":"{}","endpoint":"/v1/responses","completion_window":"24h"{}}})", file,
        more);
  }

  TestGateway gateway_;
  fs::path folder_;
  bool full_ = false;
  std::unique_ptr<FileStore> store_;
  std::unique_ptr<BatchWorker> worker_;
  std::unique_ptr<FileDesk> desk_;
  std::unique_ptr<Routes> routes_;
  std::vector<std::shared_ptr<FakeExchange>> exchanges_;
};

TEST_F(FileRoutesTest, AFileComesAndGoes) {
  const HttpResponse uploaded = upload("one\ntwo\n");
  EXPECT_EQ(uploaded.status, 200) << uploaded.body;
  const std::string id = text(uploaded, "id");
  EXPECT_EQ(uploaded.body,
            fmt::format(R"({{"id":"{}","object":"file","bytes":8,"created_at":1700000000,)"
                        R"("expires_at":null,"filename":"in.jsonl","purpose":"batch",)"
                        R"("status":"processed"}})",
                        id));
  EXPECT_EQ(ask("GET", "/v1/files/" + id).body, uploaded.body);
  const auto content = send("GET", "/v1/files/" + id + "/content");
  EXPECT_EQ(content->response.body, "one\ntwo\n");
  EXPECT_TRUE(content->ended);
  EXPECT_EQ(ask("GET", "/files").body,
            fmt::format(R"({{"object":"list","data":[{}],"first_id":"{}","last_id":"{}",)"
                        R"("has_more":false}})",
                        uploaded.body, id, id));
  EXPECT_EQ(ask("DELETE", "/v1/files/" + id).body,
            fmt::format(R"({{"id":"{}","object":"file","deleted":true}})", id));
  for (const std::string& path : {"/v1/files/" + id, "/v1/files/" + id + "/content"}) {
    EXPECT_EQ(ask("GET", path).status, 404) << path;
  }
}

TEST_F(FileRoutesTest, AnotherKeysFileIsNotThere) {
  const std::string id = upload_id("x");
  const std::string batch = text(ask("POST", "/v1/batches", "", batch_body(id)), "id");
  for (const std::string& path :
       {"/v1/files/" + id, "/v1/files/" + id + "/content", "/v1/batches/" + batch}) {
    EXPECT_EQ(send("GET", path, "", "", "", "two")->response.status, 404) << path;
    EXPECT_EQ(ask("GET", path).status, 200) << path;
  }
  EXPECT_EQ(send("POST", "/v1/batches/" + batch + "/cancel", "", "", "", "two")->response.status,
            404);
  EXPECT_EQ(
      send("POST", "/v1/batches", "", batch_body(id), "application/json", "two")->response.status,
      400);
}

TEST_F(FileRoutesTest, ALargeFileIsSentAsFastAsItsReaderReads) {
  const std::string large(700'000, 'x');
  const std::string id = upload_id(large);
  const auto content = send("GET", "/v1/files/" + id + "/content");
  EXPECT_FALSE(content->ended);
  EXPECT_LE(content->unsent, std::size_t{256} << 10U);
  while (!content->ended) {
    content->send_all();
    content->run();
  }
  EXPECT_EQ(content->response.body, large);
}

TEST_F(FileRoutesTest, AReaderThatLeavesEndsADownload) {
  const std::string id = upload_id(std::string(700'000, 'x'));
  const auto content = send("GET", "/v1/files/" + id + "/content");
  content->leave();
  content->run();
  EXPECT_FALSE(content->ended);
  // A file that goes meanwhile is cut, not taken for whole.
  const auto other = send("GET", "/v1/files/" + id + "/content");
  ASSERT_TRUE(store_->remove_file("alice", id));
  other->send_all();
  other->run();
  EXPECT_TRUE(other->aborted);
}

TEST_F(FileRoutesTest, AFileWhoseBytesAreGoneIsAnErrorBeforeTheHead) {
  const std::string id = upload_id("x");
  fs::remove(folder_ / "files" / id);
  EXPECT_EQ(ask("GET", "/v1/files/" + id + "/content").status, 404);
  fs::create_directory(folder_ / "files" / id);
  EXPECT_EQ(ask("GET", "/v1/files/" + id + "/content").status, 503);
  const std::string empty = upload_id("");
  const auto content = send("GET", "/v1/files/" + empty + "/content");
  EXPECT_EQ(content->response.status, 200);
  EXPECT_TRUE(content->ended);
}

TEST_F(FileRoutesTest, AFileThatABatchNeedsIsKept) {
  const std::string id = upload_id("x");
  const std::string batch = text(ask("POST", "/v1/batches", "", batch_body(id)), "id");
  const HttpResponse refused = ask("DELETE", "/v1/files/" + id);
  EXPECT_EQ(refused.status, 409);
  EXPECT_NE(refused.body.find("file_in_use"), std::string::npos) << refused.body;
  EXPECT_EQ(ask("POST", "/v1/batches/" + batch + "/cancel").status, 200);
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(ask("DELETE", "/v1/files/" + id).status, 200);
}

TEST_F(FileRoutesTest, BadFormsAreNamed) {
  const HttpResponse latin =
      send("POST", "/v1/files", "",
           "--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--b\r\n"
           "Content-Disposition: form-data; name=file; filename=\"caf\xe9\"\r\n\r\nx\r\n--b--",
           "multipart/form-data; boundary=b")
          ->response;
  EXPECT_EQ(latin.status, 400);
  EXPECT_EQ(param(latin), "filename");
  EXPECT_EQ(param(upload("x", "vision")), "purpose");
  EXPECT_EQ(param(send("POST", "/v1/files", "", "{}")->response), "content-type");
  EXPECT_EQ(param(send("POST", "/v1/files", "",
                       "--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--b--",
                       "multipart/form-data; boundary=b")
                      ->response),
            "file");
  const auto expiring = [this](std::string_view seconds) {
    return upload("x", "batch",
                  fmt::format("--b\r\nContent-Disposition: form-data; "
                              "name=\"expires_after[seconds]\"\r\n\r\n{}\r\n",
                              seconds));
  };
  EXPECT_EQ(param(expiring("3599")), "expires_after[seconds]");
  EXPECT_EQ(param(expiring("2592001")), "expires_after[seconds]");
  EXPECT_EQ(param(expiring("x")), "expires_after[seconds]");
  EXPECT_NE(expiring("3600").body.find(R"("expires_at":1700003600)"), std::string::npos);
}

TEST_F(FileRoutesTest, ABatchIsMadeListedAndCancelled) {
  const std::string id = upload_id("x");
  const HttpResponse made =
      ask("POST", "/v1/batches", "", batch_body(id, R"(,"metadata":{"a":"b"})"));
  EXPECT_EQ(made.status, 200) << made.body;
  const std::string batch = text(made, "id");
  EXPECT_EQ(text(made, "status"), "validating");
  EXPECT_EQ(text(made, "input_file_id"), id);
  EXPECT_EQ(ask("GET", "/v1/batches/" + batch).body, made.body);
  const auto list = recipe::parse_json(ask("GET", "/v1/batches", "limit=1").body);
  EXPECT_EQ(to_json(list->find("data")->array()->front()), made.body);
  EXPECT_EQ(text(ask("POST", "/v1/batches/" + batch + "/cancel"), "status"), "cancelling");
  EXPECT_EQ(text(ask("POST", "/v1/batches/" + batch + "/cancel"), "status"), "cancelling");
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(text(ask("GET", "/v1/batches/" + batch), "status"), "cancelled");
  EXPECT_EQ(ask("POST", "/v1/batches/" + batch + "/cancel").status, 400);
}

TEST_F(FileRoutesTest, BadBatchesAreNamed) {
  const std::string id = upload_id("x");
  for (const auto& [body, name] : {std::pair<std::string, std::string>{"[]", "body"},
                                   {"{}", "input_file_id"},
                                   {batch_body("file-none"), "input_file_id"},
                                   {R"({"input_file_id":"a"})", "endpoint"},
                                   {R"({"input_file_id":"a","endpoint":"/v1/embeddings",)"
                                    R"("completion_window":"24h"})",
                                    "endpoint"},
                                   {R"({"input_file_id":"a","endpoint":"/v1/responses",)"
                                    R"("completion_window":"1h"})",
                                    "completion_window"},
                                   {batch_body(id, R"(,"metadata":{"a":1})"), "metadata"}}) {
    const HttpResponse response = ask("POST", "/v1/batches", "", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(param(response), name) << response.body;
  }
  EXPECT_EQ(ask("GET", "/v1/batches", "limit=0").status, 400);
  EXPECT_EQ(ask("GET", "/v1/files", "order=x").status, 400);
  EXPECT_EQ(ask("GET", "/v1/batches/none").status, 404);
}

TEST_F(FileRoutesTest, TooMuchWaitingForTheDiskIsSaid) {
  full_ = true;
  EXPECT_EQ(upload("x").status, 429);
  EXPECT_EQ(ask("GET", "/v1/files/a/content").status, 429);
}

TEST_F(FileRoutesTest, AServerWithoutAFolderSaysSo) {
  Routes routes(gateway_.context(), gateway_.metrics, gateway_.log);
  const auto refused = routes.refuse_early({.method = "POST", .path = "/v1/files"});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 501);
  EXPECT_NE(refused->body.find("server.data"), std::string::npos);
}

}  // namespace
}  // namespace galley::gateway
