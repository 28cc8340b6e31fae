// Goal: probes count the work that is done, on machines of every kind, and come to an end. Method:
// a clock that tests set decides how long the work took; the rates follow exactly.
#include "kernels/probe.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>

#include "kernels/probe_loops.h"

namespace galley::kernels {
namespace {

// Each look at it takes `step`.
class StepClock final : public Clock {
 public:
  explicit StepClock(Duration step) : step_(step) {}
  [[nodiscard]] TimeNs now() const override { return now_ += step_; }
  [[nodiscard]] UnixTime unix_time() const override { return {}; }

 private:
  Duration step_;
  mutable TimeNs now_{};
};

bool has(Isa isa) {
  return std::ranges::count(supported_isas(), isa) > 0;
}

TEST(Probe, TasksAreRepeatedUntilTheyCanBeTimed) {
  WorkerPool pool(2);
  std::atomic<std::size_t> calls{0};
  const auto count = [&](std::size_t) { ++calls; };
  using std::chrono::milliseconds;
  EXPECT_DOUBLE_EQ(task_rate(pool, StepClock(milliseconds(40)), 6, count), 6 / 0.040);
  EXPECT_EQ(calls, 6U);

  // 6, 12, 24 ms, whatever is done.
  class Growing final : public Clock {
   public:
    [[nodiscard]] TimeNs now() const override {
      return TimeNs(milliseconds(++looks_ % 2 == 0 ? 3 << looks_ / 2 : 0));
    }
    [[nodiscard]] UnixTime unix_time() const override { return {}; }

   private:
    mutable int looks_ = 0;
  };
  calls = 0;
  EXPECT_DOUBLE_EQ(task_rate(pool, Growing(), 6, count), 24 / 0.024);
  EXPECT_EQ(calls, 6U + 12 + 24);
}

TEST(Probe, AClockThatStandsStillEndsTheProbe) {
  WorkerPool pool(1);
  std::size_t calls = 0;
  const double rate = task_rate(pool, StepClock(Duration(0)), 1, [&](std::size_t) { ++calls; });
  EXPECT_TRUE(std::isfinite(rate));
  EXPECT_LT(calls, std::size_t{1} << 22U);
}

TEST(Probe, MemoryIsAlignedTouchedAndRandom) {
  WorkerPool pool(2);
  const ProbeMemory memory(pool, (std::size_t{2} << 20U) + 1);
  const auto bytes = memory.bytes();
  EXPECT_EQ(bytes.size(), std::size_t{4} << 20U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % (std::size_t{2} << 20U), 0U);
  std::size_t counts[256] = {};
  for (const std::byte byte : bytes) {
    ++counts[static_cast<std::size_t>(byte)];
  }
  const double mean = static_cast<double>(bytes.size()) / 256;
  for (const std::size_t count : counts) {
    EXPECT_NEAR(static_cast<double>(count), mean, 8 * std::sqrt(mean));
  }
  // No page is another one's copy.
  EXPECT_FALSE(std::ranges::equal(bytes.first(4096), bytes.subspan(bytes.size() / 2, 4096)));
}

TEST(Probe, ReadsEveryByte) {
  WorkerPool pool(1);
  const ProbeMemory memory(pool, std::size_t{2} << 20U);
  const std::size_t bytes = 8 * kReadStep;
  alignas(64) std::byte data[8 * kReadStep];
  std::ranges::copy(memory.bytes().first(bytes), data);
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes; at += sizeof(sum)) {
    std::uint64_t word = 0;
    std::copy_n(data + at, sizeof(word), reinterpret_cast<std::byte*>(&word));
    sum += word;
  }
  EXPECT_EQ(kAvx2ReadLoop(data, bytes), sum);
  if (has(Isa::kAvx512)) {
    EXPECT_EQ(kAvx512ReadLoop(data, bytes), sum);
  }
}

// Runs every loop this machine has, too.
TEST(Probe, RatesAreWorkOverTime) {
  const StepClock clock(std::chrono::milliseconds(25));
  WorkerPool pool(2);
  const ProbeMemory memory(pool, std::size_t{4} << 20U);
  EXPECT_DOUBLE_EQ(read_rate(pool, clock, memory.bytes()), (std::size_t{4} << 20U) / 0.025);
  const double tasks = 64 * 2 / 0.025;
  const ComputeLoop& fma = has(Isa::kAvx512) ? kAvx512FmaLoop : kAvx2FmaLoop;
  const Limits limits = measure_limits(pool, clock, memory.bytes());
  EXPECT_GT(limits.cached_bytes_per_second, 0);
  EXPECT_DOUBLE_EQ(limits.fma_flops, fma.operations * tasks);
  EXPECT_DOUBLE_EQ(limits.bf16_flops, has(Isa::kAvx512) ? kAvx512DotLoop.operations * tasks : 0);
  EXPECT_DOUBLE_EQ(limits.tile_flops, has(Isa::kAmx) ? kAmxTileLoop.operations * tasks : 0);
  EXPECT_EQ(product_limit(Isa::kReference, pool, clock), 0);
  EXPECT_DOUBLE_EQ(product_limit(Isa::kAvx2, pool, clock), kAvx2FmaLoop.operations * tasks);
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(product_limit(isa, pool, clock) > 0, isa != Isa::kReference) << isa_name(isa);
  }
}

}  // namespace
}  // namespace galley::kernels
