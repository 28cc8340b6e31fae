#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/serial_executor.h"
#include "base/units.h"
#include "engine/engine_metrics.h"
#include "engine/grammar_compiler.h"
#include "engine/network_device.h"
#include "engine/scheduler.h"
#include "engine/step_loop.h"
#include "engine/store_traffic.h"
#include "model/network.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::engine {

// Where blocks go that outlive the process, and come from.
struct EngineStore {
  cache::BlockStore* store = nullptr;  // null: there is none. Outlives the source
  std::string weights;                 // names them: blocks of others never meet
  std::string arithmetic;              // everything that blocks' bits depend on beside them
  std::size_t agent_class = 0;         // of the store, as in StoreTrafficOptions
  std::size_t chat_class = 0;
  FetchLimits limits;
};

struct EngineOptions {
  std::string name;                         // of the model, for people
  std::int64_t context_tokens = 0;          // prompt + answer; 0: what the model was made for
  std::size_t slots = 8;                    // requests that run at once
  Bytes cache{std::uint64_t{1} << 30U};     // memory for blocks; one context fits in any case
  Bytes states{std::uint64_t{256} << 20U};  // for windows, where a next turn goes on
  std::size_t waiting_max = 256;
  model::CutMode cut = model::CutMode::kCompact;
  bool drafts = true;
  // For benchmarks: takes a draft for right with this probability, whatever the model says.
  std::optional<double> injected_acceptance;
  model::WindowRebuild rebuild = model::WindowRebuild::kExact;  // behind a hit
  std::string salt;  // of the cache keys: separates this server's blocks from others'
  Seed seed;         // of requests that send none
  // Of the machine: more is refused. Nothing: whoever asks knows what it has.
  std::optional<Bytes> memory;
  EngineStore store;
  Defect defect = Defect::kNone;  // for tests of a loop that fails
  Metrics* metrics = nullptr;     // told after every turn; null: nobody is. Outlives the source
};

// The engine as a token source: many requests at once, with a cache of their blocks in memory. Each
// gets the tokens it would get alone (engine/single_sequence.h), but for `rebuild` = kBounded,
// which is an approximation behind hits. Owns the network, a thread that runs the loop and calls
// the sinks, and the device's.
class EngineSource final : public recipe::TokenSource {
 public:
  // Errors: kInvalidArgument when the tokenizer has ids the model lacks, the windows of this family
  // cannot be rebuilt so, or the machine's memory is not enough; kUnimplemented for kStored.
  // `clock` outlives the source.
  static Result<std::unique_ptr<EngineSource>> create(
      std::unique_ptr<model::Network> network,
      std::shared_ptr<const recipe::Tokenizer> tokenizer,
      const Clock& clock,
      EngineOptions options);
  ~EngineSource() override;

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override;
  // They come to the loop together, so their prompt is computed once. Error besides those of
  // start(): kInvalidArgument, `n`, for more than can run and wait at any time.
  Result<std::vector<std::unique_ptr<recipe::ActiveGeneration>>> start_choices(
      std::vector<recipe::Generation> generations,
      std::span<recipe::TokenSink* const> sinks) override;
  Result<void> prepare(recipe::Generation& generation) override;
  [[nodiscard]] bool enforces_grammars() const override { return true; }
  // Not once the device has failed.
  [[nodiscard]] bool ready() const override GALLEY_EXCLUDES(mutex_);
  [[nodiscard]] std::string_view description() const override { return description_; }

  [[nodiscard]] std::int64_t context_tokens() const { return scheduler_options_.context_tokens; }
  [[nodiscard]] SchedulerStats stats() const GALLEY_EXCLUDES(mutex_);
  // Zeros without a store.
  [[nodiscard]] StoreTrafficStats store_stats() const {
    return traffic_ ? traffic_->stats() : StoreTrafficStats();
  }

 private:
  class Job;
  class Handle;

  EngineSource(std::unique_ptr<model::Network> network,
               std::shared_ptr<const recipe::Tokenizer> tokenizer,
               const Clock& clock,
               EngineOptions options,
               const SchedulerOptions& scheduler_options);

  // On its thread.
  void work() GALLEY_EXCLUDES(mutex_);
  // Waits for something to do; false once the source ends.
  [[nodiscard]] bool take_new(bool idle) GALLEY_EXCLUDES(mutex_);
  void submit(std::shared_ptr<Job> job);
  void deliver();
  // Has drafts' confidences fitted beside the loop when that is due.
  void maybe_fit() GALLEY_EXCLUDES(mutex_);
  void fail_all(const Error& error) GALLEY_EXCLUDES(mutex_);

  const std::unique_ptr<model::Network> network_;
  const Clock& clock_;
  const EngineOptions options_;
  const SchedulerOptions scheduler_options_;
  const std::string description_;
  GrammarCompiler grammars_;

  // Of the loop's thread.
  Scheduler scheduler_;
  NetworkDevice device_;
  StepLoop loop_;
  std::optional<EngineMetrics> metrics_;
  std::unordered_map<RequestId, std::shared_ptr<Job>> jobs_;
  bool fitting_ = false;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<Job>> arrived_ GALLEY_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Job>> cancelled_ GALLEY_GUARDED_BY(mutex_);
  std::size_t live_ GALLEY_GUARDED_BY(mutex_) = 0;       // started and not ended
  std::uint64_t started_ GALLEY_GUARDED_BY(mutex_) = 0;  // numbers requests without a seed
  SchedulerStats stats_ GALLEY_GUARDED_BY(mutex_);
  bool progress_ GALLEY_GUARDED_BY(mutex_) = false;  // of the traffic, since the last turn
  bool failed_ GALLEY_GUARDED_BY(mutex_) = false;
  bool ending_ GALLEY_GUARDED_BY(mutex_) = false;
  std::optional<std::vector<double>> fitted_ GALLEY_GUARDED_BY(mutex_);  // temperatures
  // Null without a store. The loop's; behind the mutex, which its threads use until it has ended.
  std::unique_ptr<StoreTraffic> traffic_;
  SerialExecutor fitter_;
  SerialExecutor thread_;  // last: its thread uses the above
};

}  // namespace galley::engine
