// Goal: synthetic checkpoints have the released structure and formats, load, and compute sensible
// numbers. Method: tiny ones of each model; the full-size configurations without their weights.
#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <unistd.h>

#include "model/network.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

constexpr SynthOptions kTinyV4{
    .like = SynthLike::kV4Flash, .vocabulary = 300, .layers = 5, .hidden = 64, .experts = 8};
constexpr SynthOptions kTinyV41{.like = SynthLike::kV41Flash,
                                .vocabulary = 300,
                                .layers = 9,
                                .hidden = 64,
                                .experts = 8,
                                .engram_bytes = 1 << 20};

fs::path fresh_folder(const std::string& name) {
  const fs::path folder =
      fs::path(testing::TempDir()) / (std::to_string(::getpid()) + "_galley_synth_" + name);
  fs::remove_all(folder);
  return folder;
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

ModelPlan plan_of(const SynthOptions& options) {
  return make_plan(parse_config(synth_config(options).value()).value(), 3).value();
}

TEST(Synth, WholeAndFiniteInEveryFamily) {
  for (const SynthLike like : {SynthLike::kV4Flash, SynthLike::kV4Pro, SynthLike::kV41Flash}) {
    SCOPED_TRACE(static_cast<int>(like));
    SynthOptions options = kTinyV41;
    options.like = like;
    const fs::path folder = fresh_folder("whole");
    std::uint64_t last = 0;
    std::uint64_t total = 0;
    const auto done = synthesise(options, folder, [&](std::uint64_t now, std::uint64_t all) {
      EXPECT_GT(now, last);
      last = now;
      total = all;
    });
    ASSERT_TRUE(done) << to_string(done.error());
    EXPECT_EQ(last, total);
    const auto problems = Checkpoint::verify(folder);
    ASSERT_TRUE(problems) << to_string(problems.error());
    for (const Checkpoint::Problem& problem : *problems) {
      ADD_FAILURE() << problem.where << " " << problem.what;
    }
    fs::remove_all(folder);
  }
}

TEST(Synth, FormatsAreTheReleasedOnes) {
  const fs::path folder = fresh_folder("formats");
  ASSERT_TRUE(synthesise(kTinyV41, folder, {}));
  const auto file = Safetensors::open(folder / "model-00001-of-00001.safetensors");
  ASSERT_TRUE(file) << to_string(file.error());
  const auto dtype = [&](const char* name) { return file->find(name)->dtype; };
  EXPECT_EQ(dtype("layers.0.ffn.experts.7.w2.weight"), Dtype::kI8);
  EXPECT_EQ(dtype("layers.0.ffn.experts.7.w2.scale"), Dtype::kF8E8m0);
  EXPECT_EQ(dtype("layers.0.attn.wq_b.weight"), Dtype::kF8E4m3);
  EXPECT_EQ(dtype("layers.1.engram.embed.scale"), Dtype::kF8E8m0);
  EXPECT_EQ(dtype("layers.4.attn.compressor.wkv.weight"), Dtype::kBf16);
  EXPECT_EQ(dtype("layers.4.ffn.gate.bias"), Dtype::kF32);
  EXPECT_EQ(dtype("layers.4.hc_attn_fn"), Dtype::kF32);
  EXPECT_EQ(dtype("layers.4.attn_norm.weight"), Dtype::kBf16);
  fs::remove_all(folder);
}

// Weights of each format have the standard deviation that keeps activations near one.
TEST(Synth, ValuesResembleTrainedOnes) {
  const fs::path folder = fresh_folder("values");
  SynthOptions options = kTinyV41;
  options.hidden = 512;
  ASSERT_TRUE(synthesise(options, folder, {}));
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << to_string(checkpoint.error());
  for (const char* const tensor : {"layers.0.ffn.experts.3.w1.weight", "layers.0.attn.wq_a.weight",
                                   "layers.4.attn.compressor.wkv.weight"}) {
    const kernels::Weight weight = checkpoint->matrix(tensor);
    std::vector<float> row(weight.columns);
    std::vector<double> power(weight.columns);
    for (std::size_t r = 0; r < weight.rows; ++r) {
      kernels::dequantise_row(weight, r, row);
      for (std::size_t c = 0; c < row.size(); ++c) {
        power[c] += double{row[c]} * row[c] / static_cast<double>(weight.rows);
      }
    }
    std::ranges::sort(power);
    EXPECT_NEAR(std::sqrt(power[power.size() / 2] * 512), 1.0, 0.15) << tensor;
    EXPECT_GT(power.back(), 30 * power[power.size() / 2]) << tensor;
  }
  fs::remove_all(folder);
}

TEST(Synth, TheNetworkComputesSensibleLogits) {
  for (const SynthOptions& options : {kTinyV4, kTinyV41}) {
    const fs::path folder = fresh_folder("logits");
    ASSERT_TRUE(synthesise(options, folder, {}));
    const auto device = kernels::create_cpu_device(1);
    const auto network = Network::load(folder, *device, {});
    ASSERT_TRUE(network) << to_string(network.error());
    const auto sequence = (*network)->new_sequence();
    const std::vector<std::int32_t> tokens{5, 77, 200, 13, 5, 299};
    const SequenceRows rows{.sequence = sequence.get(), .tokens = tokens};
    const ForwardResult result = (*network)->forward({&rows, 1}, {}).value();
    double power = 0.0;
    for (const float logit : result.logits) {
      power += double{logit} * logit / static_cast<double>(result.logits.size());
    }
    EXPECT_GT(std::sqrt(power), 0.5);
    EXPECT_LT(std::sqrt(power), 12.0);
    fs::remove_all(folder);
  }
}

TEST(Synth, ASeedGivesTheSameBytes) {
  const auto make = [](std::uint64_t seed) {
    const fs::path folder = fresh_folder("seed");
    SynthOptions options = kTinyV4;
    options.seed = Seed(seed);
    EXPECT_TRUE(synthesise(options, folder, {}));
    auto files = files_of(folder);
    fs::remove_all(folder);
    return files;
  };
  const auto once = make(1);
  EXPECT_EQ(once, make(1));
  auto other = make(2);
  EXPECT_EQ(once.at("config.json"), other.at("config.json"));
  EXPECT_NE(once.at("model-00001-of-00001.safetensors"),
            other.at("model-00001-of-00001.safetensors"));
}

// Without --layers and the others the released models come out (spec model 1.1 to 1.3).
TEST(Synth, FullSizeIsTheReleasedModel) {
  const ModelPlan v41 = plan_of({.like = SynthLike::kV41Flash, .vocabulary = 129'280});
  EXPECT_EQ(v41.cut, 20);
  EXPECT_EQ(v41.keep, 140);
  EXPECT_EQ(v41.config.kv_sources, (std::vector{2, 8, 14, 20}));
  EXPECT_EQ(v41.config.index_sources, (std::vector{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(v41.config.engram->layers, (std::vector{1, 14}));
  EXPECT_EQ(v41.config.engram->compressed_vocabulary, 99'092);
  EXPECT_EQ(v41.config.draft->target_layers, (std::vector{37, 38, 39}));
  EXPECT_EQ(v41.cache.block_bytes, 113'920U);
  const ModelPlan v4 = plan_of({.like = SynthLike::kV4Flash, .vocabulary = 129'280});
  EXPECT_EQ(v4.config.layers, 43);
  EXPECT_EQ(v4.config.compress_ratios[42], 4);
  EXPECT_EQ(v4.config.compress_ratios[41], 128);
  EXPECT_EQ(v4.config.draft->target_layers, (std::vector{40, 41, 42}));
  const ModelPlan pro = plan_of({.like = SynthLike::kV4Pro, .vocabulary = 129'280});
  EXPECT_EQ(pro.config.draft->target_layers, (std::vector{58, 59, 60}));
  EXPECT_EQ(pro.config.layers, 61);
  EXPECT_EQ(pro.config.q_lora_rank, 1536);
  EXPECT_EQ(pro.config.o_groups, 16);
  EXPECT_EQ(pro.config.o_lora_rank, 1024);
  EXPECT_EQ(pro.config.index_heads, 64);
  EXPECT_EQ(pro.config.index_topk, 1024);
  std::vector<int> ratios = {128, 128};  // its config.json: then 4 and 128 by turns, 4 last
  while (ratios.size() < 61) {
    ratios.push_back(ratios.size() % 2 == 0 ? 4 : 128);
  }
  EXPECT_EQ(pro.config.compress_ratios, ratios);
}

TEST(Synth, EngramTablesTakeTheirBytes) {
  const ModelPlan plan = plan_of(
      {.like = SynthLike::kV41Flash, .vocabulary = 4096, .engram_bytes = std::int64_t{100} << 20});
  const auto& rows = plan.config.engram->table_rows;
  const auto bytes =
      static_cast<double>(std::accumulate(rows.begin(), rows.end(), std::int64_t{}) * (256 + 8));
  EXPECT_NEAR(bytes / (100 << 20), 1.0, 0.05);  // primes lie above the bucket base
}

TEST(Synth, ADiskThatIsTooSmallIsNamed) {
  constexpr std::uint64_t kGb = 1'000'000'000;
  EXPECT_TRUE(synth_fits(kGb, kGb + kSynthOtherBytes));
  EXPECT_TRUE(synth_fits(0, kSynthOtherBytes));
  EXPECT_FALSE(synth_fits(kGb, kGb + kSynthOtherBytes - 1));
  EXPECT_FALSE(synth_fits(0, kSynthOtherBytes - 1));
  EXPECT_FALSE(synth_fits(std::numeric_limits<std::uint64_t>::max(), kGb));
  const auto full = synth_fits(13'000 * kGb, 20 * kGb);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kUnavailable);
  EXPECT_EQ(full.error().what, "needs 13000.00 GB, 20.00 GB are free");
}

TEST(Synth, WrongSizesAndFullFoldersAreRefused) {
  const auto where = [](SynthOptions options) { return synth_config(options).error().where; };
  SynthOptions options = kTinyV41;
  options.layers = 3;
  EXPECT_EQ(where(options), "layers");
  options = kTinyV4;
  options.hidden = 65;
  EXPECT_EQ(where(options), "hidden");
  options = kTinyV4;
  options.experts = 0;
  EXPECT_EQ(where(options), "experts");
  EXPECT_FALSE(synth_like("v5"));
  const auto refused = [](auto SynthOptions::* field, auto most) {
    SynthOptions largest = kTinyV41;
    largest.*field = most;
    SynthOptions larger = kTinyV41;
    larger.*field = most + 1;
    const auto result = synth_config(larger);
    return synth_config(largest).has_value() && !result &&
           result.error().what.find(fmt::format("to {}, got {}", most, most + 1)) !=
               std::string::npos;
  };
  EXPECT_TRUE(refused(&SynthOptions::layers, kSynthLayersMax));
  EXPECT_TRUE(refused(&SynthOptions::experts, kSynthExpertsMax));
  EXPECT_TRUE(refused(&SynthOptions::vocabulary, kSynthVocabularyMax));
  EXPECT_TRUE(refused(&SynthOptions::engram_bytes, kSynthEngramBytesMax));
  options = kTinyV4;
  options.hidden = kSynthHiddenMax + 32;
  EXPECT_EQ(where(options), "hidden");

  const fs::path folder = fresh_folder("full");
  fs::create_directories(folder);
  std::ofstream(folder / "mine.txt") << "kept";
  const auto done = synthesise(kTinyV4, folder, {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kInvalidArgument);
  EXPECT_EQ(files_of(folder), (std::map<std::string, std::string>{{"mine.txt", "kept"}}));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace galley::model
