#include "model/network.h"

#include <utility>

#include "kernels/reference/ops.h"
#include "model/forward.h"

namespace galley::model {

Result<std::unique_ptr<Network>> Network::load(const std::filesystem::path& directory,
                                               kernels::Device& device,
                                               const Numerics& numerics,
                                               const std::filesystem::path& pack_directory) {
  GALLEY_TRY(Checkpoint checkpoint, Checkpoint::open(directory));
  GALLEY_TRY(ModelWeights weights, bind_weights(checkpoint));
  PackedWeights packed = provide_packed(weights, checkpoint, device, pack_directory);
  return std::unique_ptr<Network>(
      new Network(std::move(checkpoint), std::move(weights), std::move(packed), device, numerics));
}

Network::Network(Checkpoint checkpoint,
                 ModelWeights weights,
                 PackedWeights packed,
                 kernels::Device& device,
                 const Numerics& numerics)
    : checkpoint_(std::move(checkpoint)),
      weights_(std::move(weights)),
      packed_(std::move(packed)),
      device_(device),
      numerics_(numerics),
      // Rows that keep channels in bfloat16 (V4) lose nothing only where those were rounded.
      pool_(checkpoint_.plan(),
            device,
            numerics.kv_quantise &&
                (numerics.bf16 || checkpoint_.plan().config.family == Family::kV41)),
      arena_(device),
      scratch_(device),
      stream_(device.create_stream()),
      disk_stream_(device.create_stream()) {
  const ModelConfig& config = plan().config;
  const kernels::reference::RopeScaling yarn = {
      .factor = config.yarn.factor,
      .beta_fast = config.yarn.beta_fast,
      .beta_slow = config.yarn.beta_slow,
      .original_positions = config.yarn.original_positions};
  const auto dims = static_cast<std::size_t>(config.rope_dims);
  for (std::size_t i = 0; config.engram && i < config.engram->layers.size(); ++i) {
    rows_read_.push_back(device.create_event());
  }
  rope_window_ = kernels::reference::rope_frequencies(config.rope_theta, dims, nullptr);
  rope_compress_ = kernels::reference::rope_frequencies(config.compress_rope_theta, dims, &yarn);
  if (config.vision) {
    vision_.emplace(*config.vision, bind_vision(checkpoint_),
                    static_cast<std::size_t>(config.hidden), device,
                    numerics.bf16 ? kernels::Round::kBf16 : kernels::Round::kNone);
  }
}

std::unique_ptr<Sequence> Network::new_sequence() {
  return std::make_unique<Sequence>(plan(), device_, pool_);
}

std::vector<std::int32_t> Network::history(std::span<const std::int32_t> tokens) const {
  std::vector<std::int32_t> out;
  if (plan().config.engram) {
    for (const std::int32_t token : tokens) {
      out.push_back(plan().config.image_token == token
                        ? -1
                        : weights_.token_map[static_cast<std::size_t>(token)]);
    }
  } else if (plan().drafts_by(DraftKind::kMtp)) {
    out.assign(tokens.begin(), tokens.end());
  }
  return out;
}

StepContext Network::new_step(Probe* probe) {
  arena_.reset();
  scratch_.reset();
  return {plan(),   weights_, numerics_,     rope_window_, rope_compress_, arena_,
          scratch_, *stream_, *disk_stream_, rows_read_,   probe};
}

Result<ForwardResult> Network::forward(std::span<const SequenceRows> batch,
                                       const ForwardOptions& options) {
  const StepContext context = new_step(options.probe);
  Step step(context, batch, options.cut);
  {
    // A probe looks at every value, so it has to wait; nothing else may.
    std::optional<kernels::NoSync> guard;
    if (options.probe == nullptr) {
      guard.emplace();
    }
    step.run_layers();
    step.run_head(options.logits_tail);
  }
  stream_->synchronise();
  if (step.read_failed()) {
    return fail(Code::kUnavailable, "a row of an engram table could not be read",
                checkpoint_.directory().string());
  }
  ForwardResult result;
  result.parts = step.parts();
  if (step.rows() > 0) {
    result.logits.assign(
        step.logits(),
        step.logits() + step.logits_rows() * static_cast<std::size_t>(plan().config.vocabulary));
    if (step.features() != nullptr) {
      result.features.assign(step.features(),
                             step.features() + step.rows() * plan().feature_width());
    }
  }
  for (const SequenceRows& part : batch) {
    part.sequence->advance(std::ssize(part.tokens));
  }
  return result;
}

void Network::draft_context(std::span<const DraftContextRows> batch) {
  const StepContext context = new_step(nullptr);
  Step step(context);
  step.write_draft_context(batch);
  stream_->synchronise();
}

void Network::draft_context(Sequence& sequence,
                            std::span<const float> features,
                            std::int64_t first_position) {
  const DraftContextRows rows{&sequence, features, first_position};
  draft_context({&rows, 1});
}

std::vector<DraftResult> Network::draft(std::span<const DraftRow> batch,
                                        const DraftOptions& options) {
  const StepContext context = new_step(options.probe);
  Step step(context);
  return step.run_draft(batch, options);
}

DraftResult Network::draft(Sequence& sequence, std::int32_t token, Probe* probe) {
  const DraftRow row{&sequence, token};
  return std::move(draft({&row, 1}, {.values = true, .probe = probe}).front());
}

}  // namespace galley::model
