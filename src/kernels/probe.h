#pragma once

#include <cstddef>
#include <span>

#include "base/clock.h"
#include "base/worker_pool.h"
#include "kernels/isa.h"

// What this machine can do at most: the rates that those of the kernels are shares of. Each
// function measures once, for some 20 ms, with all threads of the pool. Machines are shared and
// noisy: take probes in turn with what is measured, several times, and the medians.
namespace galley::kernels {

// Random bytes, touched, in pages of 2 MiB where the system gives them: reading untouched or zero
// memory is faster than reading weights.
class ProbeMemory {
 public:
  // `bytes` is rounded up to 2 MiB. Takes about a second for a GiB.
  ProbeMemory(WorkerPool& pool, std::size_t bytes);
  ~ProbeMemory();
  ProbeMemory(const ProbeMemory&) = delete;
  ProbeMemory& operator=(const ProbeMemory&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* mapping_;
  std::size_t mapping_bytes_;
  std::byte* data_;
  std::size_t size_;
};

// Bytes a second, each of `memory` read once or several times in turn. As the rate of main memory
// it is right when `memory` is far larger than the caches: 1 GiB.
[[nodiscard]] double read_rate(WorkerPool& pool,
                               const Clock& clock,
                               std::span<const std::byte> memory);
// Bytes a second when every core reads a piece of `memory` of its own, which holds half of the
// second-level cache, again and again. `memory` has at least kCachedBytesMax a thread.
inline constexpr std::size_t kCachedBytesMax = std::size_t{1} << 20U;
[[nodiscard]] double cached_read_rate(WorkerPool& pool,
                                      const Clock& clock,
                                      std::span<const std::byte> memory);

// Operations a second, a multiplication and an addition being two, from the first-level cache.
// Float32, with the widest vectors of this machine.
[[nodiscard]] double fma_rate(WorkerPool& pool, const Clock& clock);
// Pairs of bfloat16; 0: this machine lacks kAvx512.
[[nodiscard]] double bf16_dot_rate(WorkerPool& pool, const Clock& clock);
// Tiles of bfloat16; 0: this machine lacks kAmx.
[[nodiscard]] double tile_rate(WorkerPool& pool, const Clock& clock);
// Of the instruction that products of `isa`, one of supported_isas(), are made of; 0: of the
// reference, which is not made to be fast.
[[nodiscard]] double product_limit(Isa isa, WorkerPool& pool, const Clock& clock);

// All of them; 0: this machine lacks it.
struct Limits {
  double read_bytes_per_second = 0;
  double cached_bytes_per_second = 0;
  double fma_flops = 0;
  double bf16_flops = 0;
  double tile_flops = 0;
};
[[nodiscard]] Limits measure_limits(WorkerPool& pool,
                                    const Clock& clock,
                                    std::span<const std::byte> memory);

// `tasks` calls of `task` from 0 on, doubled until they take long enough to be timed; calls a
// second. What the probes are made with, and what others of the kind may be.
[[nodiscard]] double task_rate(WorkerPool& pool,
                               const Clock& clock,
                               std::size_t tasks,
                               TaskRef task);

}  // namespace galley::kernels
