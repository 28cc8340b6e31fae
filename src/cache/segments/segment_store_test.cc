// Goal: what the store promises, one promise a test. Method: a virtual disk and a clock that is
// moved by hand. Crashes at random points are plan/store_world.h's.
#include "cache/segments/segment_store.h"

#include <gtest/gtest.h>

#include "cache/segments/store_for_test.h"

namespace galley::cache {
namespace {

using namespace std::chrono_literals;

constexpr UnixTime kStart{std::chrono::sys_days{std::chrono::year{2026} / 3 / 1}};

class SegmentStoreTest : public testing::Test {
 protected:
  SegmentStoreTest() { open(); }

  void open() {
    store_.reset();
    options_.seed = Seed(++opened_);
    auto opened = SegmentStore::open(disk_, clock_, options_);
    ASSERT_TRUE(opened) << to_string(opened.error());
    store_ = std::move(*opened);
  }
  void put(std::uint64_t n, std::string_view space = "tenant", std::size_t retention = 0) {
    BlockForTest one(n, space);
    one.block.retention = retention;
    const auto done = store_->put(one.block);
    ASSERT_TRUE(done) << to_string(done.error());
    ASSERT_EQ(*done, PutOutcome::kStaged);
  }
  void commit() {
    const auto done = store_->commit();
    ASSERT_TRUE(done) << to_string(done.error());
  }
  std::unique_ptr<BlockLease> match(std::vector<std::uint64_t> numbers,
                                    std::string_view space = "tenant") {
    std::vector<BlockKey> keys;
    for (const std::uint64_t n : numbers) {
      keys.push_back(key_for_test(n));
    }
    return store_->match({.space = space, .layout = 1, .keys = keys});
  }
  bool hits(std::uint64_t n, std::string_view space = "tenant") {
    const auto lease = match({n}, space);
    if (lease->size() == 0) {
      return false;
    }
    PageBuffer buffer;
    const auto view = store_->read(*lease, 0, buffer);
    return view && same_parts(*view, BlockForTest(n, space));
  }
  std::vector<DiskEntry> files() { return std::move(*disk_.list()); }
  // The only file with this suffix.
  std::string file(std::string_view suffix) {
    std::string out;
    for (const DiskEntry& entry : files()) {
      if (entry.name.ends_with(suffix)) {
        EXPECT_EQ(out, "");
        out = entry.name;
      }
    }
    return out;
  }

  VirtualDisk disk_{Seed(1)};
  ManualClock clock_{kStart};
  StoreOptions options_{.group_bytes = 0};
  std::uint64_t opened_ = 0;
  std::unique_ptr<SegmentStore> store_;
};

TEST_F(SegmentStoreTest, ABlockIsKnownOnceItIsDurable) {
  put(1);
  EXPECT_FALSE(hits(1));
  commit();
  EXPECT_TRUE(hits(1));
  EXPECT_FALSE(hits(2));
  BlockForTest again(1);
  EXPECT_EQ(*store_->put(again.block), PutOutcome::kKnown);
  put(2);
  BlockForTest staged(2);
  EXPECT_EQ(*store_->put(staged.block), PutOutcome::kKnown);
}

TEST_F(SegmentStoreTest, AMatchEndsAtTheFirstUnknownKey) {
  for (const std::uint64_t n : {1U, 2U, 4U}) {
    put(n);
  }
  commit();
  const auto lease = match({1, 2, 3, 4});
  EXPECT_EQ(lease->size(), 2U);
  EXPECT_EQ(lease->miss(), MissReason::kUnknown);
  EXPECT_EQ(match({1, 2})->miss(), MissReason::kNone);
  EXPECT_EQ(match({1}, "other")->size(), 0U);
}

TEST_F(SegmentStoreTest, SurvivesARestartAndACrash) {
  for (std::uint64_t n = 0; n < 20; ++n) {
    put(n);
    if (n % 3 == 0) {
      commit();
    }
  }
  disk_.restart();  // 19 was never committed
  open();
  for (std::uint64_t n = 0; n < 19; ++n) {
    EXPECT_TRUE(hits(n)) << n;
  }
  EXPECT_EQ(store_->stats().recovered_segments, 1U);
  ASSERT_TRUE(store_->close());
  open();
  EXPECT_TRUE(hits(18));
  EXPECT_EQ(store_->stats().recovered_segments, 0U);
  EXPECT_EQ(file(".journal"), "");
}

TEST_F(SegmentStoreTest, ChangedBytesAreAMissAndCounted) {
  put(1);
  put(2);
  commit();
  const std::string name = file(".segment");
  ASSERT_TRUE(disk_.flip(name, kDiskPage + 3000, 2));  // in the payload of 1
  const auto lease = match({1, 2});
  ASSERT_EQ(lease->size(), 2U);
  PageBuffer buffer;
  const auto damaged = store_->read(*lease, 0, buffer);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::kCorruption);
  EXPECT_TRUE(store_->read(*lease, 1, buffer));
  EXPECT_EQ(match({1})->size(), 0U) << "it is computed again";
  EXPECT_EQ(store_->stats().damaged_blocks, 1U);
  put(1);
  commit();
  EXPECT_TRUE(hits(1));
}

TEST_F(SegmentStoreTest, ABlockInAnothersPlaceIsAMiss) {
  put(1);
  put(2);
  commit();
  const auto name = file(".segment");
  auto bytes = *disk_.contents(name);
  // The disk gives 2's sectors for 1's.
  std::copy_n(bytes.begin() + 3 * kDiskPage, 2 * kDiskPage, bytes.begin() + kDiskPage);
  auto writable = *disk_.open(name, true);
  ASSERT_TRUE(writable->write(0, bytes));
  EXPECT_FALSE(hits(1));
  EXPECT_TRUE(hits(2));
}

TEST_F(SegmentStoreTest, EveryKindOfDamageToMetadataCostsNothing) {
  for (std::uint64_t n = 0; n < 12; ++n) {
    put(n);
    commit();
  }
  const std::string segment = file(".segment");
  const std::string journal = file(".journal");
  ASSERT_TRUE(disk_.flip(segment, 20, 1));                  // head
  ASSERT_TRUE(disk_.flip(journal, 3 * kDiskPage + 60, 1));  // an entry within
  ASSERT_TRUE(disk_.flip(journal, 11 * kDiskPage + 9, 1));  // the last one
  open();
  for (std::uint64_t n = 0; n < 12; ++n) {
    EXPECT_TRUE(hits(n)) << n;
  }
  EXPECT_EQ(store_->stats().damaged_tables, 2U);
  EXPECT_EQ(store_->stats().scanned_blocks, 2U);
  // Now it has a footer. Break that, too.
  const auto bytes = *disk_.contents(segment);
  ASSERT_TRUE(disk_.flip(segment, bytes.size() - 2 * kDiskPage + 100, 0));
  open();
  for (std::uint64_t n = 0; n < 12; ++n) {
    EXPECT_TRUE(hits(n)) << n;
  }
  EXPECT_EQ(store_->stats().scanned_blocks, 12U);
}

TEST_F(SegmentStoreTest, ACutFileLosesWhatWasCutOffOnly) {
  for (std::uint64_t n = 0; n < 6; ++n) {
    put(n);
  }
  commit();
  const std::string name = file(".segment");
  auto bytes = *disk_.contents(name);
  bytes.resize(kDiskPage * 8 + 100);
  disk_.put(name, bytes);
  open();
  EXPECT_TRUE(hits(2));
  EXPECT_EQ(match({3})->size(), 0U);
}

TEST_F(SegmentStoreTest, ForeignFilesAreLeftAlone) {
  put(1);
  commit();
  const auto segment = *disk_.contents(file(".segment"));
  disk_.put("notes.txt", std::vector<std::byte>(10));
  disk_.put("photo.segment", segment);
  SegmentName other{
      .writer = 9, .number = 1, .retention = "chat", .bucket_s = 1, .expires_s = 9'000'000'000};
  disk_.put(file_stem(other) + ".segment", segment);  // a copy under another name
  open();
  EXPECT_TRUE(hits(1));
  EXPECT_EQ(store_->stats().foreign_files, 2U);
  EXPECT_EQ(store_->stats().keys, 1U);
  const auto troubles = store_->troubles();
  ASSERT_EQ(troubles.size(), 2U);
  EXPECT_EQ(troubles[0].file, "photo.segment");
  EXPECT_EQ(troubles[1].file, file_stem(other) + ".segment");
  EXPECT_TRUE(troubles[0].foreign && troubles[1].foreign);
  for (const SegmentInfo& one : store_->segments()) {
    EXPECT_TRUE(store_->blocks(one.name));
  }
  EXPECT_EQ(*store_->purge("tenant"), 1U);  // they stop nothing
  EXPECT_FALSE(hits(1));
  EXPECT_TRUE(disk_.contents("notes.txt"));
  EXPECT_EQ(*disk_.contents("photo.segment"), segment);
  EXPECT_EQ(*disk_.contents(file_stem(other) + ".segment"), segment);
}

TEST_F(SegmentStoreTest, APurgeErasesPagesThatNobodyOwns) {
  for (std::uint64_t n = 1; n <= 5; ++n) {
    put(n, n == 3 ? "b" : "a");
  }
  commit();
  ASSERT_TRUE(store_->close());
  const std::string name = file(".segment");
  auto bytes = *disk_.contents(name);
  // The header of block 2 is damaged, and the footer and the end of block 5 are cut off: two pages
  // each.
  bytes[kDiskPage * 3 + 40] ^= std::byte{1};
  bytes.resize(kDiskPage * 11 - 900);
  disk_.put(name, bytes);
  open();
  const auto troubles = store_->troubles();
  ASSERT_EQ(troubles.size(), 1U);
  EXPECT_EQ(troubles[0].file, name);
  EXPECT_FALSE(troubles[0].foreign);
  EXPECT_EQ(store_->stats().damaged_segments, 1U);
  EXPECT_EQ(*store_->purge("a"), 2U);
  EXPECT_EQ(store_->stats().unowned_pages_erased, 4U);
  EXPECT_TRUE(hits(3, "b"));
  const auto left = *disk_.contents(name);
  for (const std::uint64_t n : {1U, 2U, 4U, 5U}) {
    const BlockForTest block(n, "a");
    const auto first = std::span(block.parts[0]).first(500);
    EXPECT_TRUE(std::ranges::search(left, first).empty()) << n;
  }
  ASSERT_TRUE(store_->purge("a"));
  EXPECT_EQ(store_->stats().unowned_pages_erased, 4U) << "there are none left";
}

TEST_F(SegmentStoreTest, ASegmentThatLostItsEndIsNamed) {
  put(1);
  commit();
  ASSERT_TRUE(store_->close());
  const std::string name = file(".segment");
  const auto bytes = *disk_.contents(name);
  options_.read_only = true;
  for (const std::size_t left : {std::size_t{0}, std::size_t{100}, bytes.size() - kDiskPage}) {
    disk_.put(name, std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<long>(left)));
    open();
    ASSERT_EQ(store_->troubles().size(), 1U) << left;
    EXPECT_EQ(store_->troubles()[0].file, name);
    EXPECT_EQ(store_->stats().damaged_segments, 1U);
    EXPECT_EQ(hits(1), left > 100);
  }
  disk_.put(name, bytes);
  open();
  EXPECT_TRUE(store_->troubles().empty());
}

TEST_F(SegmentStoreTest, AFolderThatIsNoStoreStaysAsItIs) {
  VirtualDisk disk{Seed(5)};
  disk.put("notes.txt", std::vector<std::byte>(10));
  options_.must_exist = true;
  const auto refused = SegmentStore::open(disk, clock_, options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNotFound);
  EXPECT_EQ(disk.list()->size(), 1U);
  put(1);
  commit();
  open();  // this one is one
  EXPECT_TRUE(store_->close());
}

TEST_F(SegmentStoreTest, SegmentsDieWholeAndNeverEarly) {
  put(1, "tenant", 0);  // three days
  put(2, "tenant", 1);  // seven
  commit();
  clock_.advance(72h - 1s);
  ASSERT_TRUE(store_->maintain());
  EXPECT_EQ(match({1})->size(), 1U);
  clock_.advance(1h + 1s);
  ASSERT_TRUE(store_->maintain());
  EXPECT_EQ(match({1})->size(), 0U);
  EXPECT_EQ(match({2})->size(), 1U);
  EXPECT_GE(store_->stats().expired_segments, 1U);
}

TEST_F(SegmentStoreTest, AHitNearTheEndIsWrittenAgain) {
  put(1);
  put(2);
  commit();
  clock_.advance(70h);
  EXPECT_TRUE(hits(1));
  ASSERT_TRUE(store_->maintain());
  EXPECT_GT(store_->stats().refreshed_bytes, 0U);
  clock_.advance(4h);
  ASSERT_TRUE(store_->maintain());
  EXPECT_TRUE(hits(1));
  EXPECT_EQ(match({2})->size(), 0U);
  open();
  EXPECT_TRUE(hits(1));
  clock_.advance(73h);
  ASSERT_TRUE(store_->maintain());
  EXPECT_EQ(match({1})->size(), 0U);
}

TEST_F(SegmentStoreTest, TheDateMayJump) {
  put(1);
  commit();
  clock_.set_date(kStart + std::chrono::days(100));  // forward, while it runs
  ASSERT_TRUE(store_->maintain());
  EXPECT_TRUE(hits(1));
  clock_.set_date(kStart - std::chrono::days(100));
  ASSERT_TRUE(store_->maintain());
  put(2);
  commit();
  open();  // with a clock that is 100 days back
  EXPECT_GE(store_->now_s(),
            std::chrono::floor<std::chrono::seconds>(kStart).time_since_epoch().count());
  EXPECT_TRUE(hits(1));
  EXPECT_TRUE(hits(2));
  put(3);
  commit();
  clock_.advance(71h);
  ASSERT_TRUE(store_->maintain());
  EXPECT_TRUE(hits(3));
}

TEST_F(SegmentStoreTest, ALeaseOutlivesExpiryAndEndsInTime) {
  put(1);
  commit();
  clock_.advance(73h - 5s);
  const auto lease = match({1});
  ASSERT_EQ(lease->size(), 1U);
  clock_.advance(10s);
  ASSERT_TRUE(store_->maintain());
  EXPECT_EQ(file(".segment"), "");
  PageBuffer buffer;
  const auto view = store_->read(*lease, 0, buffer);
  ASSERT_TRUE(view) << to_string(view.error());
  EXPECT_TRUE(same_parts(*view, BlockForTest(1)));
  clock_.advance(30s);
  const auto late = store_->read(*lease, 0, buffer);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kDeadlineExceeded);
}

TEST_F(SegmentStoreTest, ExactnessIsHonoured) {
  BlockForTest one(1);
  one.block.facts.exact = false;
  ASSERT_TRUE(store_->put(one.block));
  BlockForTest two(2);
  ASSERT_TRUE(store_->put(two.block));
  commit();
  const auto sees = [&](std::uint64_t n, std::uint64_t layout, bool exact, std::uint64_t numerics) {
    const std::array keys{key_for_test(n)};
    return store_->match({.space = "tenant",
                          .layout = layout,
                          .keys = keys,
                          .exact_only = exact,
                          .numerics = numerics});
  };
  EXPECT_EQ(sees(1, 1, false, 2)->size(), 1U);
  EXPECT_EQ(sees(1, 1, true, 2)->miss(), MissReason::kNumerics);
  EXPECT_EQ(sees(2, 1, true, 2)->size(), 1U);
  EXPECT_EQ(sees(2, 1, true, 3)->miss(), MissReason::kNumerics);
  EXPECT_EQ(sees(2, 9, false, 2)->miss(), MissReason::kLayout);
  // The exact block takes an approximate one's place, and never the other way.
  BlockForTest better(1);
  EXPECT_EQ(*store_->put(better.block), PutOutcome::kStaged);
  commit();
  EXPECT_EQ(sees(1, 1, true, 2)->size(), 1U);
  EXPECT_EQ(*store_->put(one.block), PutOutcome::kKnown);
  open();
  EXPECT_EQ(sees(1, 1, true, 2)->size(), 1U);
}

TEST_F(SegmentStoreTest, APurgedNamespaceStaysPurged) {
  put(1, "a");
  put(2, "b");
  commit();
  put(3, "a");  // on its way
  EXPECT_EQ(*store_->purge("a"), 2U);
  EXPECT_EQ(match({1}, "a")->size(), 0U);
  EXPECT_TRUE(hits(2, "b"));
  put(3, "a");  // a new life
  commit();
  disk_.restart();
  open();
  EXPECT_EQ(match({1}, "a")->size(), 0U);
  EXPECT_TRUE(hits(3, "a"));
  EXPECT_TRUE(hits(2, "b"));
  // Its bytes are gone, too.
  const BlockForTest gone(1, "a");
  for (const DiskEntry& entry : files()) {
    const auto bytes = *disk_.contents(entry.name);
    EXPECT_TRUE(std::ranges::search(bytes, gone.parts[0]).empty()) << entry.name;
  }
}

TEST_F(SegmentStoreTest, OneDamagedListOfPurgesIsEnoughAndNoneIsRefused) {
  put(1, "a");
  commit();
  ASSERT_TRUE(store_->purge("a"));
  disk_.flip("purges.a", 30, 1);
  open();
  EXPECT_EQ(match({1}, "a")->size(), 0U);
  disk_.flip("purges.b", 30, 1);
  store_.reset();
  const auto refused = SegmentStore::open(disk_, clock_, options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kCorruption);
}

TEST_F(SegmentStoreTest, ATenantOverItsBudgetStopsWriting) {
  options_.space_budgets["small"] = 3 * 8192;
  open();
  put(1, "small");
  put(2, "small");
  commit();
  put(3, "small");
  BlockForTest more(4, "small");
  const auto refused = store_->put(more.block);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kOverloaded);
  EXPECT_EQ(refused.error().reason, SegmentStore::kBudgetUsedUp);
  put(4, "large");
  commit();
  open();  // counted from what is there
  EXPECT_FALSE(store_->put(more.block));
}

TEST_F(SegmentStoreTest, AClassStaysWithinItsBytesAndKeepsWhatIsHit) {
  options_.classes = {{.name = "agent", .life = 72h, .bytes_max = 300'000}};
  options_.segment_bytes = 60'000;
  open();
  put(0);
  commit();
  for (std::uint64_t n = 1; n < 200; ++n) {
    put(n);
    commit();
    clock_.advance(60s);
    EXPECT_TRUE(hits(0)) << n;
    EXPECT_LE(store_->stats().bytes, 300'000U);
  }
  EXPECT_GT(store_->stats().evicted_segments, 5U);
  EXPECT_GT(store_->stats().copied_bytes, 0U);
  EXPECT_LE(static_cast<double>(store_->stats().copied_bytes),
            0.24 * static_cast<double>(store_->stats().put_bytes));
  EXPECT_TRUE(hits(199));
  EXPECT_EQ(match({1})->size(), 0U);
  open();  // C074: use is counted from what is on the disk
  EXPECT_GT(store_->stats().bytes, 150'000U);
  for (std::uint64_t n = 200; n < 240; ++n) {
    put(n);
    commit();
    EXPECT_LE(store_->stats().bytes, 300'000U);
  }
}

TEST_F(SegmentStoreTest, AFullDiskMakesItReadOnlyForAWhile) {
  put(1);
  commit();
  disk_.set_room(disk_.used());
  put(2);
  EXPECT_FALSE(store_->commit());
  EXPECT_TRUE(hits(1)) << "serving goes on";
  BlockForTest more(3);
  const auto refused = store_->put(more.block);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, SegmentStore::kReadOnly);
  EXPECT_EQ(store_->stats().lost_blocks, 1U);
  EXPECT_FALSE(store_->maintain());
  disk_.set_room(1 << 30);
  clock_.advance(31s);
  EXPECT_TRUE(store_->maintain());
  put(2);
  commit();
  EXPECT_TRUE(hits(2));
  disk_.restart();
  open();
  EXPECT_TRUE(hits(1));
  EXPECT_TRUE(hits(2));
}

TEST_F(SegmentStoreTest, OneWriterAndAnyNumberOfReaders) {
  put(1);
  commit();
  EXPECT_FALSE(SegmentStore::open(disk_, clock_, options_));
  StoreOptions reading = options_;
  reading.read_only = true;
  const auto reader = SegmentStore::open(disk_, clock_, reading);
  ASSERT_TRUE(reader) << to_string(reader.error());
  const std::array keys{key_for_test(1)};
  EXPECT_EQ((*reader)->match({.space = "tenant", .layout = 1, .keys = keys})->size(), 1U);
  BlockForTest more(2);
  EXPECT_FALSE((*reader)->put(more.block));
  EXPECT_FALSE((*reader)->purge("tenant"));
  EXPECT_NE(file(".journal"), "") << "a reader closes nothing";
}

TEST_F(SegmentStoreTest, IsUsableWhileItIsLoaded) {
  for (std::uint64_t n = 0; n < 3; ++n) {
    put(n);
    commit();
    clock_.advance(2h);
  }
  ASSERT_TRUE(store_->close());
  options_.load = false;
  open();
  EXPECT_FALSE(store_->stats().loaded);
  EXPECT_TRUE(store_->load_some());  // the newest first
  EXPECT_TRUE(hits(2));
  EXPECT_EQ(match({0})->size(), 0U);
  while (store_->load_some()) {
  }
  EXPECT_TRUE(store_->stats().loaded);
  EXPECT_TRUE(hits(0));
}

TEST_F(SegmentStoreTest, RefusesWhatIsAboveItsLimits) {
  BlockForTest one(1, std::string(kNamespaceBytesMax + 1, 'x'));
  EXPECT_EQ(store_->put(one.block).error().where, "namespace");
  BlockForTest two(2);
  two.block.retention = 2;
  EXPECT_EQ(store_->put(two.block).error().where, "class");
  BlockForTest three(3);
  const std::vector<std::span<const std::byte>> parts(kBlockPartsMax + 1);
  three.block.parts = parts;
  EXPECT_EQ(store_->put(three.block).error().where, "parts");
  three.block.parts = std::span(parts).first(kBlockPartsMax);
  EXPECT_TRUE(store_->put(three.block));
  const std::vector<std::byte> large(kBlockBytesMax + 1);
  const std::array one_part{std::span<const std::byte>(large)};
  BlockForTest four(4);
  four.block.parts = one_part;
  EXPECT_EQ(store_->put(four.block).error().code, Code::kTooLarge);
  options_.staged_bytes_max = 8192;
  open();
  put(5);
  BlockForTest six(6);
  EXPECT_EQ(store_->put(six.block).error().code, Code::kOverloaded);
  for (const auto& wrong :
       {StoreOptions{.classes = {}}, StoreOptions{.classes = {{.name = "A", .life = 1h}}},
        StoreOptions{.classes = {{.name = "a", .life = 1ms}}},
        StoreOptions{.classes = {{"a", 1h, 0}, {"a", 1h, 0}}}, StoreOptions{.bucket = 1ms},
        StoreOptions{.segment_bytes = 4096}}) {
    VirtualDisk empty(Seed(9));
    EXPECT_EQ(SegmentStore::open(empty, clock_, wrong).error().code, Code::kInvalidArgument);
  }
}

TEST_F(SegmentStoreTest, CommitsByItselfWhenAGroupIsFull) {
  options_.group_bytes = 20'000;
  open();
  put(1);
  put(2);
  EXPECT_FALSE(hits(1));
  put(3);
  EXPECT_TRUE(hits(3));
}

TEST_F(SegmentStoreTest, TellsToolsWhatThereIs) {
  put(1, "a", 0);
  put(2, "b", 1);
  put(3, "b", 1);
  commit();
  const auto segments = store_->segments();
  ASSERT_EQ(segments.size(), 2U);
  const auto spaces = store_->spaces();
  ASSERT_EQ(spaces.size(), 2U);
  EXPECT_EQ(spaces[1].space, "b");
  EXPECT_EQ(spaces[1].blocks, 2U);
  std::size_t blocks = 0;
  PageBuffer buffer;
  for (const SegmentInfo& segment : segments) {
    const auto rows = store_->blocks(segment.name);
    ASSERT_TRUE(rows);
    for (const StoredBlock& row : *rows) {
      EXPECT_TRUE(store_->read(row, buffer));
      ++blocks;
    }
  }
  EXPECT_EQ(blocks, 3U);
}

}  // namespace
}  // namespace galley::cache
