#pragma once

#include <filesystem>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/virtual_loop.h"
#include "kernels/device.h"
#include "model/network.h"
#include "model/synth.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer_for_test.h"

// What the tests of token sources over a network share.
namespace galley::engine {

inline constexpr int kVocabulary = 4096;

inline std::shared_ptr<const recipe::Tokenizer> tokenizer() {
  return recipe::small_tokenizer_for_test(GALLEY_TESTS_DIR).value();
}

// A tiny checkpoint of each family, written once a process.
inline const std::filesystem::path& checkpoint(model::SynthLike like) {
  static std::map<model::SynthLike, std::filesystem::path> made;
  std::filesystem::path& folder = made[like];
  if (folder.empty()) {
    folder =
        std::filesystem::path(testing::TempDir()) /
        (std::to_string(::getpid()) + "_galley_engine_" + std::to_string(static_cast<int>(like)));
    std::filesystem::remove_all(folder);
    const auto done = model::synthesise({.like = like,
                                         .vocabulary = kVocabulary,
                                         .layers = like == model::SynthLike::kV41Flash ? 6 : 4,
                                         .hidden = 32,
                                         .experts = 4,
                                         .engram_bytes = 1 << 18},
                                        folder, {});
    EXPECT_TRUE(done) << to_string(done.error());
  }
  return folder;
}

// Keeps what it is told and checks the order.
class Sink final : public recipe::TokenSink {
 public:
  void on_start(const recipe::Started& value) override {
    const MutexLock lock(mutex_);
    EXPECT_FALSE(started_ || over());
    started_ = value;
    changed_.notify_all();
  }
  void on_tokens(std::span<const TokenId> ids,
                 std::span<const recipe::TokenLogprob> logprobs) override {
    const MutexLock lock(mutex_);
    EXPECT_TRUE(started_ && !over() && !ids.empty());
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    ++steps_;
    changed_.notify_all();
  }
  void on_finish(recipe::SourceFinish reason) override {
    const MutexLock lock(mutex_);
    EXPECT_TRUE(started_ && !over());
    finish_ = reason;
    changed_.notify_all();
  }
  void on_error(Error error) override {
    const MutexLock lock(mutex_);
    EXPECT_FALSE(over());
    error_ = std::move(error);
    changed_.notify_all();
  }

  void wait_for_end() {
    const MutexLock lock(mutex_);
    while (!over()) {
      changed_.wait(mutex_);
    }
  }
  void wait_for_tokens() {
    const MutexLock lock(mutex_);
    while (ids_.empty() && !over()) {
      changed_.wait(mutex_);
    }
  }
  [[nodiscard]] std::size_t count() {
    const MutexLock lock(mutex_);
    return ids_.size();
  }

  Mutex mutex_;
  CondVar changed_;
  std::optional<recipe::Started> started_;
  std::vector<TokenId> ids_;
  std::vector<recipe::TokenLogprob> logprobs_;
  std::optional<recipe::SourceFinish> finish_;
  std::optional<Error> error_;
  int steps_ = 0;

 private:
  [[nodiscard]] bool over() const { return finish_ || error_; }
};

// A source over a checkpoint, with a device of its own.
template <class Source, class Options>
struct Served {
  explicit Served(const std::filesystem::path& folder, Options options = {})
      : device(kernels::create_cpu_device(1)) {
    auto made = Source::create(model::Network::load(folder, *device, {}).value(), tokenizer(),
                               clock, std::move(options));
    EXPECT_TRUE(made) << to_string(made.error());
    source = std::move(*made);
  }

  std::unique_ptr<Sink> answer(recipe::Generation generation) const {
    auto sink = std::make_unique<Sink>();
    const auto active = source->start(std::move(generation), *sink);
    EXPECT_TRUE(active) << to_string(active.error());
    sink->wait_for_end();
    return sink;
  }

  VirtualLoop clock;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Source> source;
};
}  // namespace galley::engine
