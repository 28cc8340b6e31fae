// Goal: files and batches are there again after a restart, belong to one tenant, and stay within
// the limits. Method: a store in a temporary folder.
#include "gateway/file_store.h"

#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>

#include "base/virtual_loop.h"
#include "gateway/batch_object.h"

namespace galley::gateway {
namespace {

namespace fs = std::filesystem;

class FileStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("galley_files_{}_{}", ::getpid(),
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    open();
  }
  void TearDown() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  void open(FileLimits limits = {}) {
    store_.reset();
    auto store = FileStore::open(folder_, limits, clock_);
    ASSERT_TRUE(store) << to_string(store.error());
    store_ = std::move(*store);
  }
  Result<void> put(std::string id, std::string_view content = "x", std::string tenant = "alice") {
    return store_->put_file({.id = std::move(id),
                             .tenant = std::move(tenant),
                             .filename = "f",
                             .purpose = "batch",
                             .created_s = clock_.unix_seconds()},
                            content);
  }
  std::string ids(const ListPage& page, std::string_view purpose = "") {
    const auto found = store_->files("alice", purpose, page);
    if (!found) {
      return to_string(found.error());
    }
    std::string out;
    for (const StoredFile& file : found->entries) {
      out += file.id;
    }
    return out + (found->has_more ? "+" : "");
  }
  StoredBatch batch(std::string id, std::string tenant) {
    return new_batch(
               R"({"input_file_id":"f","endpoint":"/v1/responses","completion_window":"24h"})",
               std::move(id), std::move(tenant), 7)
        .value();
  }

  VirtualLoop clock_{UnixTime(std::chrono::seconds(1'700'000'000))};
  fs::path folder_;
  std::unique_ptr<FileStore> store_;
};

TEST_F(FileStoreTest, KeepsFilesOverARestart) {
  ASSERT_TRUE(put("a", "hello"));
  open();
  const auto file = store_->file("alice", "a");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 5);
  EXPECT_EQ(file->filename, "f");
  EXPECT_EQ(store_->read_file("alice", "a", 0, 100).value(), "hello");
  EXPECT_EQ(store_->read_file("alice", "a", 1, 3).value(), "ell");
  EXPECT_EQ(store_->read_file("alice", "a", 9, 3).value(), "");
  ASSERT_TRUE(store_->remove_file("alice", "a"));
  EXPECT_EQ(store_->file("alice", "a").error().code, Code::kNotFound);
  EXPECT_TRUE(fs::is_empty(folder_ / "files"));
}

TEST_F(FileStoreTest, TenantsDoNotSeeEachOther) {
  ASSERT_TRUE(put("a"));
  EXPECT_EQ(store_->file("bob", "a").error().code, Code::kNotFound);
  EXPECT_EQ(store_->read_file("bob", "a", 0, 1).error().code, Code::kNotFound);
  EXPECT_EQ(store_->remove_file("bob", "a").error().code, Code::kNotFound);
  EXPECT_TRUE(store_->files("bob", "", {})->entries.empty());
  ASSERT_TRUE(store_->put_batch(batch("b", "alice")));
  EXPECT_EQ(store_->batch("bob", "b").error().code, Code::kNotFound);
  EXPECT_EQ(store_->change_batch("bob", "b", [](StoredBatch&) {}).error().code, Code::kNotFound);
  EXPECT_TRUE(store_->batches("bob", {})->entries.empty());
}

TEST_F(FileStoreTest, ListsInPages) {
  for (const char* const id : {"a", "b", "c", "d"}) {
    ASSERT_TRUE(put(id));
  }
  EXPECT_EQ(ids({.limit = 3}), "dcb+");
  EXPECT_EQ(ids({.limit = 3, .after = "b"}), "a");
  EXPECT_EQ(ids({.limit = 4, .descending = false}), "abcd");
  EXPECT_EQ(ids({.limit = 1, .descending = false, .after = "b"}), "c+");
  EXPECT_EQ(ids({}, "other"), "");
  EXPECT_EQ(store_->files("alice", "", {.after = "x"}).error().code, Code::kNotFound);
}

TEST_F(FileStoreTest, LimitsAreHeld) {
  open({.bytes_max = 10, .count_max = 2});
  ASSERT_TRUE(put("a", "12345678"));
  EXPECT_EQ(store_->bytes_left(), 2U);
  EXPECT_EQ(put("b", "123").error().code, Code::kTooLarge);
  ASSERT_TRUE(put("b", "12"));
  EXPECT_EQ(put("c", "").error().code, Code::kTooLarge);
  EXPECT_TRUE(put("c", "", "bob"));
}

TEST_F(FileStoreTest, FilesGoWithTime) {
  open({.age_max = std::chrono::hours(2)});
  ASSERT_TRUE(store_->put_file({.id = "soon",
                                .tenant = "alice",
                                .created_s = clock_.unix_seconds(),
                                .expires_s = clock_.unix_seconds() + 3600},
                               "x"));
  ASSERT_TRUE(put("late"));
  clock_.run_until(clock_.now() + std::chrono::minutes(61));
  EXPECT_FALSE(store_->file("alice", "soon"));
  EXPECT_TRUE(store_->file("alice", "late"));
  clock_.run_until(clock_.now() + std::chrono::minutes(61));
  EXPECT_FALSE(store_->file("alice", "late"));
  EXPECT_TRUE(fs::is_empty(folder_ / "files"));
}

TEST_F(FileStoreTest, WhatAKilledProcessLeftHalfMadeGoes) {
  ASSERT_TRUE(put("a"));
  const std::string id = "file-0123456789ABCDEFabcd";
  const std::string of_batch = "file-batch_0123456789ABCDEFabcd";
  const std::vector<std::string> own = {id, id + ".0123456789abcdef.part", of_batch + "-output",
                                        of_batch + "-error",
                                        of_batch + "-error.0123456789abcdef.part"};
  for (const std::string& name : own) {
    std::ofstream(folder_ / "files" / name) << "x";
  }
  open();
  EXPECT_TRUE(fs::exists(folder_ / "files" / "a"));
  for (const std::string& name : own) {
    EXPECT_FALSE(fs::exists(folder_ / "files" / name)) << name;
  }
}

TEST_F(FileStoreTest, WhatOthersKeepInTheFolderStays) {
  ASSERT_TRUE(put("a"));
  const fs::path files = folder_ / "files";
  const std::vector<std::string> others = {"thesis.tex",
                                           "file-",
                                           "file-short",
                                           "file-0123456789ABCDEFabc-",
                                           "file-0123456789ABCDEFabcd.bak",
                                           "file-0123456789ABCDEFabcd.0123456789ABCDEF.part",
                                           "file-batch_0123456789ABCDEFabcd",
                                           "file-batch_0123456789ABCDEFabcd-notes",
                                           "b.0123456789abcdef.part",
                                           ".part"};
  for (const std::string& name : others) {
    std::ofstream(files / name) << "x";
  }
  fs::create_directory(files / "file-aaaaaaaaaaaaaaaaaaaa");
  std::ofstream(folder_ / "target") << "x";
  fs::create_symlink(folder_ / "target", files / "file-bbbbbbbbbbbbbbbbbbbb");
  open();
  for (const std::string& name : others) {
    EXPECT_TRUE(fs::exists(files / name)) << name;
  }
  EXPECT_TRUE(fs::exists(files / "file-aaaaaaaaaaaaaaaaaaaa"));
  EXPECT_TRUE(fs::exists(files / "file-bbbbbbbbbbbbbbbbbbbb"));
}

TEST_F(FileStoreTest, ALostDatabaseRefusesTheStartAndKeepsTheFiles) {
  const std::string id = "file-0123456789ABCDEFabcd";
  ASSERT_TRUE(put(id, "hello"));
  store_.reset();
  for (const char* const name : {"files.db", "files.db-wal"}) {
    fs::remove(folder_ / name);
  }
  for (int again = 0; again < 2; ++again) {
    const auto refused = FileStore::open(folder_, {}, clock_);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find((folder_ / "files").string()), std::string::npos);
    EXPECT_TRUE(fs::exists(folder_ / "files" / id));
  }
}

TEST_F(FileStoreTest, AFileThatLostItsBytesIsAnError) {
  ASSERT_TRUE(put("a", "hello"));
  std::ofstream(folder_ / "files" / "a") << "h";
  EXPECT_EQ(store_->read_file("alice", "a", 0, 9).error().code, Code::kCorruption);
  fs::remove(folder_ / "files" / "a");
  EXPECT_EQ(store_->read_file("alice", "a", 0, 9).error().code, Code::kNotFound);
  fs::create_directory(folder_ / "files" / "a");
  const auto folder = store_->read_file("alice", "a", 0, 9);
  EXPECT_EQ(folder.error().code, Code::kUnavailable);
  EXPECT_EQ(folder.error().reason, kUnreadable);
  EXPECT_EQ(folder.error().what.find(folder_.string()), std::string::npos);
}

TEST_F(FileStoreTest, TheInputOfAnUnfinishedBatchStays) {
  open({.age_max = std::chrono::hours(2)});
  ASSERT_TRUE(put("f"));
  ASSERT_TRUE(put("f2"));
  ASSERT_TRUE(store_->put_batch(batch("b1", "alice")));
  const auto refused = store_->remove_file("alice", "f");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, kFileInUse);
  EXPECT_EQ(store_->remove_file("bob", "f").error().code, Code::kNotFound);
  clock_.run_until(clock_.now() + std::chrono::hours(3));
  EXPECT_TRUE(store_->file("alice", "f"));
  EXPECT_FALSE(store_->file("alice", "f2"));
  ASSERT_TRUE(store_->change_batch("alice", "b1",
                                   [](StoredBatch& changed) { set_status(changed, "failed", 8); }));
  EXPECT_FALSE(store_->file("alice", "f"));
}

TEST_F(FileStoreTest, AnUploadThatCannotBeStoredNamesNoPath) {
  fs::remove_all(folder_ / "files");
  std::ofstream(folder_ / "files") << "x";
  const auto failed = put("a");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().where, "");
  EXPECT_EQ(failed.error().what.find(folder_.string()), std::string::npos) << failed.error().what;
}

TEST_F(FileStoreTest, FinishedBatchesAreDroppedByCountAndAge) {
  open({.finished_batches_max = 2, .age_max = std::chrono::hours(2)});
  const auto end = [&](const std::string& id, const std::string& tenant) {
    StoredBatch made = batch(id, tenant);
    recipe::set_member(*made.object.object(), "created_at", clock_.unix_seconds());
    ASSERT_TRUE(store_->put_batch(made));
    ASSERT_TRUE(store_->change_batch(
        tenant, id, [](StoredBatch& changed) { set_status(changed, "completed", 8); }));
  };
  end("b1", "bob");
  for (const char* const id : {"a1", "a2", "a3", "a4"}) {
    end(id, "alice");
  }
  EXPECT_EQ(store_->batch("alice", "a1").error().code, Code::kNotFound);
  EXPECT_TRUE(store_->batch("alice", "a3"));
  EXPECT_TRUE(store_->batch("alice", "a4"));
  EXPECT_TRUE(store_->batch("bob", "b1"));
  clock_.run_until(clock_.now() + std::chrono::hours(3));
  end("a5", "alice");
  EXPECT_EQ(store_->batches("alice", {})->entries.size(), 1U);
  EXPECT_TRUE(store_->batches("bob", {})->entries.empty());
}

TEST_F(FileStoreTest, TenantsTakeTurnsWithTheirBatches) {
  EXPECT_FALSE(store_->next_batch("")->has_value());
  for (const auto& [id, tenant] :
       {std::pair("a1", "alice"), {"a2", "alice"}, {"b1", "bob"}, {"c1", "carol"}}) {
    ASSERT_TRUE(store_->put_batch(batch(id, tenant)));
  }
  EXPECT_EQ(store_->next_batch("")->value().id, "a1");
  EXPECT_EQ(store_->next_batch("alice")->value().id, "b1");
  EXPECT_EQ(store_->next_batch("bob")->value().id, "c1");
  const std::vector<std::string> but = {"c1", "a1"};
  EXPECT_EQ(store_->next_batch("bob", but)->value().id, "a2");
  EXPECT_EQ(store_->next_batch("carol")->value().id, "a1");
  ASSERT_TRUE(store_->change_batch(
      "alice", "a1", [](StoredBatch& changed) { set_status(changed, "completed", 8); }));
  EXPECT_EQ(store_->next_batch("carol")->value().id, "a2");
  open();
  const auto again = store_->batch("alice", "a1");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->status, "completed");
  EXPECT_EQ(member_number(*again, "completed_at"), 8);
}

TEST_F(FileStoreTest, UnfinishedBatchesAreBounded) {
  open({.unfinished_batches_max = 1});
  ASSERT_TRUE(store_->put_batch(batch("a1", "alice")));
  EXPECT_EQ(store_->put_batch(batch("a2", "alice")).error().code, Code::kOverloaded);
  EXPECT_TRUE(store_->put_batch(batch("b1", "bob")));
  const auto one = store_->batches("alice", {});
  EXPECT_EQ(one->entries.size(), 1U);
}

TEST_F(FileStoreTest, OneServerUsesAFolder) {
  const auto second = FileStore::open(folder_, {}, clock_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace galley::gateway
