// Goal: the generator is Philox4x32-10 and the numbers made from it are uniform and addressable.
// Method: the known-answer vectors of the paper's library (Random123), then properties.
#include "base/random.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>

#include "base/entropy.h"

namespace galley {
namespace {

TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, AddressesMapToCounterAndKey) {
  EXPECT_EQ(random_block(Seed(0x299f31d0'a4093822), 0x03707344'13198a2e, 0x85a308d3'243f6a88),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, SequenceWalksTheBlocksOfItsStream) {
  const Seed seed(7);
  Random random(seed, 3);
  for (std::uint64_t index = 0; index < 3; ++index) {
    for (const std::uint32_t word : random_block(seed, 3, index)) {
      EXPECT_EQ(random.next_u32(), word);
    }
  }
  Random pairs(seed, 3);
  const RandomBlock first = random_block(seed, 3, 0);
  EXPECT_EQ(pairs.next_u64(), first[0] | std::uint64_t{first[1]} << 32);
}

TEST(Random, StreamsAndSeedsDiffer) {
  EXPECT_NE(random_block(Seed(1), 0, 0), random_block(Seed(1), 1, 0));
  EXPECT_NE(random_block(Seed(1), 0, 0), random_block(Seed(2), 0, 0));
  EXPECT_NE(random_block(Seed(1), 0, 1), random_block(Seed(1), 1, 0));
}

TEST(Random, FloatsStayBelowOne) {
  EXPECT_EQ(unit_float(0), 0.0F);
  EXPECT_EQ(unit_float(0x80000000), 0.5F);
  EXPECT_LT(unit_float(0xffffffff), 1.0F);
  EXPECT_EQ(unit_float(0xffffffff), 1.0F - 0x1p-24F);
}

TEST(Random, BelowIsUniformAndStaysInRange) {
  Random random(Seed(1), 0);
  std::array<int, 5> counts{};
  constexpr int kDraws = 10'000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts.at(random.next_below(counts.size()));
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, kDraws / 5, 160);  // 4 standard deviations of 40
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(random.next_below(1), 0U);
  }
}

TEST(Random, BelowHasNoModuloBias) {
  // With bound 3 * 2^62 a plain modulo would put half of all draws into the lowest third.
  Random random(Seed(1), 0);
  constexpr std::uint64_t kThird = std::uint64_t{1} << 62;
  int lowest = 0;
  constexpr int kDraws = 3'000;
  for (int i = 0; i < kDraws; ++i) {
    lowest += random.next_below(3 * kThird) < kThird ? 1 : 0;
  }
  EXPECT_NEAR(lowest, kDraws / 3, 104);  // 4 standard deviations of 26
}

TEST(Random, EntropyDiffersFromCallToCall) {
  EXPECT_NE(entropy_seed(), entropy_seed());
}

}  // namespace
}  // namespace galley
