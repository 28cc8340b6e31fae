// Goal: the model that ships says what it was trained to say. Method:
// models/mini/logits.safetensors holds what the training code computes with the shipped weights
// (float32, nothing quantised on the way, tools/train_mini/export.py); every layer role and format
// of the family is in it.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>
#include <vector>

#include "model/golden_file.h"
#include "model/network.h"

namespace galley::model {
namespace {

class ShippedModel : public testing::TestWithParam<const char*> {};

TEST_P(ShippedModel, LogitsAreThoseOfItsTraining) {
  const auto folder = std::filesystem::path(GALLEY_TESTS_DIR) / "../models" / GetParam();
  const auto file = Safetensors::open(folder / "logits.safetensors");
  ASSERT_TRUE(file) << to_string(file.error());
  const auto device = kernels::create_cpu_device(1);
  const auto network =
      Network::load(folder, *device, {.kv_quantise = false, .bf16 = false}).value();
  const auto vocabulary = static_cast<std::size_t>(network->plan().config.vocabulary);
  Golden golden(*file);
  const std::vector<std::int32_t> ids = golden.tokens("ids", network->plan().config.vocabulary);
  const std::vector<std::int64_t> rows = golden.integers("rows", {0, std::ssize(ids) - 1});
  const std::vector<float> want = golden.floats("logits", rows.size() * vocabulary);
  ASSERT_TRUE(golden.problems().empty());
  ASSERT_GT(ids.size(), 200U);  // past the window and the index lists

  const auto sequence = network->new_sequence();
  const SequenceRows part{.sequence = sequence.get(), .tokens = ids};
  const ForwardResult result = network->forward({&part, 1}, {}).value();
  float largest = 1.0F;
  float worst = 0.0F;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float* const got = result.logits.data() + static_cast<std::size_t>(rows[i]) * vocabulary;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      ASSERT_TRUE(std::isfinite(got[v]));
      largest = std::max(largest, std::fabs(want[i * vocabulary + v]));
      worst = std::max(worst, std::fabs(want[i * vocabulary + v] - got[v]));
    }
  }
  EXPECT_LE(worst, 1e-4F * largest);
  RecordProperty("worst", std::to_string(worst / largest));
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedModel, testing::Values("mini", "mini-test"));

}  // namespace
}  // namespace galley::model
