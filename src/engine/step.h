#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/random.h"
#include "base/result.h"
#include "base/units.h"
#include "cache/prefix_cache.h"
#include "cache/state_store.h"
#include "engine/grammar.h"
#include "recipe/request.h"
#include "recipe/token_source.h"

// What the scheduler and a device say to each other, step by step (spec runtime 1). The host plans
// with bounds and the device holds the truth: which tokens a row in decoding feeds, and how far it
// comes, is known to the host only when the step is settled.
namespace galley::engine {

using RequestId = Id<struct RequestTag>;
using StepId = Id<struct StepTag>;
// Row of the state that a device keeps of each running request: windows, length, drafts.
using SlotId = Id<struct SlotTag, std::uint32_t>;

// A request on its way through the engine; nobody changes it.
struct EngineRequest {
  recipe::Generation generation;
  Seed seed;
  std::shared_ptr<const Grammar> grammar;  // of its answer, or null
};

// A slot gets a request. Positions below `begin` are not fed: their compressed rows are in the
// blocks. Rows below `write_floor` belong to others, too, and are not written again; windows are
// those of `state`, or rebuilt from `begin` on (spec runtime 8.6).
struct SlotStart {
  SlotId slot;
  std::uint32_t generation{};  // a slot's requests are numbered
  std::shared_ptr<const EngineRequest> request;
  std::vector<TokenId> tokens;  // the prompt, and what was answered before a preemption
  std::vector<cache::BlockId> blocks;
  std::int64_t begin{};
  std::int64_t write_floor{};
  std::shared_ptr<const cache::State> state;  // of `begin`; null: there is none
};

// One request's part of a step. In prefill it feeds `feed` of the slot's tokens; in decoding the
// token drawn last, and at most `drafts_max` drafts behind it. A fork feeds nothing: it draws
// behind the row whose prompt it shares, and goes on from there with that slot's state and blocks
// as they are then. What it has of a block that is not whole is a copy.
struct PlannedRow {
  SlotId slot;
  std::uint32_t generation{};
  std::int64_t feed{};  // 0: decoding
  int drafts_max{};
  bool draws{};  // the sampler draws behind its last token: not in a chunk that others follow
  std::optional<std::size_t> fork_of;  // place in the plan of a row before, with as much `feed`
  std::vector<cache::BlockId> blocks;  // added to the slot's table
};

struct StepPlan {
  StepId id;
  std::vector<SlotStart> starts;
  std::vector<PlannedRow> rows;
  // Drafts that it verifies, of all rows together: those most likely to stand, by the confidences
  // of these very drafts, which the device knows and the host does not yet. Nothing: all there are.
  std::optional<std::size_t> budget;
  std::vector<double> temperatures;  // [gamma]: of those confidences, with a budget
  bool drafts{};                     // its sampler drafts for the step behind it
};

// What a row may draw, for one step of one request: its grammar after the tokens settled so far,
// and then after each of the drafts that the step verifies, until one of them is not allowed.
// Whoever draws checks whose masks these are: those of another request or step would let a wrong
// token by.
struct RowMasks {
  SlotId slot;
  std::uint32_t generation{};
  StepId step;
  std::size_t words{};  // of one mask
  // Where the mask begins in `bits` of the token behind the settled ones, behind the first draft,
  // ...
  std::vector<std::size_t> begins;
  std::vector<MaskWord> bits;
  static constexpr std::size_t kAnything = ~std::size_t{0};  // a beginning: there is no mask

  [[nodiscard]] bool is_of(SlotId the_slot, std::uint32_t the_generation, StepId the_step) const {
    return slot == the_slot && generation == the_generation && step == the_step;
  }
  // Empty: anything may come. `position` is one of those it has.
  [[nodiscard]] std::span<const MaskWord> at(std::size_t position) const {
    const std::size_t begin = begins[position];
    return begin == kAnything ? std::span<const MaskWord>() : std::span(bits).subspan(begin, words);
  }
};

// Whether `masks` are those that a row of `request` draws by in `step`. Error kInternal: the row
// must not be sampled.
[[nodiscard]] inline Result<void> check_masks(const EngineRequest& request,
                                              const PlannedRow& row,
                                              StepId step,
                                              const std::optional<RowMasks>& masks) {
  const bool right = masks ? masks->is_of(row.slot, row.generation, step) : !request.grammar;
  if (!right) {
    return fail(Code::kInternal, "the masks of a step are not those of the row that draws");
  }
  return {};
}

// Made from settled state only.
struct SamplerPlan {
  StepId id;
  std::vector<bool> dead;  // one a row: nobody wants what it draws
  // One a row; nothing for a request without grammar, and for a row that draws nothing.
  std::vector<std::optional<RowMasks>> masks;
};

struct SettledRow {
  SlotId slot;
  std::uint32_t generation{};
  // Drawn, in order; a stop token that ends the answer is not among them.
  std::vector<TokenId> tokens;
  std::vector<recipe::TokenLogprob> logprobs;  // one a token, where asked for
  std::optional<recipe::SourceFinish> finish;
  std::optional<Error> error;
  // Of a fork: the row whose prompt it shares did not get there, so it has not run and may begin
  // anew. Its slot is of no use until it is started again.
  bool lost = false;
  int drafts{};  // there were for it
  int drafts_verified{};
  int drafts_accepted{};
  // Of the drafts made behind its last token, before the sigmoid: one each, or none at all.
  std::vector<float> confidences;
  // Of the last end of a block that the row passed, if windows still reach back to there and were
  // whole: not of positions that only rebuild them.
  std::shared_ptr<const cache::State> state;
  std::int64_t state_end{};          // position
  std::vector<TokenId> next_drafts;  // those drafts, of a request with a grammar
};

struct StepResult {
  StepId id;
  std::vector<SettledRow> rows;  // one a planned row, in order; a no-op row has no tokens
  std::int64_t tokens{};         // that its forward fed
  Duration forward{};            // times on the device
  Duration sampler{};            // drafting, too
  // There is no memory for them, as turned out when one was to be used; nothing was ever in them.
  std::vector<cache::BlockId> lost_blocks;
};

// Runs what is launched in order: the forward of step 1, its sampler, the forward of step 2, ...
// Calls but wait() return at once.
class StepDevice {
 public:
  StepDevice() = default;
  virtual ~StepDevice() = default;
  StepDevice(const StepDevice&) = delete;
  StepDevice& operator=(const StepDevice&) = delete;

  virtual void launch_forward(StepPlan plan) = 0;
  virtual void launch_sampler(SamplerPlan plan) = 0;
  // Until the sampler of `step` has run. Steps are waited for once, in order.
  [[nodiscard]] virtual StepResult wait(StepId step) = 0;

  // From the planning of a step to the launch of its forward nothing may wait for the device, or it
  // would run dry meanwhile: wait() checks that (spec runtime 1.5, the sync guard).
  void set_launching(bool launching) { launching_ = launching; }

 protected:
  [[nodiscard]] bool launching() const { return launching_; }

 private:
  bool launching_ = false;
};

}  // namespace galley::engine
