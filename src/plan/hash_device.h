#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "base/virtual_loop.h"
#include "engine/step.h"

namespace galley::plan {

// A model whose every number is known: the next token is a hash of all tokens before it. What it
// stores of a position is the hash of the tokens up to there, so whoever reads a wrong block, or a
// window row of another time, can tell.
class HashModel {
 public:
  HashModel(Seed seed, TokenId vocabulary, int stop_every)
      : seed_(seed), vocabulary_(vocabulary), stop_every_(stop_every) {}

  static constexpr TokenId kStop = 0;

  [[nodiscard]] std::uint64_t start() const { return mix(seed_.value(), 1); }
  // Hash of a prefix and one token more.
  [[nodiscard]] std::uint64_t extend(std::uint64_t prefix, TokenId token) const {
    return mix(prefix, token + 2);
  }
  // kStop once in `stop_every` tokens.
  [[nodiscard]] TokenId next(std::uint64_t prefix) const;
  // The same token where `mask` allows it, else one that it allows. Empty: all are allowed.
  [[nodiscard]] TokenId next(std::uint64_t prefix, std::span<const engine::MaskWord> mask) const;
  // A guess of it that is wrong in `errors` of 256 cases.
  [[nodiscard]] TokenId draft(std::uint64_t prefix, unsigned errors) const;

  // Of a draft behind `prefix`, before the sigmoid: higher for a right one, mostly.
  [[nodiscard]] float confidence(std::uint64_t prefix, bool right) const;

  struct Answer {
    std::vector<TokenId> tokens;
    recipe::SourceFinish finish{};
  };
  // The oracle: token after token, alone. `grammar`: of the answer, or null.
  [[nodiscard]] Answer answer(std::span<const TokenId> prompt,
                              std::int64_t max_tokens,
                              const std::shared_ptr<const engine::Grammar>& grammar) const;

 private:
  static std::uint64_t mix(std::uint64_t a, std::uint64_t b);

  Seed seed_;
  TokenId vocabulary_;
  int stop_every_;
};

struct HashDeviceOptions {
  std::size_t slots = 0;
  std::size_t blocks = 0;
  int drafts = 0;
  int window = 16;
  int ring_rows = 0;             // window + drafts is the least that works
  std::int64_t keep_tokens = 1;  // at the end of a prompt: no hit may reach into them
  unsigned draft_errors = 64;    // of 256
  bool confidences = true;       // behind drafts: what they say is half true
  bool states = true;            // saves those of rows that pass the end of a block
  unsigned failures = 0;         // of 65,536 rows: the row is not computed, and ends in an error
  // Times on the device: of a forward, uniform between these, and of its sampler, a part of it.
  Duration step_min{};
  Duration step_max{};
  Duration token{};  // more for each token that a forward may have to feed
  double sampler_share = 0.1;
  bool split = true;          // samplers are launched when every earlier step is settled
  bool trusts_masks = false;  // a defect: it does not look whose masks it was given
};

// What was found wrong, in words; the first few.
class Violations {
 public:
  static constexpr std::size_t kKept = 8;
  void add(std::string what);
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] const std::vector<std::string>& first() const { return first_; }

 private:
  std::int64_t count_ = 0;
  std::vector<std::string> first_;
};

// Runs steps on the hash model in virtual time. What is launched takes effect when the device is
// through with it, not before: the host is ahead of it, as of any device. Every position that a row
// has to read is checked, in blocks and in windows.
class HashDevice final : public engine::StepDevice {
 public:
  // `loop`, `model` and `violations` outlive it.
  HashDevice(const HashDeviceOptions& options,
             const HashModel& model,
             VirtualLoop& loop,
             Random random,
             Violations& violations,
             const Clock* stopwatch);
  ~HashDevice() override;

  void launch_forward(engine::StepPlan plan) override;
  void launch_sampler(engine::SamplerPlan plan) override;
  // Lets virtual time pass until the step is done.
  [[nodiscard]] engine::StepResult wait(engine::StepId step) override;

  // Of a slot whose request has not ended.
  struct State {
    std::uint32_t generation{};
    std::int64_t length{};
  };
  [[nodiscard]] std::optional<State> state(engine::SlotId slot) const;
  // What a block holds, [kBlockTokens]: for a store, which reads and writes it beside the queue.
  [[nodiscard]] std::span<std::uint64_t> block_rows(cache::BlockId block) {
    return std::span(cells_).subspan(block.value() * std::size_t{kBlockTokens}, kBlockTokens);
  }
  // Real time spent in here, on `stopwatch`.
  [[nodiscard]] Duration time_inside() const { return inside_; }
  [[nodiscard]] Duration busy() const { return busy_; }
  // The device had nothing to do between two launched pieces of work.
  [[nodiscard]] Duration idle() const { return idle_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }

 private:
  struct Slot;
  struct Saved;
  struct Work;
  struct Step;
  class Inside;

  void poison(std::span<const cache::BlockId> blocks);
  void run_due();
  void enqueue(Duration length, std::move_only_function<void()> effect);
  void start(const engine::SlotStart& start);
  void forward(Step& step);
  void feed_prompt(Slot& slot, const engine::PlannedRow& row);
  [[nodiscard]] std::vector<std::uint8_t> verify_lengths(const engine::StepPlan& plan);
  void feed_drafts(Slot& slot, std::int64_t verified);
  void fork(Slot& slot, const Slot& from);
  void save(const Slot& slot, const engine::PlannedRow& row, engine::SettledRow& settled) const;
  void write(Slot& slot, std::int64_t position, TokenId token);
  void check_blocks(const Slot& slot, std::int64_t end);
  void check_window(const Slot& slot, std::int64_t position);
  void sample(Step& step, const engine::SamplerPlan& plan);
  [[nodiscard]] engine::SettledRow draw(Slot& slot,
                                        const engine::PlannedRow& row,
                                        bool drafts,
                                        const std::optional<engine::RowMasks>& masks);
  [[nodiscard]] std::uint64_t* cell(const Slot& slot, std::int64_t position);

  const HashDeviceOptions options_;
  const HashModel& model_;
  VirtualLoop& loop_;
  Random random_;
  Violations& violations_;
  const Clock* const stopwatch_;  // or null
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> cells_;  // [blocks, kBlockTokens]
  std::deque<Work> queue_;
  std::deque<Step> steps_;  // launched and not waited for
  TimeNs free_at_{};
  Duration inside_{};
  Duration busy_{};
  Duration idle_{};
  std::int64_t rows_ = 0;
};

}  // namespace galley::plan
