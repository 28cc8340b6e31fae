#pragma once

#include <array>
#include <cstdint>

#include "base/ids.h"

// Random numbers addressed by counter: the same (seed, stream, index) gives the same number on
// every machine, in any order, on any thread. Sampling keys the stream by request and the index by
// position, so an answer does not depend on what else is in the batch. Not for secrets.
namespace galley {

using Seed = Id<struct SeedTag>;

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
using RandomBlock = std::array<std::uint32_t, 4>;
[[nodiscard]] RandomBlock philox4x32(const RandomBlock& counter,
                                     const std::array<std::uint32_t, 2>& key);

// The four words at `index` of a stream.
[[nodiscard]] RandomBlock random_block(Seed seed, std::uint64_t stream, std::uint64_t index);

// In [0, 1), multiples of 2^-24: every value is exact and 1 cannot appear by rounding.
[[nodiscard]] constexpr float unit_float(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

// Walks one stream from its start. A plain value: copy it to replay from where it is.
class Random {
 public:
  Random(Seed seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  [[nodiscard]] std::uint32_t next_u32();
  [[nodiscard]] std::uint64_t next_u64();
  [[nodiscard]] float next_float() { return unit_float(next_u32()); }
  // Uniform in [0, bound), bound > 0: numbers that would favour small results are drawn again.
  [[nodiscard]] std::uint64_t next_below(std::uint64_t bound);

 private:
  Seed seed_;
  std::uint64_t stream_;
  std::uint64_t next_index_ = 0;
  RandomBlock block_{};
  unsigned words_left_ = 0;
};

}  // namespace galley
