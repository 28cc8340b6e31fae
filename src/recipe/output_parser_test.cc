// Goal: the output parser gives the events that spec recipe 3 and the cases C001 to C036 ask for,
// in both modes, however its input is cut. Method: tables of replies as text (markers by spelling),
// replies as ids of the small vocabulary, and every recorded reply under many splits.

#include "recipe/output_parser.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "recipe/golden_for_test.h"
#include "recipe/reply_for_test.h"

namespace galley::recipe {
namespace {

constexpr auto kStop = SourceFinish::kStop;
constexpr auto kLength = SourceFinish::kLength;

Tool tool(std::string name, std::string_view parameters) {
  return {.name = std::move(name), .parameters = *parse_json(parameters)};
}

// A request with tools, answering at once.
Request with_tools() {
  Request request;
  request.conversation.thinking = false;
  request.conversation.tools = {
      tool("set_mode", R"({"type":"object","properties":{"on":{"type":"boolean"}}})"),
      tool("sh", R"({"type":"object","properties":{"cmd":{"type":"string"},"n":{"type":"integer"},
                     "rows":{"type":["array","null"]},"any":{}}})")};
  request.output.parse_tool_calls = true;
  return request;
}
Request thinking(Request request = with_tools()) {
  request.conversation.thinking = true;
  request.output.thinking = true;
  request.output.stage = StartStage::kReasoningStart;
  return request;
}
Request recipe02(Request request) {
  request.compat = Compat::kRecipe02;
  return request;
}
Request with_stops(Request request, std::vector<std::string> stops) {
  request.output.stop_sequences = std::move(stops);
  return request;
}
Request json_mode(Request request = with_tools()) {
  request.output.json_output = true;
  return request;
}

std::string block(std::string_view calls) {
  return "\n\n<｜DSML｜ calls>\n" + std::string(calls) + "</｜DSML｜ calls>";
}
std::string call(std::string_view name, std::string_view parameters) {
  return "<｜DSML｜ invoke name=\"" + std::string(name) + "\">\n" + std::string(parameters) +
         "</｜DSML｜ invoke>\n";
}
std::string parameter(std::string_view name, std::string_view is_string, std::string_view value) {
  return "<｜DSML｜ parameter name=\"" + std::string(name) + "\" string=\"" +
         std::string(is_string) + "\">" + std::string(value) + "</｜DSML｜ parameter>\n";
}

// The reply to the whole text, after checking that no way of cutting it changes anything: every cut
// in two, byte by byte, and a hundred random cuts.
Transcript whole(const Request& request,
                 std::string_view text,
                 std::optional<SourceFinish> finish = kStop) {
  Transcript expected = transcript_of(request, {text}, finish);
  EXPECT_EQ(expected.problem, "") << text;
  EXPECT_EQ(expected.starts, 1) << text;
  EXPECT_EQ(expected.finishes, 1) << text;
  if (request.compat == Compat::kGalley) {
    EXPECT_EQ(problem_with_calls(expected), "") << text;
  }
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    EXPECT_EQ(transcript_of(request, {text.substr(0, cut), text.substr(cut)}, finish), expected)
        << text << "\ncut at " << cut;
  }
  std::vector<std::string_view> bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bytes.push_back(text.substr(i, 1));
  }
  EXPECT_EQ(transcript_of(request, bytes, finish), expected) << text;
  std::mt19937 random(static_cast<unsigned>(text.size()));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string_view> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 9;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(transcript_of(request, pieces, finish), expected) << text;
  }
  return expected;
}

std::string arguments(const Transcript& transcript) {
  EXPECT_EQ(transcript.calls.size(), 1U);
  return transcript.calls.empty() ? "" : transcript.calls.front().arguments;
}

// ---- plain text, reasoning, stop strings

TEST(OutputParser, C021_ReasoningEndsAtItsMarkerAndNewlinesAroundItGo) {
  const Transcript t = whole(thinking(), "\nplan\n\n</think>\n\n42");
  EXPECT_EQ(t.reasoning, "plan");
  EXPECT_EQ(t.content, "42");
  EXPECT_EQ(t.reason, FinishReason::kStop);
}

TEST(OutputParser, C019_OnePieceGivesReasoningThenContent) {
  TranscriptSink sink;
  const auto parser = OutputParser::create(thinking(), nullptr, sink);
  parser->feed_text("done</think>Yes", 1);
  EXPECT_EQ(sink.transcript.reasoning, "done");
  EXPECT_EQ(sink.transcript.content, "Yes");
}

TEST(OutputParser, ReasoningWithoutItsEndIsAllThereIs) {
  const Transcript t = whole(thinking(), "still thinking", kLength);
  EXPECT_EQ(t.reasoning, "still thinking");
  EXPECT_EQ(t.content, "");
  EXPECT_EQ(t.reason, FinishReason::kLength);
}

TEST(OutputParser, ASecondEndOfThinkingIsDropped) {
  EXPECT_EQ(whole(with_tools(), "one</think>two").content, "onetwo");
  EXPECT_EQ(whole(thinking(), "a</think>b</think>\nc").content, "b\nc");
}

TEST(OutputParser, PartOfAMarkerIsTextInTheEnd) {
  EXPECT_EQ(whole(with_tools(), "tail <｜DS").content, "tail <｜DS");
  EXPECT_EQ(whole(with_tools(), "ok <｜User｜> fine").content, "ok <｜User｜> fine");
  EXPECT_EQ(whole(thinking(), "a </thin").reasoning, "a </thin");
}

TEST(OutputParser, NewlinesAfterAFailedMarkerCount) {
  EXPECT_EQ(whole(thinking(), "a <\n</think>b").reasoning, "a <");
  EXPECT_EQ(whole(thinking(), "a\n</th\n\n</think>b").reasoning, "a\n</th");
  EXPECT_EQ(whole(recipe02(thinking()), "a <\n</think>b").reasoning, "a <\n");
  EXPECT_EQ(whole(recipe02(thinking()), "a\n</th\n\n</think>b").reasoning, "a\n</th\n");
}

TEST(OutputParser, ContinuationsKeepTheirLeadingNewlines) {
  Request request = with_tools();
  EXPECT_EQ(whole(request, "\n\nx").content, "x");
  request.conversation.messages = {
      {.role = Role::kAssistant, .content = {.text = "a"}, .prefix = true}};
  EXPECT_EQ(whole(request, "\n\nx").content, "\n\nx");
  EXPECT_EQ(whole(recipe02(request), "\n\nx").content, "x");
  request.output.stage = StartStage::kContentContinuation;
  EXPECT_EQ(whole(recipe02(request), "\n\nx").content, "\n\nx");
  request.output.stage = StartStage::kReasoningContinuation;
  EXPECT_EQ(whole(request, "\nx").reasoning, "\nx");
}

TEST(OutputParser, C027_StopStringsActOnTheAnswerOnly) {
  const Transcript t = whole(with_stops(thinking(), {"7"}), "3+4=7?</think>it is 7.");
  EXPECT_EQ(t.reasoning, "3+4=7?");
  EXPECT_EQ(t.content, "it is ");
  EXPECT_EQ(t.reason, FinishReason::kStopSequence);
  EXPECT_EQ(t.stop_sequence, "7");
  const Transcript in_call =
      whole(with_stops(with_tools(), {"7"}), block(call("sh", parameter("cmd", "true", "echo 7"))));
  EXPECT_EQ(arguments(in_call), R"({"cmd": "echo 7"})");
}

TEST(OutputParser, TheStopStringThatIsCompleteFirstWins) {
  EXPECT_EQ(whole(with_stops(with_tools(), {"ABC", "AB"}), "xxABC").stop_sequence, "AB");
  EXPECT_EQ(whole(with_stops(with_tools(), {"BC", "ABC"}), "xxABC").stop_sequence, "BC");
  EXPECT_EQ(whole(with_stops(with_tools(), {"ABC", "BC"}), "xxABC").stop_sequence, "ABC");
  EXPECT_EQ(whole(with_stops(with_tools(), {"aab"}), "aaab").content, "a");
  EXPECT_EQ(whole(with_stops(with_tools(), {"海海"}), "a海b海海c").content, "a海b");
}

TEST(OutputParser, C026_OnlyWhatMayBecomeAStopStringIsHeld) {
  const std::string stop = "0123456789012345678901234567890123456789";
  TranscriptSink sink;
  const auto parser = OutputParser::create(with_stops(thinking(), {stop}), nullptr, sink);
  parser->feed_text("r</think>abc", 1);
  EXPECT_EQ(sink.transcript.content, "abc");
  parser->feed_text(" 01", 1);
  EXPECT_EQ(sink.transcript.content, "abc ");
  parser->feed_text("2x", 1);
  EXPECT_EQ(sink.transcript.content, "abc 012x");
  parser->feed_text("0123\n\n<｜DSML｜ ca", 1);
  parser->finish(kStop);
  EXPECT_EQ(sink.transcript.content, "abc 012x0123");  // the flush goes through the tool parser
}

TEST(OutputParser, StopStringsMayBeginWithANewline) {
  EXPECT_EQ(whole(with_stops(with_tools(), {"\nEND"}), "\nEND").reason,
            FinishReason::kStopSequence);
  EXPECT_EQ(whole(with_stops(with_tools(), {"\nEND"}), "a\nENDb").content, "a");
  EXPECT_EQ(whole(recipe02(with_stops(with_tools(), {"\nEND"})), "\nEND").content, "END");
  // Newlines alone would stop every answer before it begins.
  const Transcript t = whole(with_stops(with_tools(), {"\n\n"}), "\n\n\nHi\n\nyou");
  EXPECT_EQ(t.content, "Hi");
  EXPECT_EQ(t.reason, FinishReason::kStopSequence);
  EXPECT_EQ(whole(recipe02(with_stops(with_tools(), {"\n"})), "\nHi").content, "");
}

TEST(OutputParser, NothingIsReadAfterAStopString) {
  TranscriptSink sink;
  const auto parser = OutputParser::create(with_stops(with_tools(), {"END"}), nullptr, sink);
  parser->feed_text("a END b", 3);
  EXPECT_TRUE(parser->finished());
  parser->feed_text("c", 5);
  parser->finish(kStop);
  EXPECT_EQ(sink.transcript.content, "a ");
  EXPECT_EQ(sink.transcript.finishes, 1);
  EXPECT_EQ(sink.transcript.usage.completion_tokens, 3);
}

TEST(OutputParser, EveryReasonOfTheSourceIsPassedOn) {
  EXPECT_EQ(whole(with_tools(), "a", kLength).reason, FinishReason::kLength);
  EXPECT_EQ(whole(with_tools(), "a", SourceFinish::kContentFilter).reason,
            FinishReason::kContentFilter);
  EXPECT_EQ(whole(with_tools(), "a", std::nullopt).reason, FinishReason::kEndOfStream);
  EXPECT_EQ(whole(with_tools(), "").content, "");
}

TEST(OutputParser, C022_TextIsCutAtCharactersOnly) {
  EXPECT_EQ(whole(with_tools(), "\xF0\x9F\x98\x80 z\xE6\xAF\x95").content, "😀 z毕");
  EXPECT_EQ(whole(with_tools(),
                  "a\xFF"
                  "b")
                .content,
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(whole(with_tools(), "a\xE4\xBD").content, "a\xEF\xBF\xBD");
  EXPECT_EQ(whole(with_tools(), "\xE4\xBD x").content, "\xEF\xBF\xBD x");
}

TEST(OutputParser, ManyNewlinesAreHeldWithoutCost) {
  const std::string newlines(200'000, '\n');
  Request request = thinking();
  EXPECT_EQ(transcript_of(request, {"a", newlines, "</think>b"}).reasoning, "a");
  EXPECT_EQ(transcript_of(request, {"a", newlines, "b"}).reasoning.size(), newlines.size() + 2);
}

// ---- tool calls

TEST(OutputParser, C001_HalfACloserIsNeverPartOfTheValue) {
  const std::string text = block(call("sh", parameter("dir", "true", "src")));
  const Transcript t = whole(with_tools(), text);
  EXPECT_EQ(arguments(t), R"({"dir": "src"})");
  EXPECT_EQ(t.reason, FinishReason::kToolCalls);
  TranscriptSink sink;
  const auto parser = OutputParser::create(with_tools(), nullptr, sink);
  parser->feed_text(text.substr(0, text.find("src") + std::string("src</｜DSML｜ par").size()), 1);
  EXPECT_EQ(sink.transcript.calls.front().arguments, R"({"dir": "src)");
}

TEST(OutputParser, C002_ValuesMayHoldWhatMarkersAreMadeOf) {
  const std::string text =
      "thinking</think>" + block(call("sh", parameter("cmd", "true", "make all 2>&1")));
  EXPECT_EQ(arguments(whole(thinking(), text)), R"({"cmd": "make all 2>&1"})");
  EXPECT_EQ(
      arguments(whole(with_tools(), block(call("sh", parameter("cmd", "true", "a </b> <c"))))),
      R"({"cmd": "a </b> <c"})");
}

TEST(OutputParser, BothVersionsOfTheMarkupAreRead) {
  const std::string v4 =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"h\" "
      "string=\"true\">Brest\n\"x\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
      "string=\"false\">6</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_EQ(arguments(whole(with_tools(), v4)), R"({"h": "Brest\n\"x\"", "n": 6})");
}

TEST(OutputParser, ParallelCallsAndCallsWithoutArguments) {
  const Transcript t = whole(
      with_tools(), "a" + block(call("f", parameter("x", "false", "[1,\n 2]")) + call("g", "\n")));
  EXPECT_EQ(t.content, "a");
  EXPECT_EQ(t.calls, (std::vector<Transcript::Call>{{"f", "{\"x\": [1,\n 2]}"}, {"g", "{}"}}));
}

TEST(OutputParser, C016_ABlockInsideReasoningEndsIt) {
  for (const std::string_view end : {"", "</think>", "\n</think>\n"}) {
    Transcript t = whole(thinking(), "hmm\n\n<｜DSML｜ calls>" + std::string(end) + call("f", "") +
                                         "</｜DSML｜ calls>");
    EXPECT_EQ(t.reasoning, "hmm");
    EXPECT_EQ(t.calls.size(), 1U);
    EXPECT_EQ(t.reason, FinishReason::kToolCalls);
    t = whole(thinking(), "hmm" + std::string(end) + block(call("f", "")));
    EXPECT_EQ(t.reasoning, "hmm");
    EXPECT_EQ(t.calls.size(), 1U);
  }
}

TEST(OutputParser, APromptMayHaveOpenedTheBlock) {
  Request request = with_tools();
  request.output.in_tool_block = true;
  EXPECT_EQ(whole(request, call("f", "\n") + "</｜DSML｜ calls>").calls.size(), 1U);
  EXPECT_EQ(whole(recipe02(request), call("f", "\n") + "</｜DSML｜ calls>").calls.size(), 1U);
}

TEST(OutputParser, TextAfterTheBlockIsDropped) {
  const std::string text = block(call("f", "")) + "\nbye" + block(call("g", ""));
  const Transcript t = whole(with_tools(), text);
  EXPECT_EQ(t.content, "");
  EXPECT_EQ(t.calls.size(), 1U);
}

TEST(OutputParser, TheBlockTagMayBeMissing) {
  EXPECT_EQ(arguments(whole(with_tools(), "a\n" + call("f", parameter("x", "true", "y")))),
            R"({"x": "y"})");
}

TEST(OutputParser, AForgottenEndOfACallIsFilledIn) {
  const Transcript t =
      whole(with_tools(), "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\">" +
                              parameter("x", "true", "y") + call("g", "") + "</｜DSML｜ calls>");
  EXPECT_EQ(t.calls, (std::vector<Transcript::Call>{{"f", R"({"x": "y"})"}, {"g", "{}"}}));
}

TEST(OutputParser, C005_ValuesThatAreNoJsonBecomeStrings) {
  const std::string rows = R"([{"k":[1,{"z":"a\"b"}]},[]])";
  EXPECT_EQ(arguments(whole(with_tools(), block(call("sh", parameter("rows", "false", rows))))),
            R"({"rows": )" + rows + "}");
  EXPECT_EQ(
      arguments(whole(with_tools(), block(call("sh", parameter("rows", "false", "[{\"k\""))))),
      R"({"rows": "[{\"k\""})");
  EXPECT_EQ(arguments(whole(with_tools(), block(call("sh", parameter("rows", "false", ""))))),
            R"({"rows": ""})");
}

TEST(OutputParser, C006_AValueThatIsNotYetJsonBreaksNothing) {
  const Transcript t = whole(
      with_tools(), block(call("sh", parameter("n", "false", "python3 -c \"pri")) + call("f", "")));
  EXPECT_EQ(t.content, "");
  EXPECT_EQ(t.calls.front().arguments, R"({"n": "python3 -c \"pri"})");
  EXPECT_EQ(t.calls.size(), 2U);
}

TEST(OutputParser, ArgumentNamesEndAtTheirQuoteAndAreEscaped) {
  EXPECT_EQ(arguments(whole(with_tools(), block(call("f", parameter("my key", "true", "v"))))),
            R"({"my key": "v"})");
  EXPECT_EQ(arguments(whole(with_tools(), block(call("f", parameter("a\\b\x01>", "true", "v"))))),
            "{\"a\\\\b\\u0001>\": \"v\"}");
  EXPECT_EQ(arguments(whole(with_tools(), block(call("f", parameter("größe😀", "true", "v"))))),
            R"({"größe😀": "v"})");
}

TEST(OutputParser, AParameterWithoutItsStringAttribute) {
  const auto bare = [](std::string_view name, std::string_view value) {
    return block(call("sh", "<｜DSML｜ parameter name=\"" + std::string(name) + "\">" +
                                std::string(value) + "</｜DSML｜ parameter>\n"));
  };
  EXPECT_EQ(arguments(whole(with_tools(), bare("cmd", "12"))), R"({"cmd": "12"})");
  EXPECT_EQ(arguments(whole(with_tools(), bare("n", "12"))), R"({"n": 12})");
  EXPECT_EQ(arguments(whole(with_tools(), bare("n", "x"))), R"({"n": "x"})");
  EXPECT_EQ(arguments(whole(with_tools(), bare("rows", "[]"))), R"({"rows": []})");
  EXPECT_EQ(arguments(whole(with_tools(), bare("any", "1"))), R"({"any": "1"})");
  EXPECT_EQ(arguments(whole(with_tools(), bare("unknown", "1"))), R"({"unknown": "1"})");
}

TEST(OutputParser, TheFirstOfTwoArgumentsOfOneNameCounts) {
  EXPECT_EQ(arguments(whole(
                with_tools(),
                block(call("f", parameter("a", "true", "1") + parameter("a", "false", "2") +
                                    parameter("a", "true", "3") + parameter("b", "false", "4"))))),
            R"({"a": "1", "b": 4})");
}

// A refused call leaves no trace but the reason.
void expect_refused(const Request& request, std::string_view text) {
  const Transcript t = whole(request, text);
  EXPECT_TRUE(t.calls.empty()) << text;
  EXPECT_EQ(t.content, "") << text;
  EXPECT_EQ(t.reason, FinishReason::kBrokenCall) << text;
}

TEST(OutputParser, C004_AParameterWithoutItsMarkerIsRecoveredOnlyWhenDeclared) {
  const std::string text =
      "<｜DSML｜invoke name=\"set_mode\"><parameter "
      "name=\"on\">true</｜DSML｜parameter></｜DSML｜invoke>";
  EXPECT_EQ(arguments(whole(with_tools(), text)), R"({"on": true})");
  expect_refused(with_tools(),
                 block(call("set_mode", "<parameter name=\"off\">true</｜DSML｜ parameter>")));
  expect_refused(with_tools(),
                 block(call("f", "<parameter name=\"on\">true</｜DSML｜ parameter>")));
}

TEST(OutputParser, C004_WithoutMarkersTheEndOfAValueIsAGuess) {
  const Transcript t =
      whole(with_tools(), block(call("set_mode", "<parameter name=\"on\">true</parameter>\n")));
  EXPECT_EQ(t.reason, FinishReason::kBrokenCall);
  EXPECT_FALSE(parse_json(arguments(t)));  // named, but nothing that could be run
}

TEST(OutputParser, C004_MarkupThatCannotBeReadIsRefused) {
  const std::vector<std::string> broken = {
      block(call("f", "{\"a\": 1}")),
      block(call("f", "<｜DSML｜ parameter name='a' string=\"true\">v</｜DSML｜ parameter>")),
      block(call("f", "<｜DSML｜ argument name=\"a\" string=\"true\">v</｜DSML｜ argument>")),
      block(call("f", "<｜DSML｜ parameter string=\"true\">v</｜DSML｜ parameter>")),
      block("<｜DSML｜ invoke name='f'></｜DSML｜ invoke>"),
      block("<｜DSML｜ invoke></｜DSML｜ invoke>"),
      block("<invoke name=\"f\"></invoke>"),
      block("<｜DSML｜ invoke name=\"f\"\n<｜DSML｜ parameter name=\"a\" string=\"true\">v"),
      block(parameter("a", "true", "v")),
      block("I had better not."),
      block(""),
      "<｜DSML｜ table></｜DSML｜ table>",
      "<｜DSML｜" + std::string(10'000, 'x'),
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\">",
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f",
      "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"a",
      "<｜DSML｜"};
  for (const std::string& text : broken) {
    const Transcript t = transcript_of(with_tools(), {text});
    EXPECT_TRUE(t.calls.empty()) << text;
    EXPECT_EQ(t.content, "") << text;
    EXPECT_EQ(t.reason, FinishReason::kBrokenCall) << text;
    if (text.size() < 1000) {
      expect_refused(with_tools(), text);
    }
  }
}

TEST(OutputParser, C004_ACallThatBreaksHalfWayStaysOpenAndEndsTheReply) {
  const Transcript t =
      whole(with_tools(), block(call("f", parameter("a", "true", "b")) +
                                call("g", parameter("c", "true", "d") + "oops") + call("h", "")));
  EXPECT_EQ(t.calls,
            (std::vector<Transcript::Call>{{"f", R"({"a": "b"})"}, {"g", R"({"c": "d")"}}));
  EXPECT_EQ(t.reason, FinishReason::kBrokenCall);
  TranscriptSink sink;
  const auto parser = OutputParser::create(with_tools(), nullptr, sink);
  parser->feed_text("<｜DSML｜ calls><invoke name=\"", 4);
  EXPECT_TRUE(parser->finished());  // the source need not go on
}

TEST(OutputParser, AStopInsideACallClosesIt) {
  const std::string begin = "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\">";
  const std::string first = "<｜DSML｜ parameter name=\"a\" string=\"true\">b";
  EXPECT_EQ(arguments(whole(with_tools(), begin + first)), R"({"a": "b"})");
  EXPECT_EQ(arguments(whole(with_tools(), begin + first + "</｜DSML")), R"({"a": "b"})");
  EXPECT_EQ(arguments(whole(with_tools(), begin + first + "</")), R"({"a": "b</"})");
  EXPECT_EQ(arguments(whole(with_tools(), begin + first + "</｜DSML｜ para")), R"({"a": "b"})");
  EXPECT_EQ(arguments(whole(with_tools(), begin + parameter("a", "true", "b"))), R"({"a": "b"})");
  EXPECT_EQ(arguments(whole(with_tools(), begin + parameter("a", "true", "b") + "</｜DSML｜ inv")),
            R"({"a": "b"})");
  EXPECT_EQ(
      arguments(whole(with_tools(), begin + "<｜DSML｜ parameter name=\"a\" string=\"false\">[1,")),
      R"({"a": "[1,"})");
  EXPECT_EQ(whole(with_tools(), begin + first).reason, FinishReason::kToolCalls);
  const Transcript t = whole(with_tools(), begin + first, std::nullopt);
  EXPECT_EQ(t.reason, FinishReason::kBrokenCall);  // nobody said that the call was whole
}

TEST(OutputParser, C015_ACallCutByTheTokenLimitStaysOpen) {
  const std::string text =
      block(call("f", parameter("a", "true", "long value") + parameter("b", "false", "[1, 2]")));
  const std::string all = arguments(whole(with_tools(), text));
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    const Transcript t =
        transcript_of(with_tools(), {std::string_view(text).substr(0, cut)}, kLength);
    EXPECT_EQ(t.reason, FinishReason::kLength);
    EXPECT_EQ(t.content.find("｜DSML｜"), std::string::npos);
    if (!t.calls.empty()) {
      EXPECT_TRUE(all.starts_with(t.calls[0].arguments)) << t.calls[0].arguments;
      EXPECT_EQ(parse_json(t.calls[0].arguments).has_value(), t.calls[0].arguments == all);
    }
  }
}

TEST(OutputParser, StrayMarkupNeverReachesTheContent) {
  EXPECT_EQ(whole(with_tools(), "a</｜DSML｜ parameter>b").content, "ab");
  EXPECT_EQ(whole(with_tools(), "a</｜DSML｜ parameter").content, "a");
  EXPECT_EQ(whole(with_tools(), "a</｜DSML｜\nb").content, "a\nb");
  EXPECT_EQ(whole(with_tools(), "a</｜DSML｜" + std::string(40, 'x')).content, "axxxxxxxx");
  EXPECT_EQ(whole(with_tools(), "a ｜DSML｜ b").content, "a  b");
  EXPECT_EQ(whole(with_tools(), "a <|DSML| calls> b").content, "a <|DSML| calls> b");
}

TEST(OutputParser, C008_MarkupNobodyAskedForIsDropped) {
  Request none = with_tools();
  none.output.parse_tool_calls = false;
  const std::string text = "a" + block(call("f", parameter("x", "true", "y")));
  Transcript t = whole(none, text);
  EXPECT_EQ(t.content, "a");
  EXPECT_TRUE(t.calls.empty());
  EXPECT_EQ(t.reason, FinishReason::kStop);
  none.conversation.tools.clear();  // no tools at all, and no ids: the text is what was written
  EXPECT_EQ(whole(none, text).content, text);
}

// A closing tag that never ends is given up after a bound, and never within a character.
TEST(OutputParser, AStrayTagEndsAtACharacter) {
  for (std::size_t offset = 0; offset < 4; ++offset) {
    std::string text = "a</｜DSML｜ " + std::string(offset, 'x');
    for (int i = 0; i < 40; ++i) {
      text += "毕";
    }
    const Transcript t = whole(with_tools(), text);
    EXPECT_TRUE(t.problem.empty()) << offset << ": " << t.problem;
    EXPECT_TRUE(t.content.ends_with("毕毕")) << t.content;
  }
}

// ---- JSON mode

TEST(OutputParser, JsonModeGivesTheJsonAlone) {
  EXPECT_EQ(whole(json_mode(), "Sure:\n```json\n{\"a\": 1}\n```\nbye").content, "{\"a\": 1}");
  EXPECT_EQ(whole(json_mode(), "Sure: {\"a\": [1]}").content, "{\"a\": [1]}");
  EXPECT_EQ(whole(json_mode(thinking()), "t</think>\n\n[1]").content, "[1]");
  EXPECT_EQ(whole(json_mode(), "```\ntrue\n```").content, "true");
}

TEST(OutputParser, JsonModeWithoutJsonLosesNothing) {
  EXPECT_EQ(whole(json_mode(), "\nI cannot do that.").content, "I cannot do that.");
  const Transcript t = whole(json_mode(), "Let me look." + block(call("f", "")));
  EXPECT_EQ(t.content, "Let me look.");
  EXPECT_EQ(t.calls.size(), 1U);
}

TEST(OutputParser, JsonModeKeepsMarkupAndStopStringsApart) {
  EXPECT_EQ(whole(json_mode(), "{\"a\":1}" + block(call("f", ""))).content, "{\"a\":1}");
  const Transcript t = whole(json_mode(with_stops(with_tools(), {"x"})), "x {\"a\":\"x\"}");
  EXPECT_EQ(t.content, "{\"a\":\"");
  EXPECT_EQ(t.reason, FinishReason::kStopSequence);
}

TEST(OutputParser, Recipe02JsonModeSpacesFollowThePieces) {
  const auto content = [](std::vector<std::string_view> chunks) {
    return transcript_of(recipe02(json_mode()), chunks).content;
  };
  EXPECT_EQ(content({"Sure:\n```json\n{\"a\": 1}\n```\nbye"}), " {\"a\": 1} ");
  EXPECT_EQ(content({"a", "b</think>", "c", "d{\"x\""}), "    {\"x\"");
  EXPECT_EQ(content({"ab</think>cd</think>e{\"x\""}), "   {\"x\"");
  EXPECT_EQ(content({"\n\nab</think>\ncd</think>e```json\nx\n```end", "more"}), "   x  ");
  EXPECT_EQ(content({"a`", "``json", "\n1"}), " 1");
  EXPECT_EQ(content({"a`", "b", "{"}), "  {");
}

// ---- deepseek-recipe 0.2.0's malformed results (spec 3.4)

TEST(OutputParser, Recipe02CopiesWhatItFinds) {
  const auto args = [](std::string_view calls) {
    return arguments(whole(recipe02(with_tools()), block(calls)));
  };
  EXPECT_EQ(args(call("f", parameter("n", "false", "two"))), "{\"n\": two}");
  EXPECT_EQ(args(call("f", parameter("my key", "true", "v"))), "{\"my: \"v\"}");
  EXPECT_EQ(args(call("f", parameter("a", "true", "1") + parameter("a", "true", "2"))),
            R"({"a": "1", "a": "2"})");
  EXPECT_EQ(args("<｜DSML｜invoke name=\"f\"><parameter name=\"on\">true</｜DSML｜parameter>"),
            "{\"on\">true</｜DSML｜parameter></｜DSML｜: ");
  EXPECT_EQ(args("invoke name=\"f\">"), "{}");
  const Transcript cut = whole(recipe02(with_tools()),
                               "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter "
                               "name=\"a\" string=\"true\">b");
  EXPECT_EQ(arguments(cut), "{\"a\": \"b");
  EXPECT_EQ(cut.reason, FinishReason::kToolCalls);
}

// ---- ids

class SmallVocabulary : public testing::Test {
 protected:
  static std::shared_ptr<const Tokenizer> tokenizer() {
    static const auto loaded = Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json");
    EXPECT_TRUE(loaded) << to_string(loaded.error());
    return *loaded;
  }
  // Control tokens by name, everything else as plain text.
  static std::vector<TokenId> ids(std::string_view text) {
    std::vector<TokenId> out;
    tokenizer()->encode_with_added(text, out);
    return out;
  }
  static std::vector<TokenId> plain_ids(std::string_view text) {
    std::vector<TokenId> out;
    tokenizer()->encode(text, out);
    return out;
  }
  // All at once, after checking that one at a time and random groups give the same.
  static Transcript whole(const Request& request,
                          const std::vector<TokenId>& all,
                          SourceFinish finish = kStop,
                          const std::vector<TokenLogprob>& logprobs = {}) {
    const auto grouped = [&](const std::function<std::size_t()>& next) {
      return transcript_of(request, tokenizer(), finish, [&](OutputParser& parser) {
        for (std::size_t at = 0; at < all.size();) {
          const std::size_t count = std::min(next(), all.size() - at);
          EXPECT_TRUE(parser.feed_tokens(std::span(all).subspan(at, count),
                                         logprobs.empty()
                                             ? std::span<const TokenLogprob>{}
                                             : std::span(logprobs).subspan(at, count)));
          at += count;
        }
      });
    };
    Transcript expected = grouped([&] { return all.size(); });
    EXPECT_EQ(expected.problem, "");
    EXPECT_EQ(grouped([] { return 1; }), expected);
    std::mt19937 random(3);
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(grouped([&] { return 1 + random() % 4; }), expected);
    }
    return expected;
  }
};

TEST_F(SmallVocabulary, MarkersAreControlIdsOnly) {
  std::vector<TokenId> all = plain_ids("a</think>b");
  for (const TokenId id : ids("</think>c")) {
    all.push_back(id);
  }
  const Transcript t = whole(thinking(), all);
  EXPECT_EQ(t.reasoning, "a</think>b");
  EXPECT_EQ(t.content, "c");
  const std::string markup = block(call("f", parameter("x", "true", "y")));
  EXPECT_EQ(whole(with_tools(), plain_ids(markup)).content, markup.substr(2));
  EXPECT_EQ(arguments(whole(with_tools(), ids(markup))), R"({"x": "y"})");
}

TEST_F(SmallVocabulary, C012_GroupsOfTokensChangeNothing) {
  const std::string text =
      "plan</think>Look: 毕" + block(call("sh", parameter("cmd", "true", "make all 2>&1 毕") +
                                                    parameter("n", "false", "12")));
  const Transcript t = whole(thinking(), ids(text));
  EXPECT_EQ(t.reasoning, "plan");
  EXPECT_EQ(t.content, "Look: 毕");
  EXPECT_EQ(arguments(t), R"({"cmd": "make all 2>&1 毕", "n": 12})");
}

TEST_F(SmallVocabulary, C023_HalvesOfACharacterStayTogether) {
  std::vector<TokenId> all = plain_ids("č毕");
  ASSERT_GT(all.size(), 2U);  // the small vocabulary spells them in bytes
  EXPECT_EQ(whole(with_tools(), all).content, "č毕");
  all.pop_back();
  const Transcript t = whole(with_tools(), all);
  EXPECT_EQ(t.content, "č\xEF\xBF\xBD");  // cut inside a character: shown and counted
  EXPECT_EQ(t.usage.completion_tokens, std::ssize(all));
  const Transcript lost =
      transcript_of(recipe02(with_tools()), tokenizer(), kStop,
                    [&](OutputParser& parser) { EXPECT_TRUE(parser.feed_tokens(all)); });
  EXPECT_EQ(lost.content, "");
  EXPECT_EQ(lost.usage.completion_tokens, 0);
}

TEST_F(SmallVocabulary, UsageCountsWhatWasSampled) {
  const std::vector<TokenId> before = ids("\nplan\n</think>");
  const std::vector<TokenId> all = ids("\nplan\n</think>\n\nYes");
  const Transcript t = whole(thinking(), all);
  EXPECT_EQ(t.usage.completion_tokens, std::ssize(all));
  EXPECT_EQ(t.usage.reasoning_tokens, std::ssize(before));  // newlines and the marker too
  EXPECT_EQ(whole(with_tools(), all).usage.reasoning_tokens, std::nullopt);
  const Transcript emitted =
      transcript_of(recipe02(thinking()), tokenizer(), kStop,
                    [&](OutputParser& parser) { EXPECT_TRUE(parser.feed_tokens(all)); });
  EXPECT_EQ(emitted.usage.reasoning_tokens, std::ssize(plain_ids("plan")));
}

TEST_F(SmallVocabulary, UsageEndsWithTheTokenThatCompletesAStopString) {
  std::vector<TokenId> all = plain_ids("abEND");
  const auto counted = std::ssize(all);
  for (const TokenId id : plain_ids(" and more")) {
    all.push_back(id);
  }
  EXPECT_EQ(whole(with_stops(with_tools(), {"END"}), all).usage.completion_tokens, counted);
}

TEST_F(SmallVocabulary, StopStringsMatchWhateverTokensSpellThem) {
  EXPECT_EQ(whole(with_stops(with_tools(), {"<｜User｜>"}), ids("a<｜User｜>b")).content, "a");
  EXPECT_EQ(whole(recipe02(with_stops(with_tools(), {"<｜User｜>"})), ids("a<｜User｜>b")).content,
            "a<｜User｜>b");
}

TEST_F(SmallVocabulary, C008_ControlMarkupWithoutToolsIsDropped) {
  Request none = with_tools();
  none.output.parse_tool_calls = false;
  none.conversation.tools.clear();
  EXPECT_EQ(whole(none, ids("a" + block(call("f", "")))).content, "a");
}

TEST_F(SmallVocabulary, C036_LogprobsComeOnceAndWithTheirText) {
  const std::vector<TokenId> all = ids("\na</think>\n\nbč <" + block(call("f", "")));
  std::vector<TokenLogprob> logprobs;
  for (const TokenId id : all) {
    logprobs.push_back({.token = std::string(tokenizer()->bytes(id)), .logprob = -1.0F, .top = {}});
  }
  const Transcript t = whole(thinking(), all, kStop, logprobs);
  std::string joined;
  for (const std::string& token : t.logprob_tokens) {
    joined += token;
  }
  EXPECT_EQ(t.content, "bč <");
  // A token that holds both text and stripped newlines comes with its text.
  joined.erase(std::remove(joined.begin(), joined.end(), '\n'), joined.end());
  EXPECT_EQ(joined, "abč <");
}

TEST_F(SmallVocabulary, Recipe02RepeatsLogprobsOfACutPiece) {
  const std::vector<TokenId> all = plain_ids("x{y");
  std::vector<TokenLogprob> logprobs(all.size(), {.token = "t", .logprob = -1.0F, .top = {}});
  const Transcript t =
      transcript_of(recipe02(json_mode()), tokenizer(), kStop,
                    [&](OutputParser& parser) { EXPECT_TRUE(parser.feed_tokens(all, logprobs)); });
  EXPECT_EQ(t.content, " {y");
  EXPECT_EQ(t.logprob_tokens.size(), 3 * all.size());
}

TEST_F(SmallVocabulary, BadInputIsAnError) {
  TranscriptSink sink;
  const auto text_only = OutputParser::create(with_tools(), nullptr, sink);
  EXPECT_FALSE(text_only->feed_tokens(std::vector<TokenId>{1}));
  const auto parser = OutputParser::create(with_tools(), tokenizer(), sink);
  EXPECT_FALSE(parser->feed_tokens(std::vector<TokenId>{1}, std::vector<TokenLogprob>(2)));
  EXPECT_TRUE(parser->feed_tokens(std::vector<TokenId>{4'000'000'000U}));  // unknown: no text
}

// ---- recorded and mangled replies

Protocol protocol_of(const Json& record) {
  const std::string& p = golden_string(record, "p");
  return p == "chat"       ? Protocol::kChat
         : p == "messages" ? Protocol::kMessages
                           : Protocol::kResponses;
}

void expect_sound(const Request& request, const Transcript& t, std::string_view text) {
  EXPECT_EQ(t.problem, "") << text;
  EXPECT_EQ(t.starts, 1) << text;
  EXPECT_EQ(t.finishes, 1) << text;
  EXPECT_EQ(problem_with_calls(t), "") << text;
  if (request.output.parse_tool_calls) {
    EXPECT_EQ(t.content.find("｜DSML｜"), std::string::npos) << text;
  }
}

std::vector<std::string_view> random_pieces(std::string_view text, std::mt19937& random) {
  std::vector<std::string_view> pieces;
  const std::size_t longest = 1 + random() % 50;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = 1 + random() % longest;
    pieces.push_back(text.substr(at, size));
    at += size;
  }
  return pieces;
}

TEST(OutputParser, C012_RecordedRepliesAreTheSameHoweverTheyAreCut) {
  std::mt19937 random(1);
  for (const Json& record : golden_records("parse")) {
    CodecOptions options = options_of(record);
    options.compat = Compat::kGalley;
    const Result<Request> request =
        parse_request(protocol_of(record), golden_string(record, "body"), options);
    ASSERT_TRUE(request) << golden_string(record, "id");
    const std::string& text = golden_string(record, "text");
    const Transcript expected = transcript_of(*request, {text});
    expect_sound(*request, expected, text);
    // Cuts at every byte and 50 random splits; every byte of every record would take seconds, so
    // long ones are cut at every third.
    for (std::size_t cut = 1; cut < text.size(); cut += text.size() > 300 ? 3 : 1) {
      const std::string_view all = text;
      ASSERT_EQ(transcript_of(*request, {all.substr(0, cut), all.substr(cut)}), expected) << text;
    }
    for (int round = 0; round < 50; ++round) {
      ASSERT_EQ(transcript_of(*request, random_pieces(text, random)), expected) << text;
    }
  }
}

// Valid blocks with a few edits: pieces of grammar put in, taken out, doubled or swapped.
TEST(OutputParser, MangledRepliesAreSoundAndTheSameHoweverTheyAreCut) {
  const std::vector<std::string> grammar = {"<｜DSML｜",
                                            "</｜DSML｜",
                                            "｜DSML｜",
                                            " calls>",
                                            "tool_calls>",
                                            " invoke",
                                            " name=\"",
                                            "sh",
                                            "\"",
                                            ">",
                                            "\n",
                                            " parameter",
                                            " string=\"",
                                            "true",
                                            "false",
                                            "</think>",
                                            "<",
                                            "</",
                                            "12",
                                            "[1,",
                                            "{",
                                            "set_mode",
                                            "on",
                                            "<parameter name=\"",
                                            "invoke name=\"",
                                            "毕",
                                            "END",
                                            "'",
                                            "="};
  std::mt19937 random(2);
  std::set<FinishReason> seen;
  for (int round = 0; round < 3'000; ++round) {
    const std::vector<std::string> valid = {
        "r",          "</think>",   "a",        "\n",         "<｜DSML｜",  " calls>",    "\n",
        "<｜DSML｜",  " invoke",    " name=\"", "set_mode",   "\"",         ">",          "\n",
        "<｜DSML｜",  " parameter", " name=\"", "on",         "\"",         " string=\"", "false",
        "\"",         ">",          "true",     "</｜DSML｜", " parameter", ">",          "\n",
        "<｜DSML｜",  " parameter", " name=\"", "cmd",        "\"",         " string=\"", "true",
        "\"",         ">",          "x\"y",     "</｜DSML｜", " parameter", ">",          "\n",
        "</｜DSML｜", " invoke",    ">",        "\n",         "</｜DSML｜", " calls>"};
    std::vector<std::string> parts = valid;
    for (unsigned edits = random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % parts.size();
      const auto place = parts.begin() + static_cast<std::ptrdiff_t>(at);
      switch (random() % 4) {
        case 0:
          parts.insert(place, grammar[random() % grammar.size()]);
          break;
        case 1:
          parts.erase(place);
          break;
        case 2:
          std::swap(*place, parts[random() % parts.size()]);
          break;
        default:
          parts.resize(at + 1);
      }
    }
    std::string text;
    for (const std::string& part : parts) {
      text += part;
    }
    Request request = random() % 2 == 0 ? with_tools() : thinking();
    request = with_stops(random() % 4 == 0 ? json_mode(request) : request, {"END"});
    const std::optional<SourceFinish> finish = random() % 3 == 0   ? std::optional<SourceFinish>()
                                               : random() % 2 == 0 ? kStop
                                                                   : kLength;
    const Transcript expected = transcript_of(request, {text}, finish);
    expect_sound(request, expected, text);
    seen.insert(expected.reason);
    for (int split = 0; split < 4; ++split) {
      ASSERT_EQ(transcript_of(request, random_pieces(text, random), finish), expected) << text;
    }
  }
  EXPECT_EQ(seen.size(), 6U);  // all but the content filter were met
}

}  // namespace
}  // namespace galley::recipe
