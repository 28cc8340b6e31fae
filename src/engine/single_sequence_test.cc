// Goal: the loop delivers what the network and the sampler say, in the order the seam promises, and
// lets go at once. Method: tiny synthetic checkpoints; answers compared with a loop written out
// here, with and without drafts and chunks.
#include "engine/single_sequence.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/virtual_loop.h"
#include "engine/sampler.h"
#include "engine/source_for_test.h"
#include "kernels/formats.h"
#include "model/synth.h"

namespace galley::engine {
namespace {

namespace fs = std::filesystem;

const fs::path& v41() {
  return checkpoint(model::SynthLike::kV41Flash);
}

// A copy of the V4.1 checkpoint whose BF16 tensors `names` hold `value` everywhere.
fs::path patched(const std::vector<std::string>& names, float value) {
  const fs::path folder = v41().string() + "_patched";
  fs::remove_all(folder);
  fs::copy(v41(), folder);
  const fs::path path = folder / "model-00001-of-00001.safetensors";
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto tensors = model::parse_safetensors(std::as_bytes(std::span(bytes)));
  for (const std::string& name : names) {
    const auto view = tensors->at(name).bytes;
    const std::uint16_t code = kernels::to_bf16(value);
    for (std::size_t at = 0; at < view.size(); at += sizeof(code)) {
      std::memcpy(
          bytes.data() + (view.data() - reinterpret_cast<const std::byte*>(bytes.data())) + at,
          &code, sizeof(code));
    }
  }
  std::ofstream(path, std::ios::binary) << bytes;
  return folder;
}

using Fixture = Served<SingleSequenceSource, SingleSequenceOptions>;

std::vector<TokenId> prompt_of(int length) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) {
    ids.push_back(static_cast<TokenId>((i * 37 + 11) % 4000));
  }
  return ids;
}

recipe::Generation generation_of(int prompt, int tokens, recipe::Sampling sampling = {}) {
  recipe::Generation generation;
  generation.prompt = prompt_of(prompt);
  generation.sampling = std::move(sampling);
  generation.max_tokens = tokens;
  return generation;
}

// The answer as its definition says: every token fed alone, nothing cut, no drafts.
std::vector<TokenId> by_hand(const fs::path& folder,
                             const recipe::Generation& generation,
                             Seed seed) {
  const auto device = kernels::create_cpu_device(1);
  const auto network = model::Network::load(folder, *device, {}).value();
  const auto sequence = network->new_sequence();
  const std::vector<std::int32_t> prompt(generation.prompt.begin(), generation.prompt.end());
  model::SequenceRows rows{
      .sequence = sequence.get(), .tokens = prompt, .prompt_tokens = std::ssize(prompt)};
  std::vector<TokenId> answer;
  TokenCounts counts;
  std::int32_t newest{};
  while (std::ssize(answer) < generation.max_tokens) {
    const auto result =
        network->forward({&rows, 1}, {.cut = model::CutMode::kMask, .logits_tail = 1}).value();
    const auto sampled =
        sample(result.logits, generation.sampling, counts,
               {.seed = seed, .choice = generation.choice, .position = sequence->length()});
    answer.push_back(sampled->token);
    ++counts[sampled->token];
    newest = static_cast<std::int32_t>(sampled->token);
    rows.tokens = {&newest, 1};
  }
  return answer;
}

// The longer prompt reaches past the rows that are kept above V4.1's cut (140).
TEST(SingleSequence, AnswersAreTheNetworksHoweverTheyAreComputed) {
  struct Case {
    model::SynthLike like;
    int prompt;
    recipe::Sampling sampling;
  };
  const recipe::Sampling sampled{
      .temperature = 0.8F, .top_p = 0.9F, .seed = 42, .presence_penalty = 0.5F};
  for (const Case& one : {Case{model::SynthLike::kV4Flash, 30, {.temperature = 0.0F}},
                          Case{model::SynthLike::kV4Flash, 30, sampled},
                          Case{model::SynthLike::kV41Flash, 160, sampled}}) {
    const fs::path& folder = checkpoint(one.like);
    const recipe::Generation generation = generation_of(one.prompt, 8, one.sampling);
    const auto want = by_hand(folder, generation, Seed(42));
    for (const auto& [chunk, drafts] : {std::pair{1000, false}, std::pair{17, true}}) {
      Fixture fixture(folder, {.prefill_chunk = static_cast<std::size_t>(chunk), .drafts = drafts});
      const auto sink = fixture.answer(generation);
      EXPECT_EQ(sink->ids_, want) << drafts << " " << chunk;
      EXPECT_EQ(sink->finish_, recipe::SourceFinish::kLength);
      EXPECT_EQ(sink->started_->prompt_tokens, one.prompt);
      const SingleSequenceStats stats = fixture.source->stats();
      EXPECT_EQ(stats.prompt_tokens, one.prompt);
      EXPECT_EQ(stats.answer_tokens, 8);
      EXPECT_EQ(stats.drafts_verified > 0, drafts);
    }
  }
}

// A head of zeros makes every logit equal: the model and its drafter both say token 0, so every
// draft is right; a penalty then makes some wrong.
TEST(SingleSequence, AcceptedDraftsSaveStepsAndChangeNothing) {
  const fs::path folder = patched({"head.weight", "mtp.2.markov_head.head.weight"}, 0.0F);
  recipe::Sampling always{.temperature = 0.0F};
  recipe::Sampling sometimes = always;
  sometimes.frequency_penalty = 0.3F;
  sometimes.logit_bias = {{0, 0.8F}, {9, 0.5F}};
  for (const recipe::Sampling& sampling : {always, sometimes}) {
    Fixture plain(folder, {.drafts = false});
    Fixture drafting(folder);
    const auto want = plain.answer(generation_of(20, 25, sampling));
    const auto got = drafting.answer(generation_of(20, 25, sampling));
    EXPECT_EQ(got->ids_, want->ids_);
    EXPECT_EQ(want->ids_.size(), 25U);
    const SingleSequenceStats stats = drafting.source->stats();
    EXPECT_GT(stats.drafts_accepted, 0);
    EXPECT_EQ(plain.source->stats().decode_steps, 24);
    EXPECT_EQ(stats.decode_steps + stats.drafts_accepted, 24);
    if (sampling.logit_bias.empty()) {
      // One token from the prompt, then six a step: 24 = 4 * 6.
      EXPECT_EQ(stats.decode_steps, 4);
      EXPECT_EQ(stats.drafts_accepted, 20);
    } else {
      EXPECT_LT(stats.drafts_accepted, stats.drafts_verified);
    }
  }
  fs::remove_all(folder);
}

// Of one model's answer at temperature 1, position by position: a first draft made with the noise
// of the draw that it foretells is right more often than the likeliest token is.
TEST(SingleSequence, DraftsFollowTheNoiseOfTheDraw) {
  const auto device = kernels::create_cpu_device(1);
  const auto network =
      model::Network::load(fs::path(GALLEY_TESTS_DIR) / "../models/mini-test", *device, {}).value();
  const auto sequence = network->new_sequence();
  const recipe::Sampling sampling{.temperature = 1.0F};
  const auto draw_at = [](std::int64_t position) {
    return Draw{.seed = Seed(3), .choice = 0, .position = position};
  };
  std::vector<std::int32_t> fed{5, 6, 7};
  int coupled = 0;
  int likeliest = 0;
  constexpr int kPositions = 300;
  for (int i = 0; i < kPositions; ++i) {
    const std::int64_t begin = sequence->length();
    const model::SequenceRows part{.sequence = sequence.get(), .tokens = fed};
    const model::ForwardResult result = network->forward({&part, 1}, {.logits_tail = 1}).value();
    network->draft_context(*sequence, result.features, begin);
    const std::int64_t length = sequence->length();
    const TokenId next = sample(result.logits, sampling, {}, draw_at(length))->token;
    const model::DraftRow row{.sequence = sequence.get(), .token = static_cast<std::int32_t>(next)};
    const auto choose = [&](std::size_t, std::size_t k, std::span<const float> logits) {
      return static_cast<std::int32_t>(
          draft_token(logits, sampling, {}, draw_at(length + 1 + static_cast<std::int64_t>(k))));
    };
    const auto drafted = network->draft({&row, 1}, {.choose = choose}).front().tokens.front();
    const auto greedy = network->draft(*sequence, row.token).tokens.front();
    fed = {row.token};
    // What comes: the network behind `next`, on a sequence that is taken back again.
    const model::SequenceRows ahead{.sequence = sequence.get(), .tokens = fed};
    const auto logits = network->forward({&ahead, 1}, {.logits_tail = 1}).value().logits;
    sequence->truncate(length);
    const auto after =
        static_cast<std::int32_t>(sample(logits, sampling, {}, draw_at(length + 1))->token);
    coupled += drafted == after ? 1 : 0;
    likeliest += greedy == after ? 1 : 0;
  }
  EXPECT_GT(coupled, likeliest + kPositions / 20) << likeliest;
}

// The drafter's last layer of zeros makes every chance one half; every draft is right.
TEST(SingleSequence, ConfidencesAreComparedWithWhatCame) {
  const fs::path folder = patched(
      {"head.weight", "mtp.2.markov_head.head.weight", "mtp.2.confidence_head.proj.weight"}, 0.0F);
  Fixture fixture(folder);
  fixture.answer(generation_of(20, 25, {.temperature = 0.0F}));
  const SingleSequenceStats stats = fixture.source->stats();
  EXPECT_EQ(stats.confidence[5].drafts, 20);
  EXPECT_EQ(stats.confidence[5].accepted, 20);
  EXPECT_EQ(stats.confidence[5].predicted, 10.0);
  EXPECT_EQ(calibration_error(stats.confidence), 0.5);

  // With some wrong: the first wrong draft of each step is judged, too.
  Fixture sometimes(folder);
  recipe::Sampling penalised{.temperature = 0.0F};
  penalised.frequency_penalty = 0.3F;
  penalised.logit_bias = {{0, 0.8F}, {9, 0.5F}};
  sometimes.answer(generation_of(20, 25, penalised));
  const SingleSequenceStats mixed = sometimes.source->stats();
  EXPECT_EQ(mixed.confidence[5].accepted, mixed.drafts_accepted);
  EXPECT_GT(mixed.confidence[5].drafts, mixed.confidence[5].accepted);
  EXPECT_LE(mixed.confidence[5].drafts - mixed.confidence[5].accepted, mixed.decode_steps);

  // A draft of the token that ends the answer was right: 9, 9, and then 0, which all drafts are.
  Fixture ended(folder);
  recipe::Generation generation = generation_of(20, 25, penalised);
  generation.sampling.logit_bias = {{9, 0.5F}};
  generation.stop_ids = {0};
  EXPECT_EQ(ended.answer(generation)->ids_, (std::vector<TokenId>{9, 9}));
  EXPECT_EQ(ended.source->stats().confidence[5].drafts, 2);
  EXPECT_EQ(ended.source->stats().confidence[5].accepted, 1);
  fs::remove_all(folder);
}

// The small shipped model has windows of 16 tokens and keeps 28 above its cut at layer 5: of 165
// tokens 128 are a hit, of 155 none.
TEST(SingleSequence, AnswersBehindAHitAreTheColdOnesWhereWindowsAreExact) {
  using model::WindowRebuild;
  const fs::path mini = fs::path(GALLEY_TESTS_DIR) / "../models/mini-test";
  struct Case {
    fs::path folder;
    WindowRebuild rebuild;
    int prompt;
    int fed;  // of it
  };
  for (const Case& one :
       {Case{checkpoint(model::SynthLike::kV4Flash), WindowRebuild::kStored, 140, 12},
        Case{mini, WindowRebuild::kStored, 165, 37},
        Case{mini, WindowRebuild::kExact, 165, 37 + 5 * 16},
        Case{mini, WindowRebuild::kStored, 156, 28},
        Case{mini, WindowRebuild::kExact, 156, 28 + 5 * 16},
        Case{mini, WindowRebuild::kStored, 155, 155}}) {
    const recipe::Generation generation =
        generation_of(one.prompt, 6, {.temperature = 0.0F, .logprobs = true, .top_logprobs = 5});
    Fixture cold(one.folder);
    Fixture hit(one.folder, {.rebuild = one.rebuild});
    const auto want = cold.answer(generation);
    const auto got = hit.answer(generation);
    EXPECT_EQ(got->ids_, want->ids_);
    ASSERT_EQ(got->logprobs_.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      for (std::size_t k = 0; k < 5; ++k) {
        EXPECT_EQ(got->logprobs_[i].top[k].logprob, want->logprobs_[i].top[k].logprob)
            << one.prompt << " " << static_cast<int>(one.rebuild);
      }
    }
    EXPECT_EQ(hit.source->stats().prompt_tokens, one.fed);
    EXPECT_EQ(hit.source->stats().drafts_accepted, cold.source->stats().drafts_accepted);
  }
}

// No window looks below the replayed tokens, which a bounded rebuild alone shows: elsewhere what is
// there is forgotten by the time it would count.
TEST(SingleSequence, ABoundedRebuildReplaysOneWindowAndLooksNoFurther) {
  const fs::path mini = fs::path(GALLEY_TESTS_DIR) / "../models/mini-test";
  const recipe::Generation generation =
      generation_of(165, 1, {.temperature = 0.0F, .logprobs = true, .top_logprobs = 5});
  Fixture bounded(mini, {.rebuild = model::WindowRebuild::kBounded});
  const auto got = bounded.answer(generation);
  EXPECT_EQ(bounded.source->stats().prompt_tokens, 165 - 128 + 16);

  const auto device = kernels::create_cpu_device(1);
  const auto network = model::Network::load(mini, *device, {}).value();
  const std::vector<std::int32_t> prompt(generation.prompt.begin(), generation.prompt.end());
  const auto found = network->new_sequence();
  const model::SequenceRows stored{.sequence = found.get(), .tokens = std::span(prompt).first(128)};
  ASSERT_TRUE(network->forward({&stored, 1}, {}));
  const auto sequence = network->new_sequence();
  sequence->adopt(found->blocks(), found->history(), 112);
  const model::SequenceRows rest{.sequence = sequence.get(),
                                 .tokens = std::span(prompt).subspan(112),
                                 .window_begin = 112,
                                 .write_floor = 128,
                                 .prompt_tokens = 165};
  const auto result =
      network->forward({&rest, 1}, {.cut = model::CutMode::kMask, .logits_tail = 1}).value();
  const auto want = sample(result.logits, generation.sampling, {}, {.position = 165});
  ASSERT_EQ(got->logprobs_.size(), 1U);
  for (std::size_t k = 0; k < 5; ++k) {
    EXPECT_EQ(got->logprobs_[0].top[k].logprob, want->top[k].second);
  }
}

TEST(SingleSequence, ABoundedRebuildIsForV41Only) {
  const auto device = kernels::create_cpu_device(1);
  auto network = model::Network::load(checkpoint(model::SynthLike::kV4Flash), *device, {}).value();
  VirtualLoop loop;
  const auto source = SingleSequenceSource::create(std::move(network), tokenizer(), loop,
                                                   {.rebuild = model::WindowRebuild::kBounded});
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().where, "rebuild");
}

TEST(SingleSequence, ASeedRepeatsAndNoSeedDoesNot) {
  Fixture fixture(v41());
  const auto once = fixture.answer(generation_of(10, 6, {.seed = 5}));
  EXPECT_EQ(fixture.answer(generation_of(10, 6, {.seed = 5}))->ids_, once->ids_);
  EXPECT_NE(fixture.answer(generation_of(10, 6, {.seed = 6}))->ids_, once->ids_);
  recipe::Generation second = generation_of(10, 6, {.seed = 5});
  second.choice = 1;
  EXPECT_NE(fixture.answer(second)->ids_, once->ids_);
  EXPECT_NE(fixture.answer(generation_of(10, 6))->ids_, fixture.answer(generation_of(10, 6))->ids_);
}

TEST(SingleSequence, AStopTokenEndsTheTurnAndIsNotDelivered) {
  for (const bool drafts : {false, true}) {
    Fixture fixture(v41(), {.drafts = drafts});
    recipe::Generation generation = generation_of(10, 6, {.temperature = 0.0F});
    const auto whole = fixture.answer(generation);
    generation.stop_ids = {whole->ids_[3]};
    const auto stopped = fixture.answer(generation);
    const auto first = std::ranges::find(whole->ids_, whole->ids_[3]);
    EXPECT_EQ(stopped->ids_, std::vector<TokenId>(whole->ids_.begin(), first));
    EXPECT_EQ(stopped->finish_, recipe::SourceFinish::kStop);
  }
}

TEST(SingleSequence, LogprobsComeOnceATokenWithTheirText) {
  Fixture fixture(v41());
  const auto sink = fixture.answer(
      generation_of(10, 4, {.temperature = 0.0F, .logprobs = true, .top_logprobs = 2}));
  ASSERT_EQ(sink->logprobs_.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sink->logprobs_[i].token, tokenizer()->bytes(sink->ids_[i]));
    ASSERT_EQ(sink->logprobs_[i].top.size(), 2U);
    EXPECT_EQ(sink->logprobs_[i].top[0].token, sink->logprobs_[i].token);  // greedy
    EXPECT_EQ(sink->logprobs_[i].top[0].logprob, sink->logprobs_[i].logprob);
    EXPECT_LE(sink->logprobs_[i].top[1].logprob, sink->logprobs_[i].top[0].logprob);
  }
}

TEST(SingleSequence, RequestsAreAnsweredInTheirOrder) {
  Fixture fixture(v41());
  Sink first;
  Sink second;
  const auto one = fixture.source->start(generation_of(10, 3, {.seed = 1}), first);
  const auto two = fixture.source->start(generation_of(12, 3, {.seed = 1}), second);
  second.wait_for_end();
  EXPECT_TRUE(first.finish_);
  EXPECT_EQ(fixture.source->stats().requests, 2);
}

constexpr int kForever = 1'000'000;  // tokens; no test waits for them

TEST(SingleSequence, AFullQueueIsOverloadedAndACancelMakesRoom) {
  Fixture fixture(v41(), {.waiting_max = 2});
  Sink running;
  auto active = fixture.source->start(generation_of(10, kForever), running);
  running.wait_for_tokens();
  Sink sinks[3];
  auto first = fixture.source->start(generation_of(10, 1), sinks[0]);
  auto second = fixture.source->start(generation_of(10, 1), sinks[1]);
  ASSERT_TRUE(first && second);
  const auto third = fixture.source->start(generation_of(10, 1), sinks[2]);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, Code::kOverloaded);
  first->reset();  // while it waits
  auto fourth = fixture.source->start(generation_of(10, 1), sinks[2]);
  ASSERT_TRUE(fourth);
  active->reset();  // while it runs
  sinks[1].wait_for_end();
  sinks[2].wait_for_end();
  EXPECT_FALSE(sinks[0].started_);
  EXPECT_FALSE(running.finish_ || running.error_);
}

TEST(SingleSequence, AfterACancelTheSinkHearsNothing) {
  Fixture fixture(v41());
  auto sink = std::make_unique<Sink>();
  auto active = fixture.source->start(generation_of(10, kForever), *sink);
  sink->wait_for_tokens();
  active->reset();
  const std::size_t count = sink->count();
  fixture.answer(generation_of(5, 1));
  EXPECT_EQ(sink->count(), count);
}

TEST(SingleSequence, ADeadlineEndsWhatRunsAndWhatWaits) {
  Fixture fixture(v41());
  recipe::Generation late = generation_of(10, 5);
  late.deadline = fixture.clock.now();
  const auto sink = fixture.answer(late);
  ASSERT_TRUE(sink->error_);
  EXPECT_EQ(sink->error_->code, Code::kDeadlineExceeded);
  EXPECT_TRUE(sink->ids_.empty());

  Sink running;
  auto active = fixture.source->start(generation_of(10, kForever), running);
  running.wait_for_tokens();
  Sink waiting;
  const auto waits = fixture.source->start(late, waiting);
  waiting.wait_for_end();  // although its turn never comes
  EXPECT_EQ(waiting.error_->code, Code::kDeadlineExceeded);
  EXPECT_FALSE(waiting.started_);
  active->reset();
}

TEST(SingleSequence, WhatItCannotDoIsRefusedByName) {
  Fixture fixture(v41(), {.context_tokens = 100});
  Sink sink;
  const auto refused = [&](recipe::Generation generation, Code code) {
    const auto active = fixture.source->start(std::move(generation), sink);
    EXPECT_FALSE(active);
    EXPECT_EQ(active.error().code, code);
    return active.error().where;
  };
  const auto cannot = [&](recipe::Generation generation) {
    return refused(std::move(generation), Code::kUnimplemented);
  };
  const auto where = [&](recipe::Generation generation) {
    return refused(std::move(generation), Code::kInvalidArgument);
  };
  recipe::Generation json = generation_of(5, 5);
  json.constraint.kind = recipe::Constraint::Kind::kJson;
  EXPECT_EQ(cannot(json), "response_format");
  recipe::Generation required = generation_of(5, 5);
  required.constraint.kind = recipe::Constraint::Kind::kToolCallRequired;
  EXPECT_EQ(cannot(required), "tool_choice");
  recipe::Generation images = generation_of(5, 5);
  images.images.emplace_back();
  EXPECT_EQ(cannot(images), "messages");
  recipe::Generation foreign = generation_of(5, 5);
  foreign.prompt.push_back(kVocabulary);
  EXPECT_EQ(where(foreign), "prompt");
  EXPECT_EQ(where(generation_of(5, 5, {.logit_bias = {{kVocabulary, 1.0F}}})), "logit_bias");
  EXPECT_EQ(where(generation_of(51, 50)), "max_tokens");
  EXPECT_EQ(where(generation_of(5, std::numeric_limits<int>::max())), "max_tokens");
  EXPECT_EQ(where(generation_of(0, 5)), "");
  EXPECT_EQ(where(generation_of(5, 0)), "");
  EXPECT_TRUE(fixture.source->start(generation_of(50, 50), sink));
}

TEST(SingleSequence, ABrokenModelIsAnErrorNotAToken) {
  const fs::path folder = patched({"norm.weight"}, 1e38F);
  Fixture fixture(folder);
  const auto sink = fixture.answer(generation_of(10, 5));
  ASSERT_TRUE(sink->error_);
  EXPECT_EQ(sink->error_->code, Code::kInternal);
  EXPECT_TRUE(sink->ids_.empty());
  fs::remove_all(folder);
}

TEST(SingleSequence, ABrokenDrafterChangesNoAnswer) {
  const fs::path folder = patched({"mtp.2.ffn_norm.weight"}, 3e38F);
  Fixture plain(folder, {.drafts = false});
  Fixture drafting(folder);
  const recipe::Sampling greedy{.temperature = 0.0F};
  const auto want = plain.answer(generation_of(10, 5, greedy));
  const auto got = drafting.answer(generation_of(10, 5, greedy));
  EXPECT_FALSE(got->error_);
  EXPECT_EQ(got->ids_, want->ids_);
  EXPECT_EQ(got->ids_.size(), 5U);
  fs::remove_all(folder);
}

TEST(SingleSequence, ATokenizerWithMoreIdsThanTheModelIsRefused) {
  const fs::path folder = fs::path(testing::TempDir()) /
                          (std::to_string(::getpid()) + "_galley_single_sequence_few_ids");
  fs::remove_all(folder);
  ASSERT_TRUE(model::synthesise({.like = model::SynthLike::kV4Flash,
                                 .vocabulary = kVocabulary - 1,
                                 .layers = 1,
                                 .hidden = 32,
                                 .experts = 2},
                                folder, {}));
  const auto device = kernels::create_cpu_device(1);
  const VirtualLoop clock;
  const auto source = SingleSequenceSource::create(
      model::Network::load(folder, *device, {}).value(), tokenizer(), clock, {});
  ASSERT_FALSE(source);
  EXPECT_NE(source.error().what.find("4096 ids, the model only 4095"), std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace galley::engine
