#include "engine/evaluation.h"

#include <gtest/gtest.h>
#include <string>
#include <utility>

namespace galley::engine {
namespace {

using recipe::FinishReason;

EvalCase one(const std::string& request, const std::string& expect) {
  auto suite =
      parse_eval_suite(R"({"kind":"k","request":)" + request + R"(,"expect":)" + expect + "}");
  EXPECT_TRUE(suite.has_value());
  return suite->front();
}

EvalAnswer said(std::string content, FinishReason reason = FinishReason::kStop) {
  EvalAnswer answer;
  answer.content = std::move(content);
  answer.reason = reason;
  return answer;
}

EvalAnswer called(std::vector<EvalAnswer::Call> calls) {
  EvalAnswer answer = said("", FinishReason::kToolCalls);
  answer.calls = std::move(calls);
  return answer;
}

TEST(EvalSuite, ReadsEveryKindOfExpectation) {
  const auto suite = parse_eval_suite(
      R"({"kind":"fact","request":{"messages":[]},"expect":{"text":"Yes.","reasoning":"Hm."}})"
      "\n\n"
      R"({"kind":"tool","request":{},"expect":{"calls":[{"name":"f","arguments":{"a":1}}]}})"
      "\r\n"
      R"({"kind":"story","request":{},"expect":{"contains":["fox","Ruby"]}})");
  ASSERT_TRUE(suite.has_value());
  ASSERT_EQ(suite->size(), 3U);
  EXPECT_EQ(suite->at(0).kind, "fact");
  EXPECT_EQ(suite->at(1).line, 3U);
  EXPECT_EQ(suite->at(0).request.front().key, "messages");
  EXPECT_EQ(suite->at(0).text, "Yes.");
  EXPECT_EQ(suite->at(0).reasoning, "Hm.");
  EXPECT_EQ(suite->at(1).calls.at(0).name, "f");
  EXPECT_EQ(suite->at(2).contains, (std::vector<std::string>{"fox", "Ruby"}));
}

TEST(EvalSuite, BrokenLinesAreNamed) {
  const std::string good = R"({"kind":"k","request":{},"expect":{"text":"t"}})";
  for (const char* const bad :
       {"{", "[]", R"({"request":{},"expect":{"text":"t"}})",
        R"({"kind":"","request":{},"expect":{"text":"t"}})",
        R"({"kind":"all","request":{},"expect":{"text":"t"}})",
        R"({"kind":"k","request":[],"expect":{"text":"t"}})", R"({"kind":"k","request":{}})",
        R"({"kind":"k","request":{},"expect":{}})",
        R"({"kind":"k","request":{},"expect":{"text":1}})",
        R"({"kind":"k","request":{},"expect":{"reasoning":"r"}})",
        R"({"kind":"k","request":{},"expect":{"contains":[],"reasoning":"r"}})",
        R"({"kind":"k","request":{},"expect":{"text":"t","txet":"t"}})",
        R"({"kind":"k","request":{},"expect":{"text":"t"},"kinds":"k"})",
        R"({"kind":"k","request":{},"expect":{"text":"t","contains":["t"]}})",
        R"({"kind":"k","request":{},"expect":{"contains":"t"}})",
        R"({"kind":"k","request":{},"expect":{"calls":[]}})",
        R"({"kind":"k","request":{},"expect":{"contains":[1]}})",
        R"({"kind":"k","request":{},"expect":{"calls":[{"name":"f"}]}})",
        R"({"kind":"k","request":{},"expect":{"calls":[{"name":"f","arguments":[]}]}})"}) {
    const auto suite = parse_eval_suite(good + "\n" + bad + "\n" + good);
    ASSERT_FALSE(suite.has_value()) << bad;
    EXPECT_EQ(suite.error().code, Code::kInvalidArgument);
    EXPECT_TRUE(suite.error().where.starts_with("line 2")) << suite.error().where;
  }
  EXPECT_FALSE(parse_eval_suite("").has_value());
  EXPECT_FALSE(parse_eval_suite("\n \n").has_value());
}

TEST(Judge, TextsAreRightToTheLastCharacter) {
  const EvalCase plain = one("{}", R"({"text":"Yes."})");
  EXPECT_TRUE(judge(plain, said("Yes.")).right);
  EXPECT_FALSE(judge(plain, said("Yes")).right);
  EXPECT_TRUE(judge(plain, said("No.")).well_formed);
  EXPECT_TRUE(judge(plain, said("Yes.", FinishReason::kStopSequence)).right);
  EXPECT_FALSE(judge(plain, said("Yes.", FinishReason::kLength)).right);
  EXPECT_FALSE(judge(plain, said("Yes.", FinishReason::kLength)).well_formed);

  const EvalCase thought = one("{}", R"({"text":"5","reasoning":"2+3=5"})");
  EvalAnswer answer = said("5");
  EXPECT_FALSE(judge(thought, answer).right);
  answer.reasoning = "2+3=5";
  EXPECT_TRUE(judge(thought, answer).right);
  EXPECT_TRUE(judge(plain,
                    [] {
                      auto free = said("Yes.");
                      free.reasoning = "anything";
                      return free;
                    }())
                  .right);
}

TEST(Judge, StoriesHoldTheirWords) {
  const EvalCase story = one("{}", R"({"contains":["fox","Ruby"]})");
  EXPECT_TRUE(judge(story, said("Ruby was a fox.")).right);
  EXPECT_FALSE(judge(story, said("Ruby was a hen.")).right);
  const EvalCase any = one("{}", R"({"contains":[]})");
  EXPECT_TRUE(judge(any, said("Once.")).right);
  EXPECT_FALSE(judge(any, said("Once", FinishReason::kLength)).right);
}

TEST(Judge, JsonIsWellFormedEvenWhenItIsNotTheOneAskedFor) {
  const EvalCase json =
      one(R"({"response_format":{"type":"json_object"}})", R"({"text":"{\"a\": 1}"})");
  EXPECT_TRUE(judge(json, said(R"({"a": 1})")).right);
  EXPECT_FALSE(judge(json, said(R"({"a": 2})")).right);
  EXPECT_TRUE(judge(json, said(R"({"a": 2})")).well_formed);
  EXPECT_FALSE(judge(json, said(R"({"a": 1)")).well_formed);
  const EvalCase text = one(R"({"response_format":{"type":"text"}})", R"({"text":"Yes."})");
  EXPECT_TRUE(judge(text, said("Yes.")).right);
}

TEST(Judge, CallsAreComparedByValueAndInOrder) {
  const EvalCase tool = one(
      "{}",
      R"({"calls":[{"name":"f","arguments":{"a":1,"b":{"c":2,"d":3}}},{"name":"g","arguments":{}}]})");
  const EvalAnswer::Call f{.name = "f", .arguments = R"({"b":{"d":3,"c":2},"a":1})"};
  const EvalAnswer::Call g{.name = "g", .arguments = "{}"};
  EXPECT_TRUE(judge(tool, called({f, g})).right);
  const EvalAnswer::Call same{.name = "f", .arguments = R"({"a":1.0,"b":{"c":2e0,"d":3}})"};
  EXPECT_TRUE(judge(tool, called({same, g})).right);
  const EvalAnswer::Call near{.name = "f", .arguments = R"({"a":1.5,"b":{"c":2,"d":3}})"};
  EXPECT_FALSE(judge(tool, called({near, g})).right);
  EXPECT_FALSE(judge(tool, called({g, f})).right);
  EXPECT_TRUE(judge(tool, called({g, f})).well_formed);
  EXPECT_FALSE(judge(tool, called({f})).right);
  EXPECT_FALSE(judge(tool, called({f, g, g})).right);
  EXPECT_FALSE(judge(tool, called({f, {.name = "g", .arguments = "[]"}})).well_formed);
  EXPECT_FALSE(judge(tool, said("I call f.")).well_formed);
  EvalAnswer cut = called({f, g});
  cut.reason = FinishReason::kLength;
  EXPECT_FALSE(judge(tool, cut).right);
  const EvalCase plain = one("{}", R"({"text":""})");
  EXPECT_FALSE(judge(plain, called({g})).right);
}

TEST(EvalAnswer, JoinsPieces) {
  EvalAnswer answer;
  answer.on_event(recipe::ReasoningText{.text = "a", .logprobs = {}});
  answer.on_event(recipe::ReasoningText{.text = "b", .logprobs = {}});
  answer.on_event(recipe::ContentText{.text = "c", .logprobs = {}});
  answer.on_event(recipe::CallNamed{.name = "f"});
  answer.on_event(recipe::CallArguments{.text = "{"});
  answer.on_event(recipe::CallArguments{.text = "}"});
  answer.on_event(
      recipe::Finished{.reason = FinishReason::kToolCalls, .stop_sequence = {}, .usage = {}});
  EXPECT_EQ(answer.reasoning, "ab");
  EXPECT_EQ(answer.content, "c");
  EXPECT_EQ(answer.calls, (std::vector<EvalAnswer::Call>{{.name = "f", .arguments = "{}"}}));
  EXPECT_EQ(answer.reason, FinishReason::kToolCalls);
}

TEST(EvalScore, CountsByKindAndBesideAnotherWay) {
  std::vector<EvalCase> suite(5);
  for (std::size_t i = 0; i < suite.size(); ++i) {
    suite[i].kind = i % 2 == 0 ? "b" : "a";
  }
  const std::vector<EvalGroup> groups = groups_of(suite);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].name, "b");
  EXPECT_EQ(groups[0].questions, (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_EQ(groups[1].questions, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(groups[2].name, kAllKinds);
  EXPECT_EQ(groups[2].questions.size(), 5U);

  std::vector<EvalResult> one(5);
  one[0].verdict = {.right = true, .well_formed = true};
  one[3].verdict = {.right = false, .well_formed = true};
  std::vector<EvalResult> other = one;
  other[3].answer.content = "x";
  EXPECT_DOUBLE_EQ(score(groups[0], one, other).right, 100.0 / 3);
  EXPECT_EQ(score(groups[0], one, other).differ, 0);
  EXPECT_EQ(score(groups[1], one, other).right, 0);
  EXPECT_EQ(score(groups[1], one, other).formed, 50);
  EXPECT_EQ(score(groups[1], one, other).differ, 1);
  EXPECT_EQ(score(groups[2], one, other).right, 20);
  EXPECT_EQ(score(EvalGroup{}, one, other).right, 0);
}

}  // namespace
}  // namespace galley::engine
