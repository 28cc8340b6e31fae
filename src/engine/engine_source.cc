#include "engine/engine_source.h"

#include <algorithm>
#include <fmt/core.h>
#include <utility>

#include "base/ceil_div.h"
#include "base/check.h"
#include "cache/block_key.h"
#include "engine/block_names.h"
#include "engine/generation_check.h"
#include "engine/policy.h"
#include "model/memory.h"

namespace galley::engine {
namespace {

// What is kept of each is small, but not nothing.
constexpr std::size_t kBlocksMax = std::size_t{1} << 24U;

std::string describe(const model::ModelPlan& plan, const EngineOptions& options) {
  return fmt::format("{} ({}, {} layers{}), {} requests at a time", options.name,
                     plan.config.family == model::Family::kV41 ? "V4.1" : "V4", plan.config.layers,
                     plan.drafts_by(model::DraftKind::kDspark) ? ", DSpark"
                     : plan.drafts_by(model::DraftKind::kMtp)  ? ", MTP"
                                                               : "",
                     options.slots);
}

SchedulerOptions scheduler_options(const model::ModelPlan& plan, const EngineOptions& options) {
  const std::int64_t context = options.context_tokens > 0
                                   ? std::min(options.context_tokens, plan.config.positions_max)
                                   : plan.config.positions_max;
  const int drafts = NetworkDevice::drafts(plan, {.drafts = options.drafts});
  const std::size_t context_blocks = blocks_for(context + drafts);
  const std::size_t blocks =
      options.cache.value() / std::max<std::size_t>(1, plan.cache.block_stride);
  return {.slots = options.slots,
          .blocks = std::max(context_blocks, std::min(blocks, kBlocksMax)),
          .context_tokens = context,
          .drafts = drafts,
          .hit = model::hit_rule(plan, options.rebuild),
          // Those that will run at once wait for a moment, too. start() keeps the bound.
          .waiting_max = options.slots + options.waiting_max,
          .exact_windows = options.rebuild != model::WindowRebuild::kBounded,
          .fetch = options.store.limits,
          .states = options.states};
}

std::size_t mib(std::size_t bytes) {
  return ceil_div(bytes, std::size_t{1} << 20U);
}

// What blocks, windows, their states and the buffers of a step's forward may take, once all of them
// are in use. Left out: mapped weights, which can leave memory again; what the kernels' threads,
// the sampler, the tokenizer, requests that wait and the cache's own tables take, which is small
// beside them.
Result<void> check_memory(const model::Network& network,
                          const SchedulerOptions& scheduler,
                          const EngineOptions& options) {
  if (!options.memory) {
    return {};
  }
  const auto rows = static_cast<std::size_t>(scheduler.prefill_tokens) +
                    scheduler.slots * static_cast<std::size_t>(1 + scheduler.drafts);
  const model::MemoryNeeds needs = model::memory_needs(network.checkpoint(), rows);
  const std::size_t packed =
      network.packed().form == model::PackedForm::kMemory ? network.packed().bytes : 0;
  const std::size_t cache = scheduler.blocks * needs.block;
  const std::size_t requests = scheduler.slots * needs.request;
  const std::size_t rest = needs.step + needs.copied + packed + options.states.value();
  if (cache + requests + rest <= options.memory->value()) {
    return {};
  }
  return fail(
      Code::kInvalidArgument,
      fmt::format(
          "a cache of {} MiB ({} blocks; one context of {} tokens takes {} MiB), {} MiB for {} "
          "requests at once and {} MiB to compute are more than the {} MiB of memory that this "
          "machine has",
          mib(cache), scheduler.blocks, scheduler.context_tokens,
          mib(blocks_for(scheduler.context_tokens) * needs.block), mib(requests), scheduler.slots,
          mib(rest), options.memory->value() >> 20U),
      "engine.cache");
}

}  // namespace

// A request and its sink. Shared by the handle that may cancel it and the loop that works on it.
class EngineSource::Job {
 public:
  Job(recipe::Generation generation,
      recipe::TokenSink& sink,
      Seed seed,
      std::shared_ptr<const Grammar> grammar)
      : request_(std::make_shared<EngineRequest>(std::move(generation), seed, std::move(grammar))),
        sink_(sink) {}

  [[nodiscard]] const std::shared_ptr<const EngineRequest>& request() const { return request_; }

  // Calls the sink unless the request was cancelled.
  template <class F>
  void deliver(F call) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!cancelled_) {
      call(sink_);
    }
  }
  // Returns once no call of the sink is under way; none comes after.
  void cancel() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    cancelled_ = true;
  }

  // Of the loop's thread: as the scheduler knows it, until it ends.
  RequestId id;

 private:
  const std::shared_ptr<const EngineRequest> request_;
  recipe::TokenSink& sink_;
  Mutex mutex_;
  bool cancelled_ GALLEY_GUARDED_BY(mutex_) = false;
};

class EngineSource::Handle final : public recipe::ActiveGeneration {
 public:
  Handle(EngineSource& source, std::shared_ptr<Job> job) : source_(source), job_(std::move(job)) {}
  ~Handle() override {
    job_->cancel();
    {
      const MutexLock lock(source_.mutex_);
      source_.cancelled_.push_back(std::move(job_));
    }
    source_.changed_.notify_all();
  }

 private:
  EngineSource& source_;
  std::shared_ptr<Job> job_;
};

Result<std::unique_ptr<EngineSource>> EngineSource::create(
    std::unique_ptr<model::Network> network,
    std::shared_ptr<const recipe::Tokenizer> tokenizer,
    const Clock& clock,
    EngineOptions options) {
  GALLEY_ASSERT(options.slots > 0);
  GALLEY_ASSERT(options.waiting_max > 0);
  GALLEY_CHECK_OK(check_model(network->plan(), *tokenizer, options.rebuild));
  if (options.rebuild == model::WindowRebuild::kStored) {
    return fail(Code::kUnimplemented, "windows are not stored by this engine", "rebuild");
  }
  const SchedulerOptions scheduler = scheduler_options(network->plan(), options);
  GALLEY_CHECK_OK(check_memory(*network, scheduler, options));
  return std::unique_ptr<EngineSource>(new EngineSource(std::move(network), std::move(tokenizer),
                                                        clock, std::move(options), scheduler));
}

EngineSource::EngineSource(std::unique_ptr<model::Network> network,
                           std::shared_ptr<const recipe::Tokenizer> tokenizer,
                           const Clock& clock,
                           EngineOptions options,
                           const SchedulerOptions& scheduler_options)
    : network_(std::move(network)),
      clock_(clock),
      options_(std::move(options)),
      scheduler_options_(scheduler_options),
      description_(describe(network_->plan(), options_)),
      grammars_(tokenizer),
      scheduler_(scheduler_options),
      device_(*network_,
              std::move(tokenizer),
              clock,
              {.slots = scheduler_options.slots,
               .blocks = scheduler_options.blocks,
               .cut = options_.cut,
               .drafts = options_.drafts,
               .states = options_.states.value() > 0,
               .injected_acceptance = options_.injected_acceptance}),
      loop_(
          scheduler_,
          device_,
          clock,
          options_.defect == Defect::kNone ? LaunchMode{} : LaunchMode{.split = false, .depth = 2},
          options_.defect) {
  if (options_.store.store != nullptr) {
    traffic_ = std::make_unique<StoreTraffic>(
        *options_.store.store, device_, clock_,
        StoreTrafficOptions{.layout = block_number(network_->plan().fingerprint),
                            .numerics = block_number(options_.store.arithmetic),
                            .exact_only = scheduler_options.exact_windows,
                            .agent_class = options_.store.agent_class,
                            .chat_class = options_.store.chat_class},
        [this] {
          {
            const MutexLock lock(mutex_);
            progress_ = true;
          }
          changed_.notify_all();
        });
    scheduler_.attach(*traffic_);
  }
  if (options_.metrics != nullptr) {
    metrics_.emplace(*options_.metrics).update(scheduler_);
  }
  thread_.post([this] { work(); });
}

EngineSource::~EngineSource() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

Result<std::unique_ptr<recipe::ActiveGeneration>> EngineSource::start(recipe::Generation generation,
                                                                      recipe::TokenSink& sink) {
  recipe::TokenSink* const sinks[] = {&sink};
  std::vector<recipe::Generation> one;
  one.push_back(std::move(generation));
  GALLEY_TRY(auto started, start_choices(std::move(one), sinks));
  return std::move(started.front());
}

Result<std::vector<std::unique_ptr<recipe::ActiveGeneration>>> EngineSource::start_choices(
    std::vector<recipe::Generation> generations, std::span<recipe::TokenSink* const> sinks) {
  GALLEY_ASSERT(generations.size() == sinks.size());
  for (const recipe::Generation& generation : generations) {
    GALLEY_CHECK_OK(check_generation(generation,
                                     static_cast<std::size_t>(network_->plan().config.vocabulary),
                                     context_tokens()));
  }
  // One for all: they differ in `choice` only.
  std::shared_ptr<const Grammar> grammar;
  if (!generations.empty()) {
    GALLEY_TRY(grammar, grammars_.grammar_of(generations.front()));
  }
  // Trying again would never help.
  if (generations.size() > options_.slots + options_.waiting_max) {
    return fail(Code::kInvalidArgument,
                fmt::format("{} answers to one request are more than the {} that run and wait here",
                            generations.size(), options_.slots + options_.waiting_max),
                "n");
  }
  std::vector<std::unique_ptr<recipe::ActiveGeneration>> handles;
  {
    const MutexLock lock(mutex_);
    if (failed_) {
      return fail(Code::kUnavailable, "the engine has failed");
    }
    if (live_ + generations.size() > options_.slots + options_.waiting_max) {
      return fail(Code::kOverloaded,
                  fmt::format("{} requests are waiting already", options_.waiting_max));
    }
    for (std::size_t i = 0; i < generations.size(); ++i) {
      const std::optional<std::int64_t>& asked = generations[i].sampling.seed;
      const RandomBlock unasked = random_block(options_.seed, 0, started_++);
      const Seed seed(asked ? static_cast<std::uint64_t>(*asked)
                            : std::uint64_t{unasked[1]} << 32U | unasked[0]);
      auto job = std::make_shared<Job>(std::move(generations[i]), *sinks[i], seed, grammar);
      arrived_.push_back(job);
      ++live_;
      handles.push_back(std::make_unique<Handle>(*this, std::move(job)));
    }
  }
  changed_.notify_all();
  return handles;
}

Result<void> EngineSource::prepare(recipe::Generation& generation) {
  GALLEY_TRY(generation.prepared, grammars_.grammar_of(generation));
  return {};
}

bool EngineSource::ready() const {
  const MutexLock lock(mutex_);
  return !failed_;
}

SchedulerStats EngineSource::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

// ---- the loop's thread ----------------------------------------------------------------------

void EngineSource::work() {
  bool idle = true;
  while (take_new(idle)) {
    const Result<bool> turned = loop_.turn();
    if (!turned) {
      deliver();  // what was settled before
      fail_all(turned.error());
      return;
    }
    {
      const MutexLock lock(mutex_);
      stats_ = scheduler_.stats();
    }
    if (metrics_) {
      metrics_->update(scheduler_);
      metrics_->update(store_stats());
    }
    deliver();
    maybe_fit();
    idle = !*turned;
  }
}

void EngineSource::maybe_fit() {
  if (fitting_) {
    std::optional<std::vector<double>> fitted;
    {
      const MutexLock lock(mutex_);
      fitted = std::exchange(fitted_, std::nullopt);
    }
    if (fitted) {
      scheduler_.set_temperatures(*std::move(fitted));
      fitting_ = false;
    }
  } else if (const Calibration& calibration = scheduler_.calibration(); calibration.fit_due()) {
    fitting_ = true;
    const std::span<const double> now = calibration.temperatures();
    fitter_.post([this, rows = calibration.window(), now = std::vector(now.begin(), now.end())] {
      std::vector<double> fitted = fit_temperatures(rows, now);
      const MutexLock lock(mutex_);
      fitted_ = std::move(fitted);
    });
  }
}

bool EngineSource::take_new(bool idle) {
  std::vector<std::shared_ptr<Job>> arrived;
  std::vector<std::shared_ptr<Job>> cancelled;
  {
    const MutexLock lock(mutex_);
    live_ = jobs_.size() + arrived_.size();
    while (idle && !ending_ && arrived_.empty() && cancelled_.empty() && !progress_) {
      const auto wake_at = scheduler_.wake_at();
      if (!wake_at) {
        changed_.wait(mutex_);
      } else if (const TimeNs now = clock_.now(); now < *wake_at) {
        changed_.wait_for(mutex_, *wake_at - now);
      } else {
        break;
      }
    }
    progress_ = false;
    if (ending_) {
      return false;
    }
    arrived.swap(arrived_);
    cancelled.swap(cancelled_);
  }
  for (std::shared_ptr<Job>& job : arrived) {
    submit(std::move(job));
  }
  for (const std::shared_ptr<Job>& job : cancelled) {
    if (jobs_.erase(job->id) > 0) {
      scheduler_.cancel(job->id);
    }
  }
  return true;
}

void EngineSource::submit(std::shared_ptr<Job> job) {
  const recipe::Generation& generation = job->request()->generation;
  const cache::BlockKey root =
      block_root(network_->plan().fingerprint, options_.store.weights, options_.salt, generation);
  Result<RequestId> id =
      scheduler_.submit(job->request(), root, Priority::kInteractive, clock_.now());
  if (!id) {
    job->deliver([&](recipe::TokenSink& sink) { sink.on_error(std::move(id).error()); });
    return;
  }
  job->id = *id;
  jobs_.emplace(*id, std::move(job));
}

void EngineSource::deliver() {
  for (Output& output : scheduler_.take_outputs()) {
    const auto found = jobs_.find(output.request);
    GALLEY_ASSERT(found != jobs_.end());
    found->second->deliver([&](recipe::TokenSink& sink) {
      if (output.started) {
        sink.on_start(*output.started);
      }
      if (!output.tokens.empty()) {
        sink.on_tokens(output.tokens, output.logprobs);
      }
      if (output.finish) {
        sink.on_finish(*output.finish);
      } else if (output.error) {
        sink.on_error(*output.error);
      }
    });
    if (output.finish || output.error) {
      jobs_.erase(found);
    }
  }
}

void EngineSource::fail_all(const Error& error) {
  std::vector<std::shared_ptr<Job>> arrived;
  {
    const MutexLock lock(mutex_);
    failed_ = true;
    arrived.swap(arrived_);
  }
  for (const std::shared_ptr<Job>& job : arrived) {
    job->deliver([&](recipe::TokenSink& sink) { sink.on_error(error); });
  }
  for (const auto& [id, job] : jobs_) {
    job->deliver([&](recipe::TokenSink& sink) { sink.on_error(error); });
  }
  jobs_.clear();
}

}  // namespace galley::engine
