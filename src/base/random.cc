#include "base/random.h"

#include "base/check.h"

namespace galley {
namespace {

constexpr std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

RandomBlock philox4x32(const RandomBlock& counter, const std::array<std::uint32_t, 2>& key) {
  constexpr int kRounds = 10;
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;  // constants of the paper
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  auto [c0, c1, c2, c3] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * c0;
    const std::uint64_t product1 = kMultiplier1 * c2;
    c0 = high(product1) ^ c1 ^ k0;
    c1 = low(product1);
    c2 = high(product0) ^ c3 ^ k1;
    c3 = low(product0);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

RandomBlock random_block(Seed seed, std::uint64_t stream, std::uint64_t index) {
  return philox4x32({low(index), high(index), low(stream), high(stream)},
                    {low(seed.value()), high(seed.value())});
}

std::uint32_t Random::next_u32() {
  if (words_left_ == 0) {
    block_ = random_block(seed_, stream_, next_index_++);
    words_left_ = static_cast<unsigned>(block_.size());
  }
  return block_[block_.size() - words_left_--];
}

std::uint64_t Random::next_u64() {
  const std::uint64_t lower = next_u32();
  return lower | std::uint64_t{next_u32()} << 32;
}

std::uint64_t Random::next_below(std::uint64_t bound) {
  GALLEY_ASSERT(bound > 0);
  // 2^64 mod bound numbers are surplus. Dropping the lowest leaves each result equally many.
  const std::uint64_t surplus = (0 - bound) % bound;
  while (true) {
    if (const std::uint64_t draw = next_u64(); draw >= surplus) {
      return draw % bound;
    }
  }
}

}  // namespace galley
