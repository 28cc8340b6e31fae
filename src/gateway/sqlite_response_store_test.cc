// Goal: what was put is there again after a restart, is seen by its tenant alone, and stays within
// the limits; a bad disk is an error and never a crash.
// Method: databases in a temporary folder; a copy of the files stands for a process that was
// killed.
#include "gateway/sqlite_response_store.h"

#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>

#include "base/virtual_loop.h"

namespace galley::gateway {
namespace {

namespace fs = std::filesystem;

class SqliteResponseStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("galley_responses_{}_{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string file() const { return folder_ / "responses.db"; }
  Result<std::unique_ptr<SqliteResponseStore>> open(ResponseLimits limits = {}) {
    return SqliteResponseStore::open(file(), limits, clock_);
  }
  static StoredResponse response(std::string id,
                                 std::string previous = "",
                                 std::size_t bytes = 10,
                                 std::string tenant = "alice") {
    return {.id = std::move(id),
            .tenant = std::move(tenant),
            .previous_id = std::move(previous),
            .created_s = 7,
            .body = std::string(bytes, 'b'),
            .input = "[]"};
  }
  static bool has(SqliteResponseStore& store, std::string_view id) {
    return store.get("alice", id).has_value();
  }

  VirtualLoop clock_{UnixTime(std::chrono::seconds(1'700'000'000))};
  fs::path folder_;
};

TEST_F(SqliteResponseStoreTest, KeepsEverythingOverARestart) {
  {
    const auto store = open();
    ASSERT_TRUE(store) << to_string(store.error());
    ASSERT_TRUE((*store)->put(response("a", "z")));
    EXPECT_EQ((*store)->count(), 1U);
  }
  const auto store = open();
  ASSERT_TRUE(store) << to_string(store.error());
  EXPECT_EQ((*store)->count(), 1U);
  const auto found = (*store)->get("alice", "a");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->body, std::string(10, 'b'));
  EXPECT_EQ(found->input, "[]");
  EXPECT_EQ(found->previous_id, "z");
  EXPECT_EQ(found->created_s, 7);
  EXPECT_EQ(fs::status(file()).permissions() & fs::perms::all,
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(SqliteResponseStoreTest, WhatIsAcknowledgedOutlivesAKilledProcess) {
  const auto store = open();
  ASSERT_TRUE((*store)->put(response("a")));
  // Nothing was closed: the last commits are in the log alone.
  const fs::path copy = folder_ / "killed";
  fs::create_directories(copy);
  for (const char* const name : {"responses.db", "responses.db-wal"}) {
    fs::copy_file(folder_ / name, copy / name);
  }
  const auto again = SqliteResponseStore::open(copy / "responses.db", {}, clock_);
  ASSERT_TRUE(again) << to_string(again.error());
  EXPECT_TRUE(has(**again, "a"));
}

TEST_F(SqliteResponseStoreTest, TenantsDoNotSeeEachOther) {
  const auto store = open();
  ASSERT_TRUE((*store)->put(response("a")));
  EXPECT_EQ((*store)->get("bob", "a").error().code, Code::kNotFound);
  EXPECT_EQ((*store)->get("", "a").error().code, Code::kNotFound);
  EXPECT_EQ((*store)->remove("bob", "a").error().code, Code::kNotFound);
  EXPECT_TRUE(has(**store, "a"));
  EXPECT_TRUE((*store)->remove("alice", "a"));
  EXPECT_EQ((*store)->remove("alice", "a").error().what, "Response with id \"a\" not found.");
  EXPECT_FALSE(has(**store, "a"));
  EXPECT_EQ((*store)->count(), 0U);
  EXPECT_EQ((*store)->bytes(), 0U);
}

TEST_F(SqliteResponseStoreTest, TheCountIsALimit) {
  const auto store = open({.count_max = 2});
  for (const char* const id : {"a", "b", "c"}) {
    ASSERT_TRUE((*store)->put(response(id)));
  }
  EXPECT_FALSE(has(**store, "a"));
  EXPECT_TRUE(has(**store, "b") && has(**store, "c"));
  EXPECT_EQ((*store)->count(), 2U);
}

TEST_F(SqliteResponseStoreTest, BytesAreALimitAndOneLargeThingIsRefused) {
  const auto store = open({.bytes_max = 3000});
  ASSERT_TRUE((*store)->put(response("a", "", 1000)));
  ASSERT_TRUE((*store)->put(response("b", "", 1000)));
  ASSERT_TRUE((*store)->put(response("c", "", 1000)));
  EXPECT_FALSE(has(**store, "a"));
  EXPECT_TRUE(has(**store, "b"));
  EXPECT_LE((*store)->bytes(), 3000U);
  const auto refused = (*store)->put(response("d", "", 3000));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kTooLarge);
  EXPECT_TRUE(has(**store, "b") && has(**store, "c"));
}

TEST_F(SqliteResponseStoreTest, WhoStoresMostLosesTheirOwn) {
  const auto by_count = open({.count_max = 3});
  ASSERT_TRUE((*by_count)->put(response("a")));
  for (const char* const id : {"b1", "b2", "b3", "b4"}) {
    ASSERT_TRUE((*by_count)->put(response(id, "", 10, "bob")));
  }
  EXPECT_TRUE(has(**by_count, "a"));
  EXPECT_FALSE((*by_count)->get("bob", "b2"));
  EXPECT_TRUE((*by_count)->get("bob", "b3") && (*by_count)->get("bob", "b4"));
}

TEST_F(SqliteResponseStoreTest, WhoStoresMostBytesLosesTheirOwn) {
  const auto store = open({.bytes_max = 4000});
  ASSERT_TRUE((*store)->put(response("a1")));
  ASSERT_TRUE((*store)->put(response("a2")));
  ASSERT_TRUE((*store)->put(response("a3")));
  ASSERT_TRUE((*store)->put(response("b1", "", 2000, "bob")));
  ASSERT_TRUE((*store)->put(response("b2", "", 2000, "bob")));
  EXPECT_TRUE(has(**store, "a1") && has(**store, "a2") && has(**store, "a3"));
  EXPECT_FALSE((*store)->get("bob", "b1"));
  EXPECT_TRUE((*store)->get("bob", "b2"));
}

TEST_F(SqliteResponseStoreTest, WhatIsGoneOnFromStays) {
  const auto store = open({.count_max = 3});
  ASSERT_TRUE((*store)->put(response("a")));
  ASSERT_TRUE((*store)->put(response("alone")));
  ASSERT_TRUE((*store)->put(response("b", "a")));
  ASSERT_TRUE((*store)->put(response("c", "b")));
  EXPECT_FALSE(has(**store, "alone"));
  EXPECT_TRUE(has(**store, "a") && has(**store, "b") && has(**store, "c"));
  // A conversation loses its end before its beginning.
  ASSERT_TRUE((*store)->put(response("other")));
  EXPECT_FALSE(has(**store, "c"));
  EXPECT_TRUE(has(**store, "a") && has(**store, "b"));
}

TEST_F(SqliteResponseStoreTest, AgeCountsFromTheLastUse) {
  const auto store = open({.age_max = std::chrono::hours(1)});
  ASSERT_TRUE((*store)->put(response("a")));
  ASSERT_TRUE((*store)->put(response("alone")));
  clock_.run_until(clock_.now() + std::chrono::minutes(40));
  ASSERT_TRUE((*store)->put(response("b", "a")));
  clock_.run_until(clock_.now() + std::chrono::minutes(40));
  EXPECT_FALSE(has(**store, "alone"));
  EXPECT_TRUE(has(**store, "a") && has(**store, "b"));
  EXPECT_EQ((*store)->count(), 3U);
  ASSERT_TRUE((*store)->put(response("c")));
  EXPECT_EQ((*store)->count(), 3U) << "what is too old is deleted, too";
}

TEST_F(SqliteResponseStoreTest, AFileThatIsNoDatabaseIsRefusedAndLeftAlone) {
  std::ofstream(file()) << std::string(5000, 'x');
  const auto store = open();
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kCorruption) << to_string(store.error());
  EXPECT_EQ(fs::file_size(file()), 5000U);
}

TEST_F(SqliteResponseStoreTest, AnotherProgramsDatabaseIsRefused) {
  {
    auto other = Sqlite::open(file());
    ASSERT_TRUE(other && other->run("CREATE TABLE t(a)"));
  }
  const auto store = open();
  ASSERT_FALSE(store);
  EXPECT_NE(store.error().what.find("another program"), std::string::npos);
}

TEST_F(SqliteResponseStoreTest, TwoServersDoNotShareAFile) {
  const auto first = open();
  ASSERT_TRUE(first);
  const auto second = open();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().what.find("in use by another process"), std::string::npos)
      << second.error().what;
}

TEST_F(SqliteResponseStoreTest, AFolderThatIsNotThereIsNamed) {
  const auto store = SqliteResponseStore::open(folder_ / "none" / "r.db", {}, clock_);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kUnavailable);
  EXPECT_NE(store.error().what.find("none/r.db"), std::string::npos);
}

TEST_F(SqliteResponseStoreTest, DamageWithinTheFileIsAnError) {
  {
    const auto store = open();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE((*store)->put(response(fmt::format("r{}", i), "", 2000)));
    }
  }
  {
    std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(4096);
    for (std::uintmax_t at = 4096; at < fs::file_size(file()); ++at) {
      bytes.put('\xff');
    }
  }
  // Found when it is opened or when it is read, but found.
  const auto store = open();
  if (store) {
    EXPECT_EQ((*store)->get("alice", "r3").error().code, Code::kCorruption);
  } else {
    EXPECT_EQ(store.error().code, Code::kCorruption) << to_string(store.error());
  }
}

TEST(Sqlite, AFullDiskIsAnErrorAndTheRestStays) {
  auto database = Sqlite::open(":memory:");
  ASSERT_TRUE(database);
  ASSERT_TRUE(database->run("CREATE TABLE t(a); PRAGMA max_page_count=20;"));
  auto insert = database->prepare("INSERT INTO t VALUES(?)");
  ASSERT_TRUE(insert);
  const std::string text(3000, 'x');
  Result<bool> stored = true;
  int rows = 0;
  while (stored) {
    insert->bind(1, text);
    stored = insert->step();
    insert->reset();
    ASSERT_LT(++rows, 1000);
  }
  EXPECT_EQ(stored.error().code, Code::kUnavailable);
  EXPECT_NE(stored.error().what.find("full"), std::string::npos);
  EXPECT_EQ(database->number("SELECT count(*) FROM t").value(), rows - 1);
}

}  // namespace
}  // namespace galley::gateway
