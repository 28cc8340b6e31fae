// Goal: Responses bodies become the requests the reference makes of them, or better ones (spec
// recipe 6.4), and every wrong body gets an error with its place. Method: the golden errors
// (prompts are in render_test.cc), hand-written bodies for each rule, mutations of a body that uses
// every field, large inputs.
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "base/fnv1a.h"
#include "recipe/golden_for_test.h"
#include "recipe/limits.h"
#include "recipe/names.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

namespace galley::recipe {
namespace {

CodecOptions options(ModelVersion version = ModelVersion::kV41, Compat compat = Compat::kGalley) {
  CodecOptions options{.compat = compat};
  options.models["m"] = version;
  return options;
}

Result<Request> parse(std::string_view members, const CodecOptions& with = options()) {
  return parse_responses_request(R"({"model":"m",)" + std::string(members) + "}", with);
}

// "what at where" of the error, empty when there is none.
std::string error(std::string_view members, const CodecOptions& with = options()) {
  const Result<Request> request = parse(members, with);
  return request ? "" : request.error().what + " at " + request.error().where;
}

// The messages, one line each: role, content, and what else there is.
std::string messages(std::string_view members, const CodecOptions& with = options()) {
  const Result<Request> request = parse(members, with);
  if (!request) {
    return to_string(request.error());
  }
  std::string out;
  for (const Message& message : request->conversation.messages) {
    constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "reminder"};
    out.append(kRoles[static_cast<std::size_t>(message.role)]).append("(");
    out.append(message.content.text).append(")");
    if (message.reasoning && !message.reasoning->empty()) {
      out.append(" thought(").append(*message.reasoning).append(")");
    }
    for (const ToolCall& call : message.tool_calls) {
      out.append(" ").append(call.id).append("=").append(call.name).append(call.arguments);
    }
    if (message.tool_call_id) {
      out.append(" of ").append(*message.tool_call_id);
    }
    for (const Tool& tool : message.announced_tools) {
      out.append(" announces ").append(tool.name);
    }
    out.append("\n");
  }
  return out;
}

std::string tool_names(const Request& request) {
  std::string out;
  for (const Tool& tool : request.conversation.tools) {
    out.append(tool.name).append(tool.defer_loading ? "* " : " ");
  }
  return out;
}

const std::string kCall = R"({"type":"function_call","call_id":"a","name":"f","arguments":"{}"})";
const std::string kOutput = R"({"type":"function_call_output","call_id":"a","output":"r"})";

TEST(ResponsesRequest, GoldenErrors) {
  check_error_places("responses", Protocol::kResponses);
}

TEST(ResponsesRequest, GoldenPrompts) {
  // C011: call arguments that are no JSON are refused; so is a reference to an item nobody has.
  check_galley_prompts(
      "responses", Protocol::kResponses,
      [](std::string_view, const Result<Request>& request) {
        return !request &&
               (request.error().where.ends_with("].arguments") ||
                request.error().what.find("item_reference is not supported") != std::string::npos);
      },
      15);
}

// -- input ----------------------------------------------------------------------------------------

TEST(ResponsesRequest, InputAndInstructions) {
  EXPECT_EQ(messages(R"("input":"hi","instructions":"be kind")"), "system(be kind)\nuser(hi)\n");
  EXPECT_EQ(messages(R"("input":"","instructions":"")"), "user()\n");
  EXPECT_EQ(messages(R"("instructions":"only")"), "system(only)\n");
  EXPECT_EQ(error(R"("instructions":"")"),
            "Either input or instructions must be provided at input");
  EXPECT_EQ(error(R"("input":[],"instructions":"x")"),
            "Input items array must not be empty at input");
}

// The items of an earlier Response stand before those of a request; an error counts the latter.
TEST(ResponsesRequest, EarlierItemsComeFirst) {
  const auto with_earlier = [](std::string_view members) {
    auto earlier = parse_json(
        R"([{"role":"user","content":"one"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}])");
    return parse_responses_request(
        R"({"model":"m","previous_response_id":"r",)" + std::string(members) + "}", options(),
        std::move(*earlier->array()));
  };
  const auto request = with_earlier(
      R"("instructions":"be kind","input":[{"type":"function_call_output","call_id":"a","output":"r"}])");
  ASSERT_TRUE(request) << to_string(request.error());
  ASSERT_EQ(request->conversation.messages.size(), 4U);
  EXPECT_EQ(request->conversation.messages[0].content.text, "be kind");
  EXPECT_EQ(request->conversation.messages[1].content.text, "one");
  EXPECT_EQ(request->conversation.messages[3].tool_call_id, "a");
  const auto where = [&](std::string_view members) {
    const auto refused = with_earlier(members);
    return refused ? "nothing" : refused.error().where;
  };
  EXPECT_EQ(where(R"("input":[{"type":"function_call_output","call_id":"b","output":"r"}])"),
            "input[0].call_id");
  EXPECT_EQ(where(R"("input":"a call is open")"), "input[0]");
  EXPECT_EQ(where(R"("input":[])"), "input");
  EXPECT_EQ(where(R"("input":[{"role":"user"}])"), "input[0].content");
}

TEST(ResponsesRequest, WhatIsStoredIsWhatWasSent) {
  CodecOptions keeping = options();
  keeping.keeps_responses = true;
  const auto input = [&](std::string_view members) {
    return parse(members, keeping).value().input_items;
  };
  EXPECT_EQ(input(R"("input":"hi")"),
            R"([{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}])");
  EXPECT_EQ(input(R"("input":[{"role":"user","content":"a","odd":1.5}])"),
            R"([{"role":"user","content":"a","odd":1.5}])");
  EXPECT_EQ(input(R"("instructions":"only")"), "[]");
  EXPECT_EQ(input(R"("input":"hi","store":false)"), "");
  EXPECT_TRUE(parse(R"("input":"hi")", keeping)->store);
  EXPECT_FALSE(parse(R"("input":"hi")")->store) << "nobody keeps it";
  EXPECT_FALSE(parse(R"("input":"hi","store":false)", keeping)->store);
  EXPECT_EQ(error(R"("input":"hi","store":1)", keeping).substr(0, 8),
            error(R"("input":"hi","store":1)").substr(0, 8));
  EXPECT_EQ(*parse(R"("input":"hi")", keeping)->responses_echo.find("store"), Json(true));
  keeping.compat = Compat::kRecipe02;
  EXPECT_FALSE(parse(R"("input":"hi")", keeping)->store);
  EXPECT_EQ(parse(R"("input":"hi")", keeping)->responses_echo.find("store"), nullptr);
}

TEST(ResponsesRequest, WhatIsRepeatedIsBounded) {
  const std::string most(kEchoBytesMax - 2, 'x');
  const auto echoed = [](const std::string& members) {
    const auto request = parse(members);
    return std::pair(request->responses_echo, request->notes);
  };
  const auto [all, no_notes] = echoed(R"("input":"q","instructions":")" + most + "\"");
  EXPECT_EQ(all.find("instructions")->string()->size(), most.size());
  EXPECT_EQ(no_notes, std::vector<std::string>{});
  const auto [less, notes] = echoed(R"("input":"q","instructions":")" + most + "x\"");
  EXPECT_EQ(less.find("instructions"), nullptr);
  EXPECT_EQ(notes,
            std::vector<std::string>{"`instructions` is too long to be repeated in the reply"});
  const auto [tools, tool_notes] =
      echoed(R"("input":"q","tools":[{"type":"function","name":"f","description":")" + most +
             R"(","parameters":{"type":"object"}}])");
  EXPECT_EQ(tools.find("tools"), nullptr);
  EXPECT_EQ(tool_notes,
            std::vector<std::string>{"`tools` is too long to be repeated in the reply"});
}

TEST(ResponsesRequest, ErrorsHaveTheProtocolsNames) {
  EXPECT_EQ(error(R"("input":"q","max_output_tokens":0)"),
            "Invalid max_output_tokens value, the valid range of max_output_tokens is [1, 393216] "
            "at max_output_tokens");
  const std::string strict =
      R"("input":"q","tools":[{"type":"function","name":"f","strict":true,"parameters":)"
      R"({"type":"object","properties":{}}}],"text":{"format":{"type":"json_object"}})";
  EXPECT_EQ(error(strict + R"(,"instructions":"json")"),
            "text.format should not be used with tools at tools");
  EXPECT_EQ(
      error(strict + R"(,"instructions":"json")", options(ModelVersion::kV41, Compat::kRecipe02))
          .substr(0, 15),
      "response_format");
}

TEST(ResponsesRequest, NamesAnEarlierResponse) {
  EXPECT_EQ(named_response(R"({"previous_response_id":"resp_1","input":"x"})"), "resp_1");
  EXPECT_EQ(named_response(R"({"input":"previous_response_id"})"), std::nullopt);
  EXPECT_EQ(named_response(R"({"previous_response_id":null})"), std::nullopt);
  EXPECT_EQ(named_response(R"({"previous_response_id":)"), std::nullopt);
  EXPECT_EQ(named_response(R"(["previous_response_id"])"), std::nullopt);
}

TEST(ResponsesRequest, MessagesOfEveryRole) {
  const std::string input =
      R"("input":[{"role":"developer","content":"d"},{"type":"message","role":"system","content":"s"},)"
      R"({"role":"user","content":[{"type":"input_text","text":"u"},{"type":"input_text","text":""},)"
      R"({"type":"input_file","file_data":"x"}]},)"
      R"({"role":"assistant","content":[{"type":"output_text","text":"a"}]},)"
      R"({"role":"assistant","content":""},{"role":"assistant","content":"b"}])";
  const std::string rest = "system(s)\nuser(u\n\n\n\n[Unsupported Document])\nassistant(a\n\nb)\n";
  EXPECT_EQ(messages(input), "system(d)\n" + rest);
  EXPECT_EQ(messages(input, options(ModelVersion::kV4)), "user(d)\n" + rest);
}

TEST(ResponsesRequest, ReasoningJoinsTheAnswerThatFollows) {
  EXPECT_EQ(
      messages(
          R"("input":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"p"},{"text":"q"}]},)"
          R"({"type":"reasoning","content":[{"text":"r"}],"encrypted_content":"zz"},{"type":"reasoning"},)"
          R"({"role":"assistant","content":"a"},{"type":"reasoning","content":[{"text":"s"}]},)" +
          kCall + "," + kOutput + "]"),
      "assistant(a) thought(p\nq\nr)\nassistant() thought(s) a=f{}\ntool(r) of a\n");
}

TEST(ResponsesRequest, CallsAreSortedWithTheirResults) {
  const auto call = [](std::string_view id) {
    return R"({"type":"function_call","call_id":")" + std::string(id) +
           R"(","name":"f","arguments":"{}"},)";
  };
  const auto output = [](std::string_view id) {
    return R"({"type":"function_call_output","call_id":")" + std::string(id) +
           R"(","output":"of )" + std::string(id) + R"("},)";
  };
  EXPECT_EQ(
      messages(R"("input":[{"role":"assistant","content":"x"},)" + call("b") + output("b") +
               call("d") + call("c10") + output("d") + call("c2") + output("c10") + output("c2") +
               R"({"type":"web_search_call"},{"type":"function_call_output","output":[]}])"),
      "assistant(x) b=f{}\ntool(of b) of b\nassistant() c10=f{} c2=f{} d=f{}\n"
      "tool(of c10) of c10\ntool(of c2) of c2\ntool(of d) of d\ntool()\n");
}

TEST(ResponsesRequest, CallIdsAreChecked) {
  const std::string input = R"("input":[)";
  EXPECT_EQ(error(input + kCall + "]"), "No tool output found for tool call a. at input");
  EXPECT_EQ(error(input + kCall + R"(,{"role":"user","content":"q"}])"),
            "No tool output found for tool call a. at input[1]");
  EXPECT_EQ(error(input + kCall + R"(,{"type":"web_search_call"}])"),
            "No tool output found for tool call a. at input[1]");
  EXPECT_EQ(error(input + kCall + R"(,{"type":"reasoning"}])"),
            "No tool output found for tool call a. at input[1]");
  EXPECT_EQ(error(input + kCall + "," + kCall + "]"),
            "Duplicate 'call_id': a. at input[1].call_id");
  EXPECT_EQ(error(input + kCall + "," + kOutput + "," + kCall + "]"),
            "Duplicate 'call_id': a. at input[2].call_id");
  EXPECT_EQ(error(input + kCall + "," + kOutput + "," + kOutput + "]"),
            "Duplicate tool output for call_id: a. at input[2].call_id");
  EXPECT_EQ(error(input + kOutput + "]"),
            "No tool call found for tool output with call_id a. at input[0].call_id");
  const std::string second =
      R"({"type":"function_call","call_id":"b","name":"f","arguments":"{}"})";
  EXPECT_EQ(error(input + kCall + "," + second + "]"),
            "No tool output found for tool call a. at input");
}

TEST(ResponsesRequest, CustomCallsCarryTheirInput) {
  EXPECT_EQ(
      messages(
          R"("input":[{"type":"custom_tool_call","call_id":"a","name":"apply_patch","input":"x\n\"y\" ü"},)"
          R"({"type":"custom_tool_call_output","call_id":"a"}])"),
      "assistant() a=apply_patch{\"input\":\"x\\n\\\"y\\\" ü\"}\ntool() of a\n");
}

TEST(ResponsesRequest, ArgumentsOfHistory) {
  const auto with = [](std::string_view arguments) {
    return R"("input":[{"type":"function_call","call_id":"a","name":"f")" + std::string(arguments) +
           "}," + kOutput + "]";
  };
  for (const std::string_view none :
       {"", R"(,"arguments":null)", R"(,"arguments":"")", R"(,"arguments":" \n")"}) {
    EXPECT_EQ(messages(with(none)), "assistant() a=f{}\ntool(r) of a\n") << none;
  }
  EXPECT_EQ(messages(with(R"(,"arguments":"[1]")")), "assistant() a=f[1]\ntool(r) of a\n");
  EXPECT_TRUE(error(with(R"(,"arguments":"{not json")")).ends_with(" at input[0].arguments"));
  const CodecOptions recipe = options(ModelVersion::kV41, Compat::kRecipe02);
  EXPECT_EQ(messages(with(R"(,"arguments":"{not json")"), recipe),
            "assistant() a=f{not json\ntool(r) of a\n");
  EXPECT_NE(error(with(""), recipe), "");
}

TEST(ResponsesRequest, ResizeNoticeFollowsItsResult) {
  const auto input = [](std::string_view notice) {
    return R"("input":[)" + kCall +
           R"(,{"type":"function_call","call_id":"b","name":"f","arguments":"{}"},)" +
           R"({"type":"function_call_output","call_id":"b","output":"s"},)" + std::string(notice) +
           "," + kOutput + "]";
  };
  const std::string notice = "<image_resize_notice>x</image_resize_notice>";
  const std::string block = R"({"type":"input_text","text":")" + notice + R"("})";
  EXPECT_EQ(messages(input(R"({"role":"developer","content":[)" + block + "]}")),
            "assistant() a=f{} b=f{}\ntool(r) of a\ntool(s) of b\nsystem(" + notice + ")\n");
  // Anything else is an ordinary message, which must wait for the other result.
  for (const std::string& other :
       {R"({"role":"developer","content":")" + notice + "\"}",
        R"({"role":"user","content":[)" + block + "]}",
        R"({"role":"developer","content":[)" + block + "," + block + "]}",
        std::string(R"({"role":"developer","content":[{"type":"input_text","text":"x"}]})")}) {
    EXPECT_EQ(error(input(other)), "No tool output found for tool call a. at input[3]") << other;
  }
  EXPECT_EQ(
      error(input(R"({"role":"developer","content":[)" + block + "]}"), options(ModelVersion::kV4)),
      "No tool output found for tool call a. at input[3]");
}

TEST(ResponsesRequest, Images) {
  const std::string image =
      R"({"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"})";
  const std::string input =
      R"("input":[{"role":"user","content":[{"type":"input_text","text":"a"},)" + image +
      R"(,{"type":"input_image","image_url":"HTTPS://x"}]},)" + kCall +
      R"(,{"type":"function_call_output","call_id":"a","output":[)" + image + "]}]";
  const Result<Request> request = parse(input);
  ASSERT_TRUE(request);
  const std::vector<Message>& list = request->conversation.messages;
  EXPECT_EQ(list[0].content.text, "a\n\n\n\n");
  ASSERT_EQ(list[0].content.images.size(), 2U);
  EXPECT_EQ(list[0].content.images[0].offset, 3U);
  EXPECT_EQ(list[0].content.images[0].detail, ImageDetail::kLow);
  EXPECT_EQ(list[0].content.images[0].path, "input[0]");
  EXPECT_EQ(list[0].content.images[0].kind, Image::Kind::kDataUrl);
  EXPECT_EQ(list[0].content.images[1].offset, 5U);
  EXPECT_EQ(list[0].content.images[1].detail, ImageDetail::kHigh);
  EXPECT_EQ(list[0].content.images[1].kind, Image::Kind::kUrl);
  EXPECT_EQ(list[2].content.images[0].path, "input[2]");
  const Result<Request> old = parse(input, options(ModelVersion::kV4));
  ASSERT_TRUE(old);
  EXPECT_EQ(old->conversation.messages[0].content.text,
            "a\n\n[Unsupported Image]\n\n[Unsupported Image]");
  EXPECT_EQ(old->notes, std::vector<std::string>{"the model reads no images"});

  const auto refused = [](std::string_view block, std::string_view role = "user") {
    return error(R"("input":[{"role":")" + std::string(role) + R"(","content":[)" +
                 std::string(block) + "]}]");
  };
  EXPECT_EQ(
      refused(R"({"type":"input_image"})"),
      "input[0].content[0]: input_image must have image_url or file_id at input[0].content[0]");
  EXPECT_EQ(refused(R"({"type":"input_image","image_url":"","file_id":"f"})"),
            "input[0].content[0]: file_id is not supported. Pass the image as a base64 data url "
            "instead. at input[0].content[0]");
  EXPECT_EQ(refused(R"({"type":"input_image","image_url":"x","file_id":"f"})"),
            "input[0].content[0]: input_image cannot have both image_url and file_id at "
            "input[0].content[0]");
  EXPECT_EQ(refused(R"({"type":"input_image","image_url":"x"})"),
            "input[0]: Unsupported image_url format at input[0]");
  EXPECT_EQ(refused(image, "assistant"),
            "input[0]: Image in assistant message is unsupported at input[0]");
  const std::string long_link = "http://x/" + std::string(8183, 'b');
  EXPECT_EQ(refused(R"({"type":"input_image","image_url":")" + long_link + "\"}"), "");
  EXPECT_EQ(refused(R"({"type":"input_image","image_url":")" + long_link + "b\"}"),
            "input[0].content[0]: image_url external link length 8193 too long, max link length "
            "8192. Consider passing file data directly with base64 data url instead. at "
            "input[0].content[0]");
  EXPECT_EQ(
      error(R"("input":[)" + kCall +
            R"(,{"type":"function_call_output","call_id":"a","output":[{"type":"input_image"}]}])"),
      "input[1].output[0]: input_image must have image_url or file_id at input[1].output[0]");
}

TEST(ResponsesRequest, RefusalsOfHistoryAreText) {
  const std::string input =
      R"("input":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])";
  EXPECT_EQ(messages(input), "assistant(no)\n");
  EXPECT_NE(error(input, options(ModelVersion::kV41, Compat::kRecipe02)), "");
}

TEST(ResponsesRequest, UnknownItems) {
  const Result<Request> request =
      parse(R"("input":[{"role":"user","content":"q"},{"type":"computer_call","x":1}])");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->conversation.messages.size(), 1U);
  EXPECT_EQ(request->notes, std::vector<std::string>{"items of type `computer_call` are ignored"});
  const std::string reference =
      R"("input":[{"role":"user","content":"q"},{"type":"item_reference","id":"z"}])";
  EXPECT_EQ(error(reference),
            "input[1]: item_reference is not supported; replay full input instead at input[1]");
  EXPECT_EQ(error(reference, options(ModelVersion::kV41, Compat::kRecipe02)), "");
}

// -- tools ----------------------------------------------------------------------------------------

// C042: what is known is used, the rest is dropped with a note.
TEST(ResponsesRequest, MixedToolTypes) {
  const std::string tools =
      R"("input":"q","tools":[{"type":"function","name":"f","parameters":{"type":"object"}},)"
      R"({"type":"custom","name":"shell","description":"Runs it.","format":{"type":"grammar","syntax":"lark","definition":"start: WORD"}},)"
      R"({"type":"web_search"},{"type":"code_interpreter","container":{}}])";
  const Result<Request> request = parse(tools);
  ASSERT_TRUE(request) << to_string(request.error());
  EXPECT_EQ(tool_names(*request), "f shell ");
  EXPECT_EQ(request->custom_tools, std::vector<std::string>{"shell"});
  const Tool& custom = request->conversation.tools[1];
  EXPECT_EQ(*custom.description,
            "Runs it.\n\nThe input must match this grammar: lark\nstart: WORD");
  EXPECT_EQ(
      to_json(*custom.parameters),
      R"({"type":"object","additionalProperties":false,"properties":{"input":{"type":"string",)"
      R"("description":"The whole input of the tool, as plain text."}},"required":["input"]})");
  EXPECT_EQ(request->notes, (std::vector<std::string>{
                                "tools[1]: the grammar is shown to the model but not enforced",
                                "tools[2]: a tool of type `web_search` is left out",
                                "tools[3]: a tool of type `code_interpreter` is left out"}));
  EXPECT_EQ(error(tools, options(ModelVersion::kV41, Compat::kRecipe02)),
            "Unsupported custom tool: 'shell'. Only 'apply_patch' is supported. at tools[1]");
  EXPECT_EQ(
      error(R"("input":"q","tools":[{"type":"custom","name":"a b"}])"),
      "Invalid 'tools[0].name': string does not match pattern. Expected a string that matches "
      "the pattern '^[a-zA-Z0-9_-]+$'. at tools[0].name");
}

TEST(ResponsesRequest, ApplyPatchHasItsOwnDescription) {
  const auto description = [](ModelVersion version) {
    const Result<Request> request =
        parse(R"("input":"q","tools":[{"type":"custom","name":"apply_patch"}])", options(version));
    EXPECT_TRUE(request);
    return *request->conversation.tools[0].description;
  };
  const std::string text = description(ModelVersion::kV41);
  Fnv1a hash;
  hash.add(text);
  EXPECT_EQ(hash.hex(), "7f6de8344eb5f990");
  std::string old = text;
  old.replace(old.find("envelope:\n\n"), 11, "envelope:\n");
  EXPECT_EQ(description(ModelVersion::kV4), old);
}

TEST(ResponsesRequest, NamespacesAreFlattened) {
  const std::string body =
      R"("input":[{"type":"function_call","call_id":"a","namespace":"ns","name":"go","arguments":"{}"},)" +
      kOutput +
      R"(,{"type":"function_call","call_id":"b","namespace":"old","name":"go","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"b","output":""},)"
      R"({"type":"function_call","call_id":"c","namespace":"old","name":"go","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":""}],)"
      R"("tools":[{"type":"namespace","name":"ns","description":"All of it.","tools":[)"
      R"({"type":"function","name":"go","description":"Goes."},{"type":"function","name":"_x"}]},)"
      R"({"type":"namespace","name":"ns","tools":[{"type":"function","name":"go"}]},)"
      R"({"type":"function","name":"old__go","parameters":{"type":"object"}}])";
  const Result<Request> request = parse(body);
  ASSERT_TRUE(request) << to_string(request.error());
  EXPECT_EQ(tool_names(*request), "ns::go ns::_x ns::go_1 old__go ");
  EXPECT_EQ(*request->conversation.tools[0].description, "All of it.\nGoes.");
  EXPECT_EQ(*request->conversation.tools[1].description, "All of it.\n");
  EXPECT_FALSE(request->conversation.tools[2].description);
  ASSERT_EQ(request->namespaced_tools.size(), 3U);
  EXPECT_EQ(request->namespaced_tools[2].flat_name, "ns::go_1");
  EXPECT_EQ(request->namespaced_tools[2].name_space, "ns");
  EXPECT_EQ(request->namespaced_tools[2].name, "go");
  EXPECT_EQ(messages(body),
            "assistant() a=ns::go{}\ntool(r) of a\nassistant() b=old::go{}\ntool() of b\n"
            "assistant() c=old::go{}\ntool() of c\n");
  const Result<Request> old = parse(body, options(ModelVersion::kV4));
  ASSERT_TRUE(old) << to_string(old.error());
  EXPECT_EQ(tool_names(*old), "ns__go ns_x ns__go_1 old__go ");
  EXPECT_EQ(*old->conversation.tools[0].description, "Goes.");
  // A name that is taken is left to its owner.
  EXPECT_EQ(old->conversation.messages[2].tool_calls[0].name, "old__go_1");
  EXPECT_EQ(old->conversation.messages[4].tool_calls[0].name, "old__go_1");
  EXPECT_EQ(
      error(
          R"("input":"q","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"a"},{"type":"function","name":"a"}]}])"),
      "Tool names within a namespace must be unique. at tools[0].tools[1].name");
  EXPECT_EQ(
      error(
          R"("input":"q","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":""}]}])"),
      "Invalid 'tools[0].tools[0].name': empty string. Expected a string with minimum length 1, "
      "but "
      "got an empty string instead. at tools[0].tools[0].name");
}

TEST(ResponsesRequest, ToolSearch) {
  const std::string body =
      R"("input":[{"role":"user","content":"q"},)"
      R"({"type":"tool_search_call","call_id":"s","execution":"client","arguments":{"query":"tide"}},)"
      R"({"type":"tool_search_output","call_id":"s","tools":[)"
      R"({"type":"function","name":"tide","parameters":{"type":"object"}},)"
      R"({"type":"namespace","name":"ns","tools":[{"type":"function","name":"go","description":"d"}]}]}],)"
      R"("tools":[{"type":"tool_search","execution":"client","description":"Finds.","parameters":{"type":"object"}}])";
  const Result<Request> request = parse(body);
  ASSERT_TRUE(request) << to_string(request.error());
  EXPECT_TRUE(request->client_tool_search);
  EXPECT_EQ(tool_names(*request), "tool_search tide* ns::go* ");
  EXPECT_EQ(
      messages(body),
      "user(q)\nassistant() s=tool_search{\"query\":\"tide\"}\n"
      R"(tool([{"type":"function","name":"tide","description":null,"parameters":{"type":"object"},"strict":null},)"
      R"({"type":"function","name":"go","description":"d","parameters":null,"strict":null,"namespace":{"name":"ns","description":""}}]) of s)"
      "\nsystem() announces tide announces ns::go\n");
  const Result<Request> old = parse(body, options(ModelVersion::kV4));
  ASSERT_TRUE(old);
  EXPECT_EQ(tool_names(*old), "");
  EXPECT_EQ(messages(body, options(ModelVersion::kV4)), "user(q)\n");
  // Without tools nothing is announced.
  EXPECT_EQ(messages(body + R"(,"tool_choice":"none")"),
            messages(body).substr(0, messages(body).find("system(")));
  const std::string odd = R"("input":[{"type":"tool_search_call","call_id":"s","arguments":{}},)"
                          R"({"type":"tool_search_output","call_id":"s","tools":[{"type":"x"}]}])";
  EXPECT_EQ(messages(odd), "assistant() s=tool_search{}\ntool([]) of s\n");
  EXPECT_NE(error(odd, options(ModelVersion::kV41, Compat::kRecipe02)), "");
}

TEST(ResponsesRequest, ToolChoice) {
  const std::string tools =
      R"("input":"q","tools":[{"type":"function","name":"f"},{"type":"custom","name":"apply_patch"}],"tool_choice":)";
  const auto choice = [&](std::string_view value, std::string_view effort = "none") {
    const Result<Request> request = parse(
        tools + std::string(value) + R"(,"reasoning":{"effort":")" + std::string(effort) + "\"}");
    if (!request) {
      return request.error().what;
    }
    return tool_names(*request) + std::string(name_of(request->constraint.kind)) +
           (request->output.in_tool_block ? " in block" : "") + " " +
           to_json(*request->responses_echo.find("tool_choice"));
  };
  EXPECT_EQ(choice("null"), "f apply_patch tool_call \"auto\"");
  EXPECT_EQ(choice("\"none\""), "none \"none\"");
  EXPECT_EQ(choice("\"required\""), "f apply_patch tool_call_required in block \"required\"");
  EXPECT_EQ(choice(R"({"type":"function","name":"f"})"),
            R"(f tool_call_required in block {"type":"function","name":"f"})");
  EXPECT_EQ(choice(R"({"type":"custom","name":"apply_patch"})"),
            R"(apply_patch tool_call_required in block {"type":"custom","name":"apply_patch"})");
  EXPECT_EQ(choice(R"({"type":"web_search"})"), R"(f apply_patch tool_call {"type":"web_search"})");
  EXPECT_EQ(choice(R"({"type":"function","name":"g"})"),
            "Invalid value for 'tool_call': no function named 'g' was specified in the 'tools' "
            "parameter.");
  // C017: a forced call is accepted while thinking; the model thinks first.
  EXPECT_EQ(choice("\"required\"", "high"), "f apply_patch tool_call_required \"required\"");
  EXPECT_EQ(error(tools + "\"required\"", options(ModelVersion::kV41, Compat::kRecipe02)),
            "Thinking mode does not support this tool_choice at tool_choice");
}

// -- the rest of the body -------------------------------------------------------------------------

TEST(ResponsesRequest, EffortAndSampling) {
  const Result<Request> request = parse(
      R"("input":"q","reasoning":{"effort":"max"},"temperature":0.3,"top_p":0.5,"max_output_tokens":7,"top_logprobs":2,"stream":true,"user":"u","parallel_tool_calls":false,"store":true)");
  ASSERT_TRUE(request);
  EXPECT_TRUE(request->conversation.thinking);
  EXPECT_EQ(request->conversation.effort, Effort::kMax);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.3F);
  EXPECT_FLOAT_EQ(request->sampling.top_p, 0.5F);
  EXPECT_EQ(request->sampling.max_tokens, 7);
  EXPECT_TRUE(request->sampling.logprobs);
  EXPECT_EQ(request->sampling.top_logprobs, 2);
  EXPECT_TRUE(request->stream);
  EXPECT_EQ(request->user, "u");
  EXPECT_FALSE(request->parallel_tool_calls);
  EXPECT_TRUE(request->store);
  const Result<Request> plain = parse(R"("input":"q","reasoning":{"effort":"none"})");
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->conversation.thinking);
  EXPECT_EQ(plain->conversation.effort, std::nullopt);
  EXPECT_TRUE(plain->parallel_tool_calls);
}

TEST(ResponsesRequest, Echo) {
  const auto echo = [](std::string_view members, Compat compat = Compat::kGalley) {
    const Result<Request> request = parse(members, options(ModelVersion::kV41, compat));
    return request ? to_json(request->responses_echo) : to_string(request.error());
  };
  EXPECT_EQ(
      echo(R"("input":"q")"),
      R"({"instructions":null,"max_output_tokens":null,"reasoning":{"effort":null,"summary":null},)"
      R"("temperature":1.0,"text":{"format":{"type":"text"},"verbosity":null},"tool_choice":"auto",)"
      R"("tools":[],"top_logprobs":0,"top_p":1.0,"user":null})");
  const std::string full =
      R"("input":"json","instructions":"i","max_output_tokens":9,"reasoning":{"effort":"minimal","generate_summary":"concise"},)"
      R"("temperature":0.123456789012,"text":{"format":{"type":"json_object"},"verbosity":"low"},)"
      R"("tools":[{"type":"function","name":"f"},{"type":"x"},{"type":"web_search","user_location":{"city":"Oslo"}},)"
      R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"g","strict":false}]},)"
      R"({"type":"custom","name":"apply_patch","description":"d"},{"type":"tool_search","execution":"client"}],)"
      R"("top_logprobs":3,"top_p":1,"user":"u","metadata":{"k":"v"},"parallel_tool_calls":false,)"
      R"("previous_response_id":"resp_1","prompt_cache_key":"key","safety_identifier":"s")";
  const std::string tools =
      R"("tools":[{"type":"function","name":"f","description":null,"parameters":null,"strict":null},)"
      R"({"type":"web_search","search_context_size":null,"user_location":{"city":"Oslo","country":null,"region":null,"timezone":null}},)"
      R"({"type":"namespace","name":"n","description":null,"tools":[{"type":"function","name":"g","description":null,"parameters":null,"strict":false}]},)"
      R"({"type":"custom","name":"apply_patch"},{"type":"tool_search","execution":"client","description":null,"parameters":null}],)";
  const std::string start =
      R"({"instructions":"i","max_output_tokens":9,"reasoning":{"effort":"minimal","summary":"concise"},"temperature":)";
  const std::string middle =
      R"(,"text":{"format":{"type":"json_object"},"verbosity":"low"},"tool_choice":"auto",)" +
      tools + R"("top_logprobs":3,"top_p":1)";
  EXPECT_EQ(
      echo(full),
      start + "0.123456789012" + middle +
          R"(,"user":"u","metadata":{"k":"v"},"parallel_tool_calls":false,)"
          R"("previous_response_id":"resp_1","prompt_cache_key":"key","safety_identifier":"s"})");
  EXPECT_EQ(echo(full, Compat::kRecipe02), start + "0.12345679" + middle + R"(.0,"user":"u"})");
  const Result<Request> schema = parse(
      R"("input":"q","text":{"format":{"type":"json_schema","name":"s","schema":{"type":"object"},"strict":false}})");
  ASSERT_TRUE(schema);
  EXPECT_EQ(
      to_json(*schema->responses_echo.find("text")),
      R"({"format":{"type":"json_schema","name":"s","schema":{"type":"object"},"description":null,"strict":false},"verbosity":null})");
}

TEST(ResponsesRequest, TextFormats) {
  const auto format = [](std::string_view value, std::string_view input = "q") {
    return parse(R"("input":")" + std::string(input) + R"(","text":{"format":)" +
                 std::string(value) + "}");
  };
  const Result<Request> schema = format(
      R"({"type":"json_schema","name":"s","strict":true,"schema":{"type":"object","properties":{"a":{"type":"string","minLength":1}}}})");
  ASSERT_TRUE(schema);
  EXPECT_EQ(to_json(schema->conversation.format.schema),
            R"({"type":"object","properties":{"a":{"type":"string","minLength":1}}})");
  EXPECT_EQ(
      schema->constraint.text,
      R"({"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"],"additionalProperties":false})");
  EXPECT_EQ(format(R"({"type":"json_schema","name":"s","schema":{"type":7}})").error().where,
            "text.format.schema.type");
  EXPECT_TRUE(format(R"({"type":"json_object"})", "give me JsOn")->output.json_output);
  EXPECT_EQ(format(R"({"type":"json_object"})").error().where, "input");
  EXPECT_EQ(format(R"({"type":"json_schema","schema":{}})").error().where, "text.format.name");
  EXPECT_EQ(format(R"({"type":"json_schema","name":"s"})").error().where, "text.format.schema");
}

// What needs state or belongs elsewhere is refused by name; only the codec's caller can know
// whether a previous response is stored, so its id travels on.
TEST(ResponsesRequest, RefusedByName) {
  EXPECT_EQ(error(R"("messages":[{"role":"user","content":"q"}])"),
            "Unsupported parameter: messages at messages");
  EXPECT_EQ(error(R"("input":"q","conversation":"conv_1")"),
            "conversation is not supported; replay full input instead at conversation");
  EXPECT_EQ(error(R"("input":"q","prompt":{"id":"p"})"),
            "prompt is not supported; replay full input instead at prompt");
  EXPECT_EQ(error(R"("input":"q","background":true)"), "background is not supported at background");
  EXPECT_EQ(error(R"("input":"q","background":false,"conversation":null)"), "");
  const Result<Request> request = parse(R"("input":"q","previous_response_id":"resp_1")");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->previous_response_id, "resp_1");
  const CodecOptions recipe = options(ModelVersion::kV41, Compat::kRecipe02);
  EXPECT_EQ(
      error(
          R"("input":"q","messages":1,"conversation":1,"background":true,"previous_response_id":1)",
          recipe),
      "");
}

TEST(ResponsesRequest, NothingIsIgnoredWithoutAWord) {
  const Result<Request> request = parse(
      R"("input":[{"role":"user","content":[{"type":"input_file"}]}],"truncation":"auto","text":{"verbosity":"low"},"reasoning":{"summary":"auto"},"service_tier":"flex","max_tool_calls":3)");
  ASSERT_TRUE(request);
  EXPECT_EQ(
      request->notes,
      (std::vector<std::string>{
          "reasoning is not summarised: `reasoning.summary` is ignored",
          "`text.verbosity` is ignored", "input is never cut: `truncation` is ignored",
          "`service_tier` is ignored", "`max_tool_calls` is ignored", "`input_file` is not read"}));
}

TEST(ResponsesRequest, NothingNestedIsIgnoredWithoutAWord) {
  const Result<Request> request = parse(
      R"("input":[{"role":"user","a":1,"content":[{"type":"input_text","text":"q","b":1},)"
      R"({"type":"input_image","image_url":"http://x","c":1}]},)"
      R"({"type":"reasoning","summary":[{"text":"s"}],"content":[{"type":"reasoning_text","text":"t","d":1}]},)"
      R"({"type":"function_call","call_id":"x","name":"f","arguments":"{}","e":1},)"
      R"({"type":"function_call_output","call_id":"x","output":"r","f":1}],)"
      R"("reasoning":{"effort":"low","g":1},"text":{"h":1,"format":{"type":"text","i":1}},)"
      R"("tool_choice":{"type":"function","name":"f","j":1},)"
      R"("tools":[{"type":"function","name":"f","k":1},)"
      R"({"type":"custom","name":"apply_patch","l":1,"format":{"type":"text","m":1}}])");
  ASSERT_TRUE(request) << to_string(request.error());
  std::vector<std::string> noted;
  for (const std::string& note : request->notes) {
    noted.push_back(note.substr(1, note.find('`', 1) - 1));
  }
  EXPECT_EQ(noted,
            (std::vector<std::string>{
                "input[].content[].b", "input[].content[].c", "input[].a", "input[].content[].d",
                "input[].summary", "input[].e", "input[].f", "reasoning.g", "text.format.i",
                "text.h", "tool_choice.j", "tools[].k", "tools[].format.m", "tools[].l"}));
}

// C043: what a client sends back in its second turn.
TEST(ResponsesRequest, SecondTurn) {
  EXPECT_EQ(
      messages(
          R"("input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"q"}]},)"
          R"({"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"t"}],"encrypted_content":null},)"
          R"({"type":"message","id":"msg_1","status":"completed","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"a","annotations":[],"logprobs":[]}]},)"
          R"({"type":"function_call","id":"fc_1","status":"completed","call_id":"a","name":"f","arguments":"{}"},)" +
          kOutput + "]"),
      "user(q)\nassistant(a) thought(t) a=f{}\ntool(r) of a\n");
}

// -- bad input ------------------------------------------------------------------------------------

constexpr std::string_view kEverything =
    R"({"model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"json"},)"
    R"({"type":"input_image","image_url":"http://x","detail":"auto","file_id":null},{"type":"input_file"}]},)"
    R"({"role":"assistant","content":"a"},{"type":"reasoning","content":[{"text":"t"}],"encrypted_content":"z"},)"
    R"({"type":"function_call","call_id":"a","name":"f","namespace":"ns","arguments":"{}"},)"
    R"({"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"r"}]},)"
    R"({"type":"custom_tool_call","call_id":"b","name":"apply_patch","input":"i"},)"
    R"({"type":"custom_tool_call_output","call_id":"b","output":"o"},)"
    R"({"type":"tool_search_call","call_id":"c","execution":"client","arguments":{"q":1}},)"
    R"({"type":"tool_search_output","call_id":"c","execution":"client","tools":[{"type":"function","name":"h"}]},)"
    R"({"type":"web_search_call"}],"instructions":"i","max_output_tokens":9,)"
    R"("reasoning":{"effort":"low","summary":"auto","generate_summary":"auto"},"stream":true,"temperature":0.5,)"
    R"("text":{"format":{"type":"json_schema","name":"s","schema":{"type":"object"},"description":"d","strict":false},"verbosity":"low"},)"
    R"("tool_choice":{"type":"function","name":"f"},"tools":[{"type":"function","name":"f","description":"d",)"
    R"("parameters":{"type":"object","properties":{"a":{"type":"string"}}},"strict":false},)"
    R"({"type":"web_search","search_context_size":"low","user_location":{"city":"c"}},)"
    R"({"type":"namespace","name":"ns","description":"d","tools":[{"type":"function","name":"g"}]},)"
    R"({"type":"custom","name":"apply_patch","format":{"type":"grammar","syntax":"lark","definition":"x"}},)"
    R"({"type":"tool_search","execution":"client","description":"d","parameters":{"type":"object"}}],)"
    R"("top_logprobs":1,"top_p":0.5,"user":"u","metadata":{},"parallel_tool_calls":true,"store":false,)"
    R"("previous_response_id":"p","background":false,"truncation":"disabled","prompt_cache_key":"k","safety_identifier":"s"})";

// Calls `visit` for every value inside `value`, each replaced in turn.
template <class Visit>
void for_each_mutation(Json& value, const Json& replacement, const Visit& visit) {
  const Json original = value;
  value = replacement;
  visit();
  value = original;
  if (JsonObject* const members = value.object()) {
    for (JsonMember& member : *members) {
      for_each_mutation(member.value, replacement, visit);
    }
  } else if (JsonArray* const elements = value.array()) {
    for (Json& element : *elements) {
      for_each_mutation(element, replacement, visit);
    }
  }
}

// A wrong type anywhere is either harmless or a 400 with its place, in every mode and version.
TEST(ResponsesRequest, WrongTypesEverywhere) {
  Json body = *parse_json(kEverything);
  const CodecOptions all[] = {options(ModelVersion::kV41), options(ModelVersion::kV4),
                              options(ModelVersion::kV41, Compat::kRecipe02)};
  ASSERT_TRUE(parse_responses_request(kEverything, all[0]))
      << to_string(parse_responses_request(kEverything, all[0]).error());
  int refused = 0;
  int accepted = 0;
  const Json replacements[] = {Json{}, Json(-1), Json(""), Json(JsonArray{Json(1)}),
                               Json(JsonObject{{"type", "x"}})};
  for (const Json& replacement : replacements) {
    for_each_mutation(body, replacement, [&] {
      const std::string text = to_json(body);
      for (const CodecOptions& with : all) {
        const Result<Request> request = parse_responses_request(text, with);
        if (request) {
          EXPECT_FALSE(render(request->conversation, request->version).text.empty());
          ++accepted;
          continue;
        }
        ++refused;
        EXPECT_EQ(request.error().code, Code::kInvalidArgument) << text;
        EXPECT_FALSE(request.error().what.empty()) << text;
        EXPECT_FALSE(request.error().where.empty()) << request.error().what << "\n" << text;
      }
    });
  }
  EXPECT_GT(refused, 900);
  EXPECT_GT(accepted, 180);
}

TEST(ResponsesRequest, PlacesOfTypeErrors) {
  const auto where = [](std::string_view members) { return parse(members).error().where; };
  EXPECT_EQ(where(R"("input":5)"), "input");
  EXPECT_EQ(where(R"("input":[5])"), "input[0]");
  EXPECT_EQ(where(R"("input":[{}])"), "input[0]");
  EXPECT_EQ(where(R"("input":[{"role":"tool","content":"x"}])"), "input[0].role");
  EXPECT_EQ(where(R"("input":[{"role":"user"}])"), "input[0].content");
  EXPECT_EQ(where(R"("input":[{"role":"user","content":[{"type":"text","text":"x"}]}])"),
            "input[0].content[0].type");
  EXPECT_EQ(
      where(
          R"("input":[{"type":"function_call_output","call_id":"a","output":[{"type":"output_text","text":"x"}]}])"),
      "input[0].output[0].type");
  EXPECT_EQ(where(R"("input":[{"type":"tool_search_call","call_id":"a","arguments":"{}"}])"),
            "input[0].arguments");
  EXPECT_EQ(
      where(
          R"("input":[{"type":"tool_search_output","call_id":"a","tools":[{"type":"function"}]}])"),
      "input[0].tools[0].name");
  EXPECT_EQ(
      where(
          R"("input":"q","tools":[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}])"),
      "tools[0].tools[0].type");
  EXPECT_EQ(where(R"("input":"q","tool_choice":"whatever")"), "tool_choice");
  EXPECT_EQ(where(R"("input":"q","tool_choice":{"type":"mcp"})"), "tool_choice.type");
  EXPECT_EQ(where(R"("input":"q","reasoning":{"effort":"huge"})"), "reasoning.effort");
  EXPECT_EQ(
      where(
          R"("input":"q","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":5}}])"),
      "tools[0].parameters.properties");
  EXPECT_EQ(parse_responses_request("[]", options()).error().where, "body");
  EXPECT_EQ(
      parse_responses_request("{\"model\":\"m\",\"input\":\"\\ud83d\"}", options()).error().code,
      Code::kInvalidArgument);
}

// Time grows with the input, also where names clash, ids repeat or answers wait for each other.
TEST(ResponsesRequest, LinearInItsInput) {
  constexpr int kCount = 40'000;  // quadratic work would run into the test's time limit
  std::string calls = R"("input":[)";
  std::string outputs;
  std::string names;
  for (int i = 0; i < kCount; ++i) {
    const std::string id = std::to_string(i);
    calls += R"({"type":"function_call","call_id":")" + id + R"(","namespace":"n)" + id +
             R"(","name":"f","arguments":"{}"},)";
    outputs += R"({"type":"function_call_output","call_id":")" + id + R"(","output":"r"},)";
  }
  outputs.pop_back();
  const Result<Request> request = parse(calls + outputs + "]");
  ASSERT_TRUE(request) << to_string(request.error());
  EXPECT_EQ(request->conversation.messages.size(), kCount + 1U);
  // Every pair joins to the same name.
  std::string clashes = R"("input":[)";
  for (int i = 1; i < 400; ++i) {
    clashes += R"({"type":"function_call","call_id":")" + std::to_string(i) + R"(","namespace":")" +
               std::string(static_cast<std::size_t>(i), '_') + R"(","name":")" +
               std::string(static_cast<std::size_t>(400 - i), '_') + R"(","arguments":"{}"},)";
  }
  for (int i = 1; i < 400; ++i) {
    clashes +=
        R"({"type":"function_call_output","call_id":")" + std::to_string(i) + R"(","output":""},)";
  }
  clashes.back() = ']';
  ASSERT_TRUE(parse(clashes, options(ModelVersion::kV4)));
}

TEST(ResponsesRequest, Limits) {
  std::string items = R"("input":[)";
  for (int i = 0; i <= 100'000; ++i) {
    items += R"({"type":"x"},)";
  }
  items.back() = ']';
  EXPECT_EQ(error(items), "Too many input items: 100001, the limit is 100000. at input");
  // The reply repeats them.
  const auto metadata = [](std::string_view members) {
    return R"("input":"x","metadata":{)" + std::string(members) + "}";
  };
  std::string many;
  for (int i = 0; i < 17; ++i) {
    many += (i > 0 ? R"(,"k)" : R"("k)") + std::to_string(i) + R"(":"v")";
  }
  EXPECT_EQ(error(metadata(many)), "`metadata` has at most 16 members at metadata");
  const std::string strings = "`metadata` holds strings of at most 2048 bytes at metadata";
  EXPECT_EQ(error(metadata(R"("k":")" + std::string(2049, 'v') + "\"")), strings);
  EXPECT_EQ(error(metadata("\"" + std::string(2049, 'k') + R"(":"v")")), strings);
  EXPECT_EQ(error(metadata(R"("k":1)")), strings);
}

}  // namespace
}  // namespace galley::recipe
