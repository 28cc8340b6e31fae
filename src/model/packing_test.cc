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
  const PackedWeights packed = provide_packed(weights_, checkpoint_, *device_, {});
  EXPECT_EQ(packed.form, PackedForm::kMemory);
  EXPECT_TRUE(packed.file.empty());
  ASSERT_NE(packed.memory, nullptr);
  std::size_t bytes = 0;
  for (const kernels::Weight* const matrix : product_matrices(weights_)) {
    if (packed_bytes(*matrix) == 0) {
      EXPECT_EQ(matrix->format, kernels::WeightFormat::kF32);
      EXPECT_EQ(matrix->packed, nullptr);
      continue;
    }
    EXPECT_EQ(matrix->packed, packed.memory->data() + bytes);
    bytes += packed_bytes(*matrix);
  }
  EXPECT_EQ(packed.memory->size(), bytes);
  EXPECT_EQ(packed.bytes, bytes);
}

TEST_P(Packing, AboveTheLimitNothingIsPacked) {
  const std::size_t bytes = provide_packed(weights_, checkpoint_, *device_, {}).bytes;
  ModelWeights others = bind_weights(checkpoint_).value();
  const PackedWeights none = provide_packed(others, checkpoint_, *device_, {}, bytes - 1);
  EXPECT_EQ(none.form, PackedForm::kNone);
  EXPECT_EQ(none.memory, nullptr);
  for (const kernels::Weight* const matrix : product_matrices(others)) {
    EXPECT_EQ(matrix->packed, nullptr);
  }
  EXPECT_EQ(provide_packed(others, checkpoint_, *device_, {}, bytes).form, PackedForm::kMemory);
}

TEST(PackedFormPolicy, AFileFirstThenMemoryThenNone) {
  constexpr std::size_t kMax = 100;
  EXPECT_EQ(choose_packed_form(0, kMax, false), PackedForm::kNone);
  EXPECT_EQ(choose_packed_form(0, kMax, true), PackedForm::kNone);
  for (const std::size_t bytes : {std::size_t{1}, kMax, kMax + 1, ~std::size_t{0}}) {
    EXPECT_EQ(choose_packed_form(bytes, kMax, true), PackedForm::kFile);
    EXPECT_EQ(choose_packed_form(bytes, kMax, false),
              bytes <= kMax ? PackedForm::kMemory : PackedForm::kNone);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Packing, testing::Values("v4", "v41"));

}  // namespace
}  // namespace galley::model
