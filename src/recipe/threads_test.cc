// Goal: one tokenizer and one prompt encoder serve any number of threads. Method: four threads and
// the answers one thread gave before; a program of its own, so that ThreadSanitizer runs only this.
#include <algorithm>
#include <future>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "recipe/prompt_encoder.h"
#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

std::shared_ptr<const Tokenizer> small() {
  return small_tokenizer_for_test(GALLEY_TESTS_DIR).value();
}

// 1 to `parts_max` parts, few of them, so that runs repeat and a cache hits and evicts.
std::string random_text(std::mt19937& random, std::size_t parts_max) {
  static const std::vector<std::string> kParts = {"the ", "\n\n", "汉字",    "é\u0301",
                                                  "🦀",   "0x1F", "<think>", std::string(150, 'a')};
  std::string text;
  for (std::size_t left = 1 + random() % parts_max; left != 0; --left) {
    text += kParts[random() % kParts.size()];
  }
  return text;
}

// Whether `same(i)` holds for each i below `count` on four threads at once, each in its own order.
template <class Same>
bool holds_on_threads(std::size_t count, Same same) {
  std::vector<std::future<bool>> threads;
  for (std::size_t thread = 0; thread != 4; ++thread) {
    threads.push_back(std::async(std::launch::async, [&, thread] {
      bool all = true;
      for (std::size_t i = 0; i != count; ++i) {
        all = same((i + thread * 7) % count) && all;
      }
      return all;
    }));
  }
  return std::ranges::count_if(threads, [](std::future<bool>& thread) { return thread.get(); }) ==
         4;
}

TEST(Threads, ShareOneTokenizer) {
  std::mt19937 random(6);
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i != 200; ++i) {
    texts.push_back(random_text(random, 60));
    small()->encode(texts.back(), expected.emplace_back());
  }
  const auto tokenizer = small();
  EXPECT_TRUE(holds_on_threads(texts.size(), [&](std::size_t i) {
    std::vector<TokenId> ids;
    tokenizer->encode(texts[i], ids);
    return ids == expected[i] && tokenizer->decode(ids) == texts[i];
  }));
}

TEST(Threads, ShareOnePromptEncoder) {
  std::mt19937 random(9);
  const ControlIds controls = ControlIds::find(*small(), ModelVersion::kV41).value();
  PromptEncoder alone(small(), controls, 0);
  std::vector<Prompt> prompts;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i != 60; ++i) {
    Prompt& prompt = prompts.emplace_back();
    for (auto left = random() % 8; left != 0; --left) {
      const std::size_t begin = prompt.text.size();
      prompt.text += spelling(Control::kUser);
      prompt.controls.push_back({begin, prompt.text.size(), Control::kUser});
      prompt.text += random_text(random, 3);
    }
    expected.push_back(alone.encode(prompt));
  }
  PromptEncoder shared(small(), controls, 3'000);  // evicts all the time
  EXPECT_TRUE(holds_on_threads(
      prompts.size(), [&](std::size_t i) { return shared.encode(prompts[i]) == expected[i]; }));
}

}  // namespace
}  // namespace galley::recipe
