// Goal: whatever ends, and whenever, nothing is left behind: no block, no slot, no window, no
// memory. Method: the real loop on the network of models/mini-test under requests that are
// cancelled, expire and are preempted at random turns. A few hundred such events by default;
// GALLEY_ENDINGS says how many (24000 is the gate), and the figures are printed.
#include <cstdlib>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <sched.h>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "base/virtual_loop.h"
#include "engine/engine_source.h"
#include "engine/source_for_test.h"

namespace galley::engine {
namespace {

namespace fs = std::filesystem;

std::int64_t wanted_events() {
  const char* const text = std::getenv("GALLEY_ENDINGS");
  return text == nullptr ? 200 : std::strtoll(text, nullptr, 10);
}

fs::path mini() {
  return fs::path(GALLEY_TESTS_DIR) / "../models/mini-test";
}

double resident_mib() {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * 4096 / (1 << 20);
}

recipe::Generation any_generation(Random& random) {
  recipe::Generation out;
  const auto length = 1 + random.next_below(300);
  const auto common = random.next_below(300);
  for (std::uint64_t i = 0; i < length; ++i) {
    out.prompt.push_back(
        static_cast<TokenId>(i < common ? i * 37 % 4000 : random.next_below(4000)));
  }
  out.max_tokens = static_cast<std::int64_t>(1 + random.next_below(60));
  out.sampling.temperature = random.next_below(2) == 0 ? 0.0F : 1.0F;
  out.tenant = std::to_string(random.next_below(3));
  return out;
}

// Requests in every state: waiting, following another's prompt, in prefill, decoding, preempted.
class Endings {
 public:
  static constexpr std::size_t kBlocks = 14;
  static constexpr std::size_t kSlots = 5;

  Endings()
      : scheduler_({.slots = kSlots,
                    .blocks = kBlocks,
                    .context_tokens = 400,
                    .drafts = NetworkDevice::drafts(network_->plan(), {}),
                    .hit = model::hit_rule(network_->plan(), model::WindowRebuild::kExact),
                    .prefill_tokens = 128}),
        runner_(*network_, tokenizer(), steps_clock_, {.slots = kSlots, .blocks = kBlocks}),
        loop_(scheduler_, runner_, clock_, {}) {}

  void run(std::int64_t events) {
    std::vector<double> resident;
    while (cancels_ + deadlines_ + scheduler_.stats().preemptions < events) {
      bring();
      disturb();
      turn();
      const std::int64_t so_far = cancels_ + deadlines_ + scheduler_.stats().preemptions;
      if (so_far * 4 >= events * static_cast<std::int64_t>(resident.size() + 1)) {
        resident.push_back(resident_mib());
      }
    }
    while (turn()) {
    }
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(scheduler_.running() + scheduler_.waiting() + scheduler_.launched(), 0U);
    EXPECT_EQ(scheduler_.cache().available(), kBlocks);
    EXPECT_TRUE(scheduler_.cache().consistent());
    fmt::print(
        "{} cancels, {} deadlines, {} preemptions, {} forks; {} requests, {} finished, {} "
        "steps; resident MiB by quarters:",
        cancels_, deadlines_, scheduler_.stats().preemptions, scheduler_.stats().forks, brought_,
        finished_, scheduler_.stats().steps);
    for (const double one : resident) {
      fmt::print(" {:.1f}", one);
    }
    fmt::print("\n");
    EXPECT_GT(cancels_, events / 10);
    EXPECT_GT(deadlines_, events / 50);
    EXPECT_GT(scheduler_.stats().preemptions, events / 10);
    EXPECT_LT(resident.back() - resident.front(), 16.0) << "memory grows";
    all_slots_work();
  }

 private:
  void bring() {
    while (live_.size() < 12) {
      recipe::Generation generation = any_generation(random_);
      if (!latest_.prompt.empty() && random_.next_below(4) == 0) {
        generation.prompt = latest_.prompt;
        generation.tenant = latest_.tenant;
      }
      if (random_.next_below(5) == 0) {
        generation.deadline = clock_.now() + std::chrono::milliseconds(1 + random_.next_below(40));
      }
      latest_ = generation;
      submit(std::move(generation));
    }
  }
  void submit(recipe::Generation generation) {
    const cache::BlockKey root =
        cache::root_key({.layout = "", .weights = "", .salt = generation.tenant});
    const bool expires = generation.deadline.has_value();
    auto request = std::make_shared<EngineRequest>(std::move(generation), Seed(++brought_));
    live_[scheduler_.submit(std::move(request), root, Priority::kInteractive, clock_.now())
              .value()] = expires;
  }
  void disturb() {
    const auto any = [&] {
      return std::next(live_.begin(), static_cast<std::ptrdiff_t>(random_.next_below(live_.size())))
          ->first;
    };
    if (random_.next_below(2) == 0) {
      const RequestId request = any();
      scheduler_.cancel(request);
      live_.erase(request);
      ++cancels_;
    }
    if (!live_.empty() && random_.next_below(2) == 0) {
      scheduler_.preempt(any());
    }
    clock_.run_until(clock_.now() + std::chrono::milliseconds(random_.next_below(3)));
  }
  bool turn() {
    const bool more = loop_.turn().value();
    for (const Output& output : scheduler_.take_outputs()) {
      const auto found = live_.find(output.request);
      if (found == live_.end()) {
        ADD_FAILURE() << "output of a request that had ended";
        return false;
      }
      if (output.error) {
        EXPECT_EQ(output.error->code, Code::kDeadlineExceeded) << to_string(*output.error);
        EXPECT_TRUE(found->second);
        ++deadlines_;
      }
      finished_ += output.finish ? 1 : 0;
      if (output.finish || output.error) {
        live_.erase(found);
      }
    }
    return more;
  }
  // As many as there are slots run together.
  void all_slots_work() {
    for (std::size_t i = 0; i < kSlots; ++i) {
      recipe::Generation generation;
      generation.prompt = {static_cast<TokenId>(5 + i), 6};
      generation.max_tokens = 30;
      submit(std::move(generation));
    }
    std::size_t most = 0;
    while (turn()) {
      most = std::max(most, scheduler_.running());
    }
    EXPECT_EQ(most, kSlots);
    EXPECT_TRUE(live_.empty());
  }

  VirtualLoop clock_;
  RealClock steps_clock_;  // of the device, which has a thread of its own
  std::unique_ptr<kernels::Device> device_ = kernels::create_cpu_device(1);
  std::unique_ptr<model::Network> network_ = model::Network::load(mini(), *device_, {}).value();
  Scheduler scheduler_;
  NetworkDevice runner_;
  StepLoop loop_;
  Random random_{Seed(11), 0};
  recipe::Generation latest_;
  std::map<RequestId, bool> live_;  // whether it may expire
  std::uint64_t brought_ = 0;
  std::int64_t cancels_ = 0;
  std::int64_t deadlines_ = 0;
  std::int64_t finished_ = 0;
};

TEST(Endings, LeaveNothingBehind) {
  Endings().run(wanted_events());
}

// From outside, with the threads of a server: handles are dropped while the loop works.
TEST(Endings, CancelsFromOtherThreadsLeaveNothingBehind) {
  Metrics metrics;
  const Served<EngineSource, EngineOptions> served(
      mini(), {.context_tokens = 400, .slots = 3, .cache = Bytes(1), .metrics = &metrics});
  Random random(Seed(12), 0);
  const std::int64_t cancels = wanted_events() / 4;
  std::int64_t started = 0;
  for (std::int64_t i = 0; i < cancels;) {
    std::vector<std::unique_ptr<Sink>> sinks;
    std::vector<std::unique_ptr<recipe::ActiveGeneration>> active;
    while (active.size() < 8) {
      // One that was cancelled counts until the loop has heard of it.
      sinks.push_back(std::make_unique<Sink>());
      auto handle = served.source->start(any_generation(random), *sinks.back());
      if (handle) {
        active.push_back(*std::move(handle));
        ++started;
      } else {
        ASSERT_EQ(handle.error().code, Code::kOverloaded);
        sinks.pop_back();
        ::sched_yield();
      }
    }
    while (active.size() > 1) {
      if (random.next_below(3) == 0) {
        static_cast<void>(sinks[random.next_below(sinks.size())]->count());
      }
      active.erase(active.begin() + static_cast<std::ptrdiff_t>(random.next_below(active.size())));
      ++i;
    }
  }
  recipe::Generation last;
  last.prompt = {5, 6, 7};
  last.max_tokens = 3;
  EXPECT_EQ(served.answer(last)->ids_.size(), 3U);
  ++started;
  // The loop hears of the last cancels, and gives blocks back, a few turns later.
  const auto quiet = [&] {
    const std::string text = metrics.render();
    return served.source->stats().ended == started &&
           text.find("\ngalley_engine_waiting_requests 0\n") != std::string::npos &&
           text.find("\ngalley_engine_running_requests 0\n") != std::string::npos &&
           text.find("\ngalley_engine_held_blocks 0\n") != std::string::npos;
  };
  for (int i = 0; i < 200'000 && !quiet(); ++i) {
    ::sched_yield();
  }
  EXPECT_EQ(served.source->stats().ended, started);
  EXPECT_TRUE(quiet()) << metrics.render();
}

}  // namespace
}  // namespace galley::engine
