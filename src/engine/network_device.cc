#include "engine/network_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "engine/step_drafts.h"

namespace galley::engine {

namespace {

class SequenceState final : public cache::State {
 public:
  explicit SequenceState(std::vector<float> values) : values_(std::move(values)) {}
  [[nodiscard]] std::size_t bytes() const override { return values_.size() * sizeof(float); }
  [[nodiscard]] std::span<const float> values() const { return values_; }

 private:
  std::vector<float> values_;
};

}  // namespace

struct NetworkDevice::Slot {
  std::uint32_t generation = 0;
  std::shared_ptr<const EngineRequest> request;
  std::unique_ptr<model::Sequence> sequence;  // kept from request to request: its windows are large
  std::vector<std::int32_t> tokens;           // prompt and answer; the newest is not fed
  TokenCounts counts;                         // of the answer
  std::vector<std::int32_t> drafts;
  std::vector<float> confidences;  // of the drafts; empty: there are none
  std::int64_t write_floor = 0;
  std::int64_t window_begin = 0;
  bool done = true;
  std::optional<Error> failure;  // that its next row ends with

  // Of the forward that was run last.
  std::optional<std::size_t> part;  // in the result; nothing: the row was a no-op
  std::int64_t first_position = 0;
  std::vector<std::int32_t> fed;
  std::int64_t drafts_there = 0;  // for that forward, verified or not
  std::size_t final_rows = 0;     // of its part: those that stay
  bool drew = false;              // and goes on

  [[nodiscard]] const recipe::Generation& generation_of() const { return request->generation; }
  [[nodiscard]] std::int64_t prompt() const { return std::ssize(generation_of().prompt); }
  [[nodiscard]] std::int64_t left() const {
    return generation_of().max_tokens - (std::ssize(tokens) - prompt());
  }
};

struct NetworkDevice::Step {
  StepPlan plan;
  Duration time{};        // of its forward
  std::int64_t tokens{};  // fed
  std::size_t logits_tail = 0;
  Result<model::ForwardResult> result;
};

NetworkDevice::NetworkDevice(model::Network& network,
                             std::shared_ptr<const recipe::Tokenizer> tokenizer,
                             const Clock& clock,
                             const NetworkDeviceOptions& options)
    : network_(network),
      tokenizer_(std::move(tokenizer)),
      clock_(clock),
      options_(options),
      drafts_(drafts(network.plan(), options)),
      slots_(options.slots),
      blocks_(options.blocks) {}

NetworkDevice::~NetworkDevice() = default;

int NetworkDevice::drafts(const model::ModelPlan& plan, const NetworkDeviceOptions& options) {
  return options.drafts && plan.draft_stages > 0 && plan.config.draft ? plan.config.draft->block
                                                                      : 0;
}

void NetworkDevice::launch_forward(StepPlan plan) {
  thread_.post([this, plan = std::move(plan)]() mutable {
    steps_.push_back({.plan = std::move(plan)});
    const TimeNs begin = clock_.now();
    forward(steps_.back());
    steps_.back().time = clock_.now() - begin;
  });
}

void NetworkDevice::launch_sampler(SamplerPlan plan) {
  thread_.post([this, plan = std::move(plan)] {
    Step& step = steps_.front();
    GALLEY_ASSERT(step.plan.id == plan.id);
    sample(step, plan);
    steps_.pop_front();
  });
}

StepResult NetworkDevice::wait(StepId step) {
  GALLEY_ASSERT(!launching());
  const MutexLock lock(mutex_);
  auto found = results_.find(step);
  while (found == results_.end()) {
    changed_.wait(mutex_);
    found = results_.find(step);
  }
  StepResult result = std::move(found->second);
  results_.erase(found);
  return result;
}

// ---- forward --------------------------------------------------------------------------------

void NetworkDevice::start(const SlotStart& start) {
  Slot& slot = slots_[start.slot.value()];
  if (slot.sequence == nullptr) {
    slot.sequence = network_.new_sequence();
  }
  slot.generation = start.generation;
  slot.request = start.request;
  slot.tokens.assign(start.tokens.begin(), start.tokens.end());
  slot.counts.clear();
  for (auto i = static_cast<std::size_t>(slot.prompt()); i < start.tokens.size(); ++i) {
    ++slot.counts[start.tokens[i]];
  }
  slot.drafts.clear();
  slot.confidences.clear();
  slot.write_floor = start.write_floor;
  slot.window_begin = start.state != nullptr ? 0 : start.begin;
  slot.done = false;
  slot.failure.reset();
  slot.sequence->truncate(0);
  auto blocks = buffers(start.blocks);
  if (!blocks) {
    slot.failure = std::move(blocks).error();
    return;
  }
  const auto known = std::span(slot.tokens).first(static_cast<std::size_t>(start.begin));
  slot.sequence->adopt(*blocks, network_.history(known), start.begin);
  if (start.state != nullptr) {
    slot.sequence->restore_state(static_cast<const SequenceState&>(*start.state).values());
  }
}

// Behind those it has. False when the request fails.
bool NetworkDevice::add_blocks(Slot& slot, std::span<const cache::BlockId> blocks) {
  auto more = buffers(blocks);
  if (more) {
    slot.sequence->add_blocks(*more);
  } else {
    slot.failure = std::move(more).error();
  }
  return !slot.failure;
}

Result<NetworkDevice::Buffers> NetworkDevice::buffers(std::span<const cache::BlockId> blocks) {
  const MutexLock lock(blocks_mutex_);
  Buffers out;
  for (const cache::BlockId block : blocks) {
    GALLEY_TRY(auto one, buffer(block));
    out.push_back(std::move(one));
  }
  return out;
}

Result<std::shared_ptr<kernels::Buffer>> NetworkDevice::buffer(cache::BlockId block) {
  auto& buffer = blocks_[block.value()];
  if (buffer == nullptr) {
    buffer = network_.new_block();
  }
  if (buffer == nullptr) {
    out_of_memory_ = true;
    return fail(Code::kUnavailable, "the machine has no memory for another block of cache");
  }
  return buffer;
}

Result<std::span<std::byte>> NetworkDevice::block_bytes(cache::BlockId block) {
  const MutexLock lock(blocks_mutex_);
  GALLEY_TRY(const auto one, buffer(block));
  return std::span(one->data(), one->size());
}

// Of the step's rows: how many of its drafts each verifies.
std::vector<std::uint8_t> NetworkDevice::verify_lengths(const StepPlan& plan) {
  std::vector<RowDrafts> drafts(plan.rows.size());
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    const PlannedRow& row = plan.rows[i];
    Slot& slot = slots_[row.slot.value()];
    if (slot.generation == row.generation && !slot.done && row.feed == 0) {
      drafts[i] = drafts_of(row, slot.drafts.size(), slot.left(), slot.confidences);
      slot.drafts_there = static_cast<std::int64_t>(drafts[i].count);
    }
  }
  return engine::verify_lengths(plan, static_cast<std::size_t>(drafts_), drafts);
}

void NetworkDevice::forward(Step& step) {
  for (const SlotStart& one : step.plan.starts) {
    start(one);
  }
  const std::vector<std::uint8_t> verified = verify_lengths(step.plan);
  std::vector<model::SequenceRows> batch;
  for (std::size_t i = 0; i < step.plan.rows.size(); ++i) {
    const PlannedRow& row = step.plan.rows[i];
    Slot& slot = slots_[row.slot.value()];
    if (slot.generation != row.generation) {
      continue;
    }
    slot.part.reset();
    slot.final_rows = 0;
    slot.drew = false;
    if (slot.failure || !add_blocks(slot, row.blocks)) {
      slot.done = true;
      continue;
    }
    if (row.fork_of) {
      slot.part = slots_[step.plan.rows[*row.fork_of].slot.value()].part;
      continue;
    }
    if (slot.done) {
      continue;
    }
    slot.first_position = slot.sequence->length();
    if (row.feed > 0) {
      const auto begin = slot.tokens.begin() + slot.first_position;
      slot.fed.assign(begin, begin + row.feed);
    } else {
      slot.fed.assign(1, slot.tokens.back());
      slot.fed.insert(slot.fed.end(), slot.drafts.begin(), slot.drafts.begin() + verified[i]);
    }
    step.tokens += std::ssize(slot.fed);
    if (row.draws) {
      step.logits_tail = std::max(step.logits_tail, row.feed > 0 ? 1 : slot.fed.size());
    }
    // The table is the scheduler's: a block of the sequence's own would shift all that follow.
    GALLEY_ASSERT(std::ssize(slot.sequence->blocks()) * kBlockTokens >=
                  slot.first_position + std::ssize(slot.fed));
    slot.part = batch.size();
    batch.push_back({.sequence = slot.sequence.get(),
                     .tokens = slot.fed,
                     .window_begin = slot.window_begin,
                     .write_floor = slot.write_floor,
                     .prompt_tokens = slot.prompt()});
  }
  if (!batch.empty()) {
    step.result = network_.forward(batch, {.cut = options_.cut, .logits_tail = step.logits_tail});
  }
}

// ---- sampler --------------------------------------------------------------------------------

void NetworkDevice::sample(Step& step, const SamplerPlan& plan) {
  const TimeNs begin = clock_.now();
  StepResult out{.id = step.plan.id, .tokens = step.tokens, .forward = step.time};
  for (std::size_t i = 0; i < step.plan.rows.size(); ++i) {
    const PlannedRow& row = step.plan.rows[i];
    Slot& slot = slots_[row.slot.value()];
    SettledRow settled{.slot = row.slot, .generation = row.generation};
    const bool runs = slot.generation == row.generation && slot.part.has_value();
    if (runs && step.result && row.feed > 0 && !row.fork_of) {
      slot.final_rows = step.result->parts[*slot.part].rows;
    }
    if (slot.generation == row.generation && slot.failure) {
      settled.error = std::exchange(slot.failure, std::nullopt);
    } else if (row.fork_of && slot.generation == row.generation && !slot.part) {
      settled.lost = true;
      slot.done = true;
    } else if (runs && !step.result) {
      settled.error = step.result.error();
      slot.done = true;
    } else if (runs && plan.dead[i]) {
      slot.done = true;
    } else if (runs) {
      settled = draw(slot, row, step, plan.masks[i]);
    }
    out.rows.push_back(std::move(settled));
  }
  if (step.result) {
    keep_features(step);
    make_forks(step);
    if (options_.states) {
      save_states(step, plan, out);
    }
    if (step.plan.drafts) {
      make_drafts(step, out);
    }
  }
  tell_lost(out);
  out.sampler = clock_.now() - begin;
  {
    const MutexLock lock(mutex_);
    results_.emplace(out.id, std::move(out));
  }
  changed_.notify_all();
}

// Once.
void NetworkDevice::tell_lost(StepResult& out) {
  const MutexLock lock(blocks_mutex_);
  if (out_of_memory_ && !std::exchange(lost_told_, true)) {
    for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i] == nullptr) {
        out.lost_blocks.emplace_back(i);
      }
    }
  }
}

SettledRow NetworkDevice::draw(Slot& slot,
                               const PlannedRow& row,
                               const Step& step,
                               const std::optional<RowMasks>& masks) {
  SettledRow out{.slot = row.slot, .generation = row.generation};
  if (row.feed > 0 && !row.draws) {
    return out;
  }
  if (auto theirs = check_masks(*slot.request, row, step.plan.id, masks); !theirs) {
    out.error = std::move(theirs).error();
    slot.done = true;
    return out;
  }
  const recipe::Generation& generation = slot.generation_of();
  const auto vocabulary = static_cast<std::size_t>(network_.plan().config.vocabulary);
  // Its logits are the last `drawn` of its part's.
  const std::size_t drawn = row.feed > 0 ? 1 : slot.fed.size();
  std::size_t first_row = 0;
  for (std::size_t i = 0; i <= *slot.part; ++i) {
    first_row += std::min(step.logits_tail, step.result->parts[i].rows);
  }
  first_row -= drawn;

  // A draft is right exactly if it is the token that would have been drawn without it.
  for (std::size_t i = 0; i < drawn; ++i) {
    const Draw where{.seed = slot.request->seed,
                     .choice = generation.choice,
                     .position = std::ssize(slot.tokens)};
    const auto logits = std::span<const float>(step.result->logits)
                            .subspan((first_row + i) * vocabulary, vocabulary);
    auto sampled = engine::sample(logits, generation.sampling, slot.counts, where,
                                  masks ? masks->at(i) : std::span<const MaskWord>());
    if (!sampled) {
      out.error = std::move(sampled).error();
      break;
    }
    bool stands = false;  // the draft behind it
    if (i + 1 < drawn) {
      const auto draft = static_cast<TokenId>(slot.fed[i + 1]);
      stands = sampled->token == draft;
      if (const auto wanted = injected(where); wanted && !masks) {
        stands = *wanted;
        sampled->token = stands ? draft : sampled->token;
      }
    }
    if (std::ranges::find(generation.stop_ids, sampled->token) != generation.stop_ids.end()) {
      out.finish = recipe::SourceFinish::kStop;
      break;
    }
    out.tokens.push_back(sampled->token);
    if (generation.sampling.logprobs) {
      out.logprobs.push_back(with_text(*sampled, *tokenizer_));
    }
    ++slot.counts[sampled->token];
    slot.tokens.push_back(static_cast<std::int32_t>(sampled->token));
    if (slot.left() == 0) {
      out.finish = recipe::SourceFinish::kLength;
      break;
    }
    if (!stands) {
      break;
    }
    ++out.drafts_accepted;
  }
  slot.done = out.finish || out.error;
  if (row.feed == 0) {
    out.drafts = static_cast<int>(slot.drafts_there);
    out.drafts_verified = static_cast<int>(drawn) - 1;
    const std::int64_t kept = 1 + out.drafts_accepted;
    slot.sequence->truncate(slot.first_position + kept);
    slot.final_rows = slot.done ? 0 : static_cast<std::size_t>(kept);
  }
  slot.drafts.clear();
  slot.confidences.clear();
  slot.drew = !slot.done;
  return out;
}

std::optional<bool> NetworkDevice::injected(const Draw& where) const {
  if (!options_.injected_acceptance) {
    return std::nullopt;
  }
  return Random(where.seed, static_cast<std::uint64_t>(where.position)).next_float() <
         *options_.injected_acceptance;
}

// Behind a chunk, or rejected drafts, rings have the last rows only: a state of a position that is
// too far back would lack some.
void NetworkDevice::save_states(const Step& step, const SamplerPlan& plan, StepResult& out) {
  const std::int64_t back = network_.plan().cache.ring_rows - network_.plan().config.window;
  for (std::size_t i = 0; i < step.plan.rows.size(); ++i) {
    const PlannedRow& row = step.plan.rows[i];
    const Slot& slot = slots_[row.slot.value()];
    if (slot.generation != row.generation || !slot.part || row.fork_of || plan.dead[i] ||
        out.rows[i].error) {
      continue;
    }
    const std::int64_t written = slot.first_position + std::ssize(slot.fed);
    const std::int64_t settled =
        row.feed > 0 ? written : slot.first_position + std::ssize(out.rows[i].tokens);
    const std::int64_t end = settled / kBlockTokens * kBlockTokens;
    if (end > std::max(slot.first_position, slot.write_floor - 1) && written - end <= back) {
      out.rows[i].state = std::make_shared<SequenceState>(slot.sequence->save_state());
      out.rows[i].state_end = end;
    }
  }
}

void NetworkDevice::keep_features(const Step& step) {
  if (drafts_ == 0) {
    return;
  }
  const std::size_t width = network_.plan().feature_width();
  std::vector<model::DraftContextRows> batch;
  for (const PlannedRow& row : step.plan.rows) {
    const Slot& slot = slots_[row.slot.value()];
    if (slot.generation != row.generation || !slot.part || slot.final_rows == 0) {
      continue;
    }
    const model::ForwardResult::Part& part = step.result->parts[*slot.part];
    batch.push_back(
        {.sequence = slot.sequence.get(),
         .features =
             std::span(step.result->features).subspan(part.begin * width, slot.final_rows * width),
         .first_position = part.first_position});
  }
  if (!batch.empty()) {
    network_.draft_context(batch);
  }
}

void NetworkDevice::make_forks(const Step& step) {
  for (const PlannedRow& row : step.plan.rows) {
    Slot& slot = slots_[row.slot.value()];
    if (!row.fork_of || slot.generation != row.generation || !slot.part || slot.done) {
      continue;
    }
    const Slot& from = slots_[step.plan.rows[*row.fork_of].slot.value()];
    slot.sequence->restore_state(from.sequence->save_state());
    slot.window_begin = from.window_begin;
    const auto whole = static_cast<std::size_t>(slot.prompt() / kBlockTokens);
    if (slot.prompt() % kBlockTokens != 0) {
      kernels::Buffer& begun = *from.sequence->blocks()[whole];
      std::memcpy(slot.sequence->blocks()[whole]->data(), begun.data(), begun.size());
    }
  }
}

void NetworkDevice::make_drafts(const Step& step, StepResult& out) {
  std::vector<model::DraftRow> batch;
  std::vector<std::size_t> places;  // in the plan
  for (std::size_t i = 0; i < step.plan.rows.size(); ++i) {
    const PlannedRow& row = step.plan.rows[i];
    const Slot& slot = slots_[row.slot.value()];
    if (slot.generation == row.generation && slot.part && slot.drew && slot.left() > 1) {
      batch.push_back({.sequence = slot.sequence.get(), .token = slot.tokens.back()});
      places.push_back(i);
    }
  }
  if (batch.empty()) {
    return;
  }
  const auto slot_of = [&](std::size_t of_batch) -> Slot& {
    return slots_[step.plan.rows[places[of_batch]].slot.value()];
  };
  // With the noise of the draw that a draft foretells: it stands where both laws give one token.
  const auto choose = [&](std::size_t of_batch, std::size_t k, std::span<const float> logits) {
    const Slot& slot = slot_of(of_batch);
    return static_cast<std::int32_t>(
        draft_token(logits, slot.generation_of().sampling, slot.counts,
                    {.seed = slot.request->seed,
                     .choice = slot.generation_of().choice,
                     .position = std::ssize(slot.tokens) + static_cast<std::int64_t>(k)}));
  };
  std::vector<model::DraftResult> drafted = network_.draft(batch, {.choose = choose});
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Slot& slot = slot_of(i);
    slot.drafts = std::move(drafted[i].tokens);
    if (slot.request->grammar != nullptr) {
      out.rows[places[i]].next_drafts.assign(slot.drafts.begin(), slot.drafts.end());
    }
    // The drafter knows nothing of what a benchmark accepts.
    slot.confidences = std::move(drafted[i].confidences);
    if (const auto& chance = options_.injected_acceptance) {
      // As sure as such a drafter may be.
      std::ranges::fill(slot.confidences, static_cast<float>(std::log(*chance / (1.0 - *chance))));
    }
    out.rows[places[i]].confidences = slot.confidences;
  }
}

}  // namespace galley::engine
