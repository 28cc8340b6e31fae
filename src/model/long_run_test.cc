// Goal: what only shows at length, at full width or with gigabytes. Method: synthetic V4.1
// checkpoints with real index sizes and with real layer shapes, one way of computing compared with
// another bit for bit; with large tables and large weights, what the kernel says of this process's
// memory and reads. Minutes on reference kernels, so `ctest -C Long -L long` runs it, in a release
// build.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "base/cpu_count.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "model/memory.h"
#include "model/network.h"
#include "model/synth.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

constexpr int kVocabulary = 4096;

Tokens tokens_of(std::size_t count) {
  Random random(Seed(1), 0);
  Tokens tokens(count);
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random.next_below(kVocabulary - 100));
  }
  return tokens;
}

class LongRun : public testing::Test {
 protected:
  void load(SynthOptions options) {
    options.like = SynthLike::kV41Flash;
    options.vocabulary = kVocabulary;
    fs::remove_all(folder_);
    const TimeNs begin = clock_.now();
    const auto done = synthesise(options, folder_, {});
    ASSERT_TRUE(done) << to_string(done.error());
    say("written", begin);
    device_ = kernels::create_cpu_device(cpu_count());
    auto network = Network::load(folder_, *device_, {});
    ASSERT_TRUE(network) << to_string(network.error());
    network_ = std::move(*network);
  }
  ~LongRun() override { fs::remove_all(folder_); }

  void say(const std::string& what, TimeNs begin) const {
    fmt::print("  {:<40} {:8.1f} s\n", what,
               std::chrono::duration<double>(clock_.now() - begin).count());
    std::fflush(stdout);
  }

  // Logits of the last row of each step; the first `prompt` tokens in chunks of `chunk`, the rest
  // one by one.
  std::vector<float> run(const Tokens& tokens, std::int64_t prompt, std::int64_t chunk) {
    constexpr std::int64_t kSayEvery = 2000;
    const auto sequence = network_->new_sequence();
    std::vector<float> logits;
    TimeNs begin = clock_.now();
    const TimeNs start = begin;
    while (sequence->length() < std::ssize(tokens)) {
      const std::int64_t at = sequence->length();
      const std::int64_t size = at < prompt ? std::min(chunk, prompt - at) : 1;
      const SequenceRows rows{.sequence = sequence.get(),
                              .tokens = std::span(tokens).subspan(static_cast<std::size_t>(at),
                                                                  static_cast<std::size_t>(size)),
                              .prompt_tokens = prompt};
      const bool wanted = at + size >= prompt;
      const ForwardResult result =
          network_
              ->forward({&rows, 1},
                        {.cut = CutMode::kCompact, .logits_tail = wanted ? std::size_t{1} : 0})
              .value();
      logits.insert(logits.end(), result.logits.begin(), result.logits.end());
      if (at / kSayEvery != (at + size) / kSayEvery) {
        say(fmt::format("chunks of {}, up to {}", chunk, at + size), begin);
        begin = clock_.now();
      }
    }
    say(fmt::format("chunks of {}, {} tokens", chunk, tokens.size()), start);
    return logits;
  }

  RealClock clock_;
  fs::path folder_ =
      fs::path(testing::TempDir()) / (std::to_string(::getpid()) + "_galley_long_run");
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Network> network_;
};

constexpr double kMegabyte = 1e6;

// The number behind `key` in a file of /proc, in its own unit.
std::int64_t proc_value(const char* file, std::string_view key) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with(key)) {
      return std::stoll(line.substr(key.size()));
    }
  }
  throw std::runtime_error(fmt::format("{} has no {}", file, key));
}

// Memory of this process that is in RAM: its own and mapped pages.
std::int64_t resident_bytes() {
  return proc_value("/proc/self/status", "VmRSS:") * 1024;
}

std::int64_t mapped_resident_bytes() {
  return proc_value("/proc/self/status", "RssFile:") * 1024;
}

// Bytes this process asked the kernel for by read calls.
std::int64_t read_bytes() {
  return proc_value("/proc/self/io", "rchar:");
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Hidden 256, nine layers: every role of V4.1, with real index sizes. Beyond 512 entries the lists
// leave some out; beyond 16,384 candidates the masked indexer (layer 8) does.
TEST_F(LongRun, TwentyThousandTokensInAnyChunks) {
  ASSERT_NO_FATAL_FAILURE(load({.layers = 9, .hidden = 256, .experts = 8}));
  ASSERT_EQ(network_->plan().layers[8].role, LayerRole::kReindex);
  ASSERT_TRUE(network_->plan().layers[8].masked_by_candidates);
  const Tokens tokens = tokens_of(20'000);
  const std::int64_t prompt = 19'990;
  const std::vector<float> whole = run(tokens, prompt, prompt);
  EXPECT_EQ(whole.size(), 11U * kVocabulary);
  EXPECT_TRUE(same_bits(whole, run(tokens, prompt, 333)));
}

// Layers as wide as the released model's; few of them, with few experts.
TEST_F(LongRun, RealLayerShapes) {
  ASSERT_NO_FATAL_FAILURE(load({.layers = 4, .experts = 6}));
  ASSERT_EQ(network_->plan().config.hidden, 5120);
  ASSERT_EQ(network_->plan().config.heads, 64);
  const Tokens tokens = tokens_of(64);
  const std::vector<float> whole = run(tokens, 60, 60);
  EXPECT_EQ(whole.size(), 5U * kVocabulary);
  EXPECT_TRUE(same_bits(whole, run(tokens, 60, 23)));
}

// Engram tables stay on disk (spec model 7): what is in memory is bounded by the weights.
TEST_F(LongRun, FourGigabytesOfEngramAreNotInMemory) {
  constexpr std::int64_t kTables = 4'000'000'000;
  constexpr std::int64_t kChunk = 512;
  ASSERT_NO_FATAL_FAILURE(
      load({.layers = 6, .hidden = 256, .experts = 8, .engram_bytes = kTables}));
  const Checkpoint::Sizes sizes = network_->checkpoint().sizes();
  EXPECT_GT(static_cast<std::int64_t>(sizes.tables), kTables / 100 * 95);
  const Tokens tokens = tokens_of(2048);
  EXPECT_FALSE(run(tokens, 2048, kChunk).empty());
  const std::size_t logits = (kChunk - 1) * kVocabulary * sizeof(float);  // not asked for
  const auto needed = static_cast<double>(memory_needs(network_->checkpoint(), kChunk).step);
  const auto taken = static_cast<double>(network_->step_bytes() + logits);
  EXPECT_NEAR(needed, taken, 0.03 * taken);
  const std::int64_t resident = resident_bytes();
  fmt::print(
      "  weights {:.0f} MB, engram tables {:.0f} MB, in memory after 2,048 tokens {:.0f} MB\n",
      static_cast<double>(sizes.weights) / kMegabyte, static_cast<double>(sizes.tables) / kMegabyte,
      static_cast<double>(resident) / kMegabyte);
  EXPECT_LT(resident, static_cast<std::int64_t>(sizes.weights) + 200'000'000);
}

// Loading maps: it reads headers and small tables, and of matrices only what the kernel maps around
// the vectors between them.
TEST_F(LongRun, LoadingTouchesNextToNothing) {
  constexpr std::int64_t kTouchedMax = 64'000'000;
  ASSERT_NO_FATAL_FAILURE(load({.layers = 8, .hidden = 2560, .experts = 56}));
  network_.reset();
  const std::int64_t read_before = read_bytes();
  const std::int64_t mapped_before = mapped_resident_bytes();
  const TimeNs begin = clock_.now();
  auto network = Network::load(folder_, *device_, {});
  ASSERT_TRUE(network) << to_string(network.error());
  say("loaded", begin);
  const std::int64_t read = read_bytes() - read_before;
  const std::int64_t touched = mapped_resident_bytes() - mapped_before;
  const Checkpoint::Sizes sizes = (*network)->checkpoint().sizes();
  const auto stored = static_cast<std::int64_t>(sizes.weights + sizes.tables);
  fmt::print("  {:.0f} MB stored; read {:.1f} MB, mapped pages touched {:.1f} MB\n",
             static_cast<double>(stored) / kMegabyte, static_cast<double>(read) / kMegabyte,
             static_cast<double>(touched) / kMegabyte);
  EXPECT_GT(stored, 3'000'000'000);
  EXPECT_LT(read + touched, kTouchedMax);
}

}  // namespace
}  // namespace galley::model
