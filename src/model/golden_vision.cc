#include "model/golden_vision.h"

#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

#include "model/image_resize.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

constexpr int kReleaseTokensMax = 1024;
constexpr std::int64_t kReleasePixelsMin = std::int64_t{544} * 544;

std::vector<float> as_floats(std::span<const std::uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

// How the image becomes patches; does not depend on numerics.
void check_preprocessing(const VisionConfig& config,
                         const fs::path& directory,
                         const Golden& golden,
                         Report& report) {
  std::ifstream in(directory / "image.png", std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const Result<Image> image = decode_image(std::as_bytes(std::span(file)));
  if (!image) {
    report.require("image.png", false, to_string(image.error()));
    return;
  }
  const Result<ImagePlan> plan = plan_image(config, image->width, image->height);
  if (!plan) {
    report.require("image plan", false, to_string(plan.error()));
    return;
  }
  const Image resized = fit_into(*image, plan->width, plan->height);
  std::vector<float> want;
  for (const std::int64_t value : golden.integers("resized_u8")) {
    want.push_back(static_cast<float>(value));
  }
  report.compare("resized_u8", want, as_floats(resized.rgb), {.max_abs = 0});
  const std::vector<float> patches = to_patches(resized, config.patch);
  const std::int64_t last = std::int64_t{plan->patch_rows} * plan->patch_columns - 1;
  const std::int64_t shown[] = {0, 1, last};
  report.compare("patches_first_last", golden.floats("patches_first_last"),
                 select_rows(patches, patches.size() / static_cast<std::size_t>(last + 1), shown),
                 {.max_abs = 0});
}

struct VisionLimits {
  std::string tag;
  Tolerance tower;
  Tolerance logits;
  double argmax_share;
  bool exact;  // routing, lists and engram rows too
};

// `nq.`, `f32.` or `bf16.`, as the README of the goldens names and bounds them.
VisionLimits limits_of(const Numerics& numerics) {
  if (!numerics.kv_quantise) {
    return {"nq.", {.max_abs = 2e-4}, {.max_abs = 2e-4}, 1.0, true};
  }
  if (!numerics.bf16) {
    return {"f32.", {.max_abs = 2e-4}, {.relative_rms = 0.1}, 0.95, false};
  }
  // A value that rounds the other way is 2^-8 off.
  return {"bf16.", {.relative_rms = 0x1p-8}, {.relative_rms = 0.25}, 0.85, false};
}

void check_inside(const Golden& golden,
                  const Recorder& recorder,
                  int layer,
                  std::size_t topk_stride,
                  Report& report) {
  const auto never = [](std::size_t) { return false; };
  for (const char* const what : {"router_idx", "topk", "engram_ids"}) {
    const std::string name = fmt::format("nq.L{}.{}", layer, what);
    if (!golden.has(name)) {
      continue;
    }
    const std::vector<std::int64_t>& got = recorder.lists.at(fmt::format("{}.{}", layer, what));
    const auto rows = static_cast<std::size_t>(golden.shape(name)[0]);
    if (std::string_view(what) == "engram_ids") {
      report.count(name, mismatches(golden.integers(name), got), rows, 0);
      continue;
    }
    const auto width = static_cast<std::size_t>(golden.shape(name)[1]);
    const std::size_t stride = std::string_view(what) == "topk" ? topk_stride : width;
    report.count(name, differing_rows(golden.integers(name), width, got, stride, never), rows, 0);
  }
  const std::string gate = fmt::format("nq.L{}.engram_gate", layer);
  if (golden.has(gate)) {
    report.compare(gate, golden.floats(gate),
                   recorder.values.at(fmt::format("{}.engram_gate", layer)), {.max_abs = 2e-4});
  }
}

}  // namespace

Result<void> check_vision(Network& network,
                          const fs::path& directory,
                          const Golden& golden,
                          Report& report) {
  const ModelConfig& config = network.plan().config;
  VisionTower* const tower = network.vision();
  if (tower == nullptr || !config.image_token) {
    report.require("vision_config, image_token_id", false, "the checkpoint has none");
    return {};
  }
  const VisionLimits limits = limits_of(network.numerics());
  if (limits.exact) {
    check_preprocessing(*config.vision, directory, golden, report);
  }
  // The golden's own pixels, so that another bicubic does not spoil the rest.
  const std::vector<std::int64_t> pixels = golden.integers("resized_u8");
  const std::vector<std::int64_t>& shape = golden.shape("resized_u8");
  const Image resized{
      static_cast<int>(shape[1]), static_cast<int>(shape[0]), {pixels.begin(), pixels.end()}};
  const Result<ImagePlan> plan = plan_image(*config.vision, resized.width, resized.height);
  if (!plan || plan->width != resized.width || plan->height != resized.height) {
    report.require("image plan", false, "a resized image changes its size again");
    return {};
  }
  const ImageFeatures features = tower->encode({*plan, to_patches(resized, config.vision->patch)});

  const std::vector<std::int32_t> ids = golden.tokens("ids");
  const auto first = std::ranges::find(ids, static_cast<std::int32_t>(*config.image_token));
  const auto count = std::ranges::count(ids, static_cast<std::int32_t>(*config.image_token));
  const ImageSpan span = tower->splice(*plan, features.tokens, first - ids.begin());
  if (golden.has(limits.tag + "vit")) {
    report.compare(limits.tag + "vit", golden.floats(limits.tag + "vit"), features.patches,
                   limits.tower);
    report.compare(limits.tag + "aligned", golden.floats(limits.tag + "aligned"), features.tokens,
                   limits.tower);
    report.compare(limits.tag + "span", golden.floats(limits.tag + "span"), span.rows,
                   limits.tower);
  }
  report.require(limits.tag + "span length", std::ssize(span.places) == count,
                 fmt::format("want {} rows, got {}", count, span.places.size()));
  if (std::ssize(span.places) != count) {
    return {};
  }
  std::vector<const float*> embeddings(ids.size());
  for (std::size_t i = 0; i < span.places.size(); ++i) {
    embeddings[static_cast<std::size_t>(first - ids.begin()) + i] =
        span.rows.data() + i * static_cast<std::size_t>(config.hidden);
  }
  Recorder recorder;
  const auto sequence = network.new_sequence();
  const SequenceRows part{.sequence = sequence.get(), .tokens = ids, .embeddings = embeddings};
  GALLEY_TRY(const ForwardResult result, network.forward({&part, 1}, {.probe = &recorder}));
  for (int layer = 0; layer < config.layers && limits.exact; ++layer) {
    check_inside(golden, recorder, layer, static_cast<std::size_t>(config.index_topk), report);
  }
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  report.compare(limits.tag + "logits", golden.floats(limits.tag + "logits"),
                 select_rows(result.logits, vocabulary, golden.integers("rows")), limits.logits);
  const std::vector<std::int64_t> best = argmax_rows(result.logits, vocabulary);
  const auto allowed =
      limits.exact
          ? std::size_t{1}
          : static_cast<std::size_t>((1 - limits.argmax_share) * static_cast<double>(best.size()));
  report.count(limits.tag + "argmax", mismatches(golden.integers(limits.tag + "argmax"), best),
               best.size(), allowed);
  return {};
}

Result<std::vector<GoldenOutcome>> check_image_plans(const fs::path& manifest,
                                                     const ModelConfig& config) {
  std::ifstream in(manifest, std::ios::binary);
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (json.is_discarded()) {
    return fail(Code::kCorruption, "is not JSON", manifest.string());
  }
  Report report("images ");
  if (!config.vision || !json.contains("images")) {
    return report.take();
  }
  VisionConfig release = *config.vision;
  release.tokens_max = kReleaseTokensMax;
  release.pixels_min = kReleasePixelsMin;
  for (const auto& [set, vision] : {std::pair{"tiny", *config.vision}, {"release", release}}) {
    const nlohmann::json images = json["images"].value(set, nlohmann::json::object());
    for (const auto& [size, want] : images.items()) {
      long long width = 0;
      long long height = 0;
      if (std::sscanf(size.c_str(), "%lldx%lld", &width, &height) != 2) {
        return fail(Code::kCorruption, "want WIDTHxHEIGHT, got " + size, manifest.string());
      }
      const Result<ImagePlan> plan = plan_image(vision, width, height);
      const nlohmann::json got =
          plan ? nlohmann::json::array({plan->width, plan->height, plan->patch_columns,
                                        plan->patch_rows, plan->columns, plan->rows, plan->tokens})
               : nlohmann::json(to_string(plan.error()));
      report.require(fmt::format("{} {}", set, size), got == want,
                     fmt::format("want {}, got {}", want.dump(), got.dump()));
    }
  }
  return report.take();
}

}  // namespace galley::model
