#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/serial_executor.h"
#include "engine/calibration.h"
#include "engine/grammar_compiler.h"
#include "model/network.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::engine {

// Prompt tokens a step. A cancel, a deadline and the end of the process wait for the step that
// runs, which on reference kernels and at real sizes takes minutes a hundred tokens, so it is
// short.
inline constexpr std::size_t kPrefillChunk = 128;

struct SingleSequenceOptions {
  std::string name;                 // of the model, for people
  std::int64_t context_tokens = 0;  // prompt + answer; 0: what the model was made for
  std::size_t waiting_max = 64;     // requests that wait for the one that runs
  std::size_t prefill_chunk = kPrefillChunk;
  model::CutMode cut = model::CutMode::kCompact;
  bool drafts = true;  // where the checkpoint has a drafter; the answer is the same without
  // Treats the longest hit of a prompt as found in a cache, and rebuilds the windows behind it this
  // way, to measure what that does to answers: it is computed by a sequence of its own, in one step
  // that no cancel ends, which saves nothing.
  std::optional<model::WindowRebuild> rebuild;
  Seed seed;  // of requests that send none
};

// What was done since the start.
struct SingleSequenceStats {
  std::int64_t requests{};       // begun
  std::int64_t prompt_tokens{};  // fed
  std::int64_t answer_tokens{};  // settled
  std::int64_t decode_steps{};
  std::int64_t drafts_verified{};
  std::int64_t drafts_accepted{};
  // Of drafts that a verification reached, where the drafter tells confidences.
  std::array<ConfidenceBin, kConfidenceBins> confidence{};
};

// The network as a token source, one request at a time, first come first served: the simplest loop
// that is right, kept as the oracle of the engine. Owns the network and one thread that uses it;
// that thread calls the sinks. A cancel or a deadline is noticed between chunks of a prompt and
// between steps.
class SingleSequenceSource final : public recipe::TokenSource {
 public:
  // Error: kInvalidArgument when the tokenizer has ids the model lacks, or the windows of this
  // family cannot be rebuilt so. `clock` outlives the source.
  static Result<std::unique_ptr<SingleSequenceSource>> create(
      std::unique_ptr<model::Network> network,
      std::shared_ptr<const recipe::Tokenizer> tokenizer,
      const Clock& clock,
      SingleSequenceOptions options);
  ~SingleSequenceSource() override;

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override;
  Result<void> prepare(recipe::Generation& generation) override;
  [[nodiscard]] bool enforces_grammars() const override { return true; }
  [[nodiscard]] bool ready() const override { return true; }
  [[nodiscard]] std::string_view description() const override { return description_; }

  // The longest prompt + answer.
  [[nodiscard]] std::int64_t context_tokens() const { return context_tokens_; }
  [[nodiscard]] SingleSequenceStats stats() const GALLEY_EXCLUDES(mutex_);

 private:
  class Job;
  class Handle;
  class Run;
  friend class Run;

  SingleSequenceSource(std::unique_ptr<model::Network> network,
                       std::shared_ptr<const recipe::Tokenizer> tokenizer,
                       const Clock& clock,
                       SingleSequenceOptions options);

  void work() GALLEY_EXCLUDES(mutex_);
  // Waits for a request; null once the source ends.
  [[nodiscard]] std::shared_ptr<Job> next_job() GALLEY_EXCLUDES(mutex_);
  void forget(const Job& job) GALLEY_EXCLUDES(mutex_);
  void fail_expired() GALLEY_EXCLUDES(mutex_);

  const std::unique_ptr<model::Network> network_;
  const std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with the codec
  const Clock& clock_;
  const SingleSequenceOptions options_;
  const std::int64_t context_tokens_;
  const std::string description_;
  GrammarCompiler grammars_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> waiting_ GALLEY_GUARDED_BY(mutex_);
  std::uint64_t started_ GALLEY_GUARDED_BY(mutex_) = 0;  // numbers requests without a seed
  SingleSequenceStats stats_ GALLEY_GUARDED_BY(mutex_);
  bool ending_ GALLEY_GUARDED_BY(mutex_) = false;
  SerialExecutor thread_;  // last: its thread uses the above
};

}  // namespace galley::engine
