// Goal: what goes to a store comes back as it was or not at all, to its tenant only, and whatever
// the store does nobody waits for it. Method: the real traffic on a real store over a disk that
// fails on demand; blocks of plain bytes.
#include "engine/store_traffic.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <sched.h>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/virtual_disk.h"
#include "base/virtual_loop.h"
#include "cache/segments/segment_store.h"
#include "engine/block_names.h"
#include "engine/held_store_for_test.h"
#include "engine/store_for_test.h"

namespace galley::engine {
namespace {

class Blocks final : public BlockMemory {
 public:
  [[nodiscard]] std::span<const std::size_t> block_parts() const override { return parts_; }
  [[nodiscard]] Result<std::span<std::byte>> block_bytes(cache::BlockId block) override {
    if (without == block) {
      return fail(Code::kUnavailable, "no memory");
    }
    std::vector<std::byte>& bytes = blocks_.at(block.value());
    return std::span(bytes);
  }
  void fill(std::uint32_t block, int value) {
    std::ranges::fill(blocks_.at(block), static_cast<std::byte>(value));
  }
  [[nodiscard]] int first(std::uint32_t block) const {
    return static_cast<int>(blocks_.at(block).front());
  }
  [[nodiscard]] int last(std::uint32_t block) const {
    return static_cast<int>(blocks_.at(block)[kBytes - 1]);
  }

  explicit Blocks(std::vector<std::size_t> parts = {5000, 4000}) : parts_(std::move(parts)) {}

  static constexpr std::size_t kBytes = 9000;

  std::optional<cache::BlockId> without;  // there is no memory for this one

 private:
  const std::vector<std::size_t> parts_;
  std::vector<std::vector<std::byte>> blocks_{64, std::vector<std::byte>(kBytes + 100)};
};

cache::BlockKey key(int number) {
  cache::BlockKey out;
  out.bytes[0] = static_cast<std::byte>(number);
  out.bytes[1] = std::byte{1};
  return out;
}

std::shared_ptr<const EngineRequest> of_tenant(std::string tenant) {
  auto out = std::make_shared<EngineRequest>();
  out->generation.tenant = std::move(tenant);
  return out;
}

class StoreTrafficTest : public testing::Test {
 protected:
  StoreTrafficTest() {
    store = cache::SegmentStore::open(disk, loop, {}).value();
    for (std::uint32_t i = 0; i < 20; ++i) {
      blocks.fill(i, static_cast<int>(i) + 1);
    }
  }
  std::unique_ptr<StoreTraffic> traffic(StoreTrafficOptions options = {}) {
    options.chat_class = 1;
    return std::make_unique<StoreTraffic>(*store, blocks, loop, options, [this] { ++progress; });
  }
  // Blocks 0 to 19 under keys of their numbers.
  void write_all(bool exact = true, const StoreTrafficOptions& options = {}) {
    const auto out = traffic(options);  // waits for what it has
    for (std::uint32_t i = 0; i < 20; ++i) {
      out->write({.request = of_tenant("a"),
                  .key = key(static_cast<int>(i)),
                  .parent = {},
                  .exact = exact,
                  .block = cache::BlockId(i)});
    }
  }
  // Into blocks 32 and up.
  static FetchOrder order(const std::string& tenant) {
    FetchOrder out{.id = RequestId(1), .request = of_tenant(tenant), .keys = {}, .blocks = {}};
    for (std::uint32_t i = 0; i < 20; ++i) {
      out.keys.push_back(key(static_cast<int>(i)));
      out.blocks.emplace_back(32 + i);
    }
    return out;
  }
  static FetchState wait(StoreTraffic& traffic) {
    FetchState state = traffic.state(RequestId(1));
    while (!state.over) {
      sched_yield();
      state = traffic.state(RequestId(1));
    }
    return state;
  }

  VirtualLoop loop;
  VirtualDisk disk{Seed(1)};
  std::unique_ptr<cache::SegmentStore> store;
  Blocks blocks;
  std::atomic<int> progress = 0;
};

TEST_F(StoreTrafficTest, WhatWasWrittenComesBack) {
  write_all();
  const auto out = traffic();
  out->fetch(order("a"));
  const FetchState state = wait(*out);
  EXPECT_EQ(state.promised, 20U);
  ASSERT_EQ(state.fetched, 20U);
  EXPECT_EQ(state.end, FetchEnd::kWhole);
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(blocks.first(32 + i), static_cast<int>(i) + 1);
    EXPECT_EQ(blocks.last(32 + i), static_cast<int>(i) + 1);
  }
  EXPECT_EQ(out->stats().fetched_bytes, 20 * Blocks::kBytes);
  out->stop(RequestId(1));
}

TEST_F(StoreTrafficTest, TellsOfEveryStepOfAFetch) {
  write_all();
  auto out = traffic({.credits = 8});
  out->fetch(order("a"));
  EXPECT_EQ(wait(*out).fetched, 20U);
  out.reset();
  EXPECT_EQ(progress, 1 + 1 + 3);  // its turn; what there is; three times blocks
  out = traffic();
  out->fetch(order("b"));
  EXPECT_EQ(wait(*out).promised, 0U);
  out.reset();
  EXPECT_EQ(progress, 5 + 2);
}

TEST_F(StoreTrafficTest, WhatWouldNotHelpIsNotRead) {
  write_all();
  const auto out = traffic();
  FetchOrder one = order("a");
  one.keys.back() = key(77);
  one.least = 20;
  out->fetch(one);
  FetchState state = wait(*out);
  EXPECT_EQ(state.promised, 19U);
  EXPECT_EQ(state.end, FetchEnd::kUnknown);
  out->stop(RequestId(1));
  EXPECT_EQ(out->stats().fetched_blocks, 0U);
  one.least = 19;
  out->fetch(one);
  EXPECT_EQ(wait(*out).fetched, 19U);
}

TEST_F(StoreTrafficTest, RefusesWhatTooManyWaitFor) {
  write_all();
  HeldStore held(*store);
  StoreTraffic out(held, blocks, loop, {.readers = 1, .waiting_max = 1}, [this] { ++progress; });
  const auto fetch = [&](std::uint64_t id) {
    FetchOrder one = order("a");
    one.id = RequestId(id);
    out.fetch(std::move(one));
  };
  fetch(1);
  held.wait_for_read();
  const int before = progress;
  fetch(2);
  EXPECT_TRUE(out.state(RequestId(1)).begun);
  EXPECT_FALSE(out.state(RequestId(2)).begun || out.state(RequestId(2)).over);
  EXPECT_EQ(progress, before);
  fetch(3);
  EXPECT_TRUE(out.state(RequestId(3)).over);
  EXPECT_EQ(out.state(RequestId(3)).end, FetchEnd::kRefused);
  EXPECT_EQ(progress, before + 1);
  held.let_go();
}

TEST_F(StoreTrafficTest, AnotherTenantAnotherLayoutAndAnotherArithmeticGetNothing) {
  write_all();
  for (const auto& [tenant, options] : {std::pair<std::string, StoreTrafficOptions>{"b", {}},
                                        {"a", {.layout = 1}},
                                        {"a", {.numerics = 1}}}) {
    const auto out = traffic(options);
    out->fetch(order(tenant));
    EXPECT_EQ(wait(*out).fetched, 0U) << tenant << options.layout << options.numerics;
  }
  const auto any = traffic({.numerics = 1, .exact_only = false});
  any->fetch(order("a"));
  EXPECT_EQ(wait(*any).fetched, 20U);
}

TEST_F(StoreTrafficTest, ApproximateBlocksAreNotForWhoAsksForExactOnes) {
  write_all(false);
  const auto exact = traffic();
  exact->fetch(order("a"));
  EXPECT_EQ(wait(*exact).fetched, 0U);
  EXPECT_EQ(wait(*exact).end, FetchEnd::kForeign);
  const auto any = traffic({.exact_only = false});
  any->fetch(order("a"));
  EXPECT_EQ(wait(*any).fetched, 20U);
}

// The disk is as it should be: nothing of it is called damaged.
TEST_F(StoreTrafficTest, OurOwnShortageIsNotTheDisks) {
  write_all();
  auto out = traffic();
  blocks.without = cache::BlockId(32 + 7);
  out->fetch(order("a"));
  FetchState state = wait(*out);
  EXPECT_EQ(state.fetched, 7U);
  EXPECT_EQ(state.end, FetchEnd::kRefused);
  out.reset();

  Blocks others({4000, 5000});
  StoreTraffic foreign(*store, others, loop, {}, [] {});
  foreign.fetch(order("a"));
  state = wait(foreign);
  EXPECT_EQ(state.fetched, 0U);
  EXPECT_EQ(state.end, FetchEnd::kForeign);
}

TEST_F(StoreTrafficTest, AStoppedFetchWritesNothing) {
  write_all();
  const auto out = traffic();
  for (int i = 0; i < 50; ++i) {
    out->fetch(order("a"));
    out->stop(RequestId(1));
    for (std::uint32_t block = 32; block < 52; ++block) {
      blocks.fill(block, 0);
    }
    sched_yield();
    for (std::uint32_t block = 32; block < 52; ++block) {
      ASSERT_EQ(blocks.first(block), 0);
      ASSERT_EQ(blocks.last(block), 0);
    }
  }
}

// What does not fit is left out, not waited for.
TEST_F(StoreTrafficTest, AFullQueueDropsAndCounts) {
  const auto out = traffic({.queue = Bytes(1)});  // one block
  for (std::uint32_t i = 0; i < 1000; ++i) {
    out->write({.request = of_tenant("a"),
                .key = key(static_cast<int>(i % 200)),
                .parent = {},
                .block = cache::BlockId(i % 20)});
  }
  EXPECT_GT(out->stats().dropped_blocks, 0U);
}

// Says when it is asked, which the traffic does first at its end.
class EndClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const override {
    const TimeNs out = TimeNs() + std::chrono::seconds(second.load());
    asked = true;
    return out;
  }
  [[nodiscard]] UnixTime unix_time() const override { return {}; }

  mutable std::atomic<bool> asked = false;
  std::atomic<int> second = 0;
};

// Takes nothing until the end has begun, and then a second for each block.
class SlowStore final : public StoreForTest {
 public:
  SlowStore(cache::BlockStore& store, EndClock& clock) : StoreForTest(store), clock_(clock) {}

  Result<cache::PutOutcome> put(const cache::NewBlock& block) override {
    while (!clock_.asked) {
      sched_yield();
    }
    ++clock_.second;
    ++puts;
    return StoreForTest::put(block);
  }
  Result<void> commit() override {
    ++commits;
    return StoreForTest::commit();
  }

  int puts = 0;
  int commits = 0;

 private:
  EndClock& clock_;
};

TEST_F(StoreTrafficTest, TheEndWaitsForASlowDiskForAWhileOnly) {
  for (const auto& [close_max, puts, commits] : {std::tuple(5, 5, 0), std::tuple(100, 20, 1)}) {
    EndClock clock;
    SlowStore slow(*store, clock);
    auto out = std::make_unique<StoreTraffic>(
        slow, blocks, clock,
        StoreTrafficOptions{.chat_class = 1, .close_max = std::chrono::seconds(close_max)}, [] {});
    for (std::uint32_t i = 0; i < 20; ++i) {
      out->write({.request = of_tenant("a"),
                  .key = key(static_cast<int>(i)),
                  .parent = {},
                  .block = cache::BlockId(i)});
    }
    out.reset();
    EXPECT_EQ(slow.puts, puts);
    EXPECT_EQ(slow.commits, commits);
  }
}

TEST(BlockNames, LongNamesStayApart) {
  const auto space = [](std::string tenant) { return block_space({.tenant = std::move(tenant)}); };
  EXPECT_EQ(space(""), "default");
  EXPECT_EQ(space("ann"), "ann");
  const std::string name(cache::kNamespaceBytesMax + 1, 'x');
  EXPECT_EQ(space(name).size(), cache::kNamespaceBytesMax);
  EXPECT_NE(space(name), space(name + "x"));
  // Nor does one take another's: of none, or of one that was cut.
  EXPECT_NE(space("default"), space(""));
  EXPECT_TRUE(space("default").starts_with("default#"));
  EXPECT_NE(space(space("default")), space("default"));
  EXPECT_NE(space(space(name)), space(name));
}

}  // namespace
}  // namespace galley::engine
