#include "bench/engine/load.h"

#include <utility>

#include "base/check.h"
#include "cache/block_key.h"

namespace galley::bench {

// The network's, and adds up what its steps take.
class Loop::CountingDevice final : public engine::StepDevice {
 public:
  CountingDevice(model::Network& network,
                 const std::shared_ptr<const recipe::Tokenizer>& tokenizer,
                 const Clock& clock,
                 const engine::NetworkDeviceOptions& options)
      : device_(network, tokenizer, clock, options) {}

  void launch_forward(engine::StepPlan plan) override { device_.launch_forward(std::move(plan)); }
  void launch_sampler(engine::SamplerPlan plan) override {
    device_.launch_sampler(std::move(plan));
  }
  engine::StepResult wait(engine::StepId step) override {
    engine::StepResult result = device_.wait(step);
    ++totals.steps;
    totals.device += result.forward + result.sampler;
    return result;
  }

  StepTotals totals;

 private:
  engine::NetworkDevice device_;
};

namespace {

engine::NetworkDeviceOptions device_options(const LoopOptions& options) {
  return {.slots = options.slots,
          .blocks = options.blocks,
          .cut = model::CutMode::kCompact,
          .drafts = options.drafts,
          .states = options.states.value() > 0,
          .injected_acceptance = options.acceptance};
}

engine::SchedulerOptions scheduler_options(const model::ModelPlan& plan,
                                           const LoopOptions& options) {
  return {.slots = options.slots,
          .blocks = options.blocks,
          .context_tokens = options.context_tokens,
          .drafts = engine::NetworkDevice::drafts(plan, device_options(options)),
          .hit = model::hit_rule(plan, model::WindowRebuild::kExact),
          .waiting_max = 1024,
          .states = options.states,
          .budgets = options.budgets};
}

}  // namespace

Loop::Loop(model::Network& network,
           const std::shared_ptr<const recipe::Tokenizer>& tokenizer,
           const LoopOptions& options)
    : root_(cache::root_key({.layout = network.plan().fingerprint})),
      scheduler_(scheduler_options(network.plan(), options)),
      device_(
          std::make_unique<CountingDevice>(network, tokenizer, clock_, device_options(options))),
      loop_(scheduler_, *device_, clock_, {}) {}

Loop::~Loop() = default;

engine::RequestId Loop::submit(std::vector<TokenId> prompt, std::int64_t answer_tokens) {
  auto request = std::make_shared<engine::EngineRequest>();
  request->generation.prompt = std::move(prompt);
  request->generation.max_tokens = answer_tokens;
  request->generation.sampling.temperature = 0;
  const TimeNs now = clock_.now();
  const auto id = scheduler_.submit(std::move(request), root_, engine::Priority::kInteractive, now);
  GALLEY_ASSERT(id.has_value());
  seen_[*id].submitted = now;
  return *id;
}

bool Loop::turn() {
  const auto more = loop_.turn();
  GALLEY_ASSERT(more.has_value());
  const TimeNs now = clock_.now();
  for (const engine::Output& output : scheduler_.take_outputs()) {
    GALLEY_ASSERT(!output.error);
    Seen& seen = seen_[output.request];
    if (output.started) {
      seen.prompt_tokens = output.started->prompt_tokens;
      seen.cached_tokens = output.started->cached_tokens;
    }
    if (!output.tokens.empty()) {
      seen.times.push_back(now);
      seen.tokens.push_back(std::ssize(output.tokens));
    }
    seen.ended = seen.ended || output.finish.has_value();
  }
  return *more;
}

void Loop::run() {
  while (turn()) {
  }
}

StepTotals Loop::take_totals() {
  return std::exchange(device_->totals, {});
}

}  // namespace galley::bench
