// Goal: control tokens are found under the ids the templates rely on, or their absence is an error.
// Method: both vocabularies, both versions, and files with one token taken away.
#include "recipe/control.h"

#include <gtest/gtest.h>
#include <set>
#include <string>

#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

TEST(Control, SpellingsDiffer) {
  std::set<std::string_view> spellings;
  for (std::size_t i = 0; i != kControlCount; ++i) {
    spellings.insert(spelling(static_cast<Control>(i)));
  }
  EXPECT_EQ(spellings.size(), kControlCount);
  EXPECT_FALSE(spellings.contains(""));
}

TEST(Control, IdsOfV41) {
  const auto tokenizer = v4_tokenizer_for_test(ModelVersion::kV41);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  const Result<ControlIds> ids = ControlIds::find(**tokenizer, ModelVersion::kV41);
  ASSERT_TRUE(ids) << to_string(ids.error());
  constexpr std::array<TokenId, kControlCount> kExpected = {
      0,      1,      128799, 128803, 128804, 128828, 128821, 128822, 128825, 129264, 128801,
      128800, 128802, 129278, 129277, 129276, 129275, 129274, 129273, 129272, 129271};
  for (std::size_t i = 0; i != kControlCount; ++i) {
    const auto control = static_cast<Control>(i);
    EXPECT_EQ((*ids)[control], kExpected[i]) << spelling(control);
    EXPECT_EQ((*tokenizer)->bytes((*ids)[control]), spelling(control));
  }
  EXPECT_EQ((*tokenizer)->bytes(129279), "<|place_holder_mm_span_0442|>");
}

TEST(Control, IdsOfV4) {
  const auto tokenizer = v4_tokenizer_for_test();
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  const Result<ControlIds> ids = ControlIds::find(**tokenizer, ModelVersion::kV4);
  ASSERT_TRUE(ids) << to_string(ids.error());
  EXPECT_EQ((*ids)[Control::kSystem], ControlIds::kAbsent);
  EXPECT_EQ((*ids)[Control::kImage], ControlIds::kAbsent);  // not 129279, which has the name
  EXPECT_EQ((*ids)[Control::kUser], 128803U);
  EXPECT_EQ((*ids)[Control::kRefOpen], 129278U);

  const Result<ControlIds> v41 = ControlIds::find(**tokenizer, ModelVersion::kV41);
  ASSERT_FALSE(v41);
  EXPECT_EQ(v41.error().code, Code::kInvalidArgument);
  EXPECT_EQ(v41.error().what, "the tokenizer has no added token <｜System｜>");
}

TEST(Control, TheSmallVocabularyHasTheCheckpointsImageNameAndNoGrounding) {
  const auto tokenizer = small_tokenizer_for_test(GALLEY_TESTS_DIR);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  const Result<ControlIds> ids = ControlIds::find(**tokenizer, ModelVersion::kV41);
  ASSERT_TRUE(ids) << to_string(ids.error());
  EXPECT_EQ((*ids)[Control::kImage], 4'095U);
  EXPECT_EQ((*ids)[Control::kFimEnd], 4'081U);
  EXPECT_EQ((*ids)[Control::kRefOpen], ControlIds::kAbsent);
}

TEST(Control, EachNeededTokenIsMissed) {
  const std::string json = read_file_for_test(GALLEY_TESTS_DIR "/data/small_tokenizer.json");
  for (std::size_t i = 0; i <= static_cast<std::size_t>(Control::kImage); ++i) {
    const auto control = static_cast<Control>(i);
    const auto whole = small_tokenizer_for_test(GALLEY_TESTS_DIR);
    ASSERT_TRUE(whole);
    const Result<ControlIds> ids = ControlIds::find(**whole, ModelVersion::kV41);
    ASSERT_TRUE(ids);
    const auto tokenizer =
        Tokenizer::from_json(json, {.rename = {{(*ids)[control], "something else"}}});
    ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
    const Result<ControlIds> found = ControlIds::find(**tokenizer, ModelVersion::kV41);
    ASSERT_FALSE(found) << spelling(control);
    EXPECT_NE(found.error().what.find(spelling(control)), std::string::npos);
  }
}

}  // namespace
}  // namespace galley::recipe
