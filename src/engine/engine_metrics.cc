#include "engine/engine_metrics.h"

namespace galley::engine {

namespace {

Counter misses(Metrics& metrics, std::string_view reason) {
  return metrics.counter(
      "galley_engine_cache_misses_total",
      "Requests that the cache had less for than it might have had, by why (other_scope: another "
      "tenant or user has it).",
      {{"reason", std::string(reason)}});
}

Counter store_blocks(Metrics& metrics, std::string_view what) {
  return metrics.counter(
      "galley_engine_store_blocks_total",
      "Blocks on their way to disk and back (written; known: they were there; dropped: too many "
      "waited; refused: by a budget or a disk that is not written; fetched).",
      {{"what", std::string(what)}});
}

}  // namespace

EngineMetrics::EngineMetrics(Metrics& metrics)
    : counts_{{
          {&SchedulerStats::steps,
           metrics.counter("galley_engine_steps_total", "Forward passes over a batch.")},
          {&SchedulerStats::rows,
           metrics.counter("galley_engine_rows_total", "Requests' parts of steps, one a request.")},
          {&SchedulerStats::stalled_rows,
           metrics.counter("galley_engine_stalled_rows_total",
                           "Parts left out of a step for want of a block.")},
          {&SchedulerStats::preemptions,
           metrics.counter("galley_engine_preemptions_total",
                           "Running requests that lost their place for a while.")},
          {&SchedulerStats::prefill_tokens,
           metrics.counter("galley_engine_prefill_tokens_total",
                           "Prompt tokens computed, again after a preemption.")},
          {&SchedulerStats::hit_tokens,
           metrics.counter("galley_engine_hit_tokens_total",
                           "Prompt tokens found in the cache, again after a preemption.")},
          {&SchedulerStats::state_hits,
           metrics.counter("galley_engine_state_hits_total",
                           "Requests, and returns from a preemption, whose windows were there.")},
          {&SchedulerStats::stored_hit_tokens,
           metrics.counter(
               "galley_engine_stored_hit_tokens_total",
               "Of galley_engine_hit_tokens_total, those whose blocks came from disk.")},
          {&SchedulerStats::misses_not_stored, misses(metrics, "not_stored")},
          {&SchedulerStats::misses_different, misses(metrics, "different")},
          {&SchedulerStats::misses_evicted, misses(metrics, "evicted")},
          {&SchedulerStats::misses_other_scope, misses(metrics, "other_scope")},
          {&SchedulerStats::misses_too_short, misses(metrics, "too_short")},
          {&SchedulerStats::misses_expired, misses(metrics, "expired")},
          {&SchedulerStats::misses_damaged, misses(metrics, "damaged")},
          {&SchedulerStats::misses_failed, misses(metrics, "failed")},
          {&SchedulerStats::misses_foreign, misses(metrics, "foreign")},
          {&SchedulerStats::misses_late, misses(metrics, "late")},
          {&SchedulerStats::forks,
           metrics.counter("galley_engine_forks_total",
                           "Requests that went on from a prompt computed for another.")},
          {&SchedulerStats::drafts,
           metrics.counter("galley_engine_drafts_total", "Drafted tokens.")},
          {&SchedulerStats::drafts_verified,
           metrics.counter("galley_engine_verified_drafts_total",
                           "Drafted tokens that were within their step's budget.")},
          {&SchedulerStats::drafts_accepted,
           metrics.counter("galley_engine_accepted_drafts_total", "Drafted tokens that stood.")},
          {&SchedulerStats::masks,
           metrics.counter(
               "galley_engine_masks_total",
               "Masks filled: what the next token of an answer with a grammar may be.")},
          {&SchedulerStats::drafts_forbidden,
           metrics.counter("galley_engine_forbidden_drafts_total",
                           "Drafted tokens that an answer's grammar forbids.")},
          {&SchedulerStats::grammar_failures,
           metrics.counter("galley_engine_grammar_failures_total",
                           "Requests that ended because their grammar failed or took too long.")},
      }},
      store_counts_{{
          {&StoreTrafficStats::written_blocks, store_blocks(metrics, "written")},
          {&StoreTrafficStats::known_blocks, store_blocks(metrics, "known")},
          {&StoreTrafficStats::dropped_blocks, store_blocks(metrics, "dropped")},
          {&StoreTrafficStats::refused_blocks, store_blocks(metrics, "refused")},
          {&StoreTrafficStats::fetched_blocks, store_blocks(metrics, "fetched")},
          {&StoreTrafficStats::written_bytes,
           metrics.counter("galley_engine_store_written_bytes_total",
                           "Of blocks that were written to disk, without what surrounds them.")},
      }},
      running_(metrics.gauge("galley_engine_running_requests", "Requests that have a slot.")),
      waiting_(metrics.gauge("galley_engine_waiting_requests", "Requests that wait for one.")),
      blocks_(metrics.gauge("galley_engine_blocks", "Blocks of the cache.")),
      held_blocks_(metrics.gauge("galley_engine_held_blocks", "Blocks that running requests use.")),
      cached_blocks_(metrics.gauge("galley_engine_cached_blocks",
                                   "Blocks that nobody uses, kept for prompts that begin so.")) {}

void EngineMetrics::update(const Scheduler& scheduler) {
  const SchedulerStats& now = scheduler.stats();
  for (Count& count : counts_) {
    if (const std::int64_t more = now.*count.source - told_.*count.source; more > 0) {
      count.counter.add(static_cast<double>(more));
    }
  }
  told_ = now;
  const cache::PrefixCache& cache = scheduler.cache();
  running_.set(static_cast<double>(scheduler.running()));
  waiting_.set(static_cast<double>(scheduler.waiting()));
  blocks_.set(static_cast<double>(cache.blocks()));
  held_blocks_.set(static_cast<double>(cache.blocks() - cache.available()));
  cached_blocks_.set(static_cast<double>(cache.cached()));
}

void EngineMetrics::update(const StoreTrafficStats& now) {
  for (StoreCount& count : store_counts_) {
    if (const std::uint64_t more = now.*count.source - store_told_.*count.source; more > 0) {
      count.counter.add(static_cast<double>(more));
    }
  }
  store_told_ = now;
}

}  // namespace galley::engine
