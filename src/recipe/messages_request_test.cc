// Goal: Messages bodies become the typed requests the reference makes of them, and what the
// reference leaves out is honoured, refused by name or noted (spec recipe 5, 6.6, 9.5). Method:
// golden records in both modes, then tables of small bodies.
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "recipe/golden_for_test.h"
#include "recipe/limits.h"

namespace galley::recipe {
namespace {

constexpr std::string_view kUser = R"({"role":"user","content":"q"})";
constexpr std::string_view kTool = R"({"name":"f","input_schema":{"type":"object"}})";
constexpr std::string_view kDeferred =
    R"({"name":"g","input_schema":{"type":"object"},"defer_loading":true})";
constexpr std::string_view kUse =
    R"({"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"x":1}}]})";

std::string with(std::string_view members, std::string_view messages = kUser) {
  return R"({"model":"m","messages":[)" + std::string(messages) + "]" + std::string(members) + "}";
}

std::string blocks(std::string_view role, std::string_view list) {
  return R"({"role":")" + std::string(role) + R"(","content":[)" + std::string(list) + "]}";
}

CodecOptions options(Compat compat = Compat::kGalley, ModelVersion version = ModelVersion::kV41) {
  CodecOptions out{.compat = compat};
  out.models["m"] = version;
  return out;
}

Request parsed(std::string_view body, const CodecOptions& with_options = options()) {
  Result<Request> request = parse_messages_request(body, with_options);
  EXPECT_TRUE(request) << body << " " << (request ? "" : to_string(request.error()));
  return request ? std::move(*request) : Request();
}

std::string prompt_of(const Request& request) {
  return render(request.conversation, request.version).text;
}

struct Row {
  std::string body;
  std::string_view want;  // "ok" or "WHERE: WHAT"
};
void check(const std::vector<Row>& rows, const CodecOptions& with_options) {
  for (const Row& row : rows) {
    EXPECT_EQ(outcome(Protocol::kMessages, row.body, with_options), row.want) << row.body;
  }
}

TEST(MessagesRequest, Goldens) {
  check_galley_prompts(
      "messages", Protocol::kMessages,
      [](std::string_view, const Result<Request>&) { return false; }, 0);
}

TEST(MessagesRequest, GoldenErrors) {
  check_error_places("messages", Protocol::kMessages);
}

TEST(MessagesRequest, ErrorTexts) {
  const std::string user(kUser);
  const std::string use(kUse);
  check(
      {
          {with("", blocks("user", R"({"type":"tool_result","content":"r"})")),
           "messages[0].content[0].tool_use_id: Missing required parameter: "
           "'messages[0].content[0].tool_use_id'."},
          {with("", use + "," +
                        blocks("user", R"({"type":"tool_result","tool_use_id":"a"},)"
                                       R"({"type":"tool_result","tool_use_id":"a"})")),
           "messages[1].content[1].tool_use_id: messages.1.content.1: each tool_use must have a "
           "single result. Found multiple `tool_result` blocks with id: a"},
          {with("", use),
           "messages[0]: messages.0:`tool_use` ids were found without `tool_result` "
           "blocks immediately after: a. Each `tool_use` block must have a "
           "corresponding `tool_result` block in the next message."},
          {with("", use + "," + blocks("user", R"({"type":"text","text":"t"})")),
           "messages[1]: messages.1: `tool_use` ids were found without `tool_result` blocks "
           "immediately after: a. Each `tool_use` block must have a corresponding `tool_result` "
           "block in the next message."},
          {with("", blocks("assistant", R"({"type":"tool_result","tool_use_id":"a"})")),
           "messages[0].content[0].type: messages.0: `tool_result` blocks can only be in `user` "
           "messages"},
          {with("", blocks("user", R"({"type":"tool_addition","tool":)"
                                   R"({"type":"tool_reference","name":"f"}})")),
           "messages[0].content[0].type: messages.0: `tool_addition` blocks can only be in "
           "`system` messages"},
          {with("", blocks("system", R"({"type":"tool_addition","tool":)"
                                     R"({"type":"tool_reference","name":"f"}})")),
           "messages[0].content[0].tool: messages.0.content.0: `tool_addition` references unknown "
           "tool 'f'"},
          {with("", blocks("user", R"({"type":"web_search_tool_result","tool_use_id":"a",)"
                                   R"("content":[]})")),
           "messages[0].content[0].type: messages.0: `web_search_tool_result` blocks can only be "
           "in `assistant` messages"},
          {with("", blocks("system", R"({"type":"thinking","thinking":"t"})")),
           "messages[0].content[0].type: messages.0.content: thinking blocks may only be in "
           "`assistant` messages"},
          {with("", use + "," +
                        blocks("user", R"({"type":"tool_result","tool_use_id":"a","content":)"
                                       R"([{"type":"tool_reference","tool_name":"z"}]})")),
           "messages[1].content[0].content[0].tool_name: messages.1.content.0: tool reference 'z' "
           "not found in available tools"},
          {with(",\"tools\":[" + std::string(kDeferred) + "]"),
           "tools: tools: at least one tool must have defer_loading=false. All tools cannot be "
           "deferred."},
          {with(R"(,"tools":[{"name":"a b","input_schema":{"type":"object"}}])"),
           "tools[0].name: Invalid 'tools[0].name': string does not match pattern. Expected a "
           "string that matches the pattern '^[a-zA-Z0-9_-]+$'."},
          {with(R"(,"max_tokens":0)"),
           "max_tokens: Invalid max_tokens value, the valid range of max_tokens is [1, 393216]"},
          {with(R"(,"stop_sequences":"s")"),
           "stop_sequences: Invalid type for 'stop_sequences': expected an array, but got a string "
           "instead."},
          {with("",
                blocks("user", R"({"type":"image","source":{"type":"url","url":"a\"b\u0001"}})")),
           "messages[0].content[0].source.url: messages.0.content[0]: invalid url: "
           R"("a\"b\u{1}")"},
          {with("", blocks("user", R"({"type":"image","source":{"type":"url","url":"http)" +
                                       std::string(kImageLinkBytesMax, 'x') + "\"}}")),
           "messages[0].content[0].source.url: messages.0.content[0]: external link length 8196 "
           "too long, max link length 8192. Consider passing file data directly with base64 data "
           "url instead."},
          {with("", blocks("user", R"({"type":"image","source":{"type":"file","file_id":"i"}})")),
           "messages[0].content[0].source.file_id: messages.0.content[0]: file_id is not "
           "supported. "
           "Pass the image as a base64 data url instead."},
          {with("", blocks("user", R"({"type":"image","source":{"type":"base64","media_type":)"
                                   R"("image/png","data":"AAA"}})")),
           "messages[0].content[0].source.data: messages.0.content[0]: base64 decode error"},
      },
      options(Compat::kRecipe02));
}

TEST(MessagesRequest, UnansweredIdsAreNamedInBounds) {
  const auto ids_named = [](int count, Compat compat) {
    std::string uses;
    for (int i = 0; i != count; ++i) {
      const std::string id = std::to_string(10 + i) + std::string(80, 'x');
      uses.append(i == 0 ? "" : ",").append(R"({"type":"tool_use","name":"f","id":")");
      uses.append(id).append(R"(","input":{}})");
    }
    const std::string text =
        outcome(Protocol::kMessages, with("", blocks("assistant", uses)), options(compat));
    const std::size_t begin = text.find("after: ") + 7;
    return text.substr(begin, text.find(". Each") - begin);
  };
  const auto list = [](int count, std::size_t tail) {
    std::string text;
    for (int i = 0; i != count; ++i) {
      text.append(i == 0 ? "" : ", ").append(std::to_string(10 + i)).append(tail, 'x');
    }
    return text;
  };
  EXPECT_EQ(ids_named(2, Compat::kGalley), list(2, 62));
  EXPECT_EQ(ids_named(8, Compat::kGalley), list(8, 62));
  EXPECT_EQ(ids_named(9, Compat::kGalley), list(8, 62) + " and 1 more");
  EXPECT_EQ(ids_named(20, Compat::kGalley), list(8, 62) + " and 12 more");
  EXPECT_EQ(ids_named(20, Compat::kRecipe02), list(20, 80));
}

TEST(MessagesRequest, ChecksRunInTheReferencesOrder) {
  const auto starts = [](const std::string& body, std::string_view where) {
    const std::string got = outcome(Protocol::kMessages, body, options(Compat::kRecipe02));
    EXPECT_TRUE(got.starts_with(where)) << body << " " << got;
  };
  const std::string server = R"(,"tools":[{"type":"bash_1"}])";
  starts(R"({"model":"zz","messages":[],"tools":[{"type":5}]})", "tools[0].type: Invalid type");
  starts(R"({"model":"zz","messages":[])" + server + "}", "model: ");
  starts(R"({"model":"m","messages":[])" + server + "}", "tools[0].type: ");
  starts(R"({"model":"m","messages":[],"tools":[{"name":"f","input_schema":{}}]})", "messages: ");
  starts(with(R"(,"tools":[{"name":"f","input_schema":{}}],"stop_sequences":[""])"),
         "tools[0].input_schema: ");
  starts(with(R"(,"stop_sequences":[""],"temperature":3)"), "stop_sequences[0]: ");
  starts(with(R"(,"temperature":3,"top_p":0)"), "temperature: ");
  starts(with(R"(,"top_p":0,"max_tokens":0)"), "top_p: ");
}

TEST(MessagesRequest, Base64PaddingIsMadeCanonical) {
  const auto reference = [](std::string_view data) {
    const Request request = parsed(with(
        "", blocks("user", R"({"type":"image","source":{"type":"base64","media_type":"image/jpg",)"
                           R"("data":")" +
                               std::string(data) + "\"}}")));
    return request.conversation.messages[0].content.images[0].reference;
  };
  EXPECT_EQ(reference("AA="), "data:image/jpeg;base64,AA==");
  EXPECT_EQ(reference("AAA=="), "data:image/jpeg;base64,AAA=");
  EXPECT_EQ(reference("AAAA==="), "data:image/jpeg;base64,AAAA");
}

TEST(MessagesRequest, SystemAndItsBillingBlock) {
  const auto first = [](std::string_view system) {
    const Message message =
        parsed(with(",\"system\":" + std::string(system))).conversation.messages[0];
    return message.role == Role::kSystem ? message.content.text : "(none)";
  };
  EXPECT_EQ(first(R"("")"), "");
  EXPECT_EQ(first("null"), "(none)");
  EXPECT_EQ(
      first(R"([{"type":"text","text":"X-Anthropic-Billing-Header: x"},)"
            R"({"type":"text","text":"b"},{"type":"text","text":"x-anthropic-billing-header"}])"),
      "b\n\nx-anthropic-billing-header");
}

TEST(MessagesRequest, AnnouncedToolsAreSettled) {
  const std::string body =
      with(",\"tools\":[" + std::string(kTool) + "," + std::string(kDeferred) + "]",
           std::string(kUser) + "," +
               blocks("system", R"({"type":"tool_addition","tool":)"
                                R"({"type":"tool_reference","name":"g"}})"));
  const Request request = parsed(body);
  ASSERT_EQ(request.conversation.messages.size(), 2U);
  ASSERT_EQ(request.conversation.messages[1].announced_tools.size(), 1U);
  EXPECT_TRUE(request.conversation.messages[1].announced_tools[0].parameters);
  // A choice of another tool leaves nothing to announce, and V4 knows no announcements.
  std::string other = body;
  other.insert(other.size() - 1, R"(,"tool_choice":{"type":"tool","name":"f"})");
  EXPECT_EQ(parsed(other).conversation.messages.size(), 1U);
  EXPECT_EQ(parsed(body, options(Compat::kGalley, ModelVersion::kV4)).conversation.messages.size(),
            1U);
}

TEST(MessagesRequest, AnnouncementsAreBounded) {
  // A tool of 64 kB announced by a name of one byte, 300 times.
  std::string additions;
  for (int i = 0; i < 300; ++i) {
    additions += R"(,{"type":"tool_addition","tool":{"type":"tool_reference","name":"g"}})";
  }
  const std::string body = with(
      R"(,"tools":[{"name":"f","input_schema":{"type":"object"}},{"name":"g","description":")" +
          std::string(64 << 10, 'd') + R"(","input_schema":{"type":"object"}}])",
      blocks("system", additions.substr(1)));
  EXPECT_EQ(outcome(Protocol::kMessages, body, options()),
            "messages: Announced tool schemas too large, the limit is 16777216 bytes.");
}

TEST(MessagesRequest, AnyToolIsRequiredByTheConstraintOnly) {
  const std::string tools = ",\"tools\":[" + std::string(kTool) + "]";
  const std::string any = R"(,"tool_choice":{"type":"any"})";
  const std::string off = R"(,"thinking":{"type":"disabled"})";
  const Request thinking = parsed(with(tools + any));
  EXPECT_EQ(thinking.conversation.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(thinking.constraint.kind, Constraint::Kind::kToolCallRequired);
  EXPECT_EQ(prompt_of(thinking), prompt_of(parsed(with(tools))));
  const Request direct = parsed(with(tools + any + off));
  EXPECT_EQ(direct.constraint.kind, Constraint::Kind::kToolCallRequired);
  EXPECT_FALSE(direct.output.in_tool_block);
  EXPECT_EQ(prompt_of(direct), prompt_of(parsed(with(tools + off))));
  EXPECT_EQ(parsed(with(tools + any), options(Compat::kRecipe02)).constraint.kind,
            Constraint::Kind::kToolCall);
  EXPECT_EQ(parsed(with(any)).notes,
            std::vector<std::string>{"`tool_choice` is ignored: no tools are declared"});
}

TEST(MessagesRequest, C017NamedToolWhileThinking) {
  const std::string tools = ",\"tools\":[" + std::string(kTool) +
                            R"(],"tool_choice":{"type":"tool","name":"f",)"
                            R"("disable_parallel_tool_use":true})";
  const Request request = parsed(with(tools));
  EXPECT_EQ(request.constraint.kind, Constraint::Kind::kToolCallRequired);
  EXPECT_FALSE(request.output.in_tool_block);
  EXPECT_FALSE(request.parallel_tool_calls);
}

TEST(MessagesRequest, ToolKinds) {
  const std::string search = R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}])";
  const std::string refused = "tools[0].type: tools[0]: server tools are not supported";
  const std::string custom = R"(,"tools":[{"type":"custom","name":"f","input_schema":)"
                             R"({"type":"object"},"strict":true}])";
  EXPECT_EQ(outcome(Protocol::kMessages, with(search), options()), refused);
  EXPECT_EQ(outcome(Protocol::kMessages, with(custom), options(Compat::kRecipe02)), refused);
  const Request request = parsed(with(custom));
  EXPECT_EQ(request.conversation.tools.size(), 1U);
  EXPECT_EQ(request.notes, std::vector<std::string>{"`tools[].strict` is ignored"});

  CodecOptions drop = options();
  drop.messages_drop_web_search = true;
  const std::string choice = R"(,"tool_choice":{"type":"tool","name":"web_search"})";
  EXPECT_EQ(parsed(with(search + choice), drop).notes,
            std::vector<std::string>{"web search tools are ignored"});
  EXPECT_EQ(outcome(Protocol::kMessages,
                    with(search + R"(,"tool_choice":{"type":"tool","name":"x"})"), drop),
            "tool_choice: Invalid value for 'tool_call': no function named 'x' was specified in "
            "the 'tools' parameter.");
  EXPECT_EQ(outcome(Protocol::kMessages,
                    with(R"(,"tools":[{"type":"bash_1","name":"web_search"}])"), drop),
            refused);
}

TEST(MessagesRequest, DocumentsBecomeText) {
  const auto text = [](std::string_view source, Compat compat = Compat::kGalley) {
    return parsed(with("", blocks("user",
                                  R"({"type":"document","source":)" + std::string(source) + "}")),
                  options(compat))
        .conversation.messages[0]
        .content.text;
  };
  constexpr std::string_view kText =
      R"({"type":"text","media_type":"text/plain","data":"the report"})";
  EXPECT_EQ(text(kText), "the report");
  EXPECT_EQ(text(kText, Compat::kRecipe02), "[Unsupported document type: text/plain]");
  EXPECT_EQ(text(R"({"type":"content","content":"c"})"), "c");
  EXPECT_EQ(text(R"({"type":"content","content":[{"type":"text","text":"a"},)"
                 R"({"type":"text","text":"b"}]})"),
            "a\n\nb");
  EXPECT_EQ(text(R"({"type":"base64","media_type":"application/pdf","data":"AAAA"})"),
            "[Unsupported document type: application/pdf]");
  EXPECT_EQ(text(R"({"type":"url","url":"http://x"})"), "[Unsupported document type: unknown]");
}

TEST(MessagesRequest, WhatTheReferenceRefusesOrDrops) {
  const Request request = parsed(with(
      R"(,"top_k":5,"metadata":{"user_id":"u"},"max_tokens":400000,"service_tier":"auto")",
      std::string(kUser) + "," +
          blocks("assistant", R"({"type":"redacted_thinking","data":"x"},)"
                              R"({"type":"tool_use","id":"a","name":"f"})") +
          "," + blocks("user", R"({"type":"tool_result","tool_use_id":"a","is_error":true})")));
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.user, "u");
  EXPECT_EQ(request.sampling.max_tokens, kMaxTokensMax);
  EXPECT_EQ(request.conversation.messages[1].tool_calls[0].arguments, "{}");
  EXPECT_EQ(request.notes,
            (std::vector<std::string>{
                "`redacted_thinking` blocks are ignored", "`is_error` of tool results is ignored",
                "`service_tier` is ignored", "`max_tokens` is lowered to 393216"}));
  EXPECT_EQ(
      parsed(with("", std::string(kUser) + R"(,{"role":"assistant","content":"I"})")).notes,
      std::vector<std::string>{"the last assistant message is a finished turn, not continued"});
  const Request nested = parsed(
      with(R"(,"system":[{"type":"text","text":"s","cache_control":{},"a":1}],"metadata":{"b":1},)"
           R"("tool_choice":{"type":"auto","c":1},"output_config":{"effort":"low","d":1},)"
           R"("tools":[{"name":"f","input_schema":{"type":"object"},"cache_control":{},"e":1}])",
           blocks("user",
                  R"({"type":"text","text":"q","cache_control":{},"f":1},{"type":"image","source":)"
                  R"({"type":"base64","media_type":"image/png","data":"","g":1}},)"
                  R"({"type":"document","title":"t","source":{"type":"text","data":"d","h":1}})") +
               "," +
               blocks("assistant", R"({"type":"thinking","thinking":"t","signature":"s","i":1},)"
                                   R"({"type":"tool_use","id":"a","name":"f","input":{},"j":1})") +
               "," +
               blocks("user", R"({"type":"tool_result","tool_use_id":"a","k":1,"content":)"
                              R"([{"type":"text","text":"r","l":1}]})")));
  std::vector<std::string> noted;
  for (const std::string& note : nested.notes) {
    noted.push_back(note.substr(1, note.find('`', 1) - 1));
  }
  EXPECT_EQ(noted, (std::vector<std::string>{
                       "messages[].content[].f", "messages[].content[].source.g",
                       "messages[].content[].source.h", "messages[].content[].title",
                       "messages[].content[].i", "messages[].content[].j",
                       "messages[].content[].content[].l", "messages[].content[].k", "system[].a",
                       "tool_choice.c", "output_config.d", "metadata.b", "tools[].e"}));
  EXPECT_EQ(outcome(Protocol::kMessages, with(R"(,"mcp_servers":[{}])"), options()),
            "mcp_servers: Unsupported parameter: 'mcp_servers'. The server does not run tools; "
            "declare them in 'tools'.");
  EXPECT_EQ(outcome(Protocol::kMessages,
                    with("", blocks("assistant", R"({"type":"redacted_thinking","data":"x"})")),
                    options(Compat::kRecipe02)),
            "messages[0].content[0].type: Invalid value: 'redacted_thinking'. Supported values "
            "are: 'text', 'image', 'document', 'thinking', 'server_tool_use', 'tool_use', "
            "'tool_result', 'web_search_tool_result', 'tool_addition'.");
}

TEST(MessagesRequest, C048StructuredOutputIsEnforced) {
  for (const std::string members :
       {R"(,"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})",
        R"(,"output_format":{"type":"json_schema","schema":{"type":"object"}})"}) {
    const Request request = parsed(with(members));
    EXPECT_EQ(request.constraint.kind, Constraint::Kind::kJson);
    EXPECT_EQ(request.constraint.text, R"({"type":"object"})");
    EXPECT_EQ(request.conversation.format.kind, ResponseFormat::Kind::kJsonSchema);
    EXPECT_EQ(parsed(with(members), options(Compat::kRecipe02)).constraint.kind,
              Constraint::Kind::kNone);
  }
  EXPECT_TRUE(outcome(Protocol::kMessages,
                      with(R"(,"output_format":{"type":"json_schema","schema":{"type":7}})"),
                      options())
                  .starts_with("output_format.schema"));
}

TEST(MessagesRequest, SystemMessagesOnV4BecomeReminders) {
  const CodecOptions v4 = options(Compat::kGalley, ModelVersion::kV4);
  const Request request =
      parsed(with("", std::string(kUser) + R"(,{"role":"system","content":"s"},)"
                                           R"({"role":"system","content":""})"),
             v4);
  ASSERT_EQ(request.conversation.messages.size(), 2U);
  EXPECT_EQ(request.conversation.messages[1].role, Role::kUser);
  EXPECT_EQ(request.conversation.messages[1].content.text,
            "<system-reminder>\ns\n</system-reminder>");
}

TEST(MessagesRequest, ThinkingBlocksAreReasoning) {
  const Request request = parsed(
      with("", std::string(kUser) + "," +
                   blocks("assistant", R"({"type":"thinking","thinking":"a","signature":"s"},)"
                                       R"({"type":"thinking","thinking":"b"},)"
                                       R"({"type":"text","text":""},{"type":"text","text":"c"},)"
                                       R"({"type":"text","text":""})")));
  EXPECT_EQ(request.conversation.messages[1].reasoning, "a\n\nb");
  EXPECT_EQ(request.conversation.messages[1].content.text, "c\n\n");

  CodecOptions strict = options();
  strict.reject_missing_reasoning = true;
  const std::string result =
      "," + blocks("user", R"({"type":"tool_result","tool_use_id":"a","content":"r"})");
  EXPECT_EQ(outcome(Protocol::kMessages, with("", std::string(kUse) + result), strict),
            "messages[0].content: The `content[].thinking` in the thinking mode must be passed "
            "back to the API.");
}

TEST(MessagesRequest, ResultsKeepTheirImages) {
  const Request request = parsed(with(
      "",
      std::string(kUse) + "," +
          blocks("user", R"({"type":"tool_result","tool_use_id":"a","content":)"
                         R"([{"type":"text","text":"t"},{"type":"image","source":)"
                         R"({"type":"url","url":"http://x"}}]},{"type":"text","text":"then"})")));
  const Message& result = request.conversation.messages[1];
  EXPECT_EQ(result.role, Role::kTool);
  EXPECT_EQ(result.content.text, "t\n\n");
  ASSERT_EQ(result.content.images.size(), 1U);
  EXPECT_EQ(result.content.images[0].offset, 3U);
  EXPECT_EQ(result.content.images[0].path, "messages.1.content.0.tool_result");
  EXPECT_EQ(request.conversation.messages[2].content.text, "then");
}

}  // namespace
}  // namespace galley::recipe
