// Goal: a batch goes from its input to two files, whatever happens between: a stop, a cancel, a bad
// line, a bad file, another tenant.
// Method: turns of a worker without a thread, over an echo source and a temporary folder.
#include "gateway/batch_worker.h"

#include <algorithm>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <thread>

#include "base/loop_thread.h"
#include "gateway/batch_lines.h"
#include "gateway/batch_object.h"
#include "gateway/fakes_for_test.h"
#include "gateway/sources/echo.h"

namespace galley::gateway {
namespace {

namespace fs = std::filesystem;

class BatchWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("galley_batches_{}_{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    open({});
  }
  void TearDown() override {
    worker_.reset();
    store_.reset();
    fs::remove_all(folder_);
  }
  void open(FileLimits limits, std::function<bool(std::size_t)> may_start = {}) {
    worker_.reset();
    store_.reset();
    store_ = FileStore::open(folder_, limits, gateway_.clock).value();
    ReplyContext context = {.codec = *gateway_.codec,
                            .source = echo_,
                            .clock = gateway_.clock,
                            .ids = gateway_.ids,
                            .metrics = ReplyMetrics(gateway_.metrics)};
    worker_ = std::make_unique<BatchWorker>(
        *store_, context, BatchWorkerOptions{.window = 2, .may_start = std::move(may_start)},
        gateway_.metrics, gateway_.log, BatchWorker::Idle());
  }
  static std::string line(std::size_t number, std::string_view url = "/v1/chat/completions") {
    return fmt::format(R"({{"custom_id":"c{}","method":"POST","url":"{}","body":{}}})"
                       "\n",
                       number, url, chat_body());
  }
  static std::string lines(std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) {
      out += line(i);
    }
    return out;
  }
  void begin(std::string_view input, std::string id = "batch_1", std::string tenant = "alice") {
    const std::string file = "in_" + id;
    ASSERT_TRUE(store_->put_file({.id = file,
                                  .tenant = tenant,
                                  .purpose = "batch",
                                  .created_s = gateway_.clock.unix_seconds()},
                                 input));
    const auto made = new_batch(
        fmt::format(
            R"({{"input_file_id":"{}","endpoint":"/v1/chat/completions","completion_window":"24h"}})",
            file),
        id, tenant, gateway_.clock.unix_seconds());
    ASSERT_TRUE(made && store_->put_batch(*made));
  }
  StoredBatch batch(std::string_view id = "batch_1", std::string_view tenant = "alice") {
    return store_->batch(tenant, id).value();
  }
  static std::string counts(const StoredBatch& batch) {
    return to_json(*batch.object.find("request_counts"));
  }
  // Lines of a file a batch names, 0 where it names none.
  std::size_t line_count(const StoredBatch& batch, std::string_view key) {
    const std::string id = member_text(batch, key);
    if (id.empty()) {
      return 0;
    }
    const std::string text = store_->read_file(batch.tenant, id, 0, 1U << 30U).value();
    return static_cast<std::size_t>(std::ranges::count(text, '\n'));
  }

  LoopThread loop_;
  TestGateway gateway_;
  EchoSource echo_{small_tokenizer(), loop_.loop()};
  fs::path folder_;
  std::unique_ptr<FileStore> store_;
  std::unique_ptr<BatchWorker> worker_;
};

TEST_F(BatchWorkerTest, ABatchBecomesTwoFiles) {
  begin(lines(3) + "nonsense\n" + line(7, "/v1/responses"));
  EXPECT_EQ(batch().status, "validating");
  EXPECT_TRUE(worker_->turn());
  const StoredBatch done = batch();
  EXPECT_EQ(done.status, "completed");
  EXPECT_EQ(counts(done), R"({"total":5,"completed":3,"failed":2})");
  EXPECT_EQ(line_count(done, "output_file_id"), 3U);
  EXPECT_EQ(line_count(done, "error_file_id"), 2U);
  EXPECT_GT(member_number(done, "completed_at"), 0);
  EXPECT_GT(member_number(done, "in_progress_at"), 0);
  const std::string errors =
      store_->read_file("alice", member_text(done, "error_file_id"), 0, 10'000).value();
  EXPECT_NE(errors.find("is not the endpoint of the batch"), std::string::npos) << errors;
  EXPECT_EQ(store_->file("bob", member_text(done, "output_file_id")).error().code, Code::kNotFound);
  EXPECT_FALSE(worker_->turn());
  EXPECT_TRUE(fs::is_empty(folder_ / "batches"));
}

TEST_F(BatchWorkerTest, TenantsTakeTurns) {
  begin(lines(kBatchTurnLines + 1), "batch_1", "alice");
  begin(lines(1), "batch_2", "bob");
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "in_progress");
  EXPECT_EQ(counts(batch()), fmt::format(R"({{"total":{},"completed":{},"failed":0}})",
                                         kBatchTurnLines + 1, kBatchTurnLines));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch("batch_2", "bob").status, "completed");
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "completed");
  EXPECT_EQ(line_count(batch(), "output_file_id"), kBatchTurnLines + 1);
}

TEST_F(BatchWorkerTest, GoesOnWhereAKilledProcessWas) {
  begin(lines(4));
  // An answer, and half of another.
  {
    std::ofstream answers(store_->answers_path("batch_1"));
    answers << batch_answer_line({.id = "x",
                                  .custom_id = "c2",
                                  .status = 200,
                                  .request_id = "req_kept",
                                  .body = "{}"})
            << R"({"id":"batch_req_y","custom_id":"c3","resp)";
  }
  open({});
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "completed");
  EXPECT_EQ(line_count(batch(), "output_file_id"), 4U);
  const std::string text =
      store_->read_file("alice", member_text(batch(), "output_file_id"), 0, 100'000).value();
  EXPECT_NE(text.find("req_kept"), std::string::npos);
}

TEST_F(BatchWorkerTest, AnEndThatWasInterruptedIsMadeAgain) {
  begin(lines(1));
  {
    std::ofstream answers(store_->answers_path("batch_1"));
    answers << batch_answer_line(
        {.id = "x", .custom_id = "c0", .status = 200, .request_id = "r", .body = "{}"});
  }
  ASSERT_TRUE(store_->change_batch(
      "alice", "batch_1", [](StoredBatch& changed) { set_status(changed, "finalizing", 1); }));
  open({});
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "completed");
  EXPECT_EQ(line_count(batch(), "output_file_id"), 1U);
  EXPECT_EQ(counts(batch()), R"({"total":1,"completed":1,"failed":0})");
}

TEST_F(BatchWorkerTest, ACancelledBatchKeepsWhatItHas) {
  begin(lines(kBatchTurnLines + 1));
  EXPECT_TRUE(worker_->turn());
  ASSERT_TRUE(store_->change_batch(
      "alice", "batch_1", [](StoredBatch& changed) { set_status(changed, "cancelling", 1); }));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "cancelled");
  EXPECT_EQ(line_count(batch(), "output_file_id"), kBatchTurnLines);
  EXPECT_FALSE(worker_->turn());
}

// While lines are under way, too.
TEST_F(BatchWorkerTest, ACancelIsSeenWithinATurn) {
  open({}, [this](std::size_t) {
    EXPECT_TRUE(store_->change_batch(
        "alice", "batch_1", [](StoredBatch& changed) { set_status(changed, "cancelling", 1); }));
    worker_->wake();
    return false;
  });
  begin(lines(2));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "cancelling");
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "cancelled");
  EXPECT_EQ(line_count(batch(), "output_file_id"), 0U);
  EXPECT_EQ(counts(batch()), R"({"total":2,"completed":0,"failed":0})");
}

TEST_F(BatchWorkerTest, AStoppedWorkerLeavesTheRestForTheNext) {
  open({}, [this](std::size_t) {
    worker_->stop();
    return false;
  });
  begin(lines(2));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "in_progress");
  open({});
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "completed");
}

TEST_F(BatchWorkerTest, WhatCannotBeABatchFailsByName) {
  begin("", "batch_1");
  begin(line(1) + line(1), "batch_2");
  begin(lines(1), "batch_3");
  fs::remove(folder_ / "files" / "in_batch_3");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(worker_->turn());
  }
  for (const std::string id : {"batch_1", "batch_2", "batch_3"}) {
    EXPECT_EQ(batch(id).status, "failed") << id;
    EXPECT_NE(batch(id).object.find("errors")->find("data"), nullptr) << id;
  }
  EXPECT_NE(to_json(batch("batch_2").object).find("c1"), std::string::npos);
  EXPECT_FALSE(worker_->turn());
}

TEST_F(BatchWorkerTest, ABadLineIsNamedByItsNumber) {
  begin(line(1) + line(1));
  EXPECT_TRUE(worker_->turn());
  const StoredBatch failed = batch();
  const recipe::Json& error = failed.object.find("errors")->find("data")->array()->front();
  EXPECT_EQ(*error.find("code")->string(), "invalid_argument");
  EXPECT_TRUE(error.find("param")->is_null());
  EXPECT_EQ(*error.find("line")->int64(), 2);
}

// What was answered before the input went, or became a folder, is not thrown away.
TEST_F(BatchWorkerTest, ABatchWhoseInputGoesKeepsWhatItHas) {
  begin(lines(kBatchTurnLines + 1), "batch_1");
  begin(lines(kBatchTurnLines + 1), "batch_2", "bob");
  begin(lines(1), "batch_3", "bob");
  EXPECT_TRUE(worker_->turn());
  EXPECT_TRUE(worker_->turn());
  fs::remove(folder_ / "files" / "in_batch_1");
  fs::remove(folder_ / "files" / "in_batch_2");
  fs::create_directory(folder_ / "files" / "in_batch_2");
  while (worker_->turn()) {
  }
  for (const auto& [id, tenant] : {std::pair("batch_1", "alice"), {"batch_2", "bob"}}) {
    const StoredBatch failed = batch(id, tenant);
    EXPECT_EQ(failed.status, "failed");
    EXPECT_EQ(line_count(failed, "output_file_id"), kBatchTurnLines);
    EXPECT_EQ(counts(failed), fmt::format(R"({{"total":{},"completed":{},"failed":0}})",
                                          kBatchTurnLines + 1, kBatchTurnLines));
  }
  EXPECT_EQ(batch("batch_3", "bob").status, "completed");
  EXPECT_TRUE(fs::is_empty(folder_ / "batches"));
}

// A disk that does not work for one batch holds up no other.
TEST_F(BatchWorkerTest, ABatchThatWaitsHoldsUpNoOther) {
  begin(lines(1), "batch_1");
  begin(lines(1), "batch_2");
  begin(lines(1), "batch_3", "bob");
  fs::create_directory(store_->answers_path("batch_1"));
  constexpr int kTurnsMax = 10;  // without an end otherwise, where it is tried for ever
  for (int turns = 0; turns < kTurnsMax && worker_->turn(); ++turns) {
  }
  EXPECT_EQ(batch("batch_1").status, "validating");
  EXPECT_EQ(batch("batch_2").status, "completed");
  EXPECT_EQ(batch("batch_3", "bob").status, "completed");
  fs::remove(store_->answers_path("batch_1"));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch("batch_1").status, "completed");
}

TEST_F(BatchWorkerTest, ABatchExpires) {
  begin(lines(1));
  gateway_.clock.run_until(gateway_.clock.now() + std::chrono::hours(24));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "expired");
}

TEST_F(BatchWorkerTest, AnswersWithoutRoomFailTheBatch) {
  open({.bytes_max = 1000});
  begin(lines(2));
  EXPECT_TRUE(worker_->turn());
  EXPECT_EQ(batch().status, "failed") << to_json(batch().object);
}

// The room is that of one answer and a half.
TEST_F(BatchWorkerTest, AnswersThatHadRoomAreKept) {
  begin(lines(1), "batch_1");
  begin(lines(4), "batch_2");
  EXPECT_TRUE(worker_->turn());
  const auto answer = static_cast<std::size_t>(
      store_->file("alice", member_text(batch(), "output_file_id"))->bytes);
  const std::size_t used = store_->limits().bytes_max - store_->bytes_left();
  open({.bytes_max = used + answer + answer / 2});
  EXPECT_TRUE(worker_->turn());
  const StoredBatch failed = batch("batch_2");
  EXPECT_EQ(failed.status, "failed");
  EXPECT_EQ(line_count(failed, "output_file_id"), 1U);
  EXPECT_EQ(counts(failed), R"({"total":4,"completed":1,"failed":0})");
}

TEST_F(BatchWorkerTest, RunsOnItsOwn) {
  begin(lines(3));
  ReplyContext context = {.codec = *gateway_.codec,
                          .source = echo_,
                          .clock = gateway_.clock,
                          .ids = gateway_.ids,
                          .metrics = ReplyMetrics(gateway_.metrics)};
  BatchWorker worker(*store_, context, {}, gateway_.metrics, gateway_.log);
  for (int i = 0; i < 1000 && batch().status != "completed"; ++i) {
    std::this_thread::yield();
    worker.wake();
  }
  worker.stop();
  // Whatever a stop interrupted is still to be done.
  while (worker_->turn()) {
  }
  EXPECT_EQ(batch().status, "completed");
}

}  // namespace
}  // namespace galley::gateway
