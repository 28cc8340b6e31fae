#include "plan/engine_world.h"

#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/virtual_loop.h"
#include "cache/block_key.h"
#include "plan/grammar_pool.h"

namespace galley::plan {
namespace {

using engine::Output;
using engine::RequestId;

constexpr TokenId kVocabulary = 64;
// A turn that neither plans nor settles; between them only virtual time passes.
constexpr int kQuietTurnsMax = 1000;
constexpr Duration kQuietStep = std::chrono::milliseconds(1);

class EngineWorld {
 public:
  explicit EngineWorld(const EngineWorldOptions& options)
      : options_(options),
        random_(options.seed, 1),
        vocabulary_(options.load.grammars > 0 ? kGrammarVocabulary : kVocabulary),
        model_(options.seed, vocabulary_, options.load.stop_every),
        scheduler_(with_defect(options)),
        device_(device_options(options),
                model_,
                loop_,
                Random(options.seed, 2),
                report_.violations,
                options.stopwatch),
        traffic_(options.store, device_, loop_, Random(options.seed, 3), report_.violations),
        step_loop_(scheduler_, device_, loop_, options.launch, options.defect) {
    for (int i = 0; i < options.load.documents; ++i) {
      std::vector<TokenId>& text = documents_.emplace_back();
      while (std::ssize(text) < options.load.prompt_max) {
        text.push_back(any_token());
      }
    }
    report_.tenant_served.resize(static_cast<std::size_t>(options.load.tenants));
    if (options.store.there) {
      scheduler_.attach(traffic_);
    }
  }

  EngineReport run() {
    int quiet = 0;
    while (quiet < kQuietTurnsMax) {
      const bool more = device_.rows() < options_.rows;
      if (more) {
        bring_requests();
        maybe_preempt();
      } else if (live_.empty() && scheduler_.launched() == 0) {
        break;
      }
      quiet = turn() ? 0 : quiet + 1;
      if (quiet > 0) {
        loop_.run_until(loop_.now() + kQuietStep);
      }
      if (report_.violations.count() > 0) {
        break;  // what follows is of no use
      }
    }
    finish(quiet == kQuietTurnsMax);
    return std::move(report_);
  }

 private:
  struct Live {
    HashModel::Answer expected;
    std::size_t answered = 0;
    int tenant = 0;
    engine::Priority priority{};
    std::int64_t prompt = 0;
    TimeNs came;
    bool started = false;
    bool expires = false;
  };

  static engine::SchedulerOptions with_defect(const EngineWorldOptions& options) {
    engine::SchedulerOptions out = options.scheduler;
    out.defect = options.defect;
    return out;
  }
  static HashDeviceOptions device_options(const EngineWorldOptions& options) {
    HashDeviceOptions out = options.device;
    out.slots = options.scheduler.slots;
    out.blocks = options.scheduler.blocks;
    out.drafts = options.scheduler.drafts;
    out.split = options.launch.split;
    out.keep_tokens = options.scheduler.hit.keep_tokens;
    out.trusts_masks = options.defect == engine::Defect::kTrustMasks;
    return out;
  }

  TokenId any_token() { return 1 + static_cast<TokenId>(random_.next_below(vocabulary_ - 1)); }
  bool chance(unsigned of_256) { return random_.next_below(256) < of_256; }

  void bring_requests() {
    while (live_.size() + coming_ < options_.load.at_once) {
      ++coming_;
      const auto pause =
          2 * random_.next_float() * static_cast<double>(options_.load.pause.count());
      loop_.after(Duration(static_cast<std::int64_t>(pause)), [this] {
        --coming_;
        arrived_.push_back(new_request());
      });
    }
    loop_.run_until(loop_.now());
    // The loop takes requests in between its turns, as the engine's thread does.
    for (auto& request : std::exchange(arrived_, {})) {
      submit(std::move(request));
    }
    for (const RequestId request : std::exchange(cancelled_, {})) {
      scheduler_.cancel(request);
      if (live_.erase(request) > 0) {
        ++report_.requests;
      }
    }
  }

  recipe::Generation new_request() {
    if (!latest_.prompt.empty() && chance(options_.load.twins)) {
      return latest_;
    }
    return latest_ = fresh_request();
  }

  recipe::Generation fresh_request() {
    const auto& text = documents_[random_.next_below(documents_.size())];
    const int tenant = next_tenant();
    const bool is_short = options_.load.unequal && tenant % 2 == 1;
    const auto longest = static_cast<std::uint64_t>(options_.load.prompt_max / (is_short ? 10 : 1));
    const auto length = static_cast<std::int64_t>(1 + random_.next_below(longest));
    const auto common = static_cast<std::int64_t>(random_.next_below(longest + 1));
    recipe::Generation out;
    out.prompt.assign(text.begin(), text.begin() + std::min(length, common));
    while (std::ssize(out.prompt) < length) {
      out.prompt.push_back(any_token());
    }
    out.max_tokens = 1 + static_cast<std::int64_t>(random_.next_below(
                             static_cast<std::uint64_t>(options_.load.answer_max)));
    out.stop_ids = {HashModel::kStop};
    out.tenant = std::to_string(tenant);
    if (options_.load.grammars > 0 && chance(options_.load.grammars)) {
      out.prepared = grammar_pool()[random_.next_below(grammar_pool().size())];
    }
    if (chance(options_.load.deadlines)) {
      out.deadline = loop_.now() + random_wait();
    }
    return out;
  }

  // The one with the fewest requests.
  int next_tenant() {
    std::vector<int> counts(static_cast<std::size_t>(options_.load.tenants));
    for (const auto& [id, live] : live_) {
      ++counts[static_cast<std::size_t>(live.tenant)];
    }
    for (const recipe::Generation& one : arrived_) {
      ++counts[static_cast<std::size_t>(std::stoi(one.tenant))];
    }
    return static_cast<int>(std::ranges::min_element(counts) - counts.begin());
  }

  engine::Priority any_priority() {
    const std::uint64_t draw = random_.next_below(256);
    return draw < options_.load.batch       ? engine::Priority::kBatch
           : draw < 2 * options_.load.batch ? engine::Priority::kAgent
                                            : engine::Priority::kInteractive;
  }

  Duration random_wait() {
    return Duration(static_cast<std::int64_t>(
        random_.next_float() * 20 * static_cast<double>(options_.device.step_max.count() + 1)));
  }

  void submit(recipe::Generation generation) {
    auto grammar = std::dynamic_pointer_cast<const engine::Grammar>(generation.prepared);
    Live live{.expected = model_.answer(generation.prompt, generation.max_tokens, grammar),
              .tenant = std::stoi(generation.tenant),
              .priority = any_priority(),
              .prompt = std::ssize(generation.prompt),
              .came = loop_.now(),
              .expires = generation.deadline.has_value()};
    const cache::BlockKey root = cache::root_key({.salt = generation.tenant});
    auto request = std::make_shared<engine::EngineRequest>();
    request->generation = std::move(generation);
    request->grammar = std::move(grammar);
    auto id = scheduler_.submit(std::move(request), root, live.priority, loop_.now());
    if (!id) {
      report_.violations.add("refused: " + to_string(id.error()));
      return;
    }
    live_.emplace(*id, std::move(live));
    if (chance(options_.load.cancels)) {
      loop_.after(random_wait(), [this, id = *id] { cancelled_.push_back(id); });
    }
  }

  void maybe_preempt() {
    if (!live_.empty() && chance(options_.load.preemptions)) {
      const auto at = random_.next_below(live_.size());
      scheduler_.preempt(std::next(live_.begin(), static_cast<std::ptrdiff_t>(at))->first);
    }
  }

  bool turn() {
    const TimeNs begin = options_.stopwatch != nullptr ? options_.stopwatch->now() : TimeNs();
    const Duration in_device = device_.time_inside();
    loop_.run_until(loop_.now() + options_.host_cost);
    const auto more = step_loop_.turn();
    if (options_.stopwatch != nullptr) {
      report_.host.push_back(options_.stopwatch->now() - begin -
                             (device_.time_inside() - in_device));
    }
    if (!more) {
      report_.violations.add("the loop failed: " + to_string(more.error()));
      return false;
    }
    for (const Output& output : scheduler_.take_outputs()) {
      take(output);
    }
    check_bounds();
    if (!*more && scheduler_.running() + scheduler_.waiting() > 0 && scheduler_.fetching() == 0) {
      report_.violations.add("the loop has nothing to do, but requests are there");
    }
    if (device_.rows() > options_.rows / 10 && device_.rows() < options_.rows) {
      const auto held = scheduler_.cache().blocks() - scheduler_.cache().available();
      held_sum_ += static_cast<double>(held) / static_cast<double>(scheduler_.cache().blocks());
      ++turns_;
    }
    return *more;
  }

  void take(const Output& output) {
    const auto found = live_.find(output.request);
    if (found == live_.end()) {
      report_.violations.add(
          fmt::format("output of request {}, which has ended", output.request.value()));
      return;
    }
    Live& live = found->second;
    if (output.started) {
      if (live.started) {
        report_.violations.add(fmt::format("request {} started twice", output.request.value()));
      }
      live.started = true;
      Duration& longest = report_.longest_wait[static_cast<std::size_t>(live.priority)];
      longest = std::max(longest, loop_.now() - live.came);
      served(live) += engine::kCachedWeight * static_cast<double>(output.started->cached_tokens) +
                      engine::kComputedWeight *
                          static_cast<double>(live.prompt - output.started->cached_tokens);
    }
    for (const TokenId token : output.tokens) {
      if (live.answered == live.expected.tokens.size() ||
          live.expected.tokens[live.answered] != token) {
        report_.violations.add(fmt::format("token {} of request {} is not the oracle's",
                                           live.answered, output.request.value()));
      }
      ++live.answered;
      served(live) += engine::kAnsweredWeight;
    }
    if (output.finish) {
      if (*output.finish != live.expected.finish || live.answered != live.expected.tokens.size()) {
        report_.violations.add(fmt::format("request {} ended after {} tokens, not {}",
                                           output.request.value(), live.answered,
                                           live.expected.tokens.size()));
      }
      ++report_.finished;
    } else if (output.error && output.error->code != Code::kUnavailable && !live.expires) {
      report_.violations.add("failed: " + to_string(*output.error));
    }
    if (output.finish || output.error) {
      ++report_.requests;
      live_.erase(found);
    }
  }

  double& served(const Live& live) {
    return report_.tenant_served[static_cast<std::size_t>(live.tenant)];
  }

  // I1: what is settled at least, the highest possible at most.
  void check_bounds() {
    for (std::uint32_t i = 0; i < options_.scheduler.slots; ++i) {
      const auto state = device_.state(engine::SlotId(i));
      const auto bounds =
          state ? scheduler_.bounds(engine::SlotId(i), state->generation) : std::nullopt;
      if (bounds && (state->length < bounds->settled || state->length > bounds->high)) {
        report_.violations.add(fmt::format("slot {} is at {}, outside {} to {}", i, state->length,
                                           bounds->settled, bounds->high));
      }
      if (bounds && scheduler_.launched() == 0 && state->length != bounds->settled) {
        report_.violations.add(
            fmt::format("slot {} is at {}, {} are settled", i, state->length, bounds->settled));
      }
    }
  }

  void finish(bool stuck) {
    if (stuck) {
      report_.violations.add(fmt::format("{} requests never end", live_.size()));
    }
    if (report_.violations.count() == 0) {
      const cache::PrefixCache& cache = scheduler_.cache();
      if (cache.available() != cache.blocks() || !cache.consistent()) {
        report_.violations.add(
            fmt::format("{} blocks did not come back", cache.blocks() - cache.available()));
      }
      if (scheduler_.running() + scheduler_.waiting() + scheduler_.launched() > 0) {
        report_.violations.add("requests or steps are left");
      }
      // Only what the host ends is drawn for in vain, once in each step that was launched whole.
      const auto host_ended = report_.requests - report_.finished + scheduler_.stats().preemptions;
      const auto depth = static_cast<std::int64_t>(options_.launch.depth);
      if (scheduler_.stats().overrun_rows > depth * host_ended) {
        report_.violations.add(fmt::format("{} rows were drawn in vain, for {} requests",
                                           scheduler_.stats().overrun_rows, host_ended));
      }
    }
    report_.rows = device_.rows();
    report_.scheduler = scheduler_.stats();
    report_.busy = device_.busy();
    report_.idle = device_.idle();
    report_.occupancy = turns_ > 0 ? held_sum_ / static_cast<double>(turns_) : 0;
  }

  const EngineWorldOptions options_;
  EngineReport report_;
  VirtualLoop loop_;
  Random random_;
  const TokenId vocabulary_;
  HashModel model_;
  engine::Scheduler scheduler_;
  HashDevice device_;
  FakeTraffic traffic_;
  engine::StepLoop step_loop_;
  std::vector<std::vector<TokenId>> documents_;
  std::map<RequestId, Live> live_;
  std::size_t coming_ = 0;
  std::vector<recipe::Generation> arrived_;
  recipe::Generation latest_;
  std::vector<RequestId> cancelled_;
  double held_sum_ = 0;
  std::int64_t turns_ = 0;
};

}  // namespace

EngineReport run_engine_world(const EngineWorldOptions& options) {
  return EngineWorld(options).run();
}

EngineWorldOptions random_engine_world(Seed seed, std::int64_t rows) {
  Random random(seed, 0);
  EngineWorldOptions out{.seed = seed, .rows = rows};
  out.scheduler = {
      .slots = 1 + random.next_below(12),
      .blocks = 8 + random.next_below(56),
      .context_tokens = 4096,
      .drafts = static_cast<int>(random.next_below(6)),
      .hit = {.keep_tokens = static_cast<std::int64_t>(1 + random.next_below(30)),
              .replay_tokens = static_cast<std::int64_t>(16 * (1 + random.next_below(3)))},
      .prefill_tokens = static_cast<std::int64_t>(128 * (1 + random.next_below(4))),
      .tenant_slots_max = random.next_below(4),
      .growth_tokens = static_cast<std::int64_t>(random.next_below(200)),
      .states = Bytes(512 * random.next_below(40))};
  out.launch = {.split = random.next_below(2) == 0};
  if (!out.launch.split) {
    out.launch.depth = 1 + random.next_below(3);
  }
  out.device.window = 16;
  out.device.ring_rows = out.device.window + std::max(out.scheduler.drafts, 1);
  out.device.draft_errors = static_cast<unsigned>(random.next_below(200));
  out.device.confidences = random.next_below(4) > 0;
  out.device.token = std::chrono::microseconds(random.next_below(3000));
  out.device.failures = static_cast<unsigned>(random.next_below(200));
  out.device.step_max = std::chrono::milliseconds(random.next_below(20));
  out.load.at_once = 2 + random.next_below(24);
  out.load.pause = std::chrono::milliseconds(random.next_below(30));
  out.host_cost = std::chrono::microseconds(random.next_below(3000));
  out.store = {.there = random.next_below(2) == 0,
               .match_max = std::chrono::microseconds(random.next_below(2000)),
               .block_max = std::chrono::microseconds(random.next_below(10'000)),
               .write_max = std::chrono::microseconds(random.next_below(10'000)),
               .hangs = static_cast<unsigned>(random.next_below(8)),
               .failures = static_cast<unsigned>(random.next_below(8)),
               .damages = static_cast<unsigned>(random.next_below(8))};
  out.scheduler.fetch = {.wait_max = std::chrono::milliseconds(1 + random.next_below(100)),
                         .quiet_max = std::chrono::milliseconds(1 + random.next_below(20))};
  return out;
}

EngineWorldOptions random_grammar_world(Seed seed, std::int64_t rows) {
  EngineWorldOptions out = random_engine_world(seed, rows);
  out.load.grammars = 220;
  // Answers of many lengths, so that grammars come to their ends.
  out.load.stop_every = 24;
  return out;
}

}  // namespace galley::plan
