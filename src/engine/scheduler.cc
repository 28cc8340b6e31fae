#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <iterator>
#include <limits>
#include <ranges>
#include <utility>

#include "base/check.h"

namespace galley::engine {

// A request from its submission to its end. In one of three lists: waiting_, running_, preempted_;
// or it follows another that has the same prompt, to go on from there when that is computed. While
// it runs it has a slot and blocks; else it has neither.
struct Scheduler::Request {
  RequestId id;
  std::shared_ptr<const EngineRequest> request;
  cache::BlockKey root;
  Priority priority{};
  TimeNs waiting_since;
  std::uint64_t order{};

  std::vector<TokenId> tokens;          // prompt and settled answer; the newest is not fed yet
  std::vector<cache::BlockKey> keys;    // of the first blocks of `tokens`
  std::vector<std::uint64_t> contents;  // likewise, whoever's they are
  std::int64_t answered_at_start = 0;   // when it got its slot last

  struct Flying {
    StepId step;
    std::int64_t most{};  // positions the step may settle; at least `least`
    std::int64_t least{};
    bool draws{};
  };
  std::optional<SlotId> slot;
  std::vector<cache::BlockId> blocks;
  std::int64_t fed = 0;          // position of the next chunk
  std::int64_t prefill_end = 0;  // of the last one; decoding begins there
  std::int64_t charged = 0;      // positions, to its tenant
  std::int64_t settled = 0;      // positions
  std::size_t published = 0;     // blocks
  std::vector<Flying> flying;
  StepId last_step;                // newest launched with a row of it
  bool has_drafts = false;         // its next row in decoding, unless it ends before
  std::vector<float> confidences;  // newest known: of the drafts behind its newest token
  // Where its settled answer stands in its grammar; it stays when the slot goes. Null: no grammar.
  std::unique_ptr<Matcher> matcher;
  std::vector<TokenId> drafts;  // behind its newest token, with a grammar
  int slow_masks = 0;
  bool started = false;  // its Started was given out
  bool exact = true;     // lineage of the blocks it makes
  // Its newest that the store has, wherever it runs next: above the cut, too, its windows are
  // right.
  std::weak_ptr<const cache::State> state;
  std::int64_t state_end = 0;
  struct Kept {
    cache::BlockKey key;
    std::weak_ptr<const cache::State> state;
  };
  std::vector<Kept> states_of_prompt;  // that it has put into the store, oldest first
  std::vector<Kept> states_of_answer;
  // It has its slot and blocks, and waits for what a store has of its prompt.
  struct Fetch {
    std::size_t hit{};      // blocks in front, that were in the pool
    std::size_t hit_max{};  // blocks that a hit may have
    std::size_t least{};    // blocks of the store that leave less to compute
    TimeNs begin;
    std::optional<TimeNs> turn;  // when it was seen to be worked on
    TimeNs newest;               // when the newest block was seen, or that
    std::size_t seen{};          // blocks
  };
  std::optional<Fetch> fetch;
  Request* leader = nullptr;
  std::vector<Request*> followers;  // only while its prompt is not computed

  [[nodiscard]] const recipe::Generation& generation() const { return request->generation; }
  [[nodiscard]] std::int64_t prompt() const { return std::ssize(generation().prompt); }
  [[nodiscard]] std::int64_t answered() const { return std::ssize(tokens) - prompt(); }
  // Once every launched step is settled, at least.
  [[nodiscard]] std::int64_t surely_answered() const {
    return answered() + std::ranges::count_if(flying, &Flying::draws);
  }
  [[nodiscard]] bool prefills() const { return fed < prefill_end; }
  [[nodiscard]] std::int64_t high() const {
    std::int64_t sum = settled;
    for (const Flying& one : flying) {
      sum += one.most;
    }
    return sum;
  }
  [[nodiscard]] std::int64_t low() const {
    std::int64_t sum = settled;
    for (const Flying& one : flying) {
      sum += one.least;
    }
    return sum;
  }
  [[nodiscard]] const cache::BlockKey& key(std::size_t block) {
    while (keys.size() <= block) {
      keys.push_back(cache::next_key(keys.empty() ? root : keys.back(), block_tokens(keys.size())));
    }
    return keys[block];
  }
  [[nodiscard]] std::span<const TokenId> block_tokens(std::size_t block) const {
    return std::span(tokens).subspan(block * kBlockTokens, kBlockTokens);
  }
  [[nodiscard]] std::uint64_t content(std::size_t block) {
    while (contents.size() <= block) {
      contents.push_back(
          cache::content_of(contents.empty() ? 0 : contents.back(), block_tokens(contents.size())));
    }
    return contents[block];
  }
};

struct Scheduler::Tenant {
  double served = 0;  // weighted tokens, on the scale that all tenants share
  std::size_t requests = 0;
  std::size_t running = 0;
};

namespace {

// From so many tokens on, the whole blocks of a prompt end with a chunk, which leaves a state
// there: a step more is little beside them.
constexpr std::int64_t kStateApartTokens = 1024;
// Of a request's prompt, and of its answer.
constexpr std::size_t kStatesKept = 2;
// Weight of the newest answer in the mean length of answers.
constexpr double kMeanAnswerStep = 0.02;

template <class T>
void erase_one(std::vector<T>& list, const T& value) {
  const auto at = std::ranges::find(list, value);
  if (at != list.end()) {
    list.erase(at);
  }
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      cache_(options.blocks, [this](const cache::BlockKey& key) { history_.evicted(key); }),
      states_(options.states),
      mean_answer_(static_cast<double>(options.growth_tokens)),
      slots_(options.slots),
      draft_budget_(static_cast<std::size_t>(options.drafts)) {
  GALLEY_ASSERT(options.slots > 0);
  GALLEY_ASSERT(options.drafts >= 0);
  GALLEY_ASSERT(options.hit.keep_tokens > 0);
  GALLEY_ASSERT(options.prefill_tokens >= kBlockTokens);
  GALLEY_ASSERT(options.prefill_tokens_beside >= kBlockTokens);
  for (std::size_t i = options.slots; i > 0; --i) {
    free_slots_.push_back(SlotId(static_cast<std::uint32_t>(i - 1)));
  }
}

Scheduler::~Scheduler() = default;

Result<RequestId> Scheduler::submit(std::shared_ptr<const EngineRequest> request,
                                    const cache::BlockKey& root,
                                    Priority priority,
                                    TimeNs now) {
  const recipe::Generation& generation = request->generation;
  GALLEY_ASSERT(generation.images.empty());  // keys would have to name them
  const std::int64_t prompt = std::ssize(generation.prompt);
  if (prompt < 1 || generation.max_tokens < 1) {
    return fail(Code::kInvalidArgument, "want at least one prompt token and one to generate");
  }
  if (generation.max_tokens > options_.context_tokens - prompt) {
    return fail(Code::kInvalidArgument,
                fmt::format("{} prompt tokens and {} to generate do not fit the context of {}",
                            prompt, generation.max_tokens, options_.context_tokens),
                "max_tokens");
  }
  const std::size_t blocks = blocks_at_most(generation);
  if (blocks > cache_.blocks()) {
    return fail(
        Code::kInvalidArgument,
        fmt::format("{} prompt tokens and {} to generate take {} blocks of cache; there are {}",
                    prompt, generation.max_tokens, blocks, cache_.blocks()),
        "max_tokens");
  }
  if (waiting() >= options_.waiting_max) {
    return fail(Code::kOverloaded, fmt::format("{} requests are waiting already", waiting()));
  }
  auto one = std::make_unique<Request>();
  one->id = RequestId(next_request_++);
  one->tokens = generation.prompt;
  if (request->grammar != nullptr) {
    one->matcher = Matcher::begin(request->grammar);
  }
  one->request = std::move(request);
  one->root = root;
  one->priority = priority;
  one->waiting_since = now;
  one->order = one->id.value();

  Tenant& tenant = tenants_[one->generation().tenant];
  if (tenant.requests++ == 0) {
    tenant.served = served_floor_;
  }
  deadlines_ += one->generation().deadline ? 1U : 0U;
  Request& added = *one;
  added.leader = leader_of(added);
  if (added.leader != nullptr) {
    added.leader->followers.push_back(&added);
    ++following_;
  } else {
    waiting_.push_back(&added);
  }
  requests_.emplace(added.id, std::move(one));
  return added.id;
}

void Scheduler::cancel(RequestId request) {
  const auto found = requests_.find(request);
  if (found != requests_.end()) {
    end(*found->second, {});
  }
}

void Scheduler::preempt(RequestId request) {
  const auto found = requests_.find(request);
  if (found == requests_.end() || !found->second->slot) {
    return;
  }
  Request& one = *found->second;
  take_back(one);
  if (options_.defect == Defect::kForgetNewestToken && one.answered() > 0) {
    one.tokens.pop_back();
  }
  erase_one(running_, &one);
  preempted_.push_back(&one);
  ++stats_.preemptions;
}

// ---- planning -------------------------------------------------------------------------------

std::optional<StepPlan> Scheduler::plan(TimeNs now) {
  now_ = now;
  expire(now);
  StepPlan plan{.id = StepId(next_step_)};
  plan_rows(plan, now);
  // Nothing runs, and nothing that is launched will free a block: somebody has to make room.
  // Who waits for a store ends that soon.
  while (plan.rows.empty() && flights_.empty() && retired_.empty() && fetching_ == 0 &&
         preempt_one()) {
    reclaim();
    plan_rows(plan, now);
  }
  if (plan.rows.empty()) {
    return std::nullopt;
  }
  plan_drafts(plan);
  Flight flight{.id = plan.id, .drafts = plan.drafts};
  flight.rows.reserve(plan.rows.size());
  for (const PlannedRow& row : plan.rows) {
    const Request& request = *slots_[row.slot.value()].owner;
    flight.rows.push_back({.slot = row.slot,
                           .generation = row.generation,
                           .feed = row.feed,
                           .draws = row.draws,
                           .forks = row.fork_of.has_value(),
                           .drafts_max = row.drafts_max,
                           .grammar = request.matcher != nullptr});
  }
  ++next_step_;
  ++stats_.steps;
  stats_.rows += std::ssize(plan.rows);
  flights_.push_back(std::move(flight));
  return plan;
}

void Scheduler::expire(TimeNs now) {
  if (deadlines_ == 0) {
    return;
  }
  std::vector<Request*> expired;
  for (const auto& [id, request] : requests_) {
    const std::optional<TimeNs>& deadline = request->generation().deadline;
    if (deadline && now >= *deadline) {
      expired.push_back(request.get());
    }
  }
  std::ranges::sort(expired, {}, &Request::id);
  for (Request* const request : expired) {
    end(*request,
        {.error = Error{.code = Code::kDeadlineExceeded, .what = "the request's time is over"}});
  }
}

// Rows in decoding first; then prompts that have begun; then new requests.
void Scheduler::plan_rows(StepPlan& plan, TimeNs now) {
  bool room = true;
  for (Request* const request : running_) {
    if (!request->prefills()) {
      room = plan_decode(*request, plan) && room;
    }
  }
  std::int64_t budget =
      plan.rows.empty() ? options_.prefill_tokens : options_.prefill_tokens_beside;
  // The last chunk of a prompt adds those that fork from it to the list's end.
  for (std::size_t i = 0, count = running_.size(); i < count; ++i) {
    Request& request = *running_[i];
    const bool room_left = budget >= kBlockTokens || plan.rows.empty();
    if (request.prefills() && room_left && (!request.fetch || fetched(request, plan, now))) {
      budget -= plan_chunk(request, budget, plan);
    }
  }
  // Who runs and lacks a block gets the next one, not somebody new.
  if (room) {
    admit_all(plan, budget, now);
  }
}

// False when there is no block for it.
bool Scheduler::plan_decode(Request& request, StepPlan& plan) {
  const std::int64_t left = request.generation().max_tokens - request.surely_answered();
  if (left <= 0) {
    return true;  // ends when the launched steps are settled
  }
  const auto drafts =
      request.has_drafts ? static_cast<int>(std::min<std::int64_t>(options_.drafts, left - 1)) : 0;
  PlannedRow row{.drafts_max = drafts, .draws = true};
  const std::int64_t known =
      options_.defect == Defect::kReserveSettledOnly ? request.settled : request.high();
  if (!reserve(request, known + 1 + drafts, row.blocks)) {
    ++stats_.stalled_rows;
    return false;
  }
  add_row(request, std::move(row), plan);
  return true;
}

// Tokens of the chunk.
std::int64_t Scheduler::plan_chunk(Request& request, std::int64_t budget, StepPlan& plan) {
  const std::int64_t left = request.prefill_end - request.fed;
  const std::int64_t feed =
      chunk_tokens(request.fed, left, budget,
                   options_.states.value() > 0 && request.prefill_end >= kStateApartTokens);
  request.fed += feed;
  add_row(request, {.feed = feed, .draws = feed == left}, plan);
  if (feed == left) {
    fork_followers(request, feed, plan);
  }
  stats_.prefill_tokens += feed;
  tenant_of(request).served += kComputedWeight * static_cast<double>(std::max<std::int64_t>(
                                                     0, request.fed - request.charged));
  request.charged = std::max(request.charged, request.fed);
  return feed;
}

// What its rows in decoding verify, and whether those that draw get drafts. A draft that was made
// is verified if the budget says so, whatever is decided here about the next ones.
void Scheduler::plan_drafts(StepPlan& plan) {
  if (options_.drafts == 0) {
    return;
  }
  const auto gamma = static_cast<std::size_t>(options_.drafts);
  std::vector<std::uint8_t> drafts;
  std::vector<float> logits;
  for (const PlannedRow& row : plan.rows) {
    if (row.feed > 0) {
      continue;
    }
    const std::vector<float>& known = slots_[row.slot.value()].owner->confidences;
    drafts.push_back(static_cast<std::uint8_t>(row.drafts_max));
    logits.insert(logits.end(), known.begin(), known.end());
    logits.resize(drafts.size() * gamma, std::numeric_limits<float>::quiet_NaN());
  }
  const DraftBudget::Order order = options_.budgets
                                       ? draft_budget_.choose(drafts, logits)
                                       : DraftBudget::Order{.drafts = true, .budget = {}};
  plan.drafts = order.drafts;
  plan.budget = order.budget;
  if (plan.budget) {
    const std::span<const double> temperatures = calibration().temperatures();
    plan.temperatures.assign(temperatures.begin(), temperatures.end());
  }
  for (const PlannedRow& row : plan.rows) {
    if (row.draws) {
      slots_[row.slot.value()].owner->has_drafts = plan.drafts;
    }
  }
}

void Scheduler::add_row(Request& request, PlannedRow row, StepPlan& plan) {
  row.slot = *request.slot;
  row.generation = slots_[request.slot->value()].generation;
  request.last_step = plan.id;
  request.flying.push_back({.step = plan.id,
                            .most = row.feed > 0 ? row.feed : 1 + row.drafts_max,
                            .least = row.feed > 0 ? row.feed : 1,
                            .draws = row.draws});
  plan.rows.push_back(std::move(row));
  if (options_.defect == Defect::kPublishAtLaunch) {
    publish(request, std::min(request.fed, std::ssize(request.tokens)));
  }
}

// Blocks behind `tokens` positions, all or none of those that are missing.
bool Scheduler::reserve(Request& request, std::int64_t tokens, std::vector<cache::BlockId>& added) {
  const std::size_t wanted = blocks_for(tokens);
  const std::size_t missing = wanted - std::min(wanted, request.blocks.size());
  if (missing > cache_.available()) {
    return false;
  }
  for (std::size_t i = 0; i < missing; ++i) {
    added.push_back(*cache_.allocate());
    request.blocks.push_back(added.back());
  }
  return true;
}

void Scheduler::admit_all(StepPlan& plan, std::int64_t budget, TimeNs now) {
  while ((budget >= kBlockTokens || plan.rows.empty()) && !free_slots_.empty()) {
    Request* const request = next_to_admit(now);
    if (request == nullptr || !admit(*request, plan, now)) {
      return;  // nobody overtakes the one whose turn it is
    }
    erase_one(waiting_, request);
    erase_one(preempted_, request);
    running_.push_back(request);
    if (!request->fetch) {
      budget -= plan_chunk(*request, budget, plan);
    }
  }
}

Scheduler::Request* Scheduler::next_to_admit(TimeNs now) const {
  if (!preempted_.empty()) {
    return preempted_.front();
  }
  std::vector<WaitingView> views;
  views.reserve(waiting_.size());
  for (const Request* const request : waiting_) {
    const Tenant& tenant = tenants_.at(request->generation().tenant);
    views.push_back({.priority = request->priority,
                     .waiting_since = request->waiting_since,
                     .tenant_served = tenant.served,
                     .tenant_full = options_.tenant_slots_max > 0 &&
                                    tenant.running >= options_.tenant_slots_max,
                     .order = request->order});
  }
  const std::optional<std::size_t> next = next_waiting(views, now);
  return next ? waiting_[*next] : nullptr;
}

// Takes the slot and all blocks of its tokens at once, or nothing. It begins at once, or when a
// store has brought what it has.
bool Scheduler::admit(Request& request, StepPlan& plan, TimeNs now) {
  const std::int64_t keep = options_.defect == Defect::kHitToTheEnd ? 1 : options_.hit.keep_tokens;
  const std::int64_t hit_max =
      model::HitRule{.keep_tokens = keep}.longest_hit(request.prompt()) / kBlockTokens;
  // Who comes back goes on where its newest state is, if all is there up to it.
  const std::int64_t parked = request.state.expired() ? 0 : request.state_end / kBlockTokens;
  std::vector<cache::BlockId> blocks;
  for (std::int64_t i = 0; i < std::max(hit_max, parked); ++i) {
    const auto block = cache_.acquire(request.key(static_cast<std::size_t>(i)));
    if (!block) {
      break;
    }
    blocks.push_back(*block);
  }
  if (std::ssize(blocks) < parked) {
    for (; std::ssize(blocks) > hit_max; blocks.pop_back()) {
      cache_.release(blocks.back());
    }
  }
  // What would be computed again all the same is not worth a disk's time.
  const bool fetches = traffic_ != nullptr && std::ssize(blocks) < hit_max &&
                       options_.hit.replay_begin(hit_max * kBlockTokens) > 0;
  std::optional<Missed> miss;
  if (!request.started && std::ssize(blocks) < hit_max && !fetches) {
    miss = explain(request, blocks.size());
  }
  const std::int64_t hit = std::ssize(blocks) * kBlockTokens;
  const auto give_back = [&] {
    for (const cache::BlockId block : std::views::reverse(blocks)) {
      cache_.release(block);
    }
    blocks.clear();
  };
  if (!fetches && windows_behind(request, hit).begin == 0) {  // all would be computed again
    if (hit > 0 && !miss) {
      miss = too_short(hit);
    }
    give_back();
  }
  const std::int64_t most = request.prompt() + request.generation().max_tokens + options_.drafts;
  const std::size_t wanted =
      blocks_for(std::min(std::ssize(request.tokens) + 1 + options_.drafts, most));
  const std::size_t found = blocks.size();
  const std::size_t missing = wanted - found;
  if (missing + growth_blocks() > cache_.available()) {
    give_back();
    return false;
  }
  for (std::size_t i = 0; i < missing; ++i) {
    blocks.push_back(*cache_.allocate());
  }

  take_slot(request);
  ++tenant_of(request).running;
  request.blocks = std::move(blocks);
  request.fed = request.settled = 0;
  request.prefill_end = std::ssize(request.tokens);
  request.published = found;
  request.answered_at_start = request.answered();
  if (fetches) {
    request.fetch = {.hit = found,
                     .hit_max = static_cast<std::size_t>(hit_max),
                     .least = least_useful(request, found, static_cast<std::size_t>(hit_max)),
                     .begin = now,
                     .turn = {},
                     .newest = now,
                     .seen = 0};
    fetch(request, found, static_cast<std::size_t>(hit_max));
  } else {
    begin(request, {.memory = found, .stored = 0, .miss = miss}, plan);
  }
  return true;
}

std::int64_t Scheduler::replay_begin(std::int64_t hit) const {
  return options_.defect == Defect::kNoReplay ? hit : options_.hit.replay_begin(hit);
}

// Where a request that has hit `hit` positions goes on: behind the latest state there is, or where
// windows are rebuilt, whichever leaves less to compute.
Scheduler::Windows Scheduler::windows_behind(Request& request, std::int64_t hit) {
  if (auto state = request.state.lock(); state != nullptr && hit >= request.state_end) {
    return {.begin = request.state_end, .state = std::move(state)};
  }
  const std::int64_t replay = replay_begin(hit);
  for (std::int64_t end = hit; end > replay; end -= kBlockTokens) {
    const cache::BlockKey& key = request.key(static_cast<std::size_t>(end / kBlockTokens) - 1);
    if (auto state = states_.find(key, now_)) {
      return {.begin = end, .state = std::move(state)};
    }
  }
  return {.begin = replay, .state = nullptr};
}

// With a slot and blocks, the first of which hold what the hit says. Those of a hit that would be
// computed again all the same are read, and not written.
void Scheduler::begin(Request& request, const Hit& hit, StepPlan& plan) {
  const std::size_t blocks = hit.memory + hit.stored;
  const std::int64_t end = static_cast<std::int64_t>(blocks) * kBlockTokens;
  Windows windows = windows_behind(request, end);
  const std::int64_t begin = windows.begin;
  for (std::size_t i = hit.memory; i < blocks; ++i) {
    if (cache_.publish(request.blocks[i], request.key(i))) {
      history_.published(entry(request, i));
    }
  }
  request.fed = request.settled = begin;
  request.published = blocks;
  request.exact = blocks == 0 || options_.exact_windows;
  Tenant& tenant = tenant_of(request);
  // What is fed again after a preemption was paid for.
  tenant.served +=
      kCachedWeight * static_cast<double>(std::max<std::int64_t>(0, begin - request.charged));
  request.charged = std::max(request.charged, begin);
  stats_.hit_tokens += begin;
  stats_.state_hits += windows.state != nullptr ? 1 : 0;
  stats_.stored_hit_tokens +=
      std::max<std::int64_t>(0, begin - static_cast<std::int64_t>(hit.memory) * kBlockTokens);
  const std::int64_t floor = options_.defect == Defect::kRewriteFetched
                                 ? static_cast<std::int64_t>(hit.memory) * kBlockTokens
                                 : end;
  plan.starts.push_back({.slot = *request.slot,
                         .generation = slots_[request.slot->value()].generation,
                         .request = request.request,
                         .tokens = request.tokens,
                         .blocks = request.blocks,
                         .begin = begin,
                         .write_floor = floor,
                         .state = std::move(windows.state)});
  if (!request.started) {
    request.started = true;
    std::optional<recipe::CacheMiss> told;
    if (hit.miss) {
      ++(stats_.*hit.miss->counted);
      told = hit.miss->told;
    }
    outputs_.push_back(
        {.request = request.id,
         .started = recipe::Started{
             .prompt_tokens = request.prompt(), .cached_tokens = begin, .cache_miss = told}});
  }
}

// ---- blocks of a store ----------------------------------------------------------------------

// Orders what follows the first `found` blocks of a prompt, up to `hit_max`.
void Scheduler::fetch(Request& request, std::size_t found, std::size_t hit_max) {
  FetchOrder order{.id = request.id,
                   .request = request.request,
                   .keys = {},
                   .blocks = {},
                   .least = request.fetch->least};
  for (std::size_t i = found; i < hit_max; ++i) {
    order.keys.push_back(request.key(i));
    order.blocks.push_back(request.blocks[i]);
  }
  ++fetching_;
  traffic_->fetch(std::move(order));
}

// How many blocks behind the first `found` make it go on further back than these do. All, where
// none does.
std::size_t Scheduler::least_useful(Request& request, std::size_t found, std::size_t hit_max) {
  const auto begin = [&](std::size_t blocks) {
    return windows_behind(request, static_cast<std::int64_t>(blocks) * kBlockTokens).begin;
  };
  const std::int64_t before = begin(found);
  std::size_t end = found + 1;
  while (end < hit_max && begin(end) <= before) {
    ++end;
  }
  return end - found;
}

// True once it has begun, with what has come.
bool Scheduler::fetched(Request& request, StepPlan& plan, TimeNs now) {
  Request::Fetch& fetch = *request.fetch;
  const FetchState state = traffic_->state(request.id);
  if (state.begun && !fetch.turn) {
    fetch.turn = fetch.newest = now;
  }
  if (state.fetched > fetch.seen) {
    fetch.newest = now;
    fetch.seen = state.fetched;
  }
  const FetchView view{.promised = state.promised,
                       .fetched = state.fetched,
                       .over = state.over,
                       .waited = now - fetch.begin,
                       .worked = fetch.turn ? now - *fetch.turn : Duration(),
                       .quiet = fetch.turn ? now - fetch.newest : Duration(),
                       .tokens_per_second = prefill_rate_};
  if (options_.defect == Defect::kWaitForFetch ? !state.over
                                               : !starts_with_what_came(view, options_.fetch)) {
    return false;
  }
  Hit hit{.memory = fetch.hit,
          .stored = options_.defect == Defect::kPromiseIsHit ? state.promised : state.fetched,
          .miss = {}};
  // Of too few that the store has, none was read.
  const bool too_few = state.over && state.promised < fetch.least;
  const std::size_t found = hit.memory + (too_few ? state.promised : hit.stored);
  if (!request.started && found < fetch.hit_max) {
    const std::int64_t end = static_cast<std::int64_t>(found) * kBlockTokens;
    const bool plain =
        !state.over || state.end == FetchEnd::kWhole || state.end == FetchEnd::kUnknown;
    hit.miss = plain && found > 0 && windows_behind(request, end).begin == 0
                   ? too_short(end)
                   : missed_in_store(request, found, state);
  }
  stop_fetch(request);
  begin(request, hit, plan);
  return true;
}

// Nothing is written to its blocks any more.
void Scheduler::stop_fetch(Request& request) {
  if (!request.fetch) {
    return;
  }
  if (options_.defect != Defect::kFetchIntoFreed) {
    traffic_->stop(request.id);
  }
  request.fetch.reset();
  --fetching_;
}

// All of a hit that ends at `token` is computed again.
Scheduler::Missed Scheduler::too_short(std::int64_t token) {
  return {.told = {.reason = recipe::MissReason::kTooShort, .token = token},
          .counted = &SchedulerStats::misses_too_short};
}

// Why the hit ends at `block`, which the store may have.
Scheduler::Missed Scheduler::missed_in_store(Request& request,
                                             std::size_t block,
                                             const FetchState& state) const {
  using recipe::MissReason;
  const auto token = static_cast<std::int64_t>(block * kBlockTokens);
  if (!state.over) {
    return {{MissReason::kLate, token}, &SchedulerStats::misses_late};
  }
  switch (state.end) {
    case FetchEnd::kExpired:
      return {{MissReason::kExpired, token}, &SchedulerStats::misses_expired};
    case FetchEnd::kDamaged:
      return {{MissReason::kDamaged, token}, &SchedulerStats::misses_damaged};
    case FetchEnd::kFailed:
      return {{MissReason::kDamaged, token}, &SchedulerStats::misses_failed};
    case FetchEnd::kRefused:
      return {{MissReason::kLate, token}, &SchedulerStats::misses_late};
    case FetchEnd::kForeign:
      return {{MissReason::kNotStored, token}, &SchedulerStats::misses_foreign};
    case FetchEnd::kWhole:
    case FetchEnd::kUnknown:
      break;
  }
  return explain(request, block);
}

std::optional<TimeNs> Scheduler::wake_at() const {
  std::optional<TimeNs> first;
  for (const Request* const request : running_) {
    if (request->fetch) {
      TimeNs due = request->fetch->begin + options_.fetch.wait_max;
      if (request->fetch->turn) {
        due = std::min(due, request->fetch->newest + options_.fetch.quiet_max);
      }
      first = std::min(first.value_or(due), due);
    }
  }
  return first;
}

cache::BlockHistory::Entry Scheduler::entry(Request& request, std::size_t block) const {
  return {.key = request.key(block),
          .parent = block == 0 ? request.root : request.key(block - 1),
          .content = request.content(block),
          .tokens = request.block_tokens(block)};
}

// Why the prompt's `block` was not found. Who else has it is no client's business, and is only
// counted.
Scheduler::Missed Scheduler::explain(Request& request, std::size_t block) const {
  const cache::BlockHistory::Reason reason = history_.explain(entry(request, block));
  const auto token = static_cast<std::int64_t>(block * kBlockTokens + reason.tokens);
  const auto counted = [&](std::int64_t SchedulerStats::* own) {
    return reason.other_scope ? &SchedulerStats::misses_other_scope : own;
  };
  using recipe::MissReason;
  switch (reason.miss) {
    case cache::Miss::kDifferent:
      return {{MissReason::kDifferent, token}, counted(&SchedulerStats::misses_different)};
    case cache::Miss::kEvicted:
      return {{MissReason::kEvicted, token}, &SchedulerStats::misses_evicted};
    case cache::Miss::kNotStored:
      break;
  }
  return {{MissReason::kNotStored, token}, counted(&SchedulerStats::misses_not_stored)};
}

Scheduler::Slot& Scheduler::take_slot(Request& request) {
  const SlotId slot = free_slots_.back();
  free_slots_.pop_back();
  Slot& place = slots_[slot.value()];
  ++place.generation;
  place.owner = &request;
  request.slot = slot;
  return place;
}

// ---- forks ----------------------------------------------------------------------------------

// Who computes the very prompt of `request`, or is going to, and is served no later. Null: nobody.
Scheduler::Request* Scheduler::leader_of(const Request& request) const {
  const auto leads = [&](const Request* one) {
    return one != &request && one->answered() == 0 && (!one->slot || one->prefills()) &&
           one->root == request.root && one->priority <= request.priority &&
           one->generation().prompt == request.generation().prompt;
  };
  for (const auto* const list : {&running_, &waiting_}) {
    const auto found = std::ranges::find_if(*list, leads);
    if (found != list->end()) {
      return *found;
    }
  }
  return nullptr;
}

// `leader` has the end of its prompt, `feed` tokens, in the plan's last row. Who follows draws
// there, too; who finds no room waits like anybody.
void Scheduler::fork_followers(Request& leader, std::int64_t feed, StepPlan& plan) {
  const std::size_t row = plan.rows.size() - 1;
  while (!leader.followers.empty()) {
    Request& follower = *leader.followers.front();
    if (!fork(follower, leader, plan)) {
      break;
    }
    leader.followers.erase(leader.followers.begin());
    follower.leader = nullptr;
    --following_;
    follower.settled = leader.prefill_end - feed;
    running_.push_back(&follower);
    ++stats_.forks;
    add_row(follower, {.feed = feed, .draws = true, .fork_of = row}, plan);
  }
  release_followers(leader);
}

// Whole blocks of the prompt are the leader's, the rest its own. Slot and blocks at once, or
// nothing.
bool Scheduler::fork(Request& follower, const Request& leader, StepPlan& plan) {
  Tenant& tenant = tenant_of(follower);
  const bool tenant_full =
      options_.tenant_slots_max > 0 && tenant.running >= options_.tenant_slots_max;
  const auto shared = static_cast<std::size_t>(follower.prompt() / kBlockTokens);
  const std::int64_t most = follower.prompt() + follower.generation().max_tokens + options_.drafts;
  const std::size_t missing =
      blocks_for(std::min(follower.prompt() + 1 + options_.drafts, most)) - shared;
  if (free_slots_.empty() || tenant_full || missing + growth_blocks() > cache_.available()) {
    return false;
  }
  follower.blocks.assign(leader.blocks.begin(),
                         leader.blocks.begin() + static_cast<std::ptrdiff_t>(shared));
  std::ranges::for_each(follower.blocks, [&](cache::BlockId block) { cache_.share(block); });
  for (std::size_t i = 0; i < missing; ++i) {
    follower.blocks.push_back(*cache_.allocate());
  }
  const Slot& place = take_slot(follower);
  follower.fed = follower.prefill_end = follower.prompt();
  follower.published = leader.published;
  follower.exact = leader.exact;
  follower.answered_at_start = 0;
  ++tenant.running;
  tenant.served += kCachedWeight * static_cast<double>(follower.prompt());
  follower.charged = follower.prompt();
  stats_.hit_tokens += follower.prompt();
  plan.starts.push_back({.slot = *follower.slot,
                         .generation = place.generation,
                         .request = follower.request,
                         .tokens = follower.tokens,
                         .blocks = follower.blocks,
                         .begin = follower.prompt(),
                         .write_floor = static_cast<std::int64_t>(shared) * kBlockTokens});
  return true;
}

// It has not run: who computed its prompt failed, which is nothing of its own. Waits like anybody,
// in its place by arrival, and pays for what it computes.
void Scheduler::begin_anew(Request& lost) {
  take_back(lost);
  lost.charged = 0;
  erase_one(running_, &lost);
  waiting_.push_back(&lost);
}

// They wait like anybody, but the first of the best class may lead the others: nobody waits for one
// that is served later.
void Scheduler::release_followers(Request& leader) {
  std::vector<Request*> left = std::exchange(leader.followers, {});
  if (left.empty()) {
    return;
  }
  Request* const first = *std::ranges::min_element(left, {}, &Request::priority);
  erase_one(left, first);
  for (Request* const follower : left) {
    follower->leader = first;
  }
  first->leader = nullptr;
  first->followers = std::move(left);
  --following_;
  waiting_.push_back(first);
}

// What running requests will probably need soon. How long an answer still gets does not depend much
// on how long it is, so it is expected to go on for as long as answers are.
std::size_t Scheduler::growth_blocks() const {
  double tokens = 0;
  for (const Request* const request : running_) {
    const std::int64_t left =
        std::min(request->generation().max_tokens - request->answered(), options_.growth_tokens);
    const double end = static_cast<double>(std::ssize(request->tokens)) +
                       std::min(static_cast<double>(left), mean_answer_);
    const auto held = static_cast<double>(request->blocks.size() * kBlockTokens);
    tokens += std::max(0.0, end - held);
  }
  return static_cast<std::size_t>(std::ceil(tokens / kBlockTokens));
}

bool Scheduler::preempt_one() {
  if (running_.size() < 2) {
    return false;  // alone it has all the blocks it may need
  }
  std::vector<VictimView> views;
  for (const Request* const request : running_) {
    const auto own = std::ranges::count_if(
        request->blocks, [&](cache::BlockId block) { return !cache_.shared(block); });
    views.push_back({.priority = request->priority,
                     .blocks_now = static_cast<std::size_t>(own),
                     .answered = request->answered(),
                     .order = request->order,
                     .spared = request->answered_at_start > 0 &&
                               request->answered() - request->answered_at_start < kSparedTokens});
  }
  preempt(running_[*choose_victim(views)]->id);
  return true;
}

// ---- settling -------------------------------------------------------------------------------

SamplerPlan Scheduler::sampler_plan(StepId step, const Clock& clock) {
  const auto flight = std::ranges::find(flights_, step, &Flight::id);
  GALLEY_ASSERT(flight != flights_.end());
  SamplerPlan plan{.id = step};
  plan.masks.resize(flight->rows.size());
  for (std::size_t i = 0; i < flight->rows.size(); ++i) {
    const FlightRow& row = flight->rows[i];
    Request* request = owner(row.slot, row.generation);
    if (request != nullptr && row.draws && row.grammar) {
      auto masks = fill_masks(*request, step, row, clock);
      if (masks) {
        plan.masks[i] = *std::move(masks);
      } else {
        ++stats_.grammar_failures;
        end(*request, {.error = std::move(masks).error()});
        request = nullptr;
      }
    }
    plan.dead.push_back(request == nullptr);
  }
  if (options_.defect == Defect::kMasksOfNeighbour || options_.defect == Defect::kTrustMasks) {
    std::ranges::rotate(plan.masks, plan.masks.begin() + 1);
  }
  return plan;
}

bool Scheduler::draws_by_grammar(StepId step) const {
  const auto flight = std::ranges::find(flights_, step, &Flight::id);
  GALLEY_ASSERT(flight != flights_.end());
  return std::ranges::any_of(flight->rows,
                             [](const FlightRow& row) { return row.draws && row.grammar; });
}

// Walks the drafts that the step may verify, as far as they are allowed, and takes the walk back.
// How many of them it does verify is the device's to know: never more.
Result<RowMasks> Scheduler::fill_masks(Request& request,
                                       StepId step,
                                       const FlightRow& row,
                                       const Clock& clock) {
  Matcher& matcher = *request.matcher;
  const std::size_t words = request.request->grammar->vocabulary().mask_words();
  RowMasks out{.slot = row.slot, .generation = row.generation, .step = step, .words = words};
  const auto drafts =
      row.feed > 0
          ? std::span<const TokenId>()
          : std::span<const TokenId>(request.drafts)
                .first(std::min(request.drafts.size(), static_cast<std::size_t>(row.drafts_max)));
  std::size_t walked = 0;
  while (true) {
    std::span<const MaskWord> mask;  // empty: anything may come
    if (matcher.unrestricted()) {
      out.begins.push_back(RowMasks::kAnything);
    } else {
      out.begins.push_back(out.bits.size());
      out.bits.resize(out.bits.size() + words);
      const auto filled = std::span(out.bits).last(words);
      const TimeNs begin = clock.now();
      GALLEY_CHECK_OK(matcher.fill(filled));
      ++stats_.masks;
      request.slow_masks = clock.now() - begin > kSlowMask ? request.slow_masks + 1 : 0;
      if (request.slow_masks >= kSlowMasksMax) {
        return fail(Code::kInternal, "the answer's grammar takes too long to say what may come");
      }
      mask = filled;
    }
    if (walked == drafts.size()) {
      break;
    }
    const TokenId draft = drafts[walked];
    if (!mask.empty() && !allows(mask, draft)) {
      ++stats_.drafts_forbidden;
      break;
    }
    // Nothing is drawn behind the end.
    if (std::ranges::find(request.generation().stop_ids, draft) !=
        request.generation().stop_ids.end()) {
      break;
    }
    GALLEY_CHECK_OK(matcher.accept(draft));
    ++walked;
  }
  if (options_.defect != Defect::kKeepWalk) {
    GALLEY_CHECK_OK(matcher.rollback(walked));
  }
  return out;
}

// By what was drawn, which is final.
Result<void> Scheduler::advance_matcher(Request& request, const SettledRow& row) const {
  if (request.matcher == nullptr) {
    return {};
  }
  for (const TokenId token : row.tokens) {
    GALLEY_CHECK_OK(request.matcher->accept(token));
  }
  request.drafts = row.next_drafts;
  return {};
}

Result<void> Scheduler::settle(const StepResult& result) {
  if (flights_.empty() || flights_.front().id != result.id ||
      flights_.front().rows.size() != result.rows.size()) {
    return fail(Code::kInternal,
                fmt::format("the device settled step {} out of its turn", result.id.value()));
  }
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  settled_ = flight.id;
  for (std::size_t i = 0; i < flight.rows.size(); ++i) {
    const FlightRow& planned = flight.rows[i];
    const SettledRow& row = result.rows[i];
    Request* const request = options_.defect == Defect::kIgnoreGeneration
                                 ? slots_[planned.slot.value()].owner
                                 : owner(planned.slot, planned.generation);
    if (request == nullptr) {
      stats_.overrun_rows += row.tokens.empty() ? 0 : 1;
      continue;
    }
    GALLEY_CHECK_OK(settle_row(*request, planned, row));
  }
  withdraw(result.lost_blocks);
  note_speed(flight, result);
  if (!tenants_.empty()) {
    const auto served = std::views::values(tenants_) | std::views::transform(&Tenant::served);
    served_floor_ = std::max(served_floor_, std::ranges::min(served));
  }
  return {};
}

Result<void> Scheduler::settle_row(Request& request,
                                   const FlightRow& planned,
                                   const SettledRow& row) {
  std::erase_if(request.flying, [&](const Request::Flying& one) { return one.step == settled_; });
  if (row.error) {
    end(request, {.tokens = row.tokens, .logprobs = row.logprobs, .error = row.error});
    return {};
  }
  if (row.lost) {
    if (!planned.forks) {
      return fail(Code::kInternal,
                  fmt::format("the device lost slot {} in step {}, which is no fork",
                              planned.slot.value(), settled_.value()));
    }
    begin_anew(request);
    return {};
  }
  if (planned.draws && row.tokens.empty() && !row.finish) {
    return fail(Code::kInternal, fmt::format("the device drew nothing for slot {} in step {}",
                                             planned.slot.value(), settled_.value()));
  }
  const auto confidences = std::ssize(row.confidences);
  if (row.drafts_accepted < 0 || row.drafts_accepted > row.drafts_verified ||
      row.drafts_verified > options_.drafts ||
      (confidences != 0 && confidences != options_.drafts)) {
    return fail(Code::kInternal,
                fmt::format("the device tells of {} drafts accepted of {} verified and of {} "
                            "confidences for slot {} in step {}, where {} drafts are the most",
                            row.drafts_accepted, row.drafts_verified, confidences,
                            planned.slot.value(), settled_.value(), options_.drafts));
  }
  if (auto advanced = advance_matcher(request, row); !advanced) {
    ++stats_.grammar_failures;
    end(request, {.error = std::move(advanced).error()});
    return {};
  }
  const std::int64_t answered = std::ssize(row.tokens);
  request.settled += planned.feed > 0 ? planned.feed : answered;
  request.tokens.insert(request.tokens.end(), row.tokens.begin(), row.tokens.end());
  stats_.answer_tokens += answered;
  stats_.drafts += row.drafts;
  stats_.drafts_verified += row.drafts_verified;
  stats_.drafts_accepted += row.drafts_accepted;
  tenant_of(request).served += kAnsweredWeight * static_cast<double>(answered);
  request.charged += answered;
  publish(request, std::min(request.settled, std::ssize(request.tokens)));
  if (row.state != nullptr) {
    if (row.state_end % kBlockTokens != 0 || row.state_end > request.settled) {
      return fail(
          Code::kInternal,
          fmt::format("the device has a state of position {} for slot {} in step {}, where "
                      "{} positions are settled",
                      row.state_end, planned.slot.value(), settled_.value(), request.settled));
    }
    keep_state(request, row);
  }
  // A fork was found in the cache once it has got there.
  if (planned.forks) {
    request.started = true;
    outputs_.push_back({.request = request.id,
                        .started = recipe::Started{.prompt_tokens = request.prompt(),
                                                   .cached_tokens = request.prompt()}});
  }
  // The last drafts of an answer are cut off by its end, which says nothing about them.
  if (planned.draws && !row.finish) {
    draft_budget_.observe_row(request.confidences, static_cast<std::size_t>(row.drafts_verified),
                              static_cast<std::size_t>(row.drafts_accepted));
    request.confidences = row.confidences;
  }
  if (row.finish) {
    end(request, {.tokens = row.tokens, .logprobs = row.logprobs, .finish = row.finish});
  } else if (answered > 0) {
    outputs_.push_back({.request = request.id, .tokens = row.tokens, .logprobs = row.logprobs});
  }
  return {};
}

std::size_t Scheduler::blocks_at_most(const recipe::Generation& generation) const {
  return blocks_for(std::ssize(generation.prompt) + generation.max_tokens + options_.drafts);
}

// Who would not fit the pool alone any more could wait for ever.
void Scheduler::withdraw(std::span<const cache::BlockId> blocks) {
  if (blocks.empty()) {
    return;
  }
  cache_.withdraw(blocks);
  std::vector<Request*> hopeless;
  for (const auto& [id, request] : requests_) {
    if (blocks_at_most(request->generation()) > cache_.blocks()) {
      hopeless.push_back(request.get());
    }
  }
  std::ranges::sort(hopeless, {}, &Request::id);
  for (Request* const request : hopeless) {
    end(*request,
        {.error = Error{.code = Code::kUnavailable,
                        .what = "the machine has no memory for so many blocks of cache"}});
  }
}

// Of steps that only decode: what prompts take beside them would hide the difference.
void Scheduler::note_speed(const Flight& flight, const StepResult& result) {
  constexpr double kPrefillRateStep = 0.1;
  std::int64_t prompt = 0;
  for (const FlightRow& row : flight.rows) {
    prompt += row.forks ? 0 : row.feed;
  }
  if (prompt > 0 && result.forward > Duration()) {
    const double rate =
        static_cast<double>(prompt) / std::chrono::duration<double>(result.forward).count();
    prefill_rate_ += prefill_rate_ == 0 ? rate : kPrefillRateStep * (rate - prefill_rate_);
  }
  if (options_.drafts == 0) {
    return;
  }
  stats_.plain_steps += flight.drafts ? 0 : 1;
  const bool decodes =
      std::ranges::all_of(flight.rows, [](const FlightRow& row) { return row.feed == 0; });
  if (decodes && result.tokens > 0) {
    draft_budget_.observe_step({.rows = flight.rows.size(),
                                .tokens = result.tokens,
                                .drafted = flight.drafts,
                                .forward = result.forward,
                                .sampler = result.sampler});
  }
}

// Makes the whole blocks below `tokens` known.
void Scheduler::publish(Request& request, std::int64_t tokens) {
  const auto whole = static_cast<std::size_t>(tokens / kBlockTokens);
  for (; request.published < whole; ++request.published) {
    if (cache_.publish(request.blocks[request.published], request.key(request.published))) {
      history_.published(entry(request, request.published));
      if (traffic_ != nullptr && request.generation().keeps_blocks) {
        traffic_->write(
            {.request = request.request,
             .key = request.key(request.published),
             .parent = request.published == 0 ? request.root : request.key(request.published - 1),
             .exact = request.exact,
             .block = request.blocks[request.published]});
      }
    }
  }
}

// The newest of the prompt and of the answer, and one before each: the next turn goes on behind one
// of them, and its own end is always computed.
void Scheduler::keep_state(Request& request, const SettledRow& row) {
  std::vector<Request::Kept>& kept =
      row.state_end > request.prompt() ? request.states_of_answer : request.states_of_prompt;
  if (kept.size() == kStatesKept) {
    states_.forget(kept.front().key, kept.front().state.lock().get());
    kept.erase(kept.begin());
  }
  const auto block = static_cast<std::size_t>(row.state_end / kBlockTokens) - 1;
  const std::size_t before = options_.defect == Defect::kStateOfBlockBefore && block > 0 ? 1 : 0;
  const cache::BlockKey& key = request.key(block - before);
  if (states_.put(key, row.state, now_)) {
    kept.push_back({.key = key, .state = row.state});
    request.state = row.state;
    request.state_end = row.state_end;
  }
}

bool Scheduler::reclaim() {
  const auto back = std::erase_if(retired_, [&](const Retired& one) {
    const bool unused = one.fence <= settled_;
    if (unused) {
      for (const cache::BlockId block : std::views::reverse(one.blocks)) {
        cache_.release(block);
      }
    }
    return unused;
  });
  return back > 0;
}

std::vector<Output> Scheduler::take_outputs() {
  return std::exchange(outputs_, {});
}

std::optional<Scheduler::Bounds> Scheduler::bounds(SlotId slot, std::uint32_t generation) const {
  const Request* const request = owner(slot, generation);
  if (request == nullptr) {
    return std::nullopt;
  }
  return Bounds{.settled = request->settled, .low = request->low(), .high = request->high()};
}

// ---- requests -------------------------------------------------------------------------------

Scheduler::Request* Scheduler::owner(SlotId slot, std::uint32_t generation) const {
  const Slot& place = slots_[slot.value()];
  return place.generation == generation ? place.owner : nullptr;
}

Scheduler::Tenant& Scheduler::tenant_of(const Request& request) {
  return tenants_.at(request.generation().tenant);
}

// Its slot is free at once: launched steps know the generation they were planned for, and the
// device runs them before whatever the slot's next request launches. Its blocks are not.
void Scheduler::take_back(Request& request) {
  stop_fetch(request);
  slots_[request.slot->value()].owner = nullptr;
  free_slots_.push_back(*request.slot);
  request.slot.reset();
  retired_.push_back({.fence = options_.defect == Defect::kFreeAtEnd ? StepId() : request.last_step,
                      .blocks = std::exchange(request.blocks, {})});
  if (options_.defect == Defect::kFreeAtEnd) {
    reclaim();
  }
  release_followers(request);
  request.flying.clear();
  request.drafts.clear();
  request.has_drafts = false;
  request.confidences.clear();
  request.fed = request.settled = request.prefill_end = 0;
  request.published = 0;
  --tenant_of(request).running;
}

// `last`: what is said of it, if anything.
void Scheduler::end(Request& request, Output last) {
  const bool finished = last.finish.has_value();
  if (last.finish || last.error) {
    last.request = request.id;
    outputs_.push_back(std::move(last));
  } else {
    std::erase_if(outputs_, [&](const Output& one) { return one.request == request.id; });
  }
  if (finished) {
    mean_answer_ += kMeanAnswerStep * (static_cast<double>(request.answered()) - mean_answer_);
  }
  if (request.leader != nullptr) {
    erase_one(request.leader->followers, &request);
    --following_;
  }
  release_followers(request);
  if (request.slot) {
    take_back(request);
  }
  erase_one(running_, &request);
  erase_one(waiting_, &request);
  erase_one(preempted_, &request);
  const auto tenant = tenants_.find(request.generation().tenant);
  if (--tenant->second.requests == 0) {
    tenants_.erase(tenant);
  }
  deadlines_ -= request.generation().deadline ? 1U : 0U;
  ++stats_.ended;
  requests_.erase(request.id);
}

}  // namespace galley::engine
