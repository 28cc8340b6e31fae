#include "model/golden_vision.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/golden_manifest.h"
#include "model/golden_runs.h"
#include "model/image_resize.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

constexpr int kReleaseTokensMax = 1024;
constexpr std::int64_t kReleasePixelsMin = std::int64_t{544} * 544;

std::vector<float> as_floats(std::span<const std::uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

Result<Image> read_image(const fs::path& path) {
  GALLEY_TRY(const std::string file, read_file(path.string(), Bytes(kImageBytesMax)));
  return decode_image(std::as_bytes(std::span(file)));
}

// How the image becomes patches; does not depend on numerics.
void check_preprocessing(const VisionConfig& config,
                         const fs::path& directory,
                         Golden& golden,
                         Report& report) {
  const Result<Image> image = read_image(directory / "image.png");
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
  for (const std::int64_t value : golden.integers("resized_u8", {0, 255})) {
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

}  // namespace

Result<void> check_vision(Network& network,
                          const fs::path& directory,
                          Golden& golden,
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
  const std::vector<std::int64_t> pixels = golden.integers("resized_u8", {0, 255});
  const std::vector<std::int64_t> shape =
      golden.has("resized_u8") ? golden.shape("resized_u8") : std::vector<std::int64_t>();
  golden.reject_unless(shape.size() == 3 && shape[2] == 3, "resized_u8", "want shape [h, w, 3]");
  const std::vector<std::int32_t> ids = golden.tokens("ids", config.vocabulary);
  const std::vector<std::int64_t> rows = golden.integers("rows", {0, std::ssize(ids) - 1});
  const auto image = static_cast<std::int32_t>(*config.image_token);
  const auto first = std::ranges::find(ids, image);
  const auto count = std::ranges::count(ids, image);
  golden.reject_unless(count > 0 && std::all_of(first, first + std::min(count, ids.end() - first),
                                                [image](std::int32_t id) { return id == image; }),
                       "ids", fmt::format("want one run of image tokens ({})", image));
  if (!golden.problems().empty()) {
    return {};
  }
  const Image resized{
      static_cast<int>(shape[1]), static_cast<int>(shape[0]), {pixels.begin(), pixels.end()}};
  const Result<ImagePlan> plan = plan_image(*config.vision, resized.width, resized.height);
  if (!plan || plan->width != resized.width || plan->height != resized.height) {
    report.require("image plan", false, "a resized image changes its size again");
    return {};
  }
  const ImageFeatures features = tower->encode({*plan, to_patches(resized, config.vision->patch)});

  const ImageSpan span = tower->splice(*plan, features.tokens, first - ids.begin());
  if (!limits.exact) {  // the tower has no fake quantisation: `nq.` repeats `f32.`
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
  const RunLimits inside{.inner = {.max_abs = 2e-4}, .layer_by_layer = limits.exact};
  for (int layer = 0; layer < config.layers; ++layer) {
    check_choices({golden, recorder, network, layer, fmt::format("{}L{}.", limits.tag, layer),
                   ids.size(), inside, report});
  }
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  report.compare(limits.tag + "logits", golden.floats(limits.tag + "logits"),
                 select_rows(result.logits, vocabulary, rows), limits.logits);
  const std::vector<std::int64_t> best = argmax_rows(result.logits, vocabulary);
  report.count(limits.tag + "argmax", mismatches(golden.integers(limits.tag + "argmax"), best),
               best.size(), other_winners(best.size(), limits.exact, limits.argmax_share));
  return {};
}

Result<std::vector<GoldenOutcome>> check_image_plans(const fs::path& manifest,
                                                     const ModelConfig& config) {
  GALLEY_TRY(const nlohmann::json json, read_manifest(manifest));
  if (!json.contains("images") || !json["images"].is_object()) {
    return fail(Code::kCorruption, "want an object `images`", manifest.string());
  }
  if (!config.vision) {
    return fail(Code::kInvalidArgument, "has image plans, the checkpoint no vision tower",
                manifest.string());
  }
  Report report("images ");
  VisionConfig release = *config.vision;
  release.tokens_max = kReleaseTokensMax;
  release.pixels_min = kReleasePixelsMin;
  for (const auto& [set, vision] : {std::pair{"tiny", *config.vision}, {"release", release}}) {
    const nlohmann::json images = json["images"].value(set, nlohmann::json());
    if (!images.is_object() || images.empty()) {
      report.require(set, false, "has no plans");
      continue;
    }
    for (const auto& [size, want] : images.items()) {
      long long width = 0;
      long long height = 0;
      if (std::sscanf(size.c_str(), "%lldx%lld", &width, &height) != 2 ||
          size != fmt::format("{}x{}", width, height)) {
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
