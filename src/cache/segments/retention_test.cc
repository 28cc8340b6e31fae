#include "cache/segments/retention.h"

#include <array>
#include <gtest/gtest.h>

namespace galley::cache {
namespace {

TEST(Retention, NothingDiesBeforeItsLifeAndAtMostABucketLater) {
  constexpr std::int64_t kBucket = 3600;
  constexpr std::int64_t kLife = 3 * 24 * 3600;
  for (std::int64_t written = 1'700'000'000; written < 1'700'010'000; written += 17) {
    const std::int64_t end = expiry_of(bucket_of(written, kBucket), kBucket, kLife);
    EXPECT_GE(end, written + kLife);
    EXPECT_LE(end, written + kLife + kBucket);
  }
  EXPECT_EQ(bucket_of(7200, 3600), 7200);
  EXPECT_EQ(bucket_of(7199, 3600), 3600);
}

TEST(Retention, AHitInTheLastTenthIsARefresh) {
  EXPECT_FALSE(refresh_due(899, 1000, 1000));
  EXPECT_TRUE(refresh_due(900, 1000, 1000));
  EXPECT_TRUE(refresh_due(1100, 1000, 1000));
}

TEST(Retention, TheColdestIsWhatWasTouchedLongestAgo) {
  const std::array candidates{EvictionCandidate{.bytes = 10, .mean_touched_s = 30},
                              EvictionCandidate{.bytes = 99, .mean_touched_s = 20},
                              EvictionCandidate{.bytes = 1, .mean_touched_s = 40}};
  EXPECT_EQ(coldest(candidates), 1U);
}

TEST(Retention, CopiesWhatWasHitLastAsFarAsTheBudgetReaches) {
  const std::array blocks{CopyCandidate{.bytes = 10, .written_s = 5, .touched_s = 5},
                          CopyCandidate{.bytes = 10, .written_s = 5, .touched_s = 7},
                          CopyCandidate{.bytes = 10, .written_s = 5, .touched_s = 9},
                          CopyCandidate{.bytes = 10, .written_s = 5, .touched_s = 8}};
  EXPECT_EQ(copy_forward(blocks, 100), (std::vector<std::size_t>{2, 3, 1}));
  EXPECT_EQ(copy_forward(blocks, 20), (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(copy_forward(blocks, 19), (std::vector<std::size_t>{2}));
  EXPECT_TRUE(copy_forward(blocks, 9).empty());
}

}  // namespace
}  // namespace galley::cache
