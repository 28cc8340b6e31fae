// Goal: the MTP layer of the first V4 release drafts as the reference does, and the same however
// its context came about. Method: tests/data/v4_mtp.safetensors (tools/make_mtp_golden.py): the
// golden V4 checkpoint with an MTP layer in the place of its draft stages.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "model/checkpoint_for_test.h"
#include "model/network.h"

namespace galley::model {
namespace {

constexpr Numerics kReference = {.kv_quantise = false, .bf16 = false, .activation_quantise = false};

class Mtp : public testing::Test {
 protected:
  void SetUp() override {
    auto opened =
        Safetensors::open(std::filesystem::path(GALLEY_TESTS_DIR) / "data/v4_mtp.safetensors");
    ASSERT_TRUE(opened) << to_string(opened.error());
    golden_ = std::move(*opened);
    CheckpointForTest checkpoint = CheckpointForTest::golden("v4");
    for (const std::string name : {"norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"}) {
      checkpoint.tensors["mtp.0." + name] = checkpoint.tensors["mtp.1." + name];
    }
    std::erase_if(checkpoint.tensors, [](const auto& entry) {
      return entry.first.starts_with("mtp.1.") || entry.first.starts_with("mtp.0.main_");
    });
    for (const auto& [name, view] : golden_.tensors()) {
      if (name.starts_with("mtp.")) {
        checkpoint.tensors[name] = {
            std::string(galley::model::name(view.dtype)), view.shape,
            std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size())};
      }
    }
    for (const char* const key : {"dspark_block_size", "dspark_noise_token_id",
                                  "dspark_markov_rank", "dspark_target_layer_ids"}) {
      checkpoint.config.erase(key);
    }
    checkpoint.write(folder_.path());
    ids_ = tensor<std::int32_t>("ids");
    logits_ = tensor<float>("logits");
    device_ = kernels::create_cpu_device(1);
    auto network = Network::load(folder_.path(), *device_, kReference);
    ASSERT_TRUE(network) << to_string(network.error());
    network_ = std::move(*network);
  }

  template <class T>
  std::vector<T> tensor(const char* name) const {
    const TensorView& view = *golden_.find(name);
    std::vector<T> out(view.bytes.size() / sizeof(T));
    std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
    return out;
  }

  // Feeds `count` tokens and makes the first `accepted` of them final.
  void feed(Sequence& sequence, std::span<const std::int32_t> tokens, std::size_t accepted) {
    const std::int64_t begin = sequence.length();
    const SequenceRows part{.sequence = &sequence, .tokens = tokens};
    const ForwardResult result = network_->forward({&part, 1}, {}).value();
    const std::size_t width = network_->plan().feature_width();
    ASSERT_EQ(result.features.size(), tokens.size() * width);
    sequence.truncate(begin + static_cast<std::int64_t>(accepted));
    network_->draft_context(sequence, std::span(result.features).first(accepted * width), begin);
  }
  void feed(Sequence& sequence, std::size_t count) {
    feed(sequence, std::span(ids_).subspan(static_cast<std::size_t>(sequence.length()), count),
         count);
  }

  // The draft behind the sequence, whose next token is known, against the golden.
  DraftResult expect_golden_draft(Sequence& sequence) {
    const auto length = static_cast<std::size_t>(sequence.length());
    const DraftResult draft = network_->draft(sequence, ids_[length]);
    const std::size_t vocabulary = draft.logits.size();
    const float* const want = logits_.data() + (length - 1) * vocabulary;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      EXPECT_NEAR(draft.logits[v], want[v], 2e-4) << "after " << length << " tokens";
    }
    EXPECT_EQ(draft.tokens.size(), 1U);
    EXPECT_EQ(draft.tokens[0], std::max_element(want, want + vocabulary) - want);
    EXPECT_TRUE(draft.confidences.empty());
    return draft;
  }

  FolderForTest folder_;
  Safetensors golden_;
  std::vector<std::int32_t> ids_;
  std::vector<float> logits_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Network> network_;
};

TEST_F(Mtp, DraftsAsTheReference) {
  EXPECT_EQ(network_->plan().config.draft->kind, DraftKind::kMtp);
  EXPECT_EQ(network_->plan().draft_stages, 1);
  // Position 0 (no embedding term), the window of 16 not full, just full, and wrapped.
  for (const std::size_t length : {1U, 2U, 16U, 17U, 18U, 45U}) {
    const auto sequence = network_->new_sequence();
    feed(*sequence, length);
    expect_golden_draft(*sequence);
  }
}

TEST_F(Mtp, StepsAndRejectionsChangeNothing) {
  const auto whole = network_->new_sequence();
  feed(*whole, 40);
  const DraftResult want = expect_golden_draft(*whole);

  const auto stepped = network_->new_sequence();
  feed(*stepped, 20);
  while (stepped->length() < 40) {
    expect_golden_draft(*stepped);  // drafting must leave no trace
    if (stepped->length() % 3 == 0) {
      // A draft that is rejected: fed behind the next token, then taken back.
      const std::vector<std::int32_t> two = {ids_[static_cast<std::size_t>(stepped->length())], 3};
      feed(*stepped, two, 1);
    } else {
      feed(*stepped, 1);
    }
  }
  const DraftResult got = expect_golden_draft(*stepped);
  EXPECT_EQ(std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)),
            0);
}

TEST_F(Mtp, DraftsOfABatchAreThoseOfEachAlone) {
  const std::size_t width = network_->plan().feature_width();
  std::vector<std::unique_ptr<Sequence>> together;
  const std::vector<std::int64_t> lengths{1, 20, 37};
  std::vector<std::vector<float>> features(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    together.push_back(network_->new_sequence());
  }
  // Two rounds, so that the second one has a row left over from the first.
  for (const std::int64_t more : {0, 3}) {
    std::vector<DraftContextRows> context;
    std::vector<DraftRow> rows;
    for (std::size_t i = 0; i < together.size(); ++i) {
      const std::int64_t begin = together[i]->length();
      const auto count = static_cast<std::size_t>(more == 0 ? lengths[i] : more);
      const SequenceRows part{
          .sequence = together[i].get(),
          .tokens = std::span(ids_).subspan(static_cast<std::size_t>(begin), count)};
      features[i] = network_->forward({&part, 1}, {}).value().features;
      ASSERT_EQ(features[i].size(), count * width);
      context.push_back({together[i].get(), features[i], begin});
      rows.push_back({together[i].get(), ids_[static_cast<std::size_t>(together[i]->length())]});
    }
    network_->draft_context(context);
    const std::vector<DraftResult> got = network_->draft(rows, {.values = true});
    for (std::size_t i = 0; i < together.size(); ++i) {
      const auto alone = network_->new_sequence();
      feed(*alone, static_cast<std::size_t>(together[i]->length()));
      const DraftResult want = expect_golden_draft(*alone);
      EXPECT_EQ(got[i].tokens, want.tokens);
      ASSERT_EQ(got[i].logits.size(), want.logits.size());
      EXPECT_EQ(
          std::memcmp(got[i].logits.data(), want.logits.data(), want.logits.size() * sizeof(float)),
          0)
          << lengths[i] << " and " << more;
    }
  }
}

TEST_F(Mtp, AParkedRequestGoesOn) {
  const auto sequence = network_->new_sequence();
  feed(*sequence, 30);
  const DraftResult want = expect_golden_draft(*sequence);
  const auto other = network_->new_sequence();
  other->adopt(sequence->blocks(), sequence->history(), 30);
  other->restore_state(sequence->save_state());
  const DraftResult got = network_->draft(*other, ids_[30]);
  EXPECT_EQ(std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)),
            0);
}

}  // namespace
}  // namespace galley::model
