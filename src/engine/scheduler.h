#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/units.h"
#include "cache/block_history.h"
#include "cache/prefix_cache.h"
#include "cache/state_store.h"
#include "engine/block_traffic.h"
#include "engine/defect.h"
#include "engine/draft_budget.h"
#include "engine/policy.h"
#include "engine/step.h"
#include "model/plan.h"

namespace galley::engine {

struct SchedulerOptions {
  std::size_t slots = 0;            // requests that run at once
  std::size_t blocks = 0;           // of the pool
  std::int64_t context_tokens = 0;  // prompt + answer
  int drafts = 0;                   // gamma: of one request in one step, at most
  model::HitRule hit;
  // Prompt tokens of a step, at most; and beside rows in decoding, which wait for them.
  std::int64_t prefill_tokens = 512;
  std::int64_t prefill_tokens_beside = kBlockTokens;
  std::size_t waiting_max = 1024;
  std::size_t tenant_slots_max = 0;  // of one tenant; 0: all
  // Blocks that running requests are expected to need, for at most so many more tokens each, are
  // not given to new ones.
  std::int64_t growth_tokens = 80;
  // Windows behind a hit are as they were, and a store is asked for exact blocks only. Else what is
  // made behind a hit is approximate.
  bool exact_windows = true;
  FetchLimits fetch;
  Bytes states;         // memory for those of windows where requests go on; 0: none is kept
  bool budgets = true;  // false, to measure against: every step drafts and verifies all there are
  Defect defect = Defect::kNone;
};

// A preempted request is spared until it has answered so many more tokens.
inline constexpr std::int64_t kSparedTokens = 128;

// What became of a request in a step.
struct Output {
  RequestId request;
  std::optional<recipe::Started> started;  // first of a request
  std::vector<TokenId> tokens;
  std::vector<recipe::TokenLogprob> logprobs;
  std::optional<recipe::SourceFinish> finish;  // or an error: last of a request
  std::optional<Error> error;
};

struct SchedulerStats {
  std::int64_t steps{};
  std::int64_t rows{};
  std::int64_t stalled_rows{};  // left out of a step for want of a block
  std::int64_t ended{};         // finished, failed or cancelled
  std::int64_t preemptions{};
  std::int64_t forks{};  // requests that went on from another's prompt
  // Requests that the cache had less for than it might have, by why; once each.
  std::int64_t misses_not_stored{};
  std::int64_t misses_different{};
  std::int64_t misses_evicted{};
  std::int64_t misses_other_scope{};  // another tenant or user has it, whatever the client is told
  std::int64_t misses_too_short{};    // what was found would be computed again
  // A store had more, of a request that began, but: it was over, did not verify, could not be read,
  // is another's arithmetic, or came late. Once each, and after the store's answer.
  std::int64_t misses_expired{};
  std::int64_t misses_damaged{};
  std::int64_t misses_failed{};
  std::int64_t misses_foreign{};
  std::int64_t misses_late{};
  std::int64_t hit_tokens{};  // not fed, of admissions: again when a preempted one comes back
  std::int64_t stored_hit_tokens{};  // of these, of blocks that came from a store
  std::int64_t state_hits{};         // admissions whose windows were there
  std::int64_t prefill_tokens{};     // fed, likewise
  std::int64_t answer_tokens{};      // settled
  std::int64_t overrun_rows{};       // drawn for nobody: the request had ended or was preempted
  std::int64_t plain_steps{};        // that drafted nothing, although the device has a drafter
  std::int64_t drafts{};             // there were, for rows somebody wanted
  std::int64_t drafts_verified{};    // of these: the others were over the budget
  std::int64_t drafts_accepted{};
  std::int64_t masks{};             // filled
  std::int64_t drafts_forbidden{};  // by a grammar, of those that were to be verified
  std::int64_t grammar_failures{};  // requests that ended for it
};

// Which requests run in the next step, and what they may use (spec runtime 1 and 2). It owns
// requests, slots and blocks; it has no clock, thread or device. Steps are planned ahead of the
// results of the steps before: from bounds, never from guesses.
//
//   plan -> launch forward -> settle the step before -> sampler_plan -> launch sampler -> reclaim
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Hits are lengthened by blocks of a store, and new blocks go there. `traffic` outlives the
  // scheduler, but for its destruction; before the first request.
  void attach(BlockTraffic& traffic) { traffic_ = &traffic; }

  // `root`: key before the first block (cache/block_key.h). Errors: kOverloaded when waiting_max
  // requests wait, kInvalidArgument when the request could never run.
  [[nodiscard]] Result<RequestId> submit(std::shared_ptr<const EngineRequest> request,
                                         const cache::BlockKey& root,
                                         Priority priority,
                                         TimeNs now);
  // In any state; no output comes after. Nothing for a request that has ended.
  void cancel(RequestId request);
  // Takes a running request's slot and blocks. It waits in front of the others, and goes on as if
  // nothing had been. Nothing for a request that does not run.
  void preempt(RequestId request);

  // The next step, counted as launched from here on. Nothing when no row can run before a launched
  // step is settled, or none is there.
  [[nodiscard]] std::optional<StepPlan> plan(TimeNs now);
  // Of a launched step, before whose masks are filled every earlier one is settled. A request whose
  // grammar fails, or takes too long on `clock`, ends with an error.
  [[nodiscard]] SamplerPlan sampler_plan(StepId step, const Clock& clock);
  // Whether a row of a launched step draws by a grammar: its sampler has to wait for what was drawn
  // before.
  [[nodiscard]] bool draws_by_grammar(StepId step) const;
  // The oldest launched step's results. Error kInternal: the device broke the protocol.
  [[nodiscard]] Result<void> settle(const StepResult& result);
  // Gives back what no launched step uses any more. The one place where that happens. True when
  // there was something.
  bool reclaim();

  [[nodiscard]] std::vector<Output> take_outputs();
  [[nodiscard]] std::size_t launched() const { return flights_.size(); }  // steps, not settled
  [[nodiscard]] std::size_t waiting() const {
    return waiting_.size() + preempted_.size() + following_;
  }
  [[nodiscard]] std::size_t running() const { return running_.size(); }
  // Running requests that wait for blocks of a store.
  [[nodiscard]] std::size_t fetching() const { return fetching_; }
  // When one of these may have waited long enough, so that plan() is called though nothing
  // happened.
  [[nodiscard]] std::optional<TimeNs> wake_at() const;
  [[nodiscard]] const SchedulerStats& stats() const { return stats_; }
  [[nodiscard]] const cache::PrefixCache& cache() const { return cache_; }
  [[nodiscard]] const cache::StateStore& states() const { return states_; }
  // What drafts were worth so far. Whoever has a thread to spare fits its confidences anew when
  // that is due, and says what came of it.
  [[nodiscard]] const Calibration& calibration() const { return draft_budget_.calibration(); }
  void set_temperatures(std::vector<double> temperatures) {
    draft_budget_.set_temperatures(std::move(temperatures));
  }
  // Settled and highest possible length of a running request; for checks.
  struct Bounds {
    std::int64_t settled{};
    std::int64_t low{};
    std::int64_t high{};
  };
  [[nodiscard]] std::optional<Bounds> bounds(SlotId slot, std::uint32_t generation) const;

 private:
  struct Request;
  struct Tenant;
  struct Slot {
    std::uint32_t generation{};
    Request* owner{};
  };
  struct FlightRow {
    SlotId slot;
    std::uint32_t generation{};
    std::int64_t feed{};
    bool draws{};
    bool forks{};
    int drafts_max{};
    bool grammar{};  // of its request
  };
  struct Flight {
    StepId id;
    std::vector<FlightRow> rows;
    bool drafts{};
  };
  struct Retired {
    StepId fence;  // newest launched step that uses them
    std::vector<cache::BlockId> blocks;
  };

  void expire(TimeNs now);
  void plan_rows(StepPlan& plan, TimeNs now);
  void plan_drafts(StepPlan& plan);
  void note_speed(const Flight& flight, const StepResult& result);
  [[nodiscard]] bool plan_decode(Request& request, StepPlan& plan);
  [[nodiscard]] std::int64_t plan_chunk(Request& request, std::int64_t budget, StepPlan& plan);
  void admit_all(StepPlan& plan, std::int64_t budget, TimeNs now);
  [[nodiscard]] bool admit(Request& request, StepPlan& plan, TimeNs now);
  struct Missed {
    recipe::CacheMiss told;
    std::int64_t SchedulerStats::* counted{};
  };
  struct Hit {
    std::size_t memory{};  // blocks that were in the pool
    std::size_t stored{};  // blocks behind them that came from a store
    std::optional<Missed> miss;
  };
  void begin(Request& request, const Hit& hit, StepPlan& plan);
  [[nodiscard]] std::int64_t replay_begin(std::int64_t hit) const;
  struct Windows {
    std::int64_t begin{};
    std::shared_ptr<const cache::State> state;  // null: they are rebuilt from `begin` on
  };
  [[nodiscard]] Windows windows_behind(Request& request, std::int64_t hit);
  void keep_state(Request& request, const SettledRow& row);
  void fetch(Request& request, std::size_t found, std::size_t hit_max);
  [[nodiscard]] std::size_t least_useful(Request& request, std::size_t found, std::size_t hit_max);
  [[nodiscard]] bool fetched(Request& request, StepPlan& plan, TimeNs now);
  void stop_fetch(Request& request);
  [[nodiscard]] static Missed too_short(std::int64_t token);
  [[nodiscard]] Missed missed_in_store(Request& request,
                                       std::size_t block,
                                       const FetchState& state) const;
  [[nodiscard]] Request* next_to_admit(TimeNs now) const;
  [[nodiscard]] bool preempt_one();
  [[nodiscard]] bool reserve(Request& request,
                             std::int64_t tokens,
                             std::vector<cache::BlockId>& added);
  void add_row(Request& request, PlannedRow row, StepPlan& plan);
  [[nodiscard]] Request* leader_of(const Request& request) const;
  void fork_followers(Request& leader, std::int64_t feed, StepPlan& plan);
  [[nodiscard]] bool fork(Request& follower, const Request& leader, StepPlan& plan);
  void release_followers(Request& leader);
  [[nodiscard]] std::size_t blocks_at_most(const recipe::Generation& generation) const;
  void withdraw(std::span<const cache::BlockId> blocks);
  [[nodiscard]] cache::BlockHistory::Entry entry(Request& request, std::size_t block) const;
  [[nodiscard]] Missed explain(Request& request, std::size_t block) const;
  Slot& take_slot(Request& request);

  void begin_anew(Request& lost);
  [[nodiscard]] Result<void> settle_row(Request& request,
                                        const FlightRow& planned,
                                        const SettledRow& row);
  void publish(Request& request, std::int64_t tokens);
  [[nodiscard]] Result<RowMasks> fill_masks(Request& request,
                                            StepId step,
                                            const FlightRow& row,
                                            const Clock& clock);
  [[nodiscard]] Result<void> advance_matcher(Request& request, const SettledRow& row) const;
  [[nodiscard]] Request* owner(SlotId slot, std::uint32_t generation) const;
  [[nodiscard]] std::size_t growth_blocks() const;
  [[nodiscard]] Tenant& tenant_of(const Request& request);
  void take_back(Request& request);
  void end(Request& request, Output last);

  const SchedulerOptions options_;
  BlockTraffic* traffic_ = nullptr;  // null: there is no store
  cache::BlockHistory history_;
  cache::PrefixCache cache_;  // tells the above
  cache::StateStore states_;
  TimeNs now_;  // of the newest plan
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<Request*> running_;    // in order of admission
  std::vector<Request*> waiting_;    // never ran; in order of arrival
  std::vector<Request*> preempted_;  // the first one goes before all that wait
  std::size_t fetching_ = 0;
  double prefill_rate_ = 0;    // tokens a second, of steps with prompts; 0: there was none
  std::size_t following_ = 0;  // that wait for another's prompt, in none of these lists
  std::map<std::string, Tenant> tenants_;  // with a request
  double served_floor_ = 0;                // a new tenant's share begins at
  double mean_answer_;                     // tokens, of the answers that finished last
  std::vector<Slot> slots_;
  std::vector<SlotId> free_slots_;
  std::deque<Flight> flights_;  // launched and not settled, oldest first
  std::vector<Retired> retired_;
  std::vector<Output> outputs_;
  DraftBudget draft_budget_;
  std::size_t deadlines_ = 0;  // requests with one
  std::uint64_t next_request_ = 1;
  std::uint64_t next_step_ = 1;
  StepId settled_;
  SchedulerStats stats_;
};

}  // namespace galley::engine
