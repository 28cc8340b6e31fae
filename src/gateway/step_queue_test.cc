// Goal: what waits comes out as it went in, and bytes() is what it costs.
// Method: steps in, steps out.
#include "gateway/step_queue.h"

#include <gtest/gtest.h>

#include "gateway/generation_reply.h"
#include "recipe/limits.h"

namespace galley::gateway {
namespace {

using recipe::SourceFinish;
using recipe::TokenLogprob;
using Tokens = StepQueue::Tokens;

TEST(StepQueue, KeepsStepsApartAndInOrder) {
  StepQueue queue;
  queue.push_start({.prompt_tokens = 7});
  queue.push_tokens(std::vector<TokenId>{1, 2}, {});
  queue.push_tokens(std::vector<TokenId>{}, {});
  queue.push_tokens(std::vector<TokenId>{3},
                    std::vector<TokenLogprob>{{"c", -1.0F, {{"d", -2.0F}}}});
  queue.push_tokens(std::vector<TokenId>{4}, {});
  queue.push_finish(SourceFinish::kLength);
  StepQueue::Step step;
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(std::get<recipe::Started>(step).prompt_tokens, 7);
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(std::get<Tokens>(step).ids, (std::vector<TokenId>{1, 2}));
  ASSERT_TRUE(queue.pop(step));
  EXPECT_TRUE(std::get<Tokens>(step).ids.empty());
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(std::get<Tokens>(step).ids, std::vector<TokenId>{3});
  ASSERT_EQ(std::get<Tokens>(step).logprobs.size(), 1U);
  EXPECT_EQ(std::get<Tokens>(step).logprobs[0].top[0].token, "d");
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(std::get<Tokens>(step).ids, std::vector<TokenId>{4});
  EXPECT_TRUE(std::get<Tokens>(step).logprobs.empty());
  EXPECT_EQ(queue.bytes(), 0U);
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(std::get<SourceFinish>(step), SourceFinish::kLength);
  EXPECT_FALSE(queue.pop(step));
}

TEST(StepQueue, AnErrorMayComeFirstAndClearForgets) {
  StepQueue queue;
  StepQueue::Step step;
  queue.push_error({.what = "broken"});
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(std::get<Error>(step).what, "broken");
  queue.push_start({});
  queue.push_tokens(std::vector<TokenId>{1}, {});
  queue.push_error({});
  queue.clear();
  EXPECT_EQ(queue.bytes(), 0U);
  EXPECT_FALSE(queue.pop(step));
}

TEST(StepQueue, ATokenCostsFourBytesAndAStepFour) {
  StepQueue queue;
  const std::vector<TokenId> ids(100);
  queue.push_tokens(ids, {});
  EXPECT_EQ(queue.bytes(), 404U);
  queue.push_tokens(std::vector<TokenId>{1}, {});
  EXPECT_EQ(queue.bytes(), 412U);
  // The longest reply, a token a step, fits the bound of a reply that waits.
  EXPECT_LT(static_cast<std::size_t>(recipe::kMaxTokensMax) * 8, ReplyLimits{}.waiting_bytes_max);
}

TEST(StepQueue, LogprobsCountWithTheirHeap) {
  StepQueue queue;
  TokenLogprob logprob{std::string(1000, 'a'), -1.0F, {}};
  logprob.top.assign(20, {std::string(500, 'b'), -2.0F});
  queue.push_tokens(std::vector<TokenId>{1}, {&logprob, 1});
  EXPECT_GE(queue.bytes(),
            8 + sizeof(TokenLogprob) + 1000 + 20 * (sizeof(recipe::TopLogprob) + 500));
  EXPECT_LE(queue.bytes(), 13'000U);
  StepQueue::Step step;
  ASSERT_TRUE(queue.pop(step));
  EXPECT_EQ(queue.bytes(), 0U);
}

}  // namespace
}  // namespace galley::gateway
