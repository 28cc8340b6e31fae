#include "cache/posix_disk.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/stat.h>

#include "base/page_buffer.h"

// The real disk, with and without direct I/O and io_uring: the same answers.
namespace galley::cache {
namespace {

namespace fs = std::filesystem;

struct Way {
  bool direct;
  bool ring;
};

class PosixDiskTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "galley-disk-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    disk_ = std::move(*PosixDisk::open_folder(
        folder_, false, {.direct = GetParam().direct, .ring = GetParam().ring}));
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  std::unique_ptr<PosixDisk> disk_;
};

PageBuffer pattern(std::size_t pages, unsigned first) {
  PageBuffer out(pages * kDiskPage);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out.data()[i] = static_cast<std::byte>(first + i / kDiskPage);
  }
  return out;
}

TEST_P(PosixDiskTest, KeepsWhatIsWritten) {
  auto file = disk_->create("a");
  ASSERT_TRUE(file);
  ASSERT_TRUE((*file)->write(0, pattern(200, 0).bytes()));
  ASSERT_TRUE((*file)->sync());
  ASSERT_TRUE(disk_->sync_names());
  const auto taken = disk_->create("a");
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kInvalidArgument);
  const auto again = disk_->open("a", false);
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)->size(), 200 * kDiskPage);
  // More reads than the ring is deep, in a mixed order.
  std::vector<PageBuffer> buffers;
  std::vector<DiskRead> reads;
  for (std::size_t i = 0; i < 200; ++i) {
    buffers.emplace_back(kDiskPage);
  }
  for (std::size_t i = 0; i < 200; ++i) {
    reads.push_back(
        {.file = again->get(), .offset = (i * 7 % 200) * kDiskPage, .out = buffers[i].bytes()});
  }
  std::size_t done = 0;
  disk_->read_all(reads, [&](std::size_t) { ++done; });
  EXPECT_EQ(done, 200U);
  for (std::size_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(reads[i].result);
    EXPECT_EQ(buffers[i].bytes()[77], static_cast<std::byte>(i * 7 % 200));
  }
}

TEST_P(PosixDiskTest, TellsWhatFailed) {
  auto file = *disk_->create("a");
  ASSERT_TRUE(file->write(0, pattern(1, 3).bytes()));
  PageBuffer two(2 * kDiskPage);
  DiskRead read{.file = file.get(), .offset = 0, .out = two.bytes()};
  disk_->read_all({&read, 1}, [](std::size_t) {});
  ASSERT_FALSE(read.result);
  EXPECT_EQ(read.result.error().code, Code::kCorruption);
  const auto missing = disk_->open("b", false);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().where.find("/b"), std::string::npos);
  EXPECT_FALSE(PosixDisk::open_folder(folder_ / "none", false));
  EXPECT_FALSE(PosixDisk::open_folder(folder_ / "a", false));
  EXPECT_TRUE(PosixDisk::open_folder(folder_ / "new" / "er", true));
}

TEST_P(PosixDiskTest, ErasesReplacesListsAndLocks) {
  auto file = *disk_->create("a");
  ASSERT_TRUE(file->write(0, pattern(3, 1).bytes()));
  ASSERT_TRUE(file->erase(kDiskPage, kDiskPage));
  PageBuffer all(3 * kDiskPage);
  ASSERT_TRUE(file->read(0, all.bytes()));
  EXPECT_EQ(all.bytes()[0], std::byte{1});
  EXPECT_EQ(all.bytes()[kDiskPage], std::byte{0});
  EXPECT_EQ(all.bytes()[2 * kDiskPage], std::byte{3});
  ASSERT_TRUE(disk_->replace("r", pattern(1, 5).bytes()));
  ASSERT_TRUE(disk_->replace("r", pattern(2, 6).bytes()));
  std::filesystem::create_directory(folder_ / "s");
  std::filesystem::create_symlink("t", folder_ / "t");  // of itself
  auto listed = *disk_->list();
  std::ranges::sort(listed, std::less{}, &DiskEntry::name);
  ASSERT_EQ(listed.size(), 4U);
  EXPECT_TRUE(listed[0].regular && listed[1].regular);
  EXPECT_FALSE(listed[2].regular || listed[3].regular);
  EXPECT_EQ(listed[0].bytes, 3 * kDiskPage);
  EXPECT_EQ(listed[1].bytes, 2 * kDiskPage);
  auto lock = disk_->lock("lock");
  ASSERT_TRUE(lock);
  const auto second = disk_->lock("lock");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kOverloaded);
  lock->reset();
  EXPECT_TRUE(disk_->lock("lock"));
  ASSERT_TRUE(disk_->remove("a"));
  EXPECT_FALSE(disk_->remove("a"));
}

TEST_P(PosixDiskTest, ItsFilesAreItsOwnersInAFolderThatAllMayRead) {
  fs::permissions(folder_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                               fs::perms::others_read | fs::perms::others_exec);
  const mode_t mask = ::umask(0);
  ASSERT_TRUE(disk_->create("a"));
  ASSERT_TRUE(disk_->replace("b", pattern(1, 5).bytes()));
  ASSERT_TRUE(disk_->lock("c"));
  ::umask(mask);
  for (const char* const name : {"a", "b", "c"}) {
    EXPECT_EQ(fs::status(folder_ / name).permissions(),
              fs::perms::owner_read | fs::perms::owner_write)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    PosixDiskTest,
    testing::Values(Way{true, true}, Way{true, false}, Way{false, true}, Way{false, false}));

}  // namespace
}  // namespace galley::cache
