#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/serial_executor.h"
#include "engine/block_traffic.h"
#include "engine/sampler.h"
#include "engine/step.h"
#include "model/network.h"
#include "recipe/tokenizer.h"

namespace galley::engine {

struct NetworkDeviceOptions {
  std::size_t slots = 0;
  std::size_t blocks = 0;
  model::CutMode cut = model::CutMode::kCompact;
  bool drafts = true;   // where the checkpoint has a drafter
  bool states = false;  // saves those of rows that pass the end of a block
  // For benchmarks: takes a draft for right with this probability, whatever was drawn.
  std::optional<double> injected_acceptance;
};

// The network as a device of the engine's loop: one thread that runs forwards and samplers in the
// order they were launched. A row's answer depends on its request alone: not on the other rows, the
// chunks, the drafts or the blocks it was given (design 6).
class NetworkDevice final : public StepDevice, public BlockMemory {
 public:
  // `network` and `clock` outlive it, and nobody else uses the network meanwhile. Blocks get memory
  // when they are used first; a request that there is none for fails.
  NetworkDevice(model::Network& network,
                std::shared_ptr<const recipe::Tokenizer> tokenizer,
                const Clock& clock,
                const NetworkDeviceOptions& options);
  ~NetworkDevice() override;

  void launch_forward(StepPlan plan) override;
  void launch_sampler(SamplerPlan plan) override GALLEY_EXCLUDES(mutex_);
  [[nodiscard]] StepResult wait(StepId step) override GALLEY_EXCLUDES(mutex_);

  [[nodiscard]] std::span<const std::size_t> block_parts() const override {
    return network_.block_parts();
  }
  [[nodiscard]] Result<std::span<std::byte>> block_bytes(cache::BlockId block) override
      GALLEY_EXCLUDES(blocks_mutex_);

  // Drafts of one request in one step, at most.
  [[nodiscard]] static int drafts(const model::ModelPlan& plan,
                                  const NetworkDeviceOptions& options);

 private:
  struct Slot;
  struct Step;

  // On its thread.
  void start(const SlotStart& start);
  [[nodiscard]] std::vector<std::uint8_t> verify_lengths(const StepPlan& plan);
  void forward(Step& step);
  void sample(Step& step, const SamplerPlan& plan);
  [[nodiscard]] SettledRow draw(Slot& slot,
                                const PlannedRow& row,
                                const Step& step,
                                const std::optional<RowMasks>& masks);
  // Whether the draft behind `where` stands, for a benchmark; nothing where the draw decides.
  [[nodiscard]] std::optional<bool> injected(const Draw& where) const;
  // The drafter's context: whose rows of the forward are final, all at once.
  void keep_features(const Step& step);
  void tell_lost(StepResult& out) GALLEY_EXCLUDES(blocks_mutex_);
  void make_forks(const Step& step);
  void save_states(const Step& step, const SamplerPlan& plan, StepResult& out);
  // Behind every row of the plan that wants them, all at once.
  void make_drafts(const Step& step, StepResult& out);
  using Buffers = std::vector<std::shared_ptr<kernels::Buffer>>;
  [[nodiscard]] Result<Buffers> buffers(std::span<const cache::BlockId> blocks)
      GALLEY_EXCLUDES(blocks_mutex_);
  [[nodiscard]] Result<std::shared_ptr<kernels::Buffer>> buffer(cache::BlockId block)
      GALLEY_REQUIRES(blocks_mutex_);
  [[nodiscard]] bool add_blocks(Slot& slot, std::span<const cache::BlockId> blocks);

  model::Network& network_;
  const std::shared_ptr<const recipe::Tokenizer> tokenizer_;
  const Clock& clock_;  // measures steps
  const NetworkDeviceOptions options_;
  const int drafts_;
  std::vector<Slot> slots_;
  Mutex blocks_mutex_;
  // By id; null: not used yet.
  std::vector<std::shared_ptr<kernels::Buffer>> blocks_ GALLEY_GUARDED_BY(blocks_mutex_);
  bool out_of_memory_ GALLEY_GUARDED_BY(blocks_mutex_) = false;  // a block was to get some
  bool lost_told_ = false;
  std::deque<Step> steps_;  // launched; the front one is the next to be sampled

  Mutex mutex_;
  CondVar changed_;
  std::map<StepId, StepResult> results_ GALLEY_GUARDED_BY(mutex_);
  SerialExecutor thread_;  // last: its thread uses the above
};

}  // namespace galley::engine
