#include "kernels/probe.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/random.h"
#include "kernels/probe_loops.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20U;
constexpr std::size_t kReadTaskBytes = kHugePage;
constexpr std::chrono::milliseconds kTimed{20};
constexpr std::size_t kTasksMax = std::size_t{1} << 20U;  // should the clock stand still
constexpr Seed kSeed{1};

bool has(Isa isa) {
  return std::ranges::count(supported_isas(), isa) > 0;
}

// The probes' results end here, so that no compiler finds them unused.
std::atomic<std::uint64_t> consumed{0};  // NOLINT: write only

void consume(std::uint64_t value) {
  consumed.fetch_xor(value, std::memory_order_relaxed);
}

// Sequence by Marsaglia, "Xorshift RNGs" (2003): as fast as memory is filled, and the content only
// has to look like weights.
void fill_random(std::byte* data, std::size_t bytes, std::uint64_t stream) {
  const RandomBlock seed = random_block(kSeed, stream, 0);
  std::uint64_t state = (std::uint64_t{seed[0]} << 32U | seed[1]) | 1U;
  for (std::size_t at = 0; at < bytes; at += sizeof(state)) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    std::memcpy(data + at, &state, sizeof(state));
  }
}

struct alignas(64) ProbeValues {
  std::byte bytes[kProbeValueBytes];
};

// What kProbeValueBytes describes.
const std::byte* probe_values() {
  static const std::unique_ptr<const ProbeValues> values = [] {
    auto out = std::make_unique<ProbeValues>();
    Random random(kSeed, 0);
    for (std::size_t at = 0; at < kProbeValueBytes; at += sizeof(std::uint16_t)) {
      // Sign and mantissa at random; exponent 126 or 127.
      const std::uint32_t word = random.next_u32();
      const auto bits = static_cast<std::uint16_t>(
          (word & 0x807fU) | ((word & 0x100U) != 0 ? 127U << 7U : 126U << 7U));
      std::memcpy(out->bytes + at, &bits, sizeof(bits));
    }
    return out;
  }();
  return values->bytes;
}

double compute_rate(WorkerPool& pool, const Clock& clock, const ComputeLoop& loop) {
  const std::byte* const values = probe_values();
  const auto threads = static_cast<std::size_t>(pool.threads());
  return loop.operations * task_rate(pool, clock, 64 * threads, [&](std::size_t) {
           const float result = loop.run(values);
           GALLEY_ASSERT(std::isfinite(result));
           consume(std::bit_cast<std::uint32_t>(result));
         });
}

const ComputeLoop& fma_loop() {
  return has(Isa::kAvx512) ? kAvx512FmaLoop : kAvx2FmaLoop;
}

ReadLoop read_loop() {
  return has(Isa::kAvx512) ? kAvx512ReadLoop : kAvx2ReadLoop;
}

// Half of the second-level cache, as far as the system knows it.
std::size_t cached_bytes() {
  const long cache = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  const std::size_t half = cache > 0 ? static_cast<std::size_t>(cache) / 2 : kCachedBytesMax / 4;
  return std::clamp(half / kReadStep * kReadStep, kReadStep, kCachedBytesMax);
}

}  // namespace

ProbeMemory::ProbeMemory(WorkerPool& pool, std::size_t bytes)
    : size_(ceil_div(std::max(bytes, std::size_t{1}), kHugePage) * kHugePage) {
  mapping_bytes_ = size_ + kHugePage;
  void* const mapping = ::mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    throw std::bad_alloc();  // as any container would
  }
  mapping_ = static_cast<std::byte*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = mapping_ + (ceil_div(address, kHugePage) * kHugePage - address);
  ::madvise(data_, size_, MADV_HUGEPAGE);  // a refusal leaves small pages
  pool.run(size_ / kHugePage,
           [&](std::size_t page) { fill_random(data_ + page * kHugePage, kHugePage, page + 1); });
}

ProbeMemory::~ProbeMemory() {
  ::munmap(mapping_, mapping_bytes_);
}

double task_rate(WorkerPool& pool, const Clock& clock, std::size_t tasks, TaskRef task) {
  for (;;) {
    const TimeNs start = clock.now();
    pool.run(tasks, task);
    const Duration took = clock.now() - start;
    if (took >= kTimed || tasks >= kTasksMax) {
      const double seconds = std::chrono::duration<double>(std::max(took, Duration(1))).count();
      return static_cast<double>(tasks) / seconds;
    }
    tasks *= 2;
  }
}

double read_rate(WorkerPool& pool, const Clock& clock, std::span<const std::byte> memory) {
  const ReadLoop read = read_loop();
  const std::size_t pieces = memory.size() / kReadTaskBytes;
  GALLEY_ASSERT(pieces > 0);
  return static_cast<double>(kReadTaskBytes) *
         task_rate(pool, clock, pieces, [&](std::size_t task) {
           consume(read(memory.data() + task % pieces * kReadTaskBytes, kReadTaskBytes));
         });
}

double cached_read_rate(WorkerPool& pool, const Clock& clock, std::span<const std::byte> memory) {
  constexpr std::size_t kPasses = 100;
  const ReadLoop read = read_loop();
  const std::size_t bytes = cached_bytes();
  const auto threads = static_cast<std::size_t>(pool.threads());
  GALLEY_ASSERT(memory.size() >= threads * kCachedBytesMax);
  // One task a thread; who takes which is of no matter, the first of many passes fetches it.
  return static_cast<double>(bytes * kPasses) *
         task_rate(pool, clock, threads, [&](std::size_t task) {
           for (std::size_t pass = 0; pass < kPasses; ++pass) {
             consume(read(memory.data() + task % threads * kCachedBytesMax, bytes));
           }
         });
}

double fma_rate(WorkerPool& pool, const Clock& clock) {
  return compute_rate(pool, clock, fma_loop());
}

double bf16_dot_rate(WorkerPool& pool, const Clock& clock) {
  return has(Isa::kAvx512) ? compute_rate(pool, clock, kAvx512DotLoop) : 0;
}

double tile_rate(WorkerPool& pool, const Clock& clock) {
  return has(Isa::kAmx) ? compute_rate(pool, clock, kAmxTileLoop) : 0;
}

double product_limit(Isa isa, WorkerPool& pool, const Clock& clock) {
  GALLEY_ASSERT(has(isa));
  switch (isa) {
    case Isa::kReference:
      return 0;
    case Isa::kAvx2:
      return compute_rate(pool, clock, kAvx2FmaLoop);
    case Isa::kAvx512:
      return bf16_dot_rate(pool, clock);
    case Isa::kAmx:
      return tile_rate(pool, clock);
  }
  std::unreachable();
}

Limits measure_limits(WorkerPool& pool, const Clock& clock, std::span<const std::byte> memory) {
  return {.read_bytes_per_second = read_rate(pool, clock, memory),
          .cached_bytes_per_second = cached_read_rate(pool, clock, memory),
          .fma_flops = fma_rate(pool, clock),
          .bf16_flops = bf16_dot_rate(pool, clock),
          .tile_flops = tile_rate(pool, clock)};
}

}  // namespace galley::kernels
