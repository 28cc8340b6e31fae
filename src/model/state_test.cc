// Goal: stored blocks are never rewritten by a replay, and rejected drafts leave no trace. Method:
// the golden V4.1 checkpoint, blocks and logits compared bit for bit.
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "model/network.h"

namespace galley::model {
namespace {

class State : public testing::Test {
 protected:
  void SetUp() override {
    const auto folder = std::filesystem::path(GALLEY_TESTS_DIR) / "golden" / "v41";
    auto network = Network::load(folder, *device_, Numerics{});
    ASSERT_TRUE(network) << to_string(network.error());
    network_ = std::move(*network);
    for (int i = 0; i < 80; ++i) {
      tokens_.push_back((i * 89 + 17) % 250);
    }
  }

  Result<ForwardResult> feed(Sequence& sequence, std::span<const std::int32_t> tokens) {
    const SequenceRows part{.sequence = &sequence, .tokens = tokens};
    return network_->forward({&part, 1}, {});
  }
  [[nodiscard]] std::span<const std::int32_t> tokens(std::size_t begin, std::size_t count) const {
    return std::span(tokens_).subspan(begin, count);
  }

  std::unique_ptr<kernels::Device> device_ = kernels::create_cpu_device(1);
  std::unique_ptr<Network> network_;
  std::vector<std::int32_t> tokens_;
};

TEST_F(State, AReplayLeavesStoredBlocksAsTheyAre) {
  constexpr std::size_t kHit = 64;
  constexpr std::int64_t kStart = 48;
  const auto earlier = network_->new_sequence();
  ASSERT_TRUE(feed(*earlier, tokens(0, kHit)));
  const auto& block = earlier->blocks().front();
  const std::vector<std::byte> before(block->data(), block->data() + block->size());
  const auto replayed = network_->new_sequence();
  replayed->adopt(earlier->blocks(), earlier->history(), kStart);
  const SequenceRows part{.sequence = replayed.get(),
                          .tokens = tokens(kStart, kHit - kStart),
                          .window_begin = kStart,
                          .write_floor = kHit};
  ASSERT_TRUE(network_->forward({&part, 1}, {}));
  EXPECT_EQ(std::memcmp(block->data(), before.data(), before.size()), 0);
}

TEST_F(State, RejectedDraftsLeaveNoTrace) {
  const auto plain = network_->new_sequence();
  ASSERT_TRUE(feed(*plain, tokens(0, 41)));
  const ForwardResult want = feed(*plain, tokens(41, 20)).value();

  const auto drafted = network_->new_sequence();
  ASSERT_TRUE(feed(*drafted, tokens(0, 40)));
  // One token and five drafts, all of them wrong.
  const std::vector<std::int32_t> verified = {tokens_[40], 3, 3, 3, 3, 3};
  ASSERT_TRUE(feed(*drafted, verified));
  drafted->truncate(41);
  const ForwardResult got = feed(*drafted, tokens(41, 20)).value();
  ASSERT_EQ(got.logits.size(), want.logits.size());
  EXPECT_EQ(std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)),
            0);
}

}  // namespace
}  // namespace galley::model
