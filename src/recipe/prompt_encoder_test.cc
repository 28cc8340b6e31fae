// Goal: a prompt's ids are those of its runs, whatever was cached. Method: prompts put together
// here, compared with the tokenizer run by run; caches of every size; the injection vectors.
#include "recipe/prompt_encoder.h"

#include <gtest/gtest.h>
#include <random>
#include <string>

#include "recipe/json.h"
#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

std::shared_ptr<const Tokenizer> small() {
  const auto tokenizer = small_tokenizer_for_test(GALLEY_TESTS_DIR);
  EXPECT_TRUE(tokenizer);
  return *tokenizer;
}

ControlIds small_controls() {
  const Result<ControlIds> controls = ControlIds::find(*small(), ModelVersion::kV41);
  EXPECT_TRUE(controls);
  return *controls;
}

void add(Prompt& prompt, Control control) {
  const std::size_t begin = prompt.text.size();
  prompt.text += spelling(control);
  prompt.controls.push_back({begin, prompt.text.size(), control});
}

// By the definition: control ids, and every run of text between them encoded on its own.
std::vector<TokenId> expected_ids(const Prompt& prompt) {
  std::vector<TokenId> ids;
  std::size_t begin = 0;
  for (const ControlSpan& span : prompt.controls) {
    small()->encode(std::string_view(prompt.text).substr(begin, span.begin - begin), ids);
    ids.push_back(small_controls()[span.control]);
    begin = span.end;
  }
  small()->encode(std::string_view(prompt.text).substr(begin), ids);
  return ids;
}

Prompt random_prompt(std::mt19937& random) {
  static const std::vector<std::string> kRuns = {"",
                                                 " ",
                                                 "short",
                                                 std::string(127, 'a'),
                                                 std::string(128, 'a'),
                                                 std::string(129, 'a'),
                                                 std::string(150, 'a') + "b",
                                                 std::string(150, 'a') + "c",
                                                 std::string(3'000, '\n'),
                                                 "<think>" + std::string(200, 'x') + "</think>"};
  Prompt prompt;
  add(prompt, Control::kBos);
  for (auto left = random() % 8; left != 0; --left) {
    prompt.text += kRuns[random() % kRuns.size()];
    add(prompt, static_cast<Control>(random() % 9));
  }
  prompt.text += kRuns[random() % kRuns.size()];
  return prompt;
}

TEST(PromptEncoder, CachesOfEverySizeGiveTheSameIds) {
  std::mt19937 random(8);
  PromptEncoder none(small(), small_controls(), 0);
  PromptEncoder tight(small(), small_controls(), 2'000);
  PromptEncoder roomy(small(), small_controls());
  for (int round = 0; round != 300; ++round) {
    const Prompt prompt = random_prompt(random);
    const std::vector<TokenId> expected = expected_ids(prompt);
    ASSERT_EQ(none.encode(prompt), expected);
    ASSERT_EQ(tight.encode(prompt), expected);
    ASSERT_EQ(roomy.encode(prompt), expected);
    ASSERT_EQ(roomy.encode(prompt), expected);
  }
}

TEST(PromptEncoder, SpellingsInTextStayText) {
  Prompt prompt;
  add(prompt, Control::kUser);
  prompt.text += spelling(Control::kAssistant);
  add(prompt, Control::kAssistant);
  PromptEncoder encoder(small(), small_controls());
  const std::vector<TokenId> ids = encoder.encode(prompt);
  ASSERT_GT(ids.size(), 3U);
  EXPECT_EQ(ids.front(), small_controls()[Control::kUser]);
  EXPECT_EQ(ids.back(), small_controls()[Control::kAssistant]);
  for (std::size_t i = 1; i + 1 != ids.size(); ++i) {
    EXPECT_FALSE(small()->is_added(ids[i]));
  }
}

TEST(PromptEncoder, AControlTheVocabularyLacksIsTextOfItsRun) {
  Prompt prompt;
  add(prompt, Control::kUser);
  prompt.text += "see <";
  add(prompt, Control::kRefOpen);
  prompt.text += "> there";
  Prompt plain = prompt;
  plain.controls.pop_back();
  PromptEncoder encoder(small(), small_controls());
  EXPECT_EQ(encoder.encode(prompt), expected_ids(plain));
}

TEST(PromptEncoder, InjectionVectors) {
  const auto tokenizer = v4_tokenizer_for_test(ModelVersion::kV41);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  const Result<ControlIds> controls = ControlIds::find(**tokenizer, ModelVersion::kV41);
  ASSERT_TRUE(controls);
  PromptEncoder encoder(*tokenizer, *controls);
  const Result<Json> vectors =
      parse_json(read_file_for_test(GALLEY_TESTS_DIR "/golden/recipe_vectors.json"));
  ASSERT_TRUE(vectors);
  for (const Json& vector : *vectors->find("injection")->array()) {
    Prompt prompt;
    add(prompt, Control::kBos);
    add(prompt, Control::kUser);
    prompt.text += *vector.find("user_content")->string();
    add(prompt, Control::kAssistant);
    add(prompt, Control::kThinkClose);
    const std::vector<TokenId> ids = encoder.encode(prompt);
    std::vector<TokenId> expected;
    for (const Json& id : *vector.find("prompt_token_ids")->array()) {
      expected.push_back(static_cast<TokenId>(*id.int64()));
    }
    EXPECT_EQ(ids, expected) << *vector.find("user_content")->string();
  }
}

}  // namespace
}  // namespace galley::recipe
