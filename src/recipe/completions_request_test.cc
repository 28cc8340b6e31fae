// Goal: Completions bodies become typed requests, and what cannot be done is refused by name (spec
// recipe 6.9). Method: tables of small bodies.
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "recipe/golden_for_test.h"
#include "recipe/limits.h"
#include "recipe/prompt.h"

namespace galley::recipe {
namespace {

CodecOptions options() {
  CodecOptions out;
  out.models["m"] = ModelVersion::kV41;
  return out;
}

std::string with(std::string_view members) {
  return R"({"model":"m",)" + std::string(members) + "}";
}

Request parsed(std::string_view members) {
  Result<Request> request = parse_completions_request(with(members), options());
  EXPECT_TRUE(request) << members << " " << (request ? "" : to_string(request.error()));
  return request ? std::move(*request) : Request();
}

TEST(CompletionsRequest, ReadsWhatIsToBeContinued) {
  const Request request =
      parsed(R"("prompt":"a<think>","max_tokens":7,"temperature":0.5,"top_p":0.25,"stop":["x"],)"
             R"("logprobs":3,"seed":4,"stream":true,"stream_options":{"include_usage":true},)"
             R"("user":"u","logit_bias":{"5":-2})");
  EXPECT_EQ(request.protocol, Protocol::kCompletions);
  EXPECT_EQ(request.model, "m");
  ASSERT_TRUE(request.completion.has_value());
  EXPECT_EQ(request.completion->prompt, "a<think>");
  EXPECT_EQ(request.sampling.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_EQ(request.sampling.top_p, 0.25F);
  EXPECT_EQ(parsed(R"("prompt":"a")").sampling.top_p, 1.0F);
  EXPECT_EQ(request.sampling.seed, 4);
  EXPECT_TRUE(request.sampling.logprobs);
  EXPECT_EQ(request.sampling.top_logprobs, 3);
  ASSERT_EQ(request.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(request.output.stop_sequences, std::vector<std::string>{"x"});
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.user, "u");
  EXPECT_EQ(request.output.stage, StartStage::kContentContinuation);
  EXPECT_FALSE(request.output.thinking);
  EXPECT_TRUE(request.notes.empty());
}

TEST(CompletionsRequest, PromptsInEachForm) {
  EXPECT_EQ(parsed(R"("prompt":["one"])").completion->prompt, "one");
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(parsed(R"("prompt":[5,6])").completion->prompt_ids, (Ids{5, 6}));
  EXPECT_EQ(parsed(R"("prompt":[[5,6]])").completion->prompt_ids, (Ids{5, 6}));
  EXPECT_EQ(render(parsed(R"("prompt":[5,6])")).ids, (Ids{5, 6}));
  const Prompt text = render(parsed(R"("prompt":"a<think>")"));
  EXPECT_EQ(text.text, std::string(spelling(Control::kBos)) + "a<think>");
  EXPECT_EQ(text.controls.size(), 1U);  // text never becomes a control token
  const Prompt gap = render(parsed(R"("prompt":"f(","suffix":"): pass")"));
  EXPECT_EQ(gap.controls.size(), 4U);
  EXPECT_TRUE(gap.text.ends_with("): pass" + std::string(spelling(Control::kFimEnd))));
}

TEST(CompletionsRequest, WhatIsRefused) {
  struct Row {
    std::string_view members;
    std::string_view where;
  };
  for (const Row& row : {
           Row{R"("max_tokens":1)", "prompt"},
           Row{R"("prompt":5)", "prompt"},
           Row{R"("prompt":[])", "prompt"},
           Row{R"("prompt":[[]])", "prompt[0]"},
           Row{R"("prompt":["a","b"])", "prompt"},
           Row{R"("prompt":[1,"b"])", "prompt[1]"},
           Row{R"("prompt":[1,-2])", "prompt[1]"},
           Row{R"("prompt":[[1],[2]])", "prompt"},
           Row{R"("prompt":[4294967296])", "prompt[0]"},
           Row{R"("prompt":[1],"suffix":"b")", "suffix"},
           Row{R"("prompt":[1],"echo":true)", "echo"},
           Row{R"("prompt":"a","suffix":"b","echo":true)", "echo"},
           Row{R"("prompt":"a","logprobs":1,"echo":true)", "echo"},
           Row{R"("prompt":"a","logprobs":21)", "logprobs"},
           Row{R"("prompt":"a","best_of":2)", "best_of"},
           Row{R"("prompt":"a","temperature":3)", "temperature"},
           Row{R"("prompt":"a","stop":"")", "stop"},
           Row{R"("prompt":"a","seed":-1)", "seed"},
           Row{R"("prompt":"a","stream_options":{})", "stream_options"},
           Row{R"("prompt":"a","logit_bias":{"x":1})", "logit_bias"},
       }) {
    const Result<Request> request = parse_completions_request(with(row.members), options());
    ASSERT_FALSE(request.has_value()) << row.members;
    EXPECT_EQ(request.error().code, Code::kInvalidArgument) << row.members;
    EXPECT_EQ(request.error().where, row.where) << row.members;
  }
  EXPECT_FALSE(parse_completions_request(R"({"model":"other","prompt":"a"})", options()));
  EXPECT_FALSE(parse_completions_request(R"({"prompt":"a"})", options()));
}

TEST(CompletionsRequest, NotesWhatHasNoEffect) {
  EXPECT_EQ(parsed(R"("prompt":"a","service_tier":"flex")").notes,
            std::vector<std::string>{"`service_tier` is ignored"});
}

TEST(CompletionsRequest, ALimitThatWasNotSent) {
  const Request request = parsed(R"("prompt":"a")");
  EXPECT_EQ(effective_max_tokens(request, 10, 100'000).value(), kDefaultMaxTokensCompletion);
  EXPECT_EQ(effective_max_tokens(request, 10, 30).value(), 20);
  const auto over = effective_max_tokens(parsed(R"("prompt":"a")"), 40, 30);
  ASSERT_FALSE(over.has_value());
  EXPECT_EQ(over.error().where, "prompt");
  // One token must fit.
  EXPECT_EQ(effective_max_tokens(request, 29, 30).value(), 1);
  const auto full = effective_max_tokens(request, 30, 30);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().reason, kContextLengthExceeded);
}

}  // namespace
}  // namespace galley::recipe
