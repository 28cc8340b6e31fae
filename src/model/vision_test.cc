// Goal: images in a prompt give the same numbers however they are fed, and V4-Vision attends and
// routes as its reference does. Method: bit-for-bit properties on the golden V4.1 checkpoint; the
// golden V4 checkpoint with a vision tower of made-up weights, against logits of the reference
// model (tests/data/v4_vision).
#include "model/vision.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/golden_compare.h"
#include "model/image_resize.h"
#include "model/network.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

const fs::path kTests = GALLEY_TESTS_DIR;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

bool equal_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

constexpr Numerics kExact = {.kv_quantise = false, .bf16 = false, .activation_quantise = false};

// A device and a network on it.
struct Model {
  Model(const fs::path& directory, int threads, const Numerics& numerics = {})
      : device(kernels::create_cpu_device(threads)) {
    auto loaded = Network::load(directory, *device, numerics);
    EXPECT_TRUE(loaded) << to_string(loaded.error());
    network = std::move(loaded).value();
  }
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Network> network;
};

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::vector<const float*> embeddings;
  std::vector<ImageRange> images;
  std::vector<float> rows;  // what `embeddings` point to
};

// `before` text tokens, image.png of the golden set, `after` more.
Prompt image_prompt(Network& network, int before, int after) {
  const ModelConfig& config = network.plan().config;
  VisionTower& tower = *network.vision();
  const auto prepared = prepare_image(tower.config(), bytes(read(kTests / "golden/v41/image.png")));
  EXPECT_TRUE(prepared);
  const ImageFeatures features = tower.encode(*prepared);
  ImageSpan span = tower.splice(prepared->plan, features.tokens, before);
  Prompt prompt;
  prompt.rows = std::move(span.rows);
  const int count = static_cast<int>(span.places.size());
  for (int i = 0; i < before + count + after; ++i) {
    const bool image = i >= before && i < before + count;
    prompt.tokens.push_back(image ? static_cast<std::int32_t>(config.image_token.value_or(0))
                                  : 3 + i * 7 % 240);
    prompt.embeddings.push_back(image ? prompt.rows.data() + (i - before) * config.hidden
                                      : nullptr);
  }
  prompt.images = {{before + static_cast<std::int64_t>(span.start), before + count}};
  return prompt;
}

SequenceRows part_of(Sequence& sequence, const Prompt& prompt, std::size_t begin, std::size_t end) {
  return {.sequence = &sequence,
          .tokens = std::span(prompt.tokens).subspan(begin, end - begin),
          .embeddings = std::span(prompt.embeddings).subspan(begin, end - begin)};
}

std::vector<float> feed(Network& network, const Prompt& prompt) {
  const auto sequence = network.new_sequence();
  SequenceRows part = part_of(*sequence, prompt, 0, prompt.tokens.size());
  part.images = prompt.images;
  return network.forward({&part, 1}, {}).value().logits;
}

std::vector<float> feed_in_chunks(Network& network, const Prompt& prompt, std::size_t chunk) {
  const auto sequence = network.new_sequence();
  std::vector<float> logits;
  for (std::size_t begin = 0; begin < prompt.tokens.size(); begin += chunk) {
    const SequenceRows part =
        part_of(*sequence, prompt, begin, std::min(begin + chunk, prompt.tokens.size()));
    const ForwardResult step = network.forward({&part, 1}, {}).value();
    logits.insert(logits.end(), step.logits.begin(), step.logits.end());
  }
  return logits;
}

// ---- V4.1
// -------------------------------------------------------------------------------------------------------

class Vision : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = std::make_unique<Model>(kTests / "golden/v41", 2); }
  static void TearDownTestSuite() { model_.reset(); }
  static Network& network() { return *model_->network; }

 private:
  static inline std::unique_ptr<Model> model_;
};

TEST_F(Vision, PreparingIsDecodingFittingAndCutting) {
  const std::string file = read(kTests / "golden/v41/image.png");
  const VisionConfig& config = network().vision()->config();
  const auto prepared = prepare_image(config, bytes(file));
  ASSERT_TRUE(prepared);
  const auto image = decode_image(bytes(file));
  const Image fitted = fit_into(*image, prepared->plan.width, prepared->plan.height);
  EXPECT_TRUE(equal_bits(prepared->patches, to_patches(fitted, config.patch)));
  const auto none = prepare_image(config, bytes("not an image"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().what, "is not JPEG, PNG or WebP");
}

TEST_F(Vision, PatchesAreRowMajorAndChannelsComeFirst) {
  Image image{4, 2, std::vector<std::uint8_t>(24)};
  for (std::size_t i = 0; i < image.rgb.size(); ++i) {
    image.rgb[i] = static_cast<std::uint8_t>(10 * i);
  }
  std::vector<float> want;
  for (const int value : {0,  30, 120, 150, 10, 40,  130, 160, 20, 50,  140, 170,     // left patch
                          60, 90, 180, 210, 70, 100, 190, 220, 80, 110, 200, 230}) {  // right patch
    want.push_back((static_cast<float>(value) / 255.0F - 0.5F) / 0.5F);
  }
  EXPECT_TRUE(equal_bits(to_patches(image, 2), want));
}

TEST_F(Vision, AnImageMayBeCutAnywhere) {
  const Prompt prompt = image_prompt(network(), 5, 9);
  const std::vector<float> whole = feed(network(), prompt);
  for (const std::size_t chunk : {1U, 4U, 7U, 11U}) {
    EXPECT_TRUE(equal_bits(feed_in_chunks(network(), prompt, chunk), whole)) << chunk;
  }
}

TEST_F(Vision, AloneEqualsInABatchWithText) {
  const Prompt prompt = image_prompt(network(), 6, 4);
  const std::vector<float> alone = feed(network(), prompt);
  Prompt text = prompt;
  text.embeddings.assign(text.tokens.size(), nullptr);
  std::ranges::replace(text.tokens, 254, 9);
  const auto first = network().new_sequence();
  const auto second = network().new_sequence();
  const auto third = network().new_sequence();
  const SequenceRows batch[] = {part_of(*first, text, 0, text.tokens.size()),
                                part_of(*second, prompt, 0, prompt.tokens.size()),
                                part_of(*third, text, 0, 3)};
  const ForwardResult result = network().forward(batch, {}).value();
  const auto vocabulary = static_cast<std::size_t>(network().plan().config.vocabulary);
  EXPECT_TRUE(equal_bits(
      std::span(result.logits)
          .subspan(result.parts[1].begin * vocabulary, result.parts[1].rows * vocabulary),
      alone));
}

TEST_F(Vision, OneThreadEqualsTwo) {
  const Model one(kTests / "golden/v41", 1);
  const Prompt with_one = image_prompt(*one.network, 5, 5);
  const Prompt with_two = image_prompt(network(), 5, 5);
  EXPECT_TRUE(equal_bits(with_one.rows, with_two.rows));
  EXPECT_TRUE(equal_bits(feed(*one.network, with_one), feed(network(), with_two)));
}

// Routed with bias_vl and dead to the engram, whatever id stands there.
TEST_F(Vision, ARowWithAnEmbeddingIsAnImageRow) {
  const Prompt prompt = image_prompt(network(), 5, 8);
  Prompt other = prompt;
  std::ranges::replace(other.tokens, 254, 17);
  EXPECT_TRUE(equal_bits(feed(network(), other), feed(network(), prompt)));
}

TEST_F(Vision, AnImageInFrontOfTheCutAndBehindIt) {
  const int keep = 12;
  for (const auto& [before, after] : {std::pair{30, 3}, {4, 30}, {20, 8}}) {
    const Prompt prompt = image_prompt(network(), before, after);
    std::vector<float> results[2];
    for (const CutMode mode : {CutMode::kCompact, CutMode::kMask}) {
      const auto sequence = network().new_sequence();
      SequenceRows part = part_of(*sequence, prompt, 0, prompt.tokens.size());
      part.prompt_tokens = std::ssize(prompt.tokens);
      part.keep = keep;
      results[mode == CutMode::kMask] =
          network().forward({&part, 1}, {.cut = mode, .logits_tail = keep}).value().logits;
    }
    EXPECT_TRUE(equal_bits(results[0], results[1])) << before;
  }
}

TEST(VisionTower, EqualsTheReference) {
  const Model model(kTests / "golden/v41", 2, kExact);
  const Safetensors file = Safetensors::open(kTests / "golden/v41/vision.safetensors").value();
  Golden golden(file);
  const auto prepared = prepare_image(model.network->vision()->config(),
                                      bytes(read(kTests / "golden/v41/image.png")));
  ASSERT_TRUE(prepared);
  const ImageFeatures features = model.network->vision()->encode(*prepared);
  Report report("");
  report.compare("vit", golden.floats("f32.vit"), features.patches, {.max_abs = 1e-5});
  report.compare("aligned", golden.floats("f32.aligned"), features.tokens, {.max_abs = 1e-5});
  for (const GoldenOutcome& outcome : report.take()) {
    EXPECT_TRUE(outcome.passed) << outcome.name << " " << outcome.max_error << outcome.detail;
  }
}

// Rounded at the same points: another order of summation could turn a few values, not many.
TEST(VisionTower, RoundsWhereTheReferenceRounds) {
  const Model model(kTests / "golden/v41", 2, {});
  const Safetensors file = Safetensors::open(kTests / "golden/v41/vision.safetensors").value();
  Golden golden(file);
  const auto prepared = prepare_image(model.network->vision()->config(),
                                      bytes(read(kTests / "golden/v41/image.png")));
  ASSERT_TRUE(prepared);
  const ImageFeatures features = model.network->vision()->encode(*prepared);
  const auto expect_mostly_equal = [](const std::vector<float>& want,
                                      const std::vector<float>& got) {
    ASSERT_EQ(want.size(), got.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      different += want[i] != got[i];
    }
    EXPECT_LE(different, want.size() / 50);
  };
  expect_mostly_equal(golden.floats("bf16.vit"), features.patches);
  expect_mostly_equal(golden.floats("bf16.aligned"), features.tokens);
}

// Small activations tell 1e-6 from the text model's 1e-20.
TEST(VisionTower, NormsHaveTheirOwnEpsilon) {
  const auto device = kernels::create_cpu_device(1);
  const VisionConfig config = {
      .layers = 0, .hidden = 4, .heads = 1, .patch = 1, .rope_theta = 1e4, .downsample = 1};
  const std::vector<float> zeros(16);
  const auto matrix = [&](std::size_t columns) {
    return kernels::Weight{.format = kernels::WeightFormat::kF32,
                           .rows = 4,
                           .columns = columns,
                           .data = reinterpret_cast<const std::byte*>(zeros.data())};
  };
  VisionWeights weights;
  weights.patch_embed = {matrix(3), std::vector<float>(4, 1e-3F)};
  weights.norm.assign(4, 2.0F);
  weights.aligner_w1 = {matrix(4), std::vector<float>(4, 1.0F)};
  weights.aligner_w2 = {matrix(4), std::vector<float>(4, 5.0F)};
  VisionTower tower(config, weights, 4, *device, kernels::Round::kNone);
  const ImagePlan plan = {.patch_columns = 1, .patch_rows = 1, .columns = 1, .rows = 1};
  const ImageFeatures features = tower.encode({plan, {1, 1, 1}});
  for (const float value : features.patches) {
    EXPECT_NEAR(value, std::sqrt(2.0), 1e-6);  // 2 * 1e-3 / sqrt(1e-6 + 1e-6)
  }
  EXPECT_EQ(features.tokens, std::vector<float>(4, 5.0F));
}

// ---- V4-Vision
// --------------------------------------------------------------------------------------------------

class V4Vision : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = fs::temp_directory_path() / fmt::format("galley_v4_vision_{}", getpid());
    fs::create_directories(directory_);
    fs::create_symlink(kTests / "golden/v4/model.safetensors", directory_ / "text.safetensors");
    nlohmann::json config = nlohmann::json::parse(read(kTests / "golden/v4/config.json"));
    config.update({{"vision_n_layers", 1},
                   {"vision_dim", 16},
                   {"vision_n_heads", 2},
                   {"vision_inter_dim", 8},
                   {"vision_max_n_token", 64},
                   {"vision_min_pixels", 7056}});
    std::ofstream(directory_ / "config.json") << config;
    std::ofstream(directory_ / "model.safetensors.index.json")
        << R"({"weight_map":{"a":"text.safetensors","b":"vision.safetensors"}})";
    write_vision_tensors(config);
  }
  static void TearDownTestSuite() { fs::remove_all(directory_); }
  static Model model(int threads, const Numerics& numerics) {
    return {directory_, threads, numerics};
  }
  static Safetensors reference() {
    return Safetensors::open(kTests / "data/v4_vision/span.safetensors").value();
  }

  // The prompt of the reference run.
  static Prompt reference_prompt(Golden& golden, std::size_t hidden) {
    Prompt prompt;
    const std::vector<std::int64_t> ids = golden.integers("ids");
    prompt.tokens.assign(ids.begin(), ids.end());
    prompt.rows = golden.floats("rows");
    prompt.embeddings.assign(prompt.tokens.size(), nullptr);
    const auto first = static_cast<std::size_t>(golden.scalar("first"));
    for (std::size_t i = 0; i < prompt.rows.size() / hidden; ++i) {
      prompt.embeddings[first + i] = prompt.rows.data() + i * hidden;
    }
    prompt.images = {
        {golden.scalar("start"),
         golden.scalar("first") + static_cast<std::int64_t>(prompt.rows.size() / hidden)}};
    return prompt;
  }

 private:
  // The tensors a V4-Vision checkpoint has beyond V4's: biases of the reference run, the rest made
  // up.
  static void write_vision_tensors(const nlohmann::json& config) {
    const Safetensors file = reference();
    Golden golden(file);
    const std::vector<float> bias = golden.floats("bias_vl");
    const std::size_t experts = config["n_routed_experts"];
    nlohmann::json header;
    std::string data;
    const auto add = [&](const std::string& name, std::vector<std::size_t> shape,
                         std::span<const float> values) {
      header[name] = {{"dtype", "F32"},
                      {"shape", shape},
                      {"data_offsets", {data.size(), data.size() + values.size_bytes()}}};
      data.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    };
    const auto made_up = [&](const std::string& name, std::vector<std::size_t> shape) {
      std::size_t count = 1;
      for (const std::size_t side : shape) {
        count *= side;
      }
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = std::sin(static_cast<float>(i * 37 % 101 + name.size()));
      }
      add(name, shape, values);
    };
    for (std::size_t layer = 0; layer < bias.size() / experts; ++layer) {
      add(fmt::format("layers.{}.ffn.gate.bias_vl", layer), {experts},
          std::span(bias).subspan(layer * experts, experts));
    }
    for (const int layer : {0, 1, 2}) {  // hash layers carry the text bias too, which nothing reads
      add(fmt::format("layers.{}.ffn.gate.bias", layer), {experts},
          std::vector<float>(experts, NAN));
    }
    for (const int stage : {0, 1}) {
      made_up(fmt::format("mtp.{}.ffn.gate.bias_vl", stage), {experts});
    }
    const std::size_t hidden = config["hidden_size"];
    constexpr std::size_t kWidth = 16;
    made_up("vision.patch_embed.proj.weight", {kWidth, 588});
    made_up("vision.patch_embed.proj.bias", {kWidth});
    const std::string block = "vision.blocks.0.";
    made_up(block + "norm1.weight", {kWidth});
    made_up(block + "attn.wqkv.weight", {3 * kWidth, kWidth});
    made_up(block + "attn.wqkv.bias", {3 * kWidth});
    made_up(block + "attn.wo.weight", {kWidth, kWidth});
    made_up(block + "attn.wo.bias", {kWidth});
    made_up(block + "norm2.weight", {kWidth});
    made_up(block + "mlp.w1.weight", {16, kWidth});
    made_up(block + "mlp.w2.weight", {kWidth, 8});
    made_up("vision.norm.weight", {kWidth});
    made_up("aligner.w1.weight", {hidden, 9 * kWidth});
    made_up("aligner.w1.bias", {hidden});
    made_up("aligner.w2.weight", {hidden, hidden});
    made_up("aligner.w2.bias", {hidden});
    for (const char* const row : {"image_start", "image_newline", "image_end", "image_pad"}) {
      made_up(row, {hidden});
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::ofstream(directory_ / "vision.safetensors", std::ios::binary)
            .write(reinterpret_cast<const char*>(&length), sizeof(length))
        << text << data;
  }

  static inline fs::path directory_;
};

TEST_F(V4Vision, EqualsTheReference) {
  const Model vision = model(2, kExact);
  const ModelConfig& config = vision.network->plan().config;
  const Safetensors file = reference();
  Golden golden(file);
  const Prompt prompt = reference_prompt(golden, static_cast<std::size_t>(config.hidden));
  const auto sequence = vision.network->new_sequence();
  SequenceRows part = part_of(*sequence, prompt, 0, prompt.tokens.size());
  part.images = prompt.images;
  Recorder recorder;
  const ForwardResult result = vision.network->forward({&part, 1}, {.probe = &recorder}).value();
  for (int layer = 0; layer < config.layers; ++layer) {
    EXPECT_EQ(recorder.lists.at(fmt::format("{}.router_idx", layer)),
              golden.integers(fmt::format("L{}.router_idx", layer)))
        << layer;
  }
  Report report("");
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  report.compare("logits", golden.floats("logits"),
                 select_rows(result.logits, vocabulary, golden.integers("kept")),
                 {.max_abs = 2e-4});
  report.count("argmax",
               mismatches(golden.integers("argmax"), argmax_rows(result.logits, vocabulary)),
               prompt.tokens.size(), 0);
  for (const GoldenOutcome& outcome : report.take()) {
    EXPECT_TRUE(outcome.passed) << outcome.name << " " << outcome.max_error << outcome.detail;
  }
}

// A cut anywhere outside the span changes no bit.
TEST_F(V4Vision, ChunksAroundASpanEqualTheWhole) {
  const Model vision = model(2, {});
  const Safetensors file = reference();
  Golden golden(file);
  const Prompt prompt =
      reference_prompt(golden, static_cast<std::size_t>(vision.network->plan().config.hidden));
  const std::vector<float> whole = feed(*vision.network, prompt);
  const auto begin = static_cast<std::size_t>(prompt.images[0].begin);
  const auto end = static_cast<std::size_t>(prompt.images[0].end);
  const std::vector<std::size_t> cuts[] = {{begin, end}, {13, begin - 1, end, end + 1}, {end + 17}};
  for (std::vector<std::size_t> edges : cuts) {
    edges.push_back(prompt.tokens.size());
    const auto sequence = vision.network->new_sequence();
    std::vector<float> logits;
    std::size_t at = 0;
    for (const std::size_t edge : edges) {
      SequenceRows part = part_of(*sequence, prompt, at, edge);
      if (at <= begin && edge >= end) {
        part.images = prompt.images;
      }
      const ForwardResult step = vision.network->forward({&part, 1}, {}).value();
      logits.insert(logits.end(), step.logits.begin(), step.logits.end());
      at = edge;
    }
    EXPECT_TRUE(equal_bits(logits, whole)) << edges.front();
  }
}

TEST_F(V4Vision, AFileBecomesASpanThatSeesItself) {
  const Model vision = model(2, {});
  const Model one = model(1, {});
  Prompt prompt = image_prompt(*vision.network, 5, 6);
  EXPECT_EQ(prompt.images[0].begin % kPairAlignment, kPairAlignment - 1);
  const std::vector<float> logits = feed(*vision.network, prompt);
  EXPECT_TRUE(equal_bits(feed(*one.network, image_prompt(*one.network, 5, 6)), logits));
  // END changes: START sees it, the padding in front does not.
  const auto hidden = static_cast<std::size_t>(vision.network->plan().config.hidden);
  const auto vocabulary = static_cast<std::size_t>(vision.network->plan().config.vocabulary);
  prompt.rows[prompt.rows.size() - hidden] += 1.0F;
  const std::vector<float> changed = feed(*vision.network, prompt);
  const auto start = static_cast<std::size_t>(prompt.images[0].begin) * vocabulary;
  EXPECT_TRUE(equal_bits(std::span(changed).first(start), std::span(logits).first(start)));
  EXPECT_FALSE(equal_bits(std::span(changed).subspan(start, vocabulary),
                          std::span(logits).subspan(start, vocabulary)));
}

TEST_F(V4Vision, ASpanInTwoStepsIsABug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Model vision = model(1, {});
  const Prompt prompt = image_prompt(*vision.network, 5, 6);
  const auto sequence = vision.network->new_sequence();
  SequenceRows part = part_of(*sequence, prompt, 0, 12);
  part.images = prompt.images;
  EXPECT_DEATH(static_cast<void>(vision.network->forward({&part, 1}, {})), "image.end");
}

}  // namespace
}  // namespace galley::model
