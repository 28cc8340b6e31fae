#include "base/virtual_disk.h"

#include <gtest/gtest.h>

#include "base/page_buffer.h"

namespace galley {
namespace {

PageBuffer page(unsigned char value) {
  PageBuffer out(kDiskPage);
  std::ranges::fill(out.bytes(), static_cast<std::byte>(value));
  return out;
}

TEST(VirtualDisk, WhatWasSyncedIsThereAfterACrash) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    VirtualDisk disk{Seed(seed)};
    auto file = *disk.create("a");
    ASSERT_TRUE(disk.sync_names());
    ASSERT_TRUE(file->write(0, page(1).bytes()));
    ASSERT_TRUE(file->sync());
    ASSERT_TRUE(file->write(kDiskPage, page(2).bytes()));
    disk.restart();
    const auto kept = disk.contents("a");
    ASSERT_TRUE(kept);
    ASSERT_GE(kept->size(), kDiskPage);
    EXPECT_TRUE(std::ranges::equal(std::span(*kept).first(kDiskPage), page(1).bytes()));
    EXPECT_FALSE(file->sync()) << "a file of before the crash";
  }
}

TEST(VirtualDisk, WhatWasNotSyncedMayTearAndNamesMayGo) {
  int torn = 0;
  int whole = 0;
  int nameless = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    VirtualDisk disk{Seed(seed)};
    auto file = *disk.create("a");
    ASSERT_TRUE(file->write(0, page(1).bytes()));
    disk.restart();
    const auto kept = disk.contents("a");
    if (!kept) {
      ++nameless;
      continue;
    }
    const auto ones = static_cast<std::size_t>(std::ranges::count(*kept, std::byte{1}));
    EXPECT_EQ(ones % VirtualDisk::kSector, 0U);
    torn += ones > 0 && ones < kDiskPage ? 1 : 0;
    whole += ones == kDiskPage ? 1 : 0;
  }
  EXPECT_GT(torn, 10);
  EXPECT_GT(whole, 10);
  EXPECT_GT(nameless, 10);
}

TEST(VirtualDisk, TheSecondSyncAfterAFailedOneProvesNothing) {
  int lost = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    VirtualDisk disk{Seed(seed)};
    auto file = *disk.create("a");
    ASSERT_TRUE(disk.sync_names());
    ASSERT_TRUE(file->write(0, page(1).bytes()));
    disk.set_faults({.sync = 65'536});
    EXPECT_FALSE(file->sync());
    disk.set_faults({});
    EXPECT_TRUE(file->sync());
    disk.restart();
    lost +=
        disk.contents("a")->size() < kDiskPage ||
                std::ranges::count(*disk.contents("a"), std::byte{1}) < std::ssize(page(1).bytes())
            ? 1
            : 0;
  }
  EXPECT_GT(lost, 20);
}

TEST(VirtualDisk, APowerCutStopsEverything) {
  VirtualDisk disk{Seed(1)};
  auto file = *disk.create("a");
  disk.crash_after(2);
  EXPECT_TRUE(file->write(0, page(1).bytes()));
  EXPECT_FALSE(file->sync());
  EXPECT_EQ(disk.crashed_in(), DiskOp::kSync);
  EXPECT_FALSE(disk.list());
  EXPECT_FALSE(disk.create("b"));
  disk.restart();
  EXPECT_TRUE(disk.list());
}

TEST(VirtualDisk, AFullDiskSaysSo) {
  VirtualDisk disk{Seed(1)};
  auto file = *disk.create("a");
  disk.set_room(kDiskPage);
  EXPECT_TRUE(file->write(0, page(1).bytes()));
  const auto second = file->write(kDiskPage, page(2).bytes());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().reason, kDiskFull);
}

TEST(VirtualDisk, ARemovedFileIsReadableThroughWhoHasItOpen) {
  VirtualDisk disk{Seed(1)};
  auto file = *disk.create("a");
  ASSERT_TRUE(file->write(0, page(7).bytes()));
  ASSERT_TRUE(disk.remove("a"));
  EXPECT_FALSE(disk.open("a", false));
  PageBuffer read(kDiskPage);
  ASSERT_TRUE(file->read(0, read.bytes()));
  EXPECT_EQ(read.bytes()[5], std::byte{7});
}

TEST(VirtualDisk, LocksAreOneHoldersUntilTheCrash) {
  VirtualDisk disk{Seed(1)};
  auto lock = disk.lock("lock");
  ASSERT_TRUE(lock);
  EXPECT_FALSE(disk.lock("lock"));
  disk.restart();
  auto next = disk.lock("lock");
  EXPECT_TRUE(next);
  lock->reset();  // of the life before: frees nothing
  EXPECT_FALSE(disk.lock("lock"));
}

}  // namespace
}  // namespace galley
