// Goal: each of many requests gets the tokens it gets alone from the single-sequence loop, whatever
// else runs, is cancelled, preempted or found in the cache. Method: small checkpoints, pools and
// slots so few that requests wait and are preempted, answers compared token by token.
#include "engine/engine_source.h"

#include <filesystem>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/manual_clock.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/virtual_disk.h"
#include "base/virtual_loop.h"
#include "cache/segments/segment_store.h"
#include "engine/engine_metrics.h"
#include "engine/grammar_compiler.h"
#include "engine/held_store_for_test.h"
#include "engine/single_sequence.h"
#include "engine/source_for_test.h"
#include "recipe/control.h"

namespace galley::engine {
namespace {

namespace fs = std::filesystem;

fs::path mini() {
  return fs::path(GALLEY_TESTS_DIR) / "../models/mini-test";
}

using Alone = Served<SingleSequenceSource, SingleSequenceOptions>;
using Crowd = Served<EngineSource, EngineOptions>;

// Prompts that share beginnings; half of the requests sample.
recipe::Generation random_generation(Random& random, std::int64_t prompt_max) {
  recipe::Generation out;
  const auto length =
      static_cast<std::int64_t>(1 + random.next_below(static_cast<std::uint64_t>(prompt_max)));
  const auto common =
      static_cast<std::int64_t>(random.next_below(static_cast<std::uint64_t>(prompt_max)));
  for (std::int64_t i = 0; i < length; ++i) {
    out.prompt.push_back(i < common ? static_cast<TokenId>((i * 37 + 11) % 4000)
                                    : static_cast<TokenId>(random.next_below(4000)));
  }
  out.max_tokens = static_cast<std::int64_t>(1 + random.next_below(24));
  out.sampling.seed = static_cast<std::int64_t>(random.next_below(1000));
  out.sampling.temperature = random.next_below(2) == 0 ? 0.0F : 0.8F;
  out.sampling.top_p = 0.9F;
  out.sampling.presence_penalty = 0.2F;
  out.sampling.logprobs = random.next_below(4) == 0;
  return out;
}

// Gives it one of some grammars, with and without free text before.
void add_grammar(Random& random, recipe::Generation& generation) {
  using Kind = recipe::AnswerGrammar::Kind;
  const auto id = [](std::string_view spelling) { return *tokenizer()->find_added(spelling); };
  const TokenId end = id(recipe::spelling(recipe::Control::kEos));
  recipe::AnswerGrammar& grammar = generation.grammar;
  grammar.kind = Kind::kJsonSchema;
  switch (random.next_below(4)) {
    case 0:
      grammar.text = R"({"type":"object"})";
      break;
    case 1:
      grammar.text =
          R"({"type":"object","properties":{"a":{"type":"string","maxLength":9},"b":{"enum":)"
          R"([1,22,null]}},"required":["a","b"],"additionalProperties":false})";
      break;
    case 2:
      grammar.kind = Kind::kRegex;
      grammar.text = "[a-z]{2,9}( [a-z]{2,9})*\\.";
      break;
    default:
      grammar.text = R"({"type":"array","items":{"type":"integer"},"maxItems":6})";
  }
  if (random.next_below(3) == 0) {
    // Something that comes soon.
    grammar.trigger = {static_cast<TokenId>(random.next_below(200))};
    grammar.bound = static_cast<TokenId>(200 + random.next_below(200));
    grammar.forbidden = {end};
  }
  generation.stop_ids = {end};
  generation.sampling.temperature = random.next_below(3) == 0 ? 0.0F : 1.0F;
}

// The whole answer, or what there is of one that was cut.
void expect_legal(const recipe::Generation& generation, const Sink& got) {
  GrammarCompiler grammars(tokenizer());
  const auto grammar = grammars.grammar_of(generation).value();
  const auto matcher = Matcher::begin(grammar);
  std::vector<MaskWord> mask(grammar->vocabulary().mask_words());
  for (const TokenId token : got.ids_) {
    ASSERT_TRUE(matcher->fill(mask));
    ASSERT_TRUE(allows(mask, token)) << token;
    ASSERT_TRUE(matcher->accept(token));
  }
  if (got.finish_ == recipe::SourceFinish::kStop) {
    ASSERT_TRUE(matcher->fill(mask));
    EXPECT_TRUE(allows(mask, generation.stop_ids.front()));
  }
}

struct Asked {
  recipe::Generation generation;
  std::unique_ptr<Sink> alone;
};

std::vector<Asked> ask_alone(const fs::path& folder,
                             std::uint64_t seed,
                             int count,
                             std::int64_t prompt_max,
                             bool grammars = false) {
  Random random(Seed(seed), 0);
  const Alone alone(folder, {.drafts = false});
  std::vector<Asked> out;
  for (int i = 0; i < count; ++i) {
    Asked one{.generation = random_generation(random, prompt_max)};
    if (grammars) {
      add_grammar(random, one.generation);
    }
    one.alone = alone.answer(one.generation);
    if (grammars) {
      expect_legal(one.generation, *one.alone);
    }
    out.push_back(std::move(one));
  }
  return out;
}

void expect_same(const Sink& got, const Sink& alone) {
  EXPECT_EQ(got.ids_, alone.ids_);
  EXPECT_EQ(got.finish_, alone.finish_);
  ASSERT_EQ(got.logprobs_.size(), alone.logprobs_.size());
  for (std::size_t i = 0; i < got.logprobs_.size(); ++i) {
    EXPECT_EQ(got.logprobs_[i].logprob, alone.logprobs_[i].logprob);
  }
}

// All at once; every third is asked twice and one of the two is cancelled at some time.
SchedulerStats expect_answers_of_a_crowd(const fs::path& folder,
                                         const std::vector<Asked>& asked,
                                         const EngineOptions& options) {
  const Crowd crowd(folder, options);
  std::vector<std::unique_ptr<Sink>> sinks;
  std::vector<std::unique_ptr<recipe::ActiveGeneration>> active;
  std::vector<std::unique_ptr<Sink>> unwanted;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    sinks.push_back(std::make_unique<Sink>());
    active.push_back(crowd.source->start(asked[i].generation, *sinks.back()).value());
    if (i % 3 == 0) {
      unwanted.push_back(std::make_unique<Sink>());
      auto handle = crowd.source->start(asked[i].generation, *unwanted.back()).value();
      if (i % 2 == 0) {
        unwanted.back()->wait_for_tokens();
      }
    }
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    sinks[i]->wait_for_end();
    EXPECT_FALSE(sinks[i]->error_) << to_string(*sinks[i]->error_);
    expect_same(*sinks[i], *asked[i].alone);
  }
  return crowd.source->stats();
}

TEST(EngineSource, InACrowdEachGetsItsOwnAnswer) {
  const std::vector<Asked> asked = ask_alone(mini(), 1, 16, 420);
  for (const bool drafts : {true, false}) {
    SCOPED_TRACE(drafts ? "drafts" : "plain");
    const SchedulerStats stats =
        expect_answers_of_a_crowd(mini(), asked, {.slots = 5, .drafts = drafts});
    EXPECT_GT(stats.hit_tokens, 0);
    EXPECT_LT(stats.steps, stats.rows);
  }
}

TEST(EngineSource, InACrowdEachKeepsToItsGrammar) {
  const std::vector<Asked> asked = ask_alone(mini(), 3, 16, 300, true);
  for (const bool drafts : {true, false}) {
    SCOPED_TRACE(drafts ? "drafts" : "plain");
    const SchedulerStats stats =
        expect_answers_of_a_crowd(mini(), asked, {.slots = 5, .drafts = drafts});
    EXPECT_GT(stats.masks, 50);
    EXPECT_EQ(stats.grammar_failures, 0);
  }
}

// The loop without its thread, so that anything can happen between two turns.
void expect_answers_when_preempted(const std::vector<Asked>& asked, bool states) {
  const VirtualLoop clock;
  const auto device = kernels::create_cpu_device(1);
  const auto network = model::Network::load(mini(), *device, {}).value();
  // Of 16 tokens windows; a context takes up to 3 blocks.
  constexpr std::size_t kBlocks = 7;
  constexpr std::size_t kSlots = 4;
  NetworkDevice runner(*network, tokenizer(), clock,
                       {.slots = kSlots, .blocks = kBlocks, .states = states});
  Scheduler scheduler({.slots = kSlots,
                       .blocks = kBlocks,
                       .context_tokens = 300,
                       .drafts = NetworkDevice::drafts(network->plan(), {}),
                       .hit = model::hit_rule(network->plan(), model::WindowRebuild::kExact),
                       .prefill_tokens = 128,
                       .states = Bytes(states ? std::uint64_t{1} << 30U : 0)});
  StepLoop loop(scheduler, runner, clock, {});
  GrammarCompiler grammars(tokenizer());
  std::map<RequestId, std::size_t> numbers;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    auto request = std::make_shared<EngineRequest>(
        asked[i].generation, Seed(static_cast<std::uint64_t>(*asked[i].generation.sampling.seed)),
        grammars.grammar_of(asked[i].generation).value());
    numbers[scheduler.submit(std::move(request), {}, Priority::kInteractive, {}).value()] = i;
  }
  Random random(Seed(5), 0);
  std::vector<std::vector<TokenId>> answers(asked.size());
  std::size_t finished = 0;
  Metrics metrics;
  EngineMetrics told(metrics);
  while (loop.turn().value()) {
    told.update(scheduler);
    for (const Output& output : scheduler.take_outputs()) {
      auto& answer = answers[numbers.at(output.request)];
      answer.insert(answer.end(), output.tokens.begin(), output.tokens.end());
      finished += output.finish ? 1U : 0U;
    }
    scheduler.preempt(RequestId(1 + random.next_below(asked.size())));
  }
  EXPECT_EQ(finished, asked.size());
  EXPECT_GT(scheduler.stats().preemptions, 5);
  EXPECT_EQ(scheduler.stats().state_hits > 0, states);
  EXPECT_EQ(scheduler.cache().available(), kBlocks);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(answers[i], asked[i].alone->ids_) << "request " << i;
  }

  told.update(scheduler);
  const SchedulerStats& stats = scheduler.stats();
  for (const auto& [name, value] : std::initializer_list<std::pair<std::string_view, std::int64_t>>{
           {"galley_engine_steps_total", stats.steps},
           {"galley_engine_rows_total", stats.rows},
           {"galley_engine_preemptions_total", stats.preemptions},
           {"galley_engine_hit_tokens_total", stats.hit_tokens},
           {"galley_engine_prefill_tokens_total", stats.prefill_tokens},
           {"galley_engine_accepted_drafts_total", stats.drafts_accepted},
           {"galley_engine_masks_total", stats.masks},
           {"galley_engine_blocks", kBlocks},
           {"galley_engine_running_requests", 0},
           {"galley_engine_held_blocks", 0}}) {
    EXPECT_NE(metrics.render().find(fmt::format("\n{} {}\n", name, value)), std::string::npos)
        << name << " " << value;
  }
}

TEST(EngineSource, PreemptedRequestsGoOnAsIfNothingHadBeen) {
  const std::vector<Asked> asked = ask_alone(mini(), 2, 12, 250);
  for (const bool states : {true, false}) {
    SCOPED_TRACE(states ? "states" : "blocks");
    expect_answers_when_preempted(asked, states);
  }
}

TEST(EngineSource, PreemptedRequestsGoOnInTheirGrammar) {
  expect_answers_when_preempted(ask_alone(mini(), 4, 12, 250, true), true);
}

// A device whose steps verify any number of drafts, whatever pays.
class AnyBudget final : public StepDevice {
 public:
  AnyBudget(StepDevice& device, std::size_t gamma) : device_(device), gamma_(gamma) {}
  void launch_forward(StepPlan plan) override {
    plan.budget = random_.next_below(2 * gamma_);
    plan.temperatures.assign(gamma_, 0.25 + random_.next_float());
    device_.launch_forward(std::move(plan));
  }
  void launch_sampler(SamplerPlan plan) override { device_.launch_sampler(std::move(plan)); }
  [[nodiscard]] StepResult wait(StepId step) override { return device_.wait(step); }

 private:
  StepDevice& device_;
  const std::size_t gamma_;
  Random random_{Seed(9), 0};
};

TEST(EngineSource, NoBudgetChangesAnAnswer) {
  const std::vector<Asked> asked = ask_alone(mini(), 6, 10, 120);
  const VirtualLoop clock;
  const auto device = kernels::create_cpu_device(1);
  const auto network = model::Network::load(mini(), *device, {}).value();
  constexpr std::size_t kBlocks = 16;
  constexpr std::size_t kSlots = 5;
  NetworkDevice runner(*network, tokenizer(), clock, {.slots = kSlots, .blocks = kBlocks});
  const int gamma = NetworkDevice::drafts(network->plan(), {});
  AnyBudget any(runner, static_cast<std::size_t>(gamma));
  Scheduler scheduler({.slots = kSlots,
                       .blocks = kBlocks,
                       .context_tokens = 300,
                       .drafts = gamma,
                       .hit = model::hit_rule(network->plan(), model::WindowRebuild::kExact)});
  StepLoop loop(scheduler, any, clock, {});
  std::map<RequestId, std::vector<TokenId>> answers;
  for (const Asked& one : asked) {
    auto request = std::make_shared<EngineRequest>(
        one.generation, Seed(static_cast<std::uint64_t>(*one.generation.sampling.seed)));
    answers[scheduler.submit(std::move(request), {}, Priority::kInteractive, {}).value()];
  }
  while (loop.turn().value()) {
    for (const Output& output : scheduler.take_outputs()) {
      auto& answer = answers.at(output.request);
      answer.insert(answer.end(), output.tokens.begin(), output.tokens.end());
    }
  }
  std::size_t i = 0;
  for (const auto& [_, answer] : answers) {
    EXPECT_EQ(answer, asked[i++].alone->ids_) << "request " << i;
  }
  const SchedulerStats& stats = scheduler.stats();
  EXPECT_GT(stats.drafts_accepted, 0);
  EXPECT_LT(stats.drafts_verified, stats.drafts);
}

// Answers to one prompt: it is computed once, and each goes on as it would alone. Of whole blocks,
// of a block begun, and of both; prompts of the shortest kind, too.
TEST(EngineSource, ChoicesShareTheirPrompt) {
  for (const fs::path& folder : {mini(), checkpoint(model::SynthLike::kV4Flash)}) {
    const Alone alone(folder, {.drafts = false});
    for (const std::size_t prompt : {3U, 256U, 300U}) {
      SCOPED_TRACE(prompt);
      const Crowd crowd(folder, {.context_tokens = 512, .slots = 6});
      recipe::Generation generation;
      for (std::size_t i = 0; i < prompt; ++i) {
        generation.prompt.push_back(static_cast<TokenId>((i * 13 + 7) % 4000));
      }
      generation.max_tokens = 40;
      generation.sampling.seed = 5;
      generation.sampling.temperature = 1.0F;
      constexpr std::size_t kChoices = 5;
      std::vector<recipe::Generation> choices(kChoices, generation);
      std::vector<Sink> sinks(kChoices);
      std::vector<recipe::TokenSink*> told;
      for (std::size_t i = 0; i < kChoices; ++i) {
        choices[i].choice = static_cast<std::uint32_t>(i);
        told.push_back(&sinks[i]);
      }
      const auto active = crowd.source->start_choices(choices, told).value();
      for (std::size_t i = 0; i < kChoices; ++i) {
        sinks[i].wait_for_end();
        ASSERT_FALSE(sinks[i].error_) << to_string(*sinks[i].error_);
        expect_same(sinks[i], *alone.answer(choices[i]));
        EXPECT_EQ(sinks[i].started_->cached_tokens, i == 0 ? 0 : std::ssize(generation.prompt));
      }
      EXPECT_NE(sinks[0].ids_, sinks[1].ids_);
      const SchedulerStats stats = crowd.source->stats();
      EXPECT_EQ(stats.forks, static_cast<std::int64_t>(kChoices) - 1);
      EXPECT_EQ(stats.prefill_tokens, std::ssize(generation.prompt));
    }
  }
}

// A pool too small for all, and one that is cancelled: whoever finds no room waits.
TEST(EngineSource, ChoicesWithoutRoomWait) {
  const Alone alone(mini(), {.drafts = false});
  const Crowd crowd(mini(), {.context_tokens = 256, .slots = 2});
  recipe::Generation generation;
  generation.prompt = {5, 6, 7, 8};
  generation.max_tokens = 60;
  generation.sampling.seed = 5;
  std::vector<recipe::Generation> choices(7, generation);
  std::vector<Sink> sinks(choices.size());
  std::vector<recipe::TokenSink*> told;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    choices[i].choice = static_cast<std::uint32_t>(i);
    told.push_back(&sinks[i]);
  }
  auto active = crowd.source->start_choices(choices, told).value();
  active[0].reset();
  active[3].reset();
  for (const std::size_t i : {1U, 2U, 4U, 5U, 6U}) {
    sinks[i].wait_for_end();
    ASSERT_FALSE(sinks[i].error_) << to_string(*sinks[i].error_);
    expect_same(sinks[i], *alone.answer(choices[i]));
  }
}

// One source after another on a disk: the next goes on where the one before was, from whole blocks,
// and says what it would have said without.
class Restarts {
 public:
  explicit Restarts(model::WindowRebuild rebuild) : rebuild_(rebuild) {
    for (TokenId i = 0; i < 900; ++i) {
      generation.prompt.push_back((i * 31 + 5) % 4000);
    }
    generation.max_tokens = 20;
    generation.sampling.temperature = 0.0F;
    generation.sampling.logprobs = true;
  }
  std::unique_ptr<Sink> answer(const recipe::Generation& asked) {
    const auto store = cache::SegmentStore::open(disk, clock, {.seed = Seed(++starts_)}).value();
    const Crowd crowd(
        mini(), {.rebuild = rebuild_,
                 .store = {.store = store.get(), .weights = weights, .arithmetic = arithmetic}});
    auto out = crowd.answer(asked);
    stats = crowd.source->stats();
    return out;
  }
  void crash() { disk.restart(); }
  void damage() {
    const auto entries = disk.list().value();
    for (const DiskEntry& entry : entries) {
      for (std::uint64_t at = 5000; at < entry.bytes; at += 400'000) {
        disk.flip(entry.name, at, 3);
      }
    }
  }

  recipe::Generation generation;
  std::string weights = "w";
  std::string arithmetic = "a";
  VirtualLoop clock;
  VirtualDisk disk{Seed(1)};
  SchedulerStats stats;

 private:
  const model::WindowRebuild rebuild_;
  std::uint64_t starts_ = 0;
};

TEST(EngineSource, AnswersGoOnFromDiskAsWithoutIt) {
  Restarts restarts(model::WindowRebuild::kExact);
  const auto cold = restarts.answer(restarts.generation);
  EXPECT_EQ(cold->started_->cached_tokens, 0);
  expect_same(*cold, *Alone(mini(), {.drafts = false}).answer(restarts.generation));
  restarts.crash();
  const auto warm = restarts.answer(restarts.generation);
  // Six of seven whole blocks, but for five windows of 16: the end is always computed.
  EXPECT_EQ(warm->started_->cached_tokens, 768 - 5 * 16);
  EXPECT_EQ(restarts.stats.stored_hit_tokens, warm->started_->cached_tokens);
  expect_same(*warm, *cold);

  // What the answer left is there, too: the conversation goes on.
  recipe::Generation more = restarts.generation;
  more.prompt.insert(more.prompt.end(), cold->ids_.begin(), cold->ids_.end());
  for (TokenId i = 0; i < 200; ++i) {
    more.prompt.push_back((i * 17 + 3) % 4000);
  }
  const auto second = restarts.answer(more);
  EXPECT_EQ(second->started_->cached_tokens, 896 - 5 * 16);
  expect_same(*second, *Alone(mini(), {.drafts = false}).answer(more));

  recipe::Generation other = restarts.generation;
  other.tenant = "another";
  EXPECT_EQ(restarts.answer(other)->started_->cached_tokens, 0);
  recipe::Generation user = restarts.generation;
  user.user = "another";
  EXPECT_EQ(restarts.answer(user)->started_->cached_tokens, 0);
  restarts.weights = "others";
  EXPECT_EQ(restarts.answer(restarts.generation)->started_->cached_tokens, 0);
  restarts.weights = "w";
  restarts.arithmetic = "other";
  const auto foreign = restarts.answer(restarts.generation);
  EXPECT_EQ(foreign->started_->cached_tokens, 0);
  EXPECT_EQ(restarts.stats.misses_foreign, 1);
}

TEST(EngineSource, ADamagedDiskShortensHitsAndChangesNoAnswer) {
  Restarts restarts(model::WindowRebuild::kExact);
  const auto cold = restarts.answer(restarts.generation);
  restarts.damage();
  const auto warm = restarts.answer(restarts.generation);
  EXPECT_LT(warm->started_->cached_tokens, 768 - 5 * 16);
  expect_same(*warm, *cold);
  EXPECT_EQ(restarts.stats.misses_damaged + restarts.stats.misses_not_stored, 1);
}

// Its readers tell it how far they got until they have ended. Only the thread sanitizer sees the
// loss when they do not.
TEST(EngineSource, EndsWhileItsStoreStillReads) {
  Restarts restarts(model::WindowRebuild::kExact);
  restarts.answer(restarts.generation);
  const auto store =
      cache::SegmentStore::open(restarts.disk, restarts.clock, {.seed = Seed(9)}).value();
  HeldStore held(*store);
  Crowd crowd(mini(), {.store = {.store = &held, .weights = "w", .arithmetic = "a"}});
  Sink sink;
  auto active = crowd.source->start(restarts.generation, sink);
  ASSERT_TRUE(active);
  held.wait_for_read();
  active->reset();
  const std::jthread later([&] {
    for (int i = 0; i < 5000; ++i) {
      std::this_thread::yield();  // the end has begun then, most likely
    }
    held.let_go();
  });
  crowd.source.reset();
  EXPECT_FALSE(sink.started_);
}

// Behind a bounded rebuild blocks are approximate: who wants exact ones does not get them.
TEST(EngineSource, ApproximateBlocksOnDiskAreNotForExactWindows) {
  Restarts bounded(model::WindowRebuild::kBounded);
  recipe::Generation first = bounded.generation;
  first.prompt.resize(500);
  bounded.answer(first);
  const auto approximate = bounded.answer(bounded.generation);
  EXPECT_GT(approximate->started_->cached_tokens, 0);

  Restarts exact(model::WindowRebuild::kExact);
  const auto entries = bounded.disk.list().value();
  for (const DiskEntry& entry : entries) {
    exact.disk.put(entry.name, *bounded.disk.contents(entry.name));
  }
  const auto warm = exact.answer(exact.generation);
  // The three blocks that no replay went into.
  EXPECT_EQ(warm->started_->cached_tokens, 384 - 5 * 16);
  EXPECT_EQ(exact.stats.misses_foreign, 1);
  expect_same(*warm, *Alone(mini(), {.drafts = false}).answer(exact.generation));
}

TEST(EngineSource, V4GetsTheSameAnswersToo) {
  const fs::path& folder = checkpoint(model::SynthLike::kV4Flash);
  const std::vector<Asked> asked = ask_alone(folder, 3, 6, 60);
  expect_answers_of_a_crowd(folder, asked, {.context_tokens = 512, .slots = 3});
}

TEST(EngineSource, AHitAnswersAsTheColdPromptDid) {
  for (const auto rebuild : {model::WindowRebuild::kExact, model::WindowRebuild::kBounded}) {
    const Crowd crowd(mini(), {.rebuild = rebuild});
    recipe::Generation generation;
    for (TokenId i = 0; i < 500; ++i) {
      generation.prompt.push_back((i * 31 + 5) % 4000);
    }
    generation.max_tokens = 20;
    generation.sampling.temperature = 0.0F;
    generation.sampling.logprobs = true;
    const auto cold = crowd.answer(generation);
    const auto warm = crowd.answer(generation);
    // The oracle computes the hit with a sequence of its own, so its windows begin empty.
    expect_same(*warm, *Alone(mini(), {.rebuild = rebuild}).answer(generation));
    EXPECT_EQ(cold->started_->cached_tokens, 0);
    // Of 472 tokens before those that are always computed, three blocks; their windows are rebuilt
    // from five of 16 tokens, or one.
    EXPECT_EQ(warm->started_->cached_tokens,
              384 - (rebuild == model::WindowRebuild::kExact ? 5 : 1) * 16);
    if (rebuild == model::WindowRebuild::kExact) {
      EXPECT_EQ(warm->ids_, cold->ids_);
    }

    recipe::Generation user = generation;
    user.user = "another";
    EXPECT_EQ(crowd.answer(user)->started_->cached_tokens, 0);
    generation.tenant = "another";
    EXPECT_EQ(crowd.answer(generation)->started_->cached_tokens, 0);
  }
}

// Where windows are rebuilt they are not whole until the hit ends: nobody goes on from a state of
// there, not even if the request that rebuilds them is gone before it is through.
TEST(EngineSource, NoStateIsOfWindowsThatAreBeingRebuilt) {
  const fs::path& folder = checkpoint(model::SynthLike::kV41Flash);
  const auto device = kernels::create_cpu_device(1);
  const auto network = model::Network::load(folder, *device, {}).value();
  const model::HitRule rule = model::hit_rule(network->plan(), model::WindowRebuild::kExact);
  ASSERT_GT(rule.replay_tokens, 2 * kBlockTokens) << "a block has to end among them";
  ManualClock clock;
  NetworkDevice runner(*network, tokenizer(), clock, {.slots = 1, .blocks = 32, .states = true});
  Scheduler scheduler({.slots = 1,
                       .blocks = 32,
                       .context_tokens = 1024,
                       .drafts = NetworkDevice::drafts(network->plan(), {}),
                       .hit = rule,
                       .prefill_tokens = kBlockTokens,
                       .states = Bytes(std::uint64_t{1} << 30U)});
  StepLoop loop(scheduler, runner, clock, {});
  // `same` tokens like all others, then its own.
  const auto generation = [](TokenId own, std::size_t same, std::size_t length) {
    recipe::Generation out;
    for (TokenId i = 0; i < length; ++i) {
      out.prompt.push_back(i < same ? (i * 31 + 5) % 4000 : (i * 17 + own) % 4000);
    }
    out.max_tokens = 6;
    out.sampling.temperature = 0.0F;
    out.sampling.logprobs = true;
    return out;
  };
  const auto submit = [&](const recipe::Generation& one) {
    return scheduler
        .submit(std::make_shared<EngineRequest>(one, Seed(1)), {}, Priority::kInteractive,
                clock.now())
        .value();
  };
  (void)submit(generation(1, 1000, 1000));
  while (loop.turn().value()) {
  }
  clock.advance(cache::kStateLife);  // its states are gone, its blocks are not

  const RequestId gone = submit(generation(2, 780, 800));
  const std::int64_t fed = scheduler.stats().prefill_tokens;
  while (scheduler.stats().prefill_tokens < fed + 3 * kBlockTokens) {
    ASSERT_TRUE(loop.turn().value());
  }
  scheduler.cancel(gone);
  (void)scheduler.take_outputs();

  const recipe::Generation next = generation(3, 660, 720);
  (void)submit(next);
  Sink got;
  while (loop.turn().value()) {
    for (const Output& output : scheduler.take_outputs()) {
      got.ids_.insert(got.ids_.end(), output.tokens.begin(), output.tokens.end());
      got.logprobs_.insert(got.logprobs_.end(), output.logprobs.begin(), output.logprobs.end());
      got.finish_ = output.finish;
    }
  }
  EXPECT_GT(scheduler.stats().hit_tokens, 0);
  expect_same(got, *Alone(folder, {.drafts = false}).answer(next));
}

// The next turn of a conversation computes nothing again, and answers as if it had computed all.
TEST(EngineSource, ATurnGoesOnBehindTheStateOfTheLast) {
  for (const bool drafts : {true, false}) {
    for (const std::int64_t length : {500, 1100}) {
      SCOPED_TRACE(fmt::format("{} tokens, {}", length, drafts ? "drafts" : "plain"));
      const Crowd crowd(mini(), {.drafts = drafts});
      recipe::Generation generation;
      for (TokenId i = 0; std::ssize(generation.prompt) < length; ++i) {
        generation.prompt.push_back((i * 31 + 5) % 4000);
      }
      generation.max_tokens = length == 500 ? 200 : 4;
      generation.sampling.temperature = 0.0F;
      generation.sampling.logprobs = true;
      const auto first = crowd.answer(generation);
      ASSERT_EQ(first->finish_, recipe::SourceFinish::kLength);
      generation.prompt.insert(generation.prompt.end(), first->ids_.begin(), first->ids_.end());
      for (TokenId i = 0; i < 60; ++i) {
        generation.prompt.push_back((i * 17 + 3) % 4000);
      }
      generation.max_tokens = 20;
      const auto next = crowd.answer(generation);
      // 640 lies in the answer, 1024 is where the first prompt's whole blocks end.
      const std::int64_t state = length == 500 ? 640 : 1024;
      EXPECT_EQ(next->started_->cached_tokens, state);
      EXPECT_EQ(crowd.source->stats().state_hits, 1);
      expect_same(*next, *Alone(mini(), {.drafts = false}).answer(generation));
      generation.user = "another";
      EXPECT_EQ(crowd.answer(generation)->started_->cached_tokens, 0);

      const Crowd without(mini(), {.states = Bytes(0), .drafts = drafts});
      (void)without.answer(generation);
      EXPECT_LT(without.answer(generation)->started_->cached_tokens, state);
      EXPECT_EQ(without.source->stats().state_hits, 0);
    }
  }
}

TEST(EngineSource, TellsWhyThePromptWasNotInTheCache) {
  const auto reason = [](const Sink& sink) {
    EXPECT_FALSE(sink.error_) << to_string(*sink.error_);
    const auto& miss = sink.started_->cache_miss;
    return miss ? fmt::format("{} {}", name(miss->reason), miss->token) : "none";
  };
  // As few blocks as one context takes, and one block that goes when the pool is full.
  const Crowd crowd(mini(), {.context_tokens = 900, .slots = 1, .cache = Bytes(1)});
  recipe::Generation generation;
  for (TokenId i = 0; i < 500; ++i) {
    generation.prompt.push_back((i * 31 + 5) % 4000);
  }
  generation.max_tokens = 4;
  EXPECT_EQ(reason(*crowd.answer(generation)), "not_stored 0");
  EXPECT_EQ(reason(*crowd.answer(generation)), "none");
  recipe::Generation changed = generation;
  changed.prompt[300] = 17;
  EXPECT_EQ(reason(*crowd.answer(changed)), "different 300");
  // A client is not told that somebody else asked this; the operator is.
  recipe::Generation foreign = generation;
  foreign.tenant = "another";
  EXPECT_EQ(reason(*crowd.answer(foreign)), "not_stored 0");
  EXPECT_EQ(crowd.source->stats().misses_other_scope, 1);
  EXPECT_EQ(crowd.source->stats().misses_different, 1);
  // Other prompts push it out, from its end on.
  for (TokenId other = 1; other <= 3; ++other) {
    recipe::Generation one = generation;
    one.prompt[0] = other;
    crowd.answer(one);
  }
  EXPECT_TRUE(reason(*crowd.answer(generation)).starts_with("evicted "));
  recipe::Generation brief = generation;
  brief.prompt.resize(100);
  EXPECT_EQ(reason(*crowd.answer(brief)), "none");  // nothing could have been found
}

// For benchmarks: what is accepted is what was asked for, not what the model says.
TEST(EngineSource, AcceptanceCanBeInjected) {
  recipe::Generation generation;
  generation.prompt = {5, 6, 7};
  generation.max_tokens = 200;
  generation.sampling.temperature = 0.0F;
  const auto share = [&](double acceptance) {
    const Crowd crowd(mini(), {.slots = 1, .injected_acceptance = acceptance});
    crowd.answer(generation);
    const SchedulerStats stats = crowd.source->stats();
    EXPECT_GT(stats.drafts_verified, 0);
    return static_cast<double>(stats.drafts_accepted) / static_cast<double>(stats.drafts_verified);
  };
  EXPECT_EQ(share(0.0), 0.0);
  EXPECT_GT(share(1.0), 0.95);  // all but what stands behind the last token
}

// A loop whose device breaks the protocol: everybody is told once, and nothing is taken any more.
TEST(EngineSource, AFailedDeviceEndsEverything) {
  Crowd crowd(mini(), {.context_tokens = 400, .slots = 2, .defect = Defect::kSettleOutOfOrder});
  recipe::Generation generation;
  generation.prompt = {5, 6, 7};
  generation.max_tokens = 300;
  std::vector<std::unique_ptr<Sink>> sinks;
  std::vector<std::unique_ptr<recipe::ActiveGeneration>> active;
  for (int i = 0; i < 5; ++i) {
    sinks.push_back(std::make_unique<Sink>());
    auto started = crowd.source->start(generation, *sinks.back());
    if (!started) {  // it has failed already
      EXPECT_EQ(started.error().code, Code::kUnavailable);
      sinks.pop_back();
      continue;
    }
    active.push_back(*std::move(started));
  }
  ASSERT_FALSE(sinks.empty());
  for (const auto& sink : sinks) {
    sink->wait_for_end();
    ASSERT_TRUE(sink->error_);
    EXPECT_EQ(sink->error_->code, Code::kInternal) << to_string(*sink->error_);
  }
  EXPECT_FALSE(crowd.source->ready());
  Sink refused;
  EXPECT_EQ(crowd.source->start(generation, refused).error().code, Code::kUnavailable);
  active.clear();  // cancels what is not there any more
  EXPECT_FALSE(refused.error_);
}

// The CPU's device with memory for so many buffers of a size, and no more.
class SmallDevice final : public kernels::Device {
 public:
  SmallDevice(std::size_t bytes, int buffers) : bytes_(bytes), left_(buffers) {}
  [[nodiscard]] std::unique_ptr<kernels::Buffer> try_allocate(std::size_t bytes) override {
    return bytes == bytes_ && left_-- <= 0 ? nullptr : device_->try_allocate(bytes);
  }
  [[nodiscard]] std::unique_ptr<kernels::Stream> create_stream() override {
    return device_->create_stream();
  }
  [[nodiscard]] std::unique_ptr<kernels::Event> create_event() override {
    return device_->create_event();
  }

 private:
  std::unique_ptr<kernels::Device> device_ = kernels::create_cpu_device(1);
  const std::size_t bytes_;
  int left_;
};

TEST(EngineSource, WithoutMemoryForABlockARequestFailsAndOthersGoOn) {
  const std::size_t block = [] {
    const auto device = kernels::create_cpu_device(1);
    return model::Network::load(mini(), *device, {}).value()->plan().cache.block_stride;
  }();
  SmallDevice device(block, 2);
  const VirtualLoop clock;
  const auto source = EngineSource::create(model::Network::load(mini(), device, {}).value(),
                                           tokenizer(), clock, {.context_tokens = 900, .slots = 1})
                          .value();
  const auto answer = [&](std::size_t prompt, std::int64_t tokens) {
    recipe::Generation generation;
    for (std::size_t i = 0; i < prompt; ++i) {
      generation.prompt.push_back(static_cast<TokenId>((i * 13 + prompt) % 4000));
    }
    generation.max_tokens = tokens;
    auto sink = std::make_unique<Sink>();
    const auto active = source->start(std::move(generation), *sink).value();
    sink->wait_for_end();
    return sink;
  };
  EXPECT_EQ(answer(100, 5)->ids_.size(), 5U);
  // One that grows over what there is.
  const auto growing = answer(120, 300);
  ASSERT_TRUE(growing->error_);
  EXPECT_EQ(growing->error_->code, Code::kUnavailable);
  EXPECT_GT(growing->ids_.size(), 5U);
  EXPECT_TRUE(source->ready());
  // From then on the pool is as large as memory is.
  const auto large = answer(300, 5);
  ASSERT_TRUE(large->error_);
  EXPECT_EQ(large->error_->where, "max_tokens");
  EXPECT_EQ(answer(90, 7)->ids_.size(), 7U);
}

TEST(EngineSource, MoreCacheThanTheMachineHasIsRefused) {
  const auto device = kernels::create_cpu_device(1);
  const VirtualLoop clock;
  const auto made = EngineSource::create(
      model::Network::load(mini(), *device, {}).value(), tokenizer(), clock,
      {.cache = Bytes(std::uint64_t{4} << 30U), .memory = Bytes(std::uint64_t{2} << 30U)});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_EQ(made.error().where, "engine.cache");
  EXPECT_NE(made.error().what.find("more than the 2048 MiB"), std::string::npos)
      << made.error().what;
}

TEST(EngineSource, EveryWayToEndIsTold) {
  Crowd crowd(mini(), {.context_tokens = 400, .slots = 2, .waiting_max = 2});
  recipe::Generation generation;
  generation.prompt = {5, 6, 7};
  generation.max_tokens = 398;
  Sink refused;
  const auto too_long = crowd.source->start(generation, refused);
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, Code::kInvalidArgument);
  EXPECT_EQ(too_long.error().where, "max_tokens");

  generation.max_tokens = 390;
  generation.sampling.temperature = 0.0F;
  std::vector<std::unique_ptr<Sink>> sinks;
  std::vector<std::unique_ptr<recipe::ActiveGeneration>> active;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_unique<Sink>());
    active.push_back(crowd.source->start(generation, *sinks.back()).value());
  }
  const std::vector<recipe::Generation> many(5, generation);
  const std::vector<recipe::TokenSink*> nobody(5, &refused);
  const auto never = crowd.source->start_choices(many, nobody);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, Code::kInvalidArgument);
  EXPECT_EQ(never.error().where, "n");
  const auto fifth = crowd.source->start(generation, refused);
  ASSERT_FALSE(fifth);
  EXPECT_EQ(fifth.error().code, Code::kOverloaded);
  active.erase(active.begin() + 1, active.end());  // cancelled
  sinks[0]->wait_for_end();
  EXPECT_EQ(sinks[0]->ids_.size(), 390U);
  for (const auto& sink : sinks) {
    EXPECT_FALSE(sink->error_) << to_string(*sink->error_);  // what start() takes is not refused
  }

  generation.deadline = crowd.clock.now();
  const auto late = crowd.answer(generation);
  ASSERT_TRUE(late->error_);
  EXPECT_EQ(late->error_->code, Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace galley::engine
