// Goal: what `inspect` says a model needs is what it takes. Method: the golden checkpoints, the
// estimate against the arena of a step, the pool and the files.
#include "model/memory.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "model/network.h"

namespace galley::model {
namespace {

TEST(Memory, TheEstimateIsWhatAStepTakes) {
  for (const std::string family : {"v4", "v41"}) {
    const auto folder = std::filesystem::path(GALLEY_TESTS_DIR) / "golden" / family;
    const auto device = kernels::create_cpu_device(1);
    const auto network = Network::load(folder, *device, Numerics{});
    ASSERT_TRUE(network) << to_string(network.error());
    const std::vector<std::int32_t> tokens(64, 5);
    const auto sequence = (*network)->new_sequence();
    const SequenceRows part{.sequence = sequence.get(), .tokens = tokens};
    ASSERT_TRUE((*network)->forward({&part, 1}, {}));
    const MemoryNeeds needs = memory_needs((*network)->checkpoint(), tokens.size());
    const auto taken = static_cast<double>((*network)->step_bytes());
    EXPECT_NEAR(static_cast<double>(needs.step), taken, 0.03 * taken) << family;
    EXPECT_EQ(sequence->blocks().front()->size(), needs.block);
    EXPECT_EQ(needs.thousand_tokens, 8 * needs.block);
    EXPECT_EQ(needs.request, sequence->save_state().size() * sizeof(float));
    const auto file = std::filesystem::file_size(folder / "model.safetensors");
    EXPECT_LT(needs.weights + needs.tables_on_disk, file);
    EXPECT_GT(needs.weights + needs.tables_on_disk, file - (std::size_t{1} << 20U));
    EXPECT_EQ(needs.tables_on_disk > 0, family == "v41");
  }
}

}  // namespace
}  // namespace galley::model
