// Goal: prompts equal the reference's byte for byte, and control tokens stand only where the
// template puts them (spec recipe 2, 4). Method: hand-built conversations for each rule, shown with
// control tokens as {names}; then every vector prompt through the request parsers (conformance_test
// has the golden ones).
#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "recipe/golden_for_test.h"
#include "recipe/prompt.h"

namespace galley::recipe {
namespace {

constexpr std::array<std::string_view, kControlCount> kNames = {
    "BOS",    "EOS",  "System", "User",     "Assistant", "Reminder", "think",
    "/think", "DSML", "Image",  "FimBegin", "FimHole",   "FimEnd",   "ref",
    "/ref",   "box",  "/box",   "point",    "/point",    "polygon",  "/polygon"};

// The prompt with each control token as {name}. Also checks that the spans are what they should be.
std::string shown(const Prompt& prompt) {
  std::string out;
  std::size_t done = 0;
  for (const ControlSpan& span : prompt.controls) {
    EXPECT_GE(span.begin, done);
    EXPECT_EQ(prompt.text.substr(span.begin, span.end - span.begin), spelling(span.control));
    out.append(prompt.text, done, span.begin - done);
    out.append("{").append(kNames[static_cast<std::size_t>(span.control)]).append("}");
    done = span.end;
  }
  return out.append(prompt.text, done);
}

Message system(std::string text) {
  return {.role = Role::kSystem, .content = {.text = std::move(text)}};
}
Message user(std::string text) {
  return {.role = Role::kUser, .content = {.text = std::move(text)}};
}
Message reminder(std::string text) {
  return {.role = Role::kLatestReminder, .content = {.text = std::move(text)}};
}
Message assistant(std::string text, std::string reasoning = "", std::vector<ToolCall> calls = {}) {
  return {.role = Role::kAssistant,
          .content = {.text = std::move(text)},
          .reasoning = std::move(reasoning),
          .tool_calls = std::move(calls)};
}
Message result(std::string id, std::string text) {
  return {.role = Role::kTool, .content = {.text = std::move(text)}, .tool_call_id = std::move(id)};
}
Message prefix(std::string text, std::string reasoning = "") {
  Message message = assistant(std::move(text), std::move(reasoning));
  message.prefix = true;
  return message;
}

Conversation chat(std::vector<Message> messages) {
  return {.messages = std::move(messages), .thinking = false};
}
Conversation thinking(std::vector<Message> messages, std::vector<Tool> tools = {}) {
  return {.messages = std::move(messages), .effort = Effort::kHigh, .tools = std::move(tools)};
}

std::string v41(const Conversation& conversation) {
  return shown(render(conversation, ModelVersion::kV41));
}
std::string v4(const Conversation& conversation) {
  return shown(render(conversation, ModelVersion::kV4));
}

// What stands between the tool prompt and the end, for conversations with tools.
std::string after_tools(const std::string& prompt) {
  constexpr std::string_view kLast = "to invoke tool calls.\n";
  const std::size_t at = prompt.find(kLast);
  EXPECT_NE(at, std::string::npos);
  return prompt.substr(at + kLast.size());
}

constexpr std::string_view kEffort75 =
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

TEST(Render, OneQuestion) {
  EXPECT_EQ(v41(chat({user("hi")})), "{BOS}{User}hi{Assistant}{/think}");
  EXPECT_EQ(v4(chat({user("hi")})), "{BOS}{User}hi{Assistant}{/think}");
  EXPECT_EQ(v41(thinking({user("hi")})),
            "{BOS}{System}" + std::string(kEffort75) + "{User}hi{Assistant}{think}");
}

TEST(Render, EffortTexts) {
  const auto effort = [](std::optional<Effort> asked, ModelVersion version) {
    Conversation conversation = thinking({user("x")});
    conversation.effort = asked;
    const std::string prompt = shown(render(conversation, version));
    const std::size_t begin = prompt.find("Reasoning Effort: ");
    return begin == std::string::npos ? "" : prompt.substr(begin, prompt.find("{User}") - begin);
  };
  EXPECT_TRUE(effort(Effort::kLow, ModelVersion::kV41).starts_with("Reasoning Effort: 50 ("));
  for (const std::optional<Effort> usual :
       {std::optional(Effort::kHigh), std::optional(Effort::kXhigh), std::optional<Effort>()}) {
    EXPECT_EQ(effort(usual, ModelVersion::kV41), kEffort75);
    EXPECT_TRUE(effort(usual, ModelVersion::kV4)
                    .starts_with("Reasoning Effort: Absolute maximum with no shortcuts"));
    EXPECT_TRUE(effort(usual, ModelVersion::kV4).ends_with("no assumption is left unchecked.\n\n"));
  }
  EXPECT_TRUE(effort(Effort::kMax, ModelVersion::kV41).starts_with("Reasoning Effort: 100 ("));
  EXPECT_EQ(effort(Effort::kLow, ModelVersion::kV4), "");
  EXPECT_TRUE(effort(Effort::kMax, ModelVersion::kV4)
                  .starts_with("Reasoning Effort: Beyond maximum \u2014 exhaustive"));
  EXPECT_TRUE(
      effort(Effort::kMax, ModelVersion::kV4).ends_with("no error remains undiscovered.\n\n"));
}

TEST(Render, SystemMessages) {
  const std::vector<Message> messages = {system("a"), system(""),     user("q"),
                                         system("b"), assistant("r"), user("s")};
  EXPECT_EQ(v41(chat(messages)),
            "{BOS}{System}a{System}{User}q{System}b{Assistant}{/think}r{EOS}{User}s{Assistant}"
            "{/think}");
  EXPECT_EQ(v4(chat(messages)),
            "{BOS}a\n\nb{User}q{Assistant}{/think}r{EOS}{User}s{Assistant}{/think}");
  EXPECT_EQ(v41(thinking({system("a"), user("q")})),
            "{BOS}{System}" + std::string(kEffort75) + "a{User}q{Assistant}{think}");
}

TEST(Render, JoinedTurns) {
  EXPECT_EQ(v41(chat({user("a"), user(""), user("b")})),
            "{BOS}{User}a\n\n\n\nb{Assistant}{/think}");
  EXPECT_EQ(v4(chat({user(""), user("a"), user(""), user("b")})),
            "{BOS}{User}a\n\nb{Assistant}{/think}");
  EXPECT_EQ(v4(chat({user("a"), system("s"), user("b")})), "{BOS}s{User}a\n\nb{Assistant}{/think}");
  EXPECT_EQ(v41(chat({user("a"), system("s"), user("b")})),
            "{BOS}{User}a{System}s{User}b{Assistant}{/think}");
  EXPECT_EQ(v41(chat({user("a"), result("x", "r"), user("b")})),
            "{BOS}{User}a\n\n<tool_result>r</tool_result>\n\nb{Assistant}{/think}");
  EXPECT_EQ(v4(chat({user("a"), result("x", "r"), result("y", "s"), user("b")})),
            "{BOS}{User}a{User}<tool_result>r</tool_result>\n\n<tool_result>s</tool_result>\n\nb"
            "{Assistant}{/think}");
  EXPECT_EQ(v41(chat({user("a"), reminder("r"), reminder("s")})),
            "{BOS}{User}a{Reminder}r{Assistant}{/think}");
  EXPECT_EQ(v4(chat({user("a"), reminder("r"), reminder("s"), user("b")})),
            "{BOS}{User}a{Reminder}r{Reminder}s{User}b{Assistant}{/think}");
  EXPECT_EQ(v41(chat({user("a"), assistant("b"), assistant("c")})),
            "{BOS}{User}a{Assistant}{/think}b{EOS}{Assistant}{/think}c{EOS}{Assistant}{/think}");
}

TEST(Render, ReasoningOfEarlierTurns) {
  const std::vector<Message> messages = {user("q"), assistant("a", "why"), user("r")};
  const std::string dropped = "{User}q{Assistant}{/think}a{EOS}{User}r{Assistant}{think}";
  EXPECT_EQ(v41(thinking(messages)), "{BOS}{System}" + std::string(kEffort75) + dropped);
  EXPECT_TRUE(v4(thinking(messages)).ends_with(dropped));
  const std::string kept = "{User}q{Assistant}{think}why{/think}a{EOS}{User}r{Assistant}{think}";
  Conversation tools = thinking(messages, {{.name = "f"}});
  EXPECT_EQ(after_tools(v41(tools)), kept);
  EXPECT_EQ(after_tools(v4(tools)), kept);
  tools.tool_choice = ToolChoice::kNone;
  EXPECT_TRUE(v41(tools).ends_with(dropped));
  tools.tool_choice = ToolChoice::kAuto;
  tools.thinking = false;
  EXPECT_EQ(after_tools(v41(tools)), "{User}q{Assistant}{/think}a{EOS}{User}r{Assistant}{/think}");
  // A first assistant message never thinks on V4.1, unless a system turn had to be put before it.
  EXPECT_TRUE(v41(thinking({assistant("a", "why"), user("q")}))
                  .ends_with("{Assistant}{/think}a{EOS}{User}q{Assistant}{think}"));
  EXPECT_EQ(after_tools(v41(thinking({assistant("a", "why")}, {{.name = "f"}}))),
            "{Assistant}{think}why{/think}a{EOS}{Assistant}{think}");
}

TEST(Render, PrefixContinuation) {
  EXPECT_EQ(v41(chat({user("q"), prefix("a")})), "{BOS}{User}q{Assistant}{/think}a");
  EXPECT_EQ(v4(chat({user("q"), prefix("a")})), "{BOS}{User}q{Assistant}{/think}a");
  const auto end = [](const std::string& prompt) { return prompt.substr(prompt.find("{User}")); };
  for (const auto version : {v4, v41}) {
    EXPECT_EQ(end(version(thinking({user("q"), prefix("a", "why")}))),
              "{User}q{Assistant}{think}why{/think}a");
    EXPECT_EQ(end(version(thinking({user("q"), prefix("", "why")}))),
              "{User}q{Assistant}{think}why");
    EXPECT_EQ(end(version(thinking({user("q"), prefix("")}))), "{User}q{Assistant}{think}");
  }
}

constexpr std::string_view kToolPromptV41 =
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can "
    "invoke tools by writing a \"<{DSML} calls>\" block like the following:\n\n<{DSML} calls>\n"
    "<{DSML} invoke name=\"$TOOL_NAME\">\n<{DSML} parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</{DSML} parameter>\n...\n</{DSML} invoke>\n"
    "<{DSML} invoke name=\"$TOOL_NAME2\">\n...\n</{DSML} invoke>\n</{DSML} calls>\n\nString "
    "parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
    "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf "
    "thinking_mode is enabled (triggered by {think}), you MUST output your complete reasoning "
    "inside {think}...{/think} BEFORE any tool calls or final response.\n\nOtherwise, output "
    "directly after {/think} with tool calls or final response.\n\n### Available Tool "
    "Schemas\n\n";
constexpr std::string_view kToolPromptEnd =
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

TEST(Render, ToolPrompt) {
  Conversation conversation = chat({user("q")});
  conversation.tools = {{.name = "f",
                         .description = "d\n",
                         .parameters = *parse_json(R"({"type":"object","x":1e-5})")},
                        {.name = "late", .defer_loading = true},
                        {.name = "g"}};
  EXPECT_EQ(
      v41(conversation),
      "{BOS}{System}\n\n" + std::string(kToolPromptV41) +
          R"({"name": "f", "description": "d\n", "parameters": {"type": "object", "x": 1e-05}})" +
          "\n" + R"({"name": "g", "description": "", "parameters": {}})" + "\n\n" +
          std::string(kToolPromptEnd) + "{User}q{Assistant}{/think}");
  std::string instructions_v4(kToolPromptV41);
  for (const std::string_view tag : {"calls", "invoke", "parameter"}) {
    const std::string spaced = "{DSML} " + std::string(tag);
    const std::string name = tag == "calls" ? "tool_calls" : std::string(tag);
    for (std::size_t at; (at = instructions_v4.find(spaced)) != std::string::npos;) {
      instructions_v4.replace(at, spaced.size(), "{DSML}" + name);
    }
  }
  EXPECT_EQ(
      v4(conversation),
      "{BOS}\n\n" + instructions_v4 +
          R"({"name": "f", "description": "d\n", "parameters": {"type": "object", "x": 0.00001}})" +
          "\n" + R"({"name": "late", "description": "", "parameters": {}})" + "\n" +
          R"({"name": "g", "description": "", "parameters": {}})" + "\n\n" +
          std::string(kToolPromptEnd) + "{User}q{Assistant}{/think}");
  // Without a schema line V4.1 has two empty lines there.
  conversation.tools = {{.name = "late", .defer_loading = true}};
  EXPECT_NE(v41(conversation).find("Schemas\n\n\n\nYou MUST strictly"), std::string::npos);
  conversation.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(v41(conversation), "{BOS}{User}q{Assistant}{/think}");
}

TEST(Render, AnnouncedTools) {
  Conversation conversation = chat({system("s"), user("q"), system(""), user("r")});
  conversation.messages[2].announced_tools = {{.name = "a"}, {.name = "b"}};
  EXPECT_EQ(v41(conversation),
            "{BOS}{System}s{User}q{System}\n\n### Updated Tool Schemas\n\n"
            R"({"name": "a", "description": "", "parameters": {}})"
            "\n"
            R"({"name": "b", "description": "", "parameters": {}})"
            "{User}r{Assistant}{/think}");
  EXPECT_EQ(v4(conversation), "{BOS}s{User}q\n\nr{Assistant}{/think}");
}

TEST(Render, ForcedCall) {
  Conversation conversation = thinking({user("q")}, {{.name = "f"}});
  conversation.tool_choice = ToolChoice::kRequired;
  EXPECT_TRUE(v41(conversation).ends_with("{User}q{Assistant}{think}"));
  conversation.thinking = false;
  EXPECT_TRUE(v41(conversation).ends_with("{User}q{Assistant}{/think}\n\n<{DSML} calls>\n"));
  EXPECT_TRUE(v4(conversation).ends_with("{User}q{Assistant}{/think}\n\n<{DSML}tool_calls>\n"));
}

TEST(Render, ResponseFormats) {
  Conversation conversation = chat({user("q")});
  conversation.format.kind = ResponseFormat::Kind::kJsonObject;
  const std::string introduction =
      "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
  EXPECT_EQ(v41(conversation), "{BOS}{System}" + introduction +
                                   "{\"type\": \"json_object\"}{User}q{Assistant}{/think}");
  EXPECT_EQ(v4(conversation),
            "{BOS}\n\nYou are a helpful assistant designed to output JSON.\n## Response "
            "Format:\n\nReply with JSON object ONLY.{User}q{Assistant}{/think}");
  conversation.format.kind = ResponseFormat::Kind::kJsonSchema;
  conversation.format.schema = *parse_json(R"({"a":[1,2.5e-7]})");
  conversation.messages.insert(conversation.messages.begin(), system("s"));
  EXPECT_EQ(v41(conversation),
            "{BOS}{System}s" + introduction + "{\"a\": [1, 2.5e-07]}{User}q{Assistant}{/think}");
  EXPECT_EQ(v4(conversation),
            "{BOS}s" + introduction + "{\"a\": [1, 2.5e-7]}{User}q{Assistant}{/think}");
  conversation.format.kind = ResponseFormat::Kind::kRegex;
  EXPECT_EQ(v41(conversation), "{BOS}{System}s{User}q{Assistant}{/think}");
  conversation.tools = {{.name = "f"}};
  conversation.format.kind = ResponseFormat::Kind::kJsonObject;
  const std::string both = v41(conversation);
  EXPECT_LT(both.find("## Tools"), both.find("## Response Format"));
}

TEST(Render, CallsInHistory) {
  const std::vector<ToolCall> calls = {
      {.id = "call_2",
       .name = "f",
       .arguments = R"({"s":"a\"<b>","n":1e-5,"o":{"k":[true]},"s":"z"})"},
      {.id = "call_10", .name = "g", .arguments = " { } "}};
  const std::vector<Message> messages = {user("q"), assistant("a", "", calls),
                                         result("call_2", "two"), result("call_10", "ten")};
  EXPECT_EQ(v41(chat(messages)),
            "{BOS}{User}q{Assistant}{/think}a\n\n<{DSML} calls>\n<{DSML} invoke name=\"f\">\n"
            "<{DSML} parameter name=\"s\" string=\"true\">z</{DSML} parameter>\n"
            "<{DSML} parameter name=\"n\" string=\"false\">1e-05</{DSML} parameter>\n"
            "<{DSML} parameter name=\"o\" string=\"false\">{\"k\": [true]}</{DSML} parameter>\n"
            "</{DSML} invoke>\n<{DSML} invoke name=\"g\">\n\n</{DSML} invoke>\n</{DSML} calls>{EOS}"
            "{User}<tool_result>two</tool_result>\n\n<tool_result>ten</tool_result>{Assistant}"
            "{/think}");
  EXPECT_EQ(v4(chat(messages)),
            "{BOS}{User}q{Assistant}{/think}a\n\n<{DSML}tool_calls>\n<{DSML}invoke name=\"g\">\n"
            "</{DSML}invoke>\n<{DSML}invoke name=\"f\">\n"
            "<{DSML}parameter name=\"s\" string=\"true\">z</{DSML}parameter>\n"
            "<{DSML}parameter name=\"n\" string=\"false\">0.00001</{DSML}parameter>\n"
            "<{DSML}parameter name=\"o\" string=\"false\">{\"k\": [true]}</{DSML}parameter>\n"
            "</{DSML}invoke>\n</{DSML}tool_calls>{EOS}{User}<tool_result>ten</tool_result>\n\n"
            "<tool_result>two</tool_result>{Assistant}{/think}");
  for (const std::string raw : {"", "[1]", "\"s\"", "null", "{} x", "{\"a\":1e400}",
                                "{\"a\":\"\\ud83d\"}", "{\"a\": 1,}"}) {
    const std::string prompt =
        v41(chat({assistant("", "", {{.id = "c", .name = "f", .arguments = raw}})}));
    EXPECT_NE(prompt.find("<{DSML} parameter name=\"arguments\" string=\"true\">" + raw +
                          "</{DSML} parameter>\n</{DSML} invoke>"),
              std::string::npos)
        << raw;
  }
}

TEST(Render, ResultsFollowTheirCalls) {
  const auto calls = [](std::initializer_list<std::string> ids) {
    std::vector<ToolCall> out;
    for (const std::string& id : ids) {
      out.push_back({.id = id, .name = "f", .arguments = "{}"});
    }
    return out;
  };
  const auto order = [](const std::string& prompt) {
    std::string out;
    for (std::size_t at = 0; (at = prompt.find("<tool_result>", at)) != std::string::npos; ++at) {
      out += prompt.substr(at + 13, prompt.find('<', at + 1) - at - 13) + " ";
    }
    return out;
  };
  const Message unnamed{.role = Role::kTool, .content = {.text = "n"}};
  const std::vector<Message> messages = {
      user("q"),        assistant("", "", calls({"b", "a", "c"})),
      result("c", "C"), unnamed,
      result("a", "A"), user("u"),
      result("b", "B"), result("z", "Z")};
  EXPECT_EQ(order(v41(chat(messages))), "B n Z A C ");
  // V4 sorts exactly as many messages as there are calls: here C, n and A.
  EXPECT_EQ(order(v4(chat(messages))), "n A C B Z ");
  // Too few messages behind the calls: left alone.
  EXPECT_EQ(order(v4(chat(
                {assistant("", "", calls({"a", "b", "c"})), result("b", "B"), result("a", "A")}))),
            "B A ");
  // A run ends at a system message; the list of calls stays.
  EXPECT_EQ(
      order(v41(chat({assistant("", "", calls({"a", "b"})), result("b", "B"), system(""),
                      result("a", "A"), assistant("x"), result("b", "B"), result("a", "A")}))),
      "B A A B ");
}

TEST(Render, Images) {
  Message message = user("ab");
  const auto image = [](std::size_t offset, std::string reference) {
    return Image{.offset = offset, .kind = Image::Kind::kUrl, .reference = std::move(reference)};
  };
  message.content.images = {image(0, "1"), image(1, "2"), image(1, "3"), image(2, "4")};
  Message answer = result("c", "\n\n");
  answer.content.images = {image(2, "5")};
  const Conversation conversation = chat({message, answer});
  const Prompt prompt = render(conversation, ModelVersion::kV41);
  EXPECT_EQ(shown(prompt),
            "{BOS}{User}{Image}a{Image}{Image}b{Image}\n\n<tool_result>\n\n{Image}</tool_result>"
            "{Assistant}{/think}");
  ASSERT_EQ(prompt.images.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(prompt.images[i].reference, std::to_string(i + 1));
  }
  const Prompt old = render(chat({message}), ModelVersion::kV4);
  EXPECT_EQ(shown(old),
            "{BOS}{User}[Unsupported Image]a[Unsupported Image][Unsupported Image]b"
            "[Unsupported Image]{Assistant}{/think}");
  EXPECT_TRUE(old.images.empty());
}

// Only assistant text carries grounding tokens; every other spelling anywhere is text.
TEST(Render, SpellingsAreText) {
  std::string all;
  for (std::size_t i = 0; i < kControlCount; ++i) {
    all += spelling(static_cast<Control>(i));
  }
  const std::string grounded = all.substr(0, all.find("<\uff5cref\uff5c>")) +
                               "{ref}{/ref}{box}{/box}{point}{/point}{polygon}{/polygon}";
  Conversation conversation =
      thinking({system(all), user(all), assistant(all, all), result("x", all), reminder(all)},
               {{.name = "f", .description = all}});
  const std::string prompt = v41(conversation);
  EXPECT_EQ(after_tools(prompt), "{User}" + all + "{Assistant}{think}" + grounded + "{/think}" +
                                     grounded + "{EOS}{User}" + "<tool_result>" + all +
                                     "</tool_result>{Reminder}" + all + "{Assistant}{think}");
  EXPECT_NE(prompt.find(R"("description": ")" + all), std::string::npos);
  const std::string odd = "<\uff5cre<\uff5cref\uff5c>f\uff5c><\uff5c<\uff5c";
  EXPECT_EQ(v41(chat({user("q"), assistant(odd)})),
            "{BOS}{User}q{Assistant}{/think}<\uff5cre{ref}f\uff5c><\uff5c<\uff5c{EOS}{Assistant}"
            "{/think}");
}

TEST(Render, FillInTheMiddle) {
  EXPECT_EQ(shown(render_fim("a<think>", "b")), "{BOS}{FimBegin}a<think>{FimHole}b{FimEnd}");
  EXPECT_EQ(shown(render_fim("a", "")), "{BOS}a");
}

TEST(Render, NothingAtAll) {
  EXPECT_EQ(v41(chat({})), "{BOS}{Assistant}{/think}");
  EXPECT_EQ(v4(chat({})), "{BOS}{Assistant}{/think}");
  EXPECT_EQ(v41(thinking({})), "{BOS}{Assistant}{think}");
}

std::string first_difference(std::string_view got, std::string_view want) {
  const auto [a, b] = std::ranges::mismatch(got, want);
  const auto at = static_cast<std::size_t>(a - got.begin());
  const std::size_t from = at < 60 ? 0 : at - 60;
  return "byte " + std::to_string(at) + "\n got: ..." + std::string(got.substr(from, 140)) +
         "\nwant: ..." + std::string(want.substr(from, 140));
}

Protocol protocol_of(const Json& record) {
  const std::string& name = golden_string(record, "protocol");
  return name == "messages"    ? Protocol::kMessages
         : name == "responses" ? Protocol::kResponses
                               : Protocol::kChat;
}

// Vectors use names of their own for the two versions.
CodecOptions vector_options(const Json& record, const Json& request) {
  CodecOptions options{.compat = Compat::kRecipe02};
  const Json* const version = record.find("model_version");
  options.models[golden_string(request, "model")] =
      version != nullptr && *version->string() == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
  return options;
}

TEST(RenderVectors, Prompts) {
  const Json vectors = *parse_json(golden_text("recipe_vectors.json"));
  int passed = 0;
  for (const Json& record : *vectors.find("render")->array()) {
    SCOPED_TRACE(golden_string(record, "name"));
    const Json& body = *record.find("request");
    const Result<Request> request =
        parse_request(protocol_of(record), to_json(body), vector_options(record, body));
    ASSERT_TRUE(request) << to_string(request.error());
    const Prompt prompt = render(request->conversation, request->version);
    const std::string& want = golden_string(record, "prompt");
    EXPECT_TRUE(prompt.text == want) << first_difference(prompt.text, want);
    passed += prompt.text == want ? 1 : 0;
  }
  EXPECT_EQ(passed, 41);
}

// The one formatter vector that the public protocols can reach: reasoning before the last user
// message is dropped without tools.
TEST(RenderVectors, FormatterDropsReasoning) {
  const Json vectors = *parse_json(golden_text("recipe_vectors.json"));
  const Json& record = (*vectors.find("hf_formatter")->array())[2];
  ASSERT_EQ(golden_string(record, "name"), "hf-drop-thinking-no-tools");
  JsonObject body{{"model", "x"}, {"messages", *record.find("messages")}};
  const Result<Request> request =
      parse_chat_request(to_json(Json(body)), vector_options(record, Json(body)));
  ASSERT_TRUE(request);
  EXPECT_EQ(render(request->conversation, ModelVersion::kV41).text,
            golden_string(record, "prompt"));
}

// A client's literal is no control token: its place holds no span, so it becomes ordinary ids.
TEST(RenderVectors, Injection) {
  const Json vectors = *parse_json(golden_text("recipe_vectors.json"));
  for (const Json& record : *vectors.find("injection")->array()) {
    const std::string& literal = golden_string(record, "user_content");
    EXPECT_EQ(v41(chat({user(literal)})), "{BOS}{User}" + literal + "{Assistant}{/think}");
  }
}

// Many calls of one turn, and their results in runs of two, cost linear time.
TEST(Render, LinearInTheConversation) {
  constexpr int kCount = 20'000;
  std::vector<Message> messages = {user("q"), assistant("")};
  for (int i = 0; i < kCount; ++i) {
    messages[1].tool_calls.push_back({.id = std::to_string(i), .name = "f", .arguments = "{}"});
  }
  for (int i = 0; i < kCount; ++i) {
    messages.push_back(result(std::to_string(kCount - i), "r"));
    if (i % 2 == 1) {
      messages.push_back(reminder("s"));
    }
  }
  const Prompt prompt = render(chat(messages), ModelVersion::kV41);
  EXPECT_GT(prompt.text.size(), 1'000'000U);
  EXPECT_GT(render(chat(std::move(messages)), ModelVersion::kV4).text.size(), 1'000'000U);
}

}  // namespace
}  // namespace galley::recipe
