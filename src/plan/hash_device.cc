#include "plan/hash_device.h"

#include <algorithm>
#include <fmt/core.h>
#include <functional>
#include <utility>

#include "base/check.h"
#include "engine/step_drafts.h"

namespace galley::plan {

using engine::PlannedRow;
using engine::SettledRow;

std::uint64_t HashModel::mix(std::uint64_t a, std::uint64_t b) {
  // splitmix64's finaliser: every bit of the input reaches every bit of the output.
  std::uint64_t x = a * 0x9E3779B97F4A7C15U + b;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

TokenId HashModel::next(std::uint64_t prefix) const {
  const std::uint64_t h = mix(prefix, 0);
  if (h % static_cast<std::uint64_t>(stop_every_) == 0) {
    return kStop;
  }
  return 1 + static_cast<TokenId>((h >> 32U) % (vocabulary_ - 1));
}

TokenId HashModel::next(std::uint64_t prefix, std::span<const engine::MaskWord> mask) const {
  TokenId best = next(prefix);
  if (mask.empty() || engine::allows(mask, best)) {
    return best;
  }
  std::uint64_t highest = 0;
  for (TokenId token = 0; token < vocabulary_; ++token) {
    const std::uint64_t score = mix(prefix, std::uint64_t{token} + 16);
    if (engine::allows(mask, token) && score >= highest) {
      highest = score;
      best = token;
    }
  }
  return best;
}

TokenId HashModel::draft(std::uint64_t prefix, unsigned errors) const {
  const TokenId right = next(prefix);
  return mix(prefix, 1) % 256 < errors ? (right + 1) % vocabulary_ : right;
}

float HashModel::confidence(std::uint64_t prefix, bool right) const {
  const auto noise = static_cast<float>(mix(prefix, 3) % 1024) / 256.0F - 2.0F;
  return noise + (right ? 1.0F : -1.0F);
}

HashModel::Answer HashModel::answer(std::span<const TokenId> prompt,
                                    std::int64_t max_tokens,
                                    const std::shared_ptr<const engine::Grammar>& grammar) const {
  const auto matcher = grammar == nullptr ? nullptr : engine::Matcher::begin(grammar);
  std::vector<engine::MaskWord> mask;
  std::uint64_t prefix = start();
  for (const TokenId token : prompt) {
    prefix = extend(prefix, token);
  }
  Answer out{.finish = recipe::SourceFinish::kLength};
  while (std::ssize(out.tokens) < max_tokens) {
    if (matcher != nullptr) {
      mask.resize(grammar->vocabulary().mask_words());
      GALLEY_ASSERT(matcher->fill(mask).has_value());
    }
    const TokenId token = next(prefix, mask);
    if (token == kStop) {
      out.finish = recipe::SourceFinish::kStop;
      break;
    }
    if (matcher != nullptr) {
      GALLEY_ASSERT(matcher->accept(token).has_value());
    }
    out.tokens.push_back(token);
    prefix = extend(prefix, token);
  }
  return out;
}

void Violations::add(std::string what) {
  ++count_;
  if (first_.size() < kKept) {
    first_.push_back(std::move(what));
  }
}

struct HashDevice::Slot {
  std::uint32_t generation = 0;
  std::shared_ptr<const engine::EngineRequest> request;
  std::vector<TokenId> tokens;        // known: of the prompt, then fed or drawn
  std::vector<std::uint64_t> hashes;  // of the prefixes that end at each position; fed ones
  std::vector<cache::BlockId> blocks;
  struct RingRow {
    std::int64_t position = -1;
    std::uint64_t hash = 0;
  };
  std::vector<RingRow> ring;
  std::int64_t length = 0;
  std::int64_t window_begin = 0;
  std::int64_t write_floor = 0;
  std::int64_t answered = 0;
  std::vector<TokenId> drafts;
  std::vector<float> confidences;
  std::int64_t drafts_there = 0;  // for the forward that was run last, verified or not
  std::int64_t verified = 0;      // drafts of the forward that was run last
  bool failed = false;            // in that forward
  bool runs = false;              // its row of that forward was not a no-op
  bool done = true;

  [[nodiscard]] std::int64_t left() const { return request->generation.max_tokens - answered; }
};

// The last rows of a slot's ring.
struct HashDevice::Saved final : cache::State {
  [[nodiscard]] std::size_t bytes() const override { return ring.size() * sizeof(Slot::RingRow); }

  const engine::EngineRequest* of = nullptr;
  std::vector<Slot::RingRow> ring;
};

struct HashDevice::Work {
  TimeNs end;
  std::move_only_function<void()> effect;
};

struct HashDevice::Step {
  engine::StepPlan plan;
  engine::StepResult result;
  bool sampled = false;
  TimeNs done_at{};
};

// Counts the time until the end of the scope.
class HashDevice::Inside {
 public:
  explicit Inside(HashDevice& device) : device_(device), begin_(now()) {}
  ~Inside() { device_.inside_ += now() - begin_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  [[nodiscard]] TimeNs now() const {
    return device_.stopwatch_ != nullptr ? device_.stopwatch_->now() : TimeNs();
  }

  HashDevice& device_;
  const TimeNs begin_;
};

HashDevice::HashDevice(const HashDeviceOptions& options,
                       const HashModel& model,
                       VirtualLoop& loop,
                       Random random,
                       Violations& violations,
                       const Clock* stopwatch)
    : options_(options),
      model_(model),
      loop_(loop),
      random_(random),
      violations_(violations),
      stopwatch_(stopwatch),
      slots_(options.slots),
      cells_(options.blocks * kBlockTokens) {}

HashDevice::~HashDevice() = default;

void HashDevice::launch_forward(engine::StepPlan plan) {
  const Inside inside(*this);
  run_due();
  // Copies into new blocks, as from a store, are ordered by events and not by the queue: whatever
  // launched work still reads there finds them changed.
  for (const engine::SlotStart& start : plan.starts) {
    poison(std::span(start.blocks)
               .subspan(static_cast<std::size_t>(start.write_floor / kBlockTokens)));
  }
  for (const PlannedRow& row : plan.rows) {
    poison(row.blocks);
  }
  steps_.push_back({.plan = std::move(plan)});
  Step& step = steps_.back();
  step.result.id = step.plan.id;
  const double share = random_.next_float();
  const auto span = static_cast<double>((options_.step_max - options_.step_min).count());
  Duration length = options_.step_min + Duration(static_cast<std::int64_t>(share * span));
  std::size_t drafts = 0;
  for (const PlannedRow& row : step.plan.rows) {
    step.result.tokens += row.feed > 0 ? row.feed : 1;
    drafts += static_cast<std::size_t>(row.drafts_max);
  }
  step.result.tokens +=
      static_cast<std::int64_t>(std::min(drafts, step.plan.budget.value_or(drafts)));
  length += options_.token * step.result.tokens;
  step.result.forward = length;
  enqueue(length, [this, &step] { forward(step); });
}

void HashDevice::launch_sampler(engine::SamplerPlan plan) {
  const Inside inside(*this);
  run_due();
  const auto at = std::ranges::find(steps_, plan.id, [](const Step& s) { return s.plan.id; });
  GALLEY_ASSERT(at != steps_.end());
  Step& step = *at;
  if (options_.split && at != steps_.begin()) {
    violations_.add(fmt::format("the sampler of step {} was launched before step {} was settled",
                                plan.id.value(), steps_.front().plan.id.value()));
  }
  const auto mean = static_cast<double>((options_.step_min + options_.step_max).count()) / 2;
  const Duration length(static_cast<std::int64_t>(mean * options_.sampler_share));
  step.result.sampler = length;
  enqueue(length, [this, &step, plan = std::move(plan)] { sample(step, plan); });
  step.done_at = free_at_;
}

engine::StepResult HashDevice::wait(engine::StepId id) {
  const Inside inside(*this);
  if (launching()) {
    violations_.add(fmt::format("waited for step {} while a step is launched", id.value()));
  }
  const auto at = std::ranges::find(steps_, id, [](const Step& s) { return s.plan.id; });
  GALLEY_ASSERT(at != steps_.end());
  if (at->done_at > loop_.now()) {
    loop_.run_until(at->done_at);
  }
  run_due();
  GALLEY_ASSERT(at->sampled);
  engine::StepResult result = std::move(at->result);
  steps_.erase(at);
  return result;
}

std::optional<HashDevice::State> HashDevice::state(engine::SlotId slot) const {
  const Slot& one = slots_[slot.value()];
  return one.done ? std::nullopt
                  : std::optional(State{.generation = one.generation, .length = one.length});
}

void HashDevice::poison(std::span<const cache::BlockId> blocks) {
  for (const cache::BlockId block : blocks) {
    std::fill_n(cells_.begin() + std::ptrdiff_t{block.value()} * kBlockTokens, kBlockTokens, 0);
  }
}

// ---- time -----------------------------------------------------------------------------------

void HashDevice::enqueue(Duration length, std::move_only_function<void()> effect) {
  const TimeNs begin = std::max(free_at_, loop_.now());
  idle_ += begin - free_at_;
  busy_ += length;
  free_at_ = begin + length;
  queue_.push_back({.end = free_at_, .effect = std::move(effect)});
}

void HashDevice::run_due() {
  while (!queue_.empty() && queue_.front().end <= loop_.now()) {
    auto effect = std::move(queue_.front().effect);
    queue_.pop_front();
    effect();
  }
}

// ---- forward --------------------------------------------------------------------------------

void HashDevice::start(const engine::SlotStart& start) {
  Slot& slot = slots_[start.slot.value()];
  slot = {.generation = start.generation,
          .request = start.request,
          .tokens = start.tokens,
          .blocks = start.blocks,
          .length = start.begin,
          .window_begin = start.state != nullptr ? 0 : start.begin,
          .write_floor = start.write_floor,
          .answered = std::ssize(start.tokens) - std::ssize(start.request->generation.prompt),
          .done = false};
  slot.ring.resize(static_cast<std::size_t>(options_.ring_rows));
  const auto* const saved = static_cast<const Saved*>(start.state.get());
  if (saved != nullptr) {
    slot.ring = saved->ring;
  }
  const auto prompt = std::ssize(start.request->generation.prompt);
  const bool fork = start.begin == prompt;  // a hit is never that long
  const bool comes_back = saved != nullptr && saved->of == start.request.get();
  if (!fork && !comes_back && start.write_floor > 0 &&
      start.write_floor > prompt - options_.keep_tokens) {
    violations_.add(fmt::format("a hit of {} reaches into the last {} of {} prompt tokens",
                                start.write_floor, options_.keep_tokens, prompt));
  }
  std::uint64_t prefix = model_.start();
  for (std::int64_t i = 0; i < start.begin; ++i) {
    prefix = model_.extend(prefix, slot.tokens[static_cast<std::size_t>(i)]);
    slot.hashes.push_back(prefix);
  }
}

void HashDevice::forward(Step& step) {
  for (const engine::SlotStart& one : step.plan.starts) {
    start(one);
  }
  const std::vector<std::uint8_t> verified = verify_lengths(step.plan);
  for (std::size_t i = 0; i < step.plan.rows.size(); ++i) {
    const PlannedRow& row = step.plan.rows[i];
    ++rows_;
    Slot& slot = slots_[row.slot.value()];
    if (slot.generation != row.generation) {
      continue;
    }
    slot.blocks.insert(slot.blocks.end(), row.blocks.begin(), row.blocks.end());
    if (row.fork_of) {
      const Slot& from = slots_[step.plan.rows[*row.fork_of].slot.value()];
      slot.runs = true;
      slot.failed = slot.done = !from.runs || from.failed;
      continue;
    }
    slot.runs = !slot.done;
    slot.failed = slot.runs && random_.next_below(65'536) < options_.failures;
    if (slot.failed) {
      slot.done = true;
      continue;
    }
    if (slot.runs && row.feed > 0) {
      feed_prompt(slot, row);
    } else if (slot.runs) {
      feed_drafts(slot, verified[i]);
    }
  }
}

std::vector<std::uint8_t> HashDevice::verify_lengths(const engine::StepPlan& plan) {
  std::vector<engine::RowDrafts> drafts(plan.rows.size());
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    const PlannedRow& row = plan.rows[i];
    Slot& slot = slots_[row.slot.value()];
    if (slot.generation == row.generation && !slot.done && row.feed == 0) {
      drafts[i] = engine::drafts_of(row, slot.drafts.size(), slot.left(), slot.confidences);
      slot.drafts_there = static_cast<std::int64_t>(drafts[i].count);
    }
  }
  return engine::verify_lengths(plan, static_cast<std::size_t>(options_.drafts), drafts);
}

void HashDevice::feed_prompt(Slot& slot, const PlannedRow& row) {
  check_blocks(slot, slot.length);
  check_window(slot, slot.length);
  for (std::int64_t i = 0; i < row.feed; ++i) {
    write(slot, slot.length + i, slot.tokens[static_cast<std::size_t>(slot.length + i)]);
  }
  slot.length += row.feed;
}

void HashDevice::feed_drafts(Slot& slot, std::int64_t verified) {
  slot.verified = verified;
  for (std::int64_t i = 0; i <= slot.verified; ++i) {
    write(slot, slot.length + i,
          i == 0 ? slot.tokens.back() : slot.drafts[static_cast<std::size_t>(i - 1)]);
  }
  check_blocks(slot, slot.length + 1 + slot.verified);
  for (std::int64_t i = 0; i <= slot.verified; ++i) {
    check_window(slot, slot.length + i);
  }
}

void HashDevice::write(Slot& slot, std::int64_t position, TokenId token) {
  slot.hashes.resize(static_cast<std::size_t>(position));
  const std::uint64_t hash =
      model_.extend(slot.hashes.empty() ? model_.start() : slot.hashes.back(), token);
  slot.hashes.push_back(hash);
  slot.ring[static_cast<std::size_t>(position % options_.ring_rows)] = {position, hash};
  if (position >= slot.write_floor) {
    if (std::uint64_t* const place = cell(slot, position)) {
      *place = hash;
    }
  }
}

std::uint64_t* HashDevice::cell(const Slot& slot, std::int64_t position) {
  const auto block = static_cast<std::size_t>(position / kBlockTokens);
  if (block >= slot.blocks.size()) {
    violations_.add(
        fmt::format("position {} is behind the slot's {} blocks", position, slot.blocks.size()));
    return nullptr;
  }
  return &cells_[slot.blocks[block].value() * std::size_t{kBlockTokens} +
                 static_cast<std::size_t>(position % kBlockTokens)];
}

// Attention reads all positions below.
void HashDevice::check_blocks(const Slot& slot, std::int64_t end) {
  for (std::int64_t i = 0; i < end; ++i) {
    const std::uint64_t* const place = cell(slot, i);
    if (place == nullptr || *place != slot.hashes[static_cast<std::size_t>(i)]) {
      violations_.add(fmt::format("position {} of {} is not the request's", i, end));
      return;
    }
  }
}

// And the last `window` of them, the query's own included, from the ring.
void HashDevice::check_window(const Slot& slot, std::int64_t position) {
  const std::int64_t whole = std::max<std::int64_t>(0, position - options_.window + 1);
  const std::int64_t first = std::max(slot.window_begin, whole);
  if (position >= slot.write_floor && first > whole) {
    violations_.add(fmt::format("the window of position {} begins at {}", position, first));
    return;
  }
  for (std::int64_t i = first; i < position; ++i) {
    const Slot::RingRow& row = slot.ring[static_cast<std::size_t>(i % options_.ring_rows)];
    if (row.position != i || row.hash != slot.hashes[static_cast<std::size_t>(i)]) {
      violations_.add(fmt::format("window row {} of position {} is gone", i, position));
      return;
    }
  }
}

// ---- sampler --------------------------------------------------------------------------------

void HashDevice::fork(Slot& slot, const Slot& from) {
  slot.ring = from.ring;
  slot.window_begin = from.window_begin;
  if (slot.hashes != from.hashes) {
    violations_.add("a fork's prompt is not the other's");
  }
  for (std::int64_t i = slot.write_floor; i < slot.length; ++i) {
    const std::uint64_t* const there = cell(from, i);
    std::uint64_t* const here = cell(slot, i);
    if (there != nullptr && here != nullptr) {
      *here = *there;
    }
  }
}

void HashDevice::sample(Step& step, const engine::SamplerPlan& plan) {
  for (std::size_t i = 0; i < step.plan.rows.size(); ++i) {
    const PlannedRow& row = step.plan.rows[i];
    Slot& slot = slots_[row.slot.value()];
    SettledRow settled{.slot = row.slot, .generation = row.generation};
    if (slot.generation == row.generation && slot.runs) {
      if (row.fork_of && !slot.failed && !plan.dead[i]) {
        fork(slot, slots_[step.plan.rows[*row.fork_of].slot.value()]);
      }
      if (row.fork_of && slot.failed) {
        settled.lost = true;
      } else if (slot.failed) {
        settled.error = Error{.code = Code::kUnavailable, .what = "a row failed"};
      } else if (plan.dead[i]) {
        slot.done = true;
      } else if (const auto theirs =
                     row.draws && !options_.trusts_masks
                         ? engine::check_masks(*slot.request, row, plan.id, plan.masks[i])
                         : Result<void>();
                 !theirs) {
        settled.error = theirs.error();
        slot.done = true;
      } else if (row.draws) {
        settled = draw(slot, row, step.plan.drafts, plan.masks[i]);
      }
      if (options_.states && !slot.failed && !plan.dead[i] && !row.fork_of) {
        save(slot, row, settled);
      }
    }
    step.result.rows.push_back(std::move(settled));
  }
  step.sampled = true;
}

void HashDevice::save(const Slot& slot, const PlannedRow& row, SettledRow& settled) const {
  const std::int64_t first = slot.length - (row.feed > 0 ? row.feed : std::ssize(settled.tokens));
  const std::int64_t written = row.feed > 0 ? slot.length : first + 1 + slot.verified;
  const std::int64_t end = slot.length / kBlockTokens * kBlockTokens;
  if (end <= std::max(first, slot.write_floor - 1) ||
      written - end > options_.ring_rows - options_.window) {
    return;
  }
  auto saved = std::make_shared<Saved>();
  saved->of = slot.request.get();
  saved->ring = slot.ring;
  settled.state = std::move(saved);
  settled.state_end = end;
}

SettledRow HashDevice::draw(Slot& slot,
                            const PlannedRow& row,
                            bool drafts,
                            const std::optional<engine::RowMasks>& masks) {
  SettledRow out{.slot = row.slot, .generation = row.generation};
  const std::int64_t verified = row.feed > 0 ? 0 : slot.verified;
  const std::int64_t first = row.feed > 0 ? slot.length - 1 : slot.length;
  for (std::int64_t i = 0; i <= verified; ++i) {
    const auto place = static_cast<std::size_t>(i);
    if (masks && place >= masks->begins.size()) {
      violations_.add(fmt::format("there is no mask for position {}", i));
      break;
    }
    const TokenId token =
        model_.next(slot.hashes[static_cast<std::size_t>(first + i)],
                    masks ? masks->at(place) : std::span<const engine::MaskWord>());
    if (token == HashModel::kStop) {
      out.finish = recipe::SourceFinish::kStop;
      break;
    }
    out.tokens.push_back(token);
    slot.tokens.push_back(token);
    if (++slot.answered == slot.request->generation.max_tokens) {
      out.finish = recipe::SourceFinish::kLength;
      break;
    }
    if (i == verified || slot.drafts[static_cast<std::size_t>(i)] != token) {
      break;
    }
    ++out.drafts_accepted;
  }
  out.drafts = row.feed > 0 ? 0 : static_cast<int>(slot.drafts_there);
  out.drafts_verified = static_cast<int>(verified);
  slot.done = out.finish.has_value();
  if (row.feed == 0) {
    slot.length += std::ssize(out.tokens);
  }
  slot.drafts.clear();
  slot.confidences.clear();
  if (drafts && !slot.done && slot.left() > 1) {
    std::uint64_t prefix =
        model_.extend(slot.hashes[static_cast<std::size_t>(slot.length - 1)], slot.tokens.back());
    for (int i = 0; i < options_.drafts; ++i) {
      slot.drafts.push_back(model_.draft(prefix, options_.draft_errors));
      if (slot.request->grammar != nullptr) {
        out.next_drafts.push_back(slot.drafts.back());
      }
      if (options_.confidences) {
        slot.confidences.push_back(
            model_.confidence(prefix, slot.drafts.back() == model_.next(prefix)));
      }
      prefix = model_.extend(prefix, slot.drafts.back());
    }
    out.confidences = slot.confidences;
  }
  return out;
}

}  // namespace galley::plan
