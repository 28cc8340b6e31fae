// Goal: a row's numbers depend on its sequence alone, bit for bit: not on the batch, the chunks,
// the threads, rejected drafts, parking, or whether the prefix was cached. Method: the tiny
// goldens' checkpoints (window 16, kept rows 28) of both families; every way to compute the same
// rows is compared with one whole prefill.
#include <algorithm>
#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/network.h"

namespace galley::model {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::size_t kPrompt = 300;
constexpr std::int64_t kHit = 256;  // two blocks

Tokens tokens_of(std::uint64_t stream, std::size_t count) {
  Random random(Seed(1), stream);
  Tokens tokens(count);
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random.next_below(240));  // below noise and image ids
  }
  return tokens;
}

std::span<const std::int32_t> part(const Tokens& tokens, std::int64_t begin, std::int64_t end) {
  return std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(end - begin));
}

class NetworkProperty : public testing::TestWithParam<const char*> {
 protected:
  // The network and the whole prefill everything is compared with, once a family.
  struct World {
    explicit World(const std::string& family, int threads = 2)
        : device(kernels::create_cpu_device(threads)),
          network(Network::load(std::string(GALLEY_TESTS_DIR) + "/golden/" + family, *device, {})
                      .value()),
          tokens(tokens_of(0, kPrompt)) {}

    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<Network> network;
    Tokens tokens;
    std::vector<float> cold;  // logits of every row
  };

  World& world() {
    static std::map<std::string, std::unique_ptr<World>> worlds;
    std::unique_ptr<World>& one = worlds[GetParam()];
    if (one == nullptr) {
      one = std::make_unique<World>(GetParam());
      const auto sequence = one->network->new_sequence();
      one->cold = feed(*one, *sequence, one->tokens);
    }
    return *one;
  }

  static std::vector<float> feed(World& world,
                                 Sequence& sequence,
                                 std::span<const std::int32_t> tokens) {
    const SequenceRows rows{.sequence = &sequence, .tokens = tokens};
    return world.network->forward({&rows, 1}, {}).value().logits;
  }

  static std::size_t vocabulary(const World& world) {
    return static_cast<std::size_t>(world.network->plan().config.vocabulary);
  }

  // Whether `logits` are those of positions from `first` on, to the last bit.
  static testing::AssertionResult is_cold(const World& world,
                                          std::int64_t first,
                                          std::span<const float> logits) {
    const auto want =
        std::span(world.cold)
            .subspan(static_cast<std::size_t>(first) * vocabulary(world), logits.size());
    return same(want, logits);
  }
  static testing::AssertionResult same(std::span<const float> want, std::span<const float> got) {
    if (want.size() != got.size() || got.empty()) {
      return testing::AssertionFailure() << want.size() << " and " << got.size() << " values";
    }
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::memcmp(&want[i], &got[i], sizeof(float)) != 0) {
        return testing::AssertionFailure()
               << "value " << i << " of " << want.size() << ": " << want[i] << ", " << got[i];
      }
    }
    return testing::AssertionSuccess();
  }
};

TEST_P(NetworkProperty, AloneIsAsInABatchOfEight) {
  World& w = world();
  // Rows fed before, and rows in the batch: prefill from nothing, decode, verification, chunks that
  // close groups of 2, 4 and 128 tokens.
  constexpr std::array<std::pair<int, int>, 8> kShapes{
      {{0, 40}, {5, 1}, {17, 6}, {126, 6}, {0, 1}, {31, 1}, {60, 20}, {1, 3}}};
  std::vector<Tokens> tokens;
  std::vector<std::unique_ptr<Sequence>> together;
  std::vector<SequenceRows> batch;
  std::vector<std::vector<float>> want;
  for (const auto& [before, rows] : kShapes) {
    tokens.push_back(tokens_of(tokens.size() + 1, static_cast<std::size_t>(before + rows)));
  }
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const auto& [before, rows] = kShapes[i];
    const auto alone = w.network->new_sequence();
    together.push_back(w.network->new_sequence());
    if (before > 0) {
      feed(w, *alone, part(tokens[i], 0, before));
      feed(w, *together.back(), part(tokens[i], 0, before));
    }
    want.push_back(feed(w, *alone, part(tokens[i], before, before + rows)));
    batch.push_back(
        {.sequence = together.back().get(), .tokens = part(tokens[i], before, before + rows)});
  }
  const ForwardResult result = w.network->forward(batch, {}).value();
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const ForwardResult::Part& rows = result.parts[i];
    EXPECT_EQ(rows.first_position, kShapes[i].first);
    EXPECT_TRUE(same(
        want[i],
        std::span(result.logits).subspan(rows.begin * vocabulary(w), rows.rows * vocabulary(w))))
        << i;
  }
}

TEST_P(NetworkProperty, AnyChunksAreOneChunk) {
  World& w = world();
  for (std::uint64_t round = 0; round < 2; ++round) {
    Random random(Seed(2), round);
    const auto sequence = w.network->new_sequence();
    while (sequence->length() < std::ssize(w.tokens)) {
      const std::int64_t begin = sequence->length();
      const auto size = static_cast<std::int64_t>(random.next_below(round == 0 ? 9 : 120)) + 1;
      const std::int64_t end = std::min(begin + size, std::ssize(w.tokens));
      ASSERT_TRUE(is_cold(w, begin, feed(w, *sequence, part(w.tokens, begin, end)))) << begin;
    }
  }
}

TEST_P(NetworkProperty, OneThreadIsTwo) {
  World& w = world();
  World one(GetParam(), 1);
  const auto sequence = one.network->new_sequence();
  EXPECT_TRUE(is_cold(w, 0, feed(one, *sequence, part(w.tokens, 0, 140))));
}

TEST_P(NetworkProperty, VerifyingSixIsSixSteps) {
  World& w = world();
  const auto six = w.network->new_sequence();
  const auto ones = w.network->new_sequence();
  feed(w, *six, part(w.tokens, 0, 124));
  feed(w, *ones, part(w.tokens, 0, 124));
  // Across the edge of a block, and at every phase of a group of four.
  for (std::int64_t at = 124; at < 148; at += 6) {
    EXPECT_TRUE(is_cold(w, at, feed(w, *six, part(w.tokens, at, at + 6))));
    for (std::int64_t p = at; p < at + 6; ++p) {
      EXPECT_TRUE(is_cold(w, p, feed(w, *ones, part(w.tokens, p, p + 1))));
    }
  }
}

// Rejected drafts of every number the rings allow, at every phase of a group, leave nothing behind.
TEST_P(NetworkProperty, RollbackIsNeverHavingGoneFurther) {
  World& w = world();
  const int furthest = w.network->plan().config.draft->block + 1;
  const Tokens wrong = tokens_of(99, static_cast<std::size_t>(furthest));
  const auto sequence = w.network->new_sequence();
  feed(w, *sequence, part(w.tokens, 0, 115));
  for (int back = 1; back <= furthest; ++back) {
    for (int again = 0; again < 3; ++again) {
      const std::int64_t at = sequence->length();
      feed(w, *sequence, part(wrong, 0, back));
      sequence->truncate(at);
      ASSERT_TRUE(is_cold(w, at, feed(w, *sequence, part(w.tokens, at, at + 1)))) << back;
    }
  }
  // Also when part of what was fed stays, as after a step with some drafts accepted.
  for (int kept = 1; kept < furthest; ++kept) {
    const std::int64_t at = sequence->length();
    Tokens mixed(part(w.tokens, at, at + kept).begin(), part(w.tokens, at, at + kept).end());
    mixed.insert(mixed.end(), wrong.begin(), wrong.begin() + furthest - kept);
    feed(w, *sequence, mixed);
    sequence->truncate(at + kept);
    ASSERT_TRUE(is_cold(w, at + kept, feed(w, *sequence, part(w.tokens, at + kept, at + kept + 1))))
        << kept;
  }
}

TEST_P(NetworkProperty, AParkedRequestContinuesAsIfItHadStayed) {
  World& w = world();
  for (const std::int64_t at : {std::int64_t{103}, std::int64_t{128}}) {
    const auto first = w.network->new_sequence();
    feed(w, *first, part(w.tokens, 0, at));
    const std::vector<float> state = first->save_state();
    const auto later = w.network->new_sequence();
    later->adopt(first->blocks(), first->history(), at);
    later->restore_state(state);
    EXPECT_TRUE(is_cold(w, at, feed(w, *later, part(w.tokens, at, at + 30)))) << at;
  }
}

// Context rows of different numbers, then a block behind each: all at once, or one by one.
TEST_P(NetworkProperty, DraftsOfABatchAreThoseOfEachAlone) {
  World& w = world();
  constexpr std::array<std::int64_t, 5> kLengths{1, 9, 17, 40, 131};
  struct Fed {
    std::unique_ptr<Sequence> together;
    std::unique_ptr<Sequence> alone;
    ForwardResult result;
  };
  std::vector<Fed> all;
  std::vector<DraftContextRows> context;
  std::vector<DraftRow> rows;
  for (std::size_t i = 0; i < kLengths.size(); ++i) {
    const Tokens tokens = tokens_of(20 + i, static_cast<std::size_t>(kLengths[i]));
    Fed& fed = all.emplace_back(w.network->new_sequence(), w.network->new_sequence());
    for (Sequence* const one : {fed.together.get(), fed.alone.get()}) {
      const SequenceRows part{.sequence = one, .tokens = tokens};
      fed.result = w.network->forward({&part, 1}, {}).value();
    }
  }
  for (const Fed& fed : all) {
    context.push_back({fed.together.get(), fed.result.features, 0});
    rows.push_back({fed.together.get(), static_cast<std::int32_t>(7 + rows.size())});
    w.network->draft_context(*fed.alone, fed.result.features, 0);
  }
  w.network->draft_context(context);
  for (int again = 0; again < 2; ++again) {  // drafting leaves no trace
    const std::vector<DraftResult> got = w.network->draft(rows, {.values = true});
    ASSERT_EQ(got.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const DraftResult want = w.network->draft(*all[i].alone, rows[i].token);
      EXPECT_EQ(got[i].tokens, want.tokens) << i;
      EXPECT_TRUE(same(want.logits, got[i].logits)) << i;
      EXPECT_TRUE(same(want.hidden, got[i].hidden)) << i;
      EXPECT_TRUE(same(want.confidences, got[i].confidences)) << i;
    }
  }
}

// What is chosen is what the chain goes on with.
TEST_P(NetworkProperty, DraftsAreChosenByTheCaller) {
  World& w = world();
  const auto sequence = w.network->new_sequence();
  const SequenceRows part{.sequence = sequence.get(), .tokens = w.tokens};
  const ForwardResult result = w.network->forward({&part, 1}, {}).value();
  w.network->draft_context(*sequence, result.features, 0);
  const DraftResult largest = w.network->draft(*sequence, 7);
  const auto choosing = [&](std::size_t position, std::int32_t token) {
    const DraftRow row{sequence.get(), 7};
    const auto choose = [&](std::size_t, std::size_t k, std::span<const float> logits) {
      return k == position
                 ? token
                 : static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
    };
    return std::move(w.network->draft({&row, 1}, {.choose = choose, .values = true}).front());
  };
  const std::int32_t other = (largest.tokens[1] + 1) % 240;
  EXPECT_EQ(choosing(1, largest.tokens[1]).tokens, largest.tokens);
  const DraftResult got = choosing(1, other);
  EXPECT_EQ(got.tokens[0], largest.tokens[0]);
  EXPECT_EQ(got.tokens[1], other);
  const std::size_t v = vocabulary(w);
  EXPECT_TRUE(same(std::span(largest.logits).first(2 * v), std::span(got.logits).first(2 * v)));
  EXPECT_FALSE(
      same(std::span(largest.logits).subspan(2 * v, v), std::span(got.logits).subspan(2 * v, v)));
}

struct Computed {
  CutMode cut = CutMode::kCompact;
  std::int64_t chunk = kPrompt;
  std::int64_t window_begin = 0;
  std::int64_t write_floor = 0;
};

// Logits of the kept rows of a prompt and of eight tokens decoded behind it, computed from the
// sequence's length on.
struct Ending {
  std::vector<float> prompt;
  std::vector<float> decoded;
};

Ending end_prompt(Network& network, Sequence& sequence, const Tokens& tokens, const Computed& how) {
  constexpr std::int64_t kDecoded = 8;
  const std::int64_t prompt = std::ssize(tokens) - kDecoded;
  const auto vocabulary = static_cast<std::size_t>(network.plan().config.vocabulary);
  Ending ending;
  while (sequence.length() < std::ssize(tokens)) {
    const std::int64_t begin = sequence.length();
    const std::int64_t end = begin < prompt ? std::min(begin + how.chunk, prompt)
                                            : std::min(begin + 3, std::ssize(tokens));
    const SequenceRows rows{.sequence = &sequence,
                            .tokens = part(tokens, begin, end),
                            .window_begin = begin < prompt ? how.window_begin : 0,
                            .write_floor = how.write_floor,
                            .prompt_tokens = prompt};
    const ForwardResult result = network.forward({&rows, 1}, {.cut = how.cut}).value();
    // Of the prompt only what every way computes: the rows kept above the cut.
    const std::int64_t kept = prompt - network.plan().keep;
    const std::int64_t first = result.parts.front().first_position;
    const auto skip = static_cast<std::size_t>(std::max<std::int64_t>(0, kept - first));
    if (skip < result.parts.front().rows) {
      auto& out = begin < prompt ? ending.prompt : ending.decoded;
      out.insert(out.end(), result.logits.begin() + static_cast<std::ptrdiff_t>(skip * vocabulary),
                 result.logits.end());
    }
  }
  return ending;
}

TEST_P(NetworkProperty, CompactIsMask) {
  World& w = world();
  if (w.network->plan().cut < 0) {
    return;  // V4 has no cut
  }
  const Tokens tokens(w.tokens.begin(), w.tokens.begin() + 158);
  const auto masked = w.network->new_sequence();
  const Ending want = end_prompt(*w.network, *masked, tokens, {.cut = CutMode::kMask});
  for (const std::int64_t chunk : {150, 64, 7}) {  // 7 cuts the rectangle several times
    const auto sequence = w.network->new_sequence();
    const Ending got = end_prompt(*w.network, *sequence, tokens, {.chunk = chunk});
    EXPECT_TRUE(same(want.prompt, got.prompt)) << chunk;
    EXPECT_TRUE(same(want.decoded, got.decoded)) << chunk;
  }
  // The cut does cut: it is not the answer of a full prefill.
  EXPECT_FALSE(is_cold(w, 150, want.decoded));
}

TEST_P(NetworkProperty, AfterAHitWithExactOrStoredWindowsAllIsAsCold) {
  World& w = world();
  const ModelPlan& plan = w.network->plan();
  const auto cold = w.network->new_sequence();
  const Ending want = end_prompt(*w.network, *cold, w.tokens, {});

  const auto earlier = w.network->new_sequence();
  feed(w, *earlier, part(w.tokens, 0, kHit));
  std::vector<float> state = earlier->save_state();
  if (plan.cut >= 0) {  // only what lies below the cut is stored
    const std::size_t ring = static_cast<std::size_t>(plan.cache.ring_rows) *
                             static_cast<std::size_t>(plan.config.head_dim);
    const auto windows = static_cast<std::size_t>(plan.config.layers + plan.draft_stages) * ring;
    std::fill(
        state.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(plan.cut) * ring),
        state.begin() + static_cast<std::ptrdiff_t>(windows), 1e9F);
  }
  for (const WindowRebuild rebuild : {WindowRebuild::kExact, WindowRebuild::kStored}) {
    const auto sequence = w.network->new_sequence();
    const std::int64_t start = hit_rule(plan, rebuild).replay_begin(kHit);
    EXPECT_EQ(start == kHit, rebuild == WindowRebuild::kStored);
    EXPECT_GT(start, 0);
    sequence->adopt(earlier->blocks(), earlier->history(), start);
    if (rebuild == WindowRebuild::kStored) {
      sequence->restore_state(state);
    }
    const bool stored = rebuild == WindowRebuild::kStored;
    const Ending got =
        end_prompt(*w.network, *sequence, w.tokens,
                   {.chunk = 50, .window_begin = stored ? 0 : start, .write_floor = kHit});
    EXPECT_TRUE(same(want.prompt, got.prompt)) << static_cast<int>(rebuild);
    EXPECT_TRUE(same(want.decoded, got.decoded)) << static_cast<int>(rebuild);
  }
}

TEST_P(NetworkProperty, BoundedReplayCostsAWindowAndLeavesStoredBlocksAlone) {
  World& w = world();
  const ModelPlan& plan = w.network->plan();
  if (plan.config.family == Family::kV4) {
    return;  // only adopts hits in an exact way
  }
  const auto earlier = w.network->new_sequence();
  feed(w, *earlier, part(w.tokens, 0, kHit));
  std::vector<std::vector<std::byte>> before;
  for (const auto& block : earlier->blocks()) {
    before.emplace_back(block->data(), block->data() + block->size());
  }
  const auto sequence = w.network->new_sequence();
  const std::int64_t start = hit_rule(plan, WindowRebuild::kBounded).replay_begin(kHit);
  EXPECT_EQ(kHit - start, plan.config.window);
  sequence->adopt(earlier->blocks(), earlier->history(), start);
  const Ending got = end_prompt(*w.network, *sequence, w.tokens,
                                {.chunk = 50, .window_begin = start, .write_floor = kHit});
  EXPECT_FALSE(got.decoded.empty());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(sequence->blocks()[i], earlier->blocks()[i]);
    EXPECT_EQ(std::memcmp(before[i].data(), earlier->blocks()[i]->data(), before[i].size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, NetworkProperty, testing::Values("v4", "v41"));

}  // namespace
}  // namespace galley::model
