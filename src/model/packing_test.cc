// Goal: loading packs every matrix that is multiplied, within its limit, and nothing that is read
// by row. Method: the golden checkpoints of both families; what packed bytes hold is the business
// of kernels/matmul_test.cc.
#include "model/packing.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <set>
#include <string>

#include "model/checkpoint.h"

namespace galley::model {
namespace {

class Packing : public testing::TestWithParam<const char*> {
 protected:
  Checkpoint checkpoint_ =
      Checkpoint::open(std::filesystem::path(GALLEY_TESTS_DIR) / "golden" / GetParam()).value();
  ModelWeights weights_ = bind_weights(checkpoint_).value();
  std::unique_ptr<kernels::Device> device_ = kernels::create_cpu_device(1);
};

TEST_P(Packing, EveryMatrixOnceAndNoTable) {
  const std::vector<kernels::Weight*> matrices = product_matrices(weights_);
  const std::set<const std::byte*> data = [&] {
    std::set<const std::byte*> out;
    for (const kernels::Weight* const matrix : matrices) {
      out.insert(matrix->data);
    }
    return out;
  }();
  EXPECT_EQ(data.size(), matrices.size());
  EXPECT_FALSE(data.contains(weights_.embed.data));
  EXPECT_TRUE(data.contains(weights_.head.data));
  // Of the tensors that the plan calls matrices, all but those that are read by row.
  std::size_t expected = 0;
  for (const TensorSpec& spec : expected_tensors(checkpoint_.plan())) {
    const bool by_row = spec.name == "embed.weight" || spec.name.ends_with("markov_w1.weight") ||
                        spec.name.ends_with("markov_head.embed.weight") ||
                        spec.name.ends_with("confidence_head.proj.weight") ||
                        spec.name.starts_with("vision.") || spec.name.starts_with("aligner.");
    const bool matrix = spec.kind == TensorKind::kMatrix || spec.kind == TensorKind::kLinear8 ||
                        spec.kind == TensorKind::kLinear4;
    expected += matrix && !by_row ? 1U : 0U;
  }
  EXPECT_EQ(matrices.size(), expected);
}

TEST_P(Packing, LoadingPointsThemAtTheirPackedForm) {
  const auto buffer = pack_in_memory(weights_, *device_, kPackInMemoryMax);
  ASSERT_NE(buffer, nullptr);
  std::size_t bytes = 0;
  for (const kernels::Weight* const matrix : product_matrices(weights_)) {
    if (packed_bytes(*matrix) == 0) {
      EXPECT_EQ(matrix->format, kernels::WeightFormat::kF32);
      EXPECT_EQ(matrix->packed, nullptr);
      continue;
    }
    EXPECT_EQ(matrix->packed, buffer->data() + bytes);
    bytes += packed_bytes(*matrix);
  }
  EXPECT_EQ(buffer->size(), bytes);
}

TEST_P(Packing, AboveTheLimitNothingIsPacked) {
  const auto whole = pack_in_memory(weights_, *device_, kPackInMemoryMax);
  ModelWeights others = bind_weights(checkpoint_).value();
  EXPECT_EQ(pack_in_memory(others, *device_, whole->size() - 1), nullptr);
  for (const kernels::Weight* const matrix : product_matrices(others)) {
    EXPECT_EQ(matrix->packed, nullptr);
  }
  EXPECT_NE(pack_in_memory(others, *device_, whole->size()), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Families, Packing, testing::Values("v4", "v41"));

}  // namespace
}  // namespace galley::model
