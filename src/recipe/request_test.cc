// Goal: whatever a client sends gives a request or an error that names a place, in time linear in
// the body; and the rules the protocols share. Method: every member of rich sample bodies replaced
// by every wrong type; hostile bodies; golden records; tables.
#include "recipe/request.h"

#include <algorithm>
#include <ctime>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/golden_for_test.h"
#include "recipe/limits.h"
#include "recipe/names.h"
#include "recipe/prompt.h"
#include "recipe/request_fields.h"

namespace galley::recipe {
namespace {

constexpr std::string_view kChatSample = R"({
  "model":"m","messages":[
    {"role":"system","content":[{"type":"text","text":"s"}],"name":"n"},
    {"role":"user","content":[{"type":"text","text":"json"},
      {"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"}},
      {"type":"image_url","image_url":{"url":"http://x"}},
      {"type":"file","file_data":"data:image/png;base64,iVBORw0KGgo=","filename":"f"}]},
    {"role":"assistant","content":null,"reasoning_content":"r","prefix":false,"tool_calls":[
      {"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"a","content":"r"},
    {"role":"latest_reminder","content":"l"}],
  "frequency_penalty":1,"presence_penalty":1,"logprobs":true,"top_logprobs":2,"max_tokens":9,
  "max_completion_tokens":9,"n":1,"seed":1,"stop":["s","t"],"stream":true,
  "stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.5,"top_k":4,
  "logit_bias":{"1":1},"response_format":{"type":"json_schema","json_schema":{"name":"s",
    "strict":false,"schema":{"type":"object","properties":{"p":{"type":"string"}}}}},
  "tools":[{"type":"function","function":{"name":"f","description":"d","strict":false,
    "parameters":{"type":"object","properties":{"p":{"type":"string"}}}}}],
  "tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":true,
  "reasoning_effort":"high","thinking":{"type":"disabled","budget_tokens":5},"user_id":"u",
  "user":"u","modalities":["text"],"metadata":{}})";

constexpr std::string_view kMessagesSample = R"({
  "model":"m","max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[
    {"role":"user","content":[{"type":"text","text":"t"},
      {"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},
      {"type":"image","source":{"type":"url","url":"http://x"}},
      {"type":"document","title":"t","source":{"type":"text","media_type":"text/plain","data":"d"}},
      {"type":"document","source":{"type":"content","content":[{"type":"text","text":"d"}]}}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},
      {"type":"text","text":"t"},
      {"type":"server_tool_use","id":"s","name":"web_search","input":{}},
      {"type":"web_search_tool_result","tool_use_id":"s","content":[]},
      {"type":"tool_use","id":"a","name":"f","input":{"x":1}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","is_error":false,
      "content":[{"type":"text","text":"t"},{"type":"tool_reference","tool_name":"g"},
        {"type":"image","source":{"type":"url","url":"http://x"}},
        {"type":"document","source":{"media_type":"m"}}]}]},
    {"role":"system","content":[{"type":"text","text":"t"},
      {"type":"tool_addition","tool":{"type":"tool_reference","name":"g"}}]},
    {"role":"assistant","content":"a"}],
  "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}},
    {"name":"g","input_schema":{"type":"object"},"defer_loading":true},
    {"type":"web_search_1","name":"web_search"}],
  "tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true},
  "stop_sequences":["s"],"stream":true,"temperature":0.5,"top_p":0.5,"top_k":3,
  "thinking":{"type":"disabled","budget_tokens":5},
  "output_config":{"effort":"high","format":{"type":"json_schema","schema":{"type":"object"}}},
  "metadata":{"user_id":"u"},"mcp_servers":[]})";

// Calls `visit` with the text of `root` after each single mutation of each node below it.
template <class Visit>
void mutate(Json& root, Json& node, const Visit& visit) {
  const std::vector<Json> values = {Json(),
                                    Json(true),
                                    Json(-1),
                                    Json(3.5),
                                    Json(1e300),
                                    Json(~std::uint64_t{0}),
                                    Json(""),
                                    Json("x"),
                                    Json(JsonArray{}),
                                    Json(JsonObject{}),
                                    Json(JsonArray{Json(1), Json(JsonObject{})}),
                                    Json(JsonObject{{"type", "x"}, {"role", 5}})};
  const auto replace = [&](Json& place) {
    const Json kept = place;
    for (const Json& value : values) {
      place = value;
      visit(to_json(root));
    }
    place = kept;
    mutate(root, place, visit);
  };
  if (JsonObject* const object = node.object()) {
    for (std::size_t i = 0; i < object->size(); ++i) {
      replace((*object)[i].value);
      const JsonMember kept = std::move((*object)[i]);
      object->erase(object->begin() + static_cast<std::ptrdiff_t>(i));
      visit(to_json(root));
      object->insert(object->begin() + static_cast<std::ptrdiff_t>(i), kept);
    }
  } else if (JsonArray* const array = node.array()) {
    for (Json& element : *array) {
      replace(element);
    }
  }
}

CodecOptions options(Compat compat, ModelVersion version = ModelVersion::kV41) {
  CodecOptions out{.compat = compat, .messages_drop_web_search = true};
  out.models["m"] = version;
  return out;
}

void check_mutations(Protocol protocol, std::string_view sample) {
  const std::vector<CodecOptions> modes = {options(Compat::kGalley), options(Compat::kRecipe02),
                                           options(Compat::kGalley, ModelVersion::kV4)};
  for (const CodecOptions& mode : modes) {
    const Result<Request> request = parse_request(protocol, sample, mode);
    ASSERT_TRUE(request) << to_string(request.error());
  }
  int accepted = 0;
  int refused = 0;
  Json root = *parse_json(sample);
  mutate(root, root, [&](const std::string& body) {
    const CodecOptions& mode = modes[static_cast<std::size_t>(accepted + refused) % modes.size()];
    const Result<Request> request = parse_request(protocol, body, mode);
    if (request) {
      ++accepted;
      (void)render(request->conversation, request->version);
      return;
    }
    ++refused;
    EXPECT_EQ(request.error().code, Code::kInvalidArgument) << body;
    EXPECT_FALSE(request.error().what.empty()) << body;
    EXPECT_FALSE(request.error().where.empty()) << body;
  });
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 800);
}

TEST(Request, EveryWrongTypeInAChatBody) {
  check_mutations(Protocol::kChat, kChatSample);
}

TEST(Request, EveryWrongTypeInAMessagesBody) {
  check_mutations(Protocol::kMessages, kMessagesSample);
}

TEST(Request, HostileBodies) {
  const std::vector<std::string> bodies = {
      "",
      "\xef\xbb\xbf{}",
      std::string(100'000, '['),
      R"({"model":"m","x":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
      R"({"model":"m","messages":[{"role":"user","content":"\ud800"}]})",
      "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\"}]}",
      R"({"model":"m","temperature":1e400})",
      R"({"model":"m","messages":[{"role":"user","content":"x"}]} {})",
  };
  for (const std::string& body : bodies) {
    for (const Protocol protocol : {Protocol::kChat, Protocol::kMessages}) {
      const Result<Request> request = parse_request(protocol, body, options(Compat::kGalley));
      ASSERT_FALSE(request) << body.substr(0, 80);
      EXPECT_EQ(request.error().code, Code::kInvalidArgument);
      EXPECT_FALSE(request.error().where.empty()) << body.substr(0, 80);
      EXPECT_TRUE(request.error().what.starts_with("invalid JSON request: "));
    }
  }
}

TEST(Request, BodyLimit) {
  const std::string body(kBodyBytesMax + 1, ' ');
  EXPECT_EQ(parse_chat_request(body, options(Compat::kGalley)).error().code, Code::kTooLarge);
}

TEST(Request, ErrorTextsDoNotRepeatHugeValues) {
  const std::string huge(1 << 20, 'x');
  const Result<Request> request = parse_chat_request(
      R"({"model":"m","messages":[{"role":")" + huge + R"("}]})", options(Compat::kGalley));
  EXPECT_LT(request.error().what.size(), 300U);
  EXPECT_LT(
      parse_chat_request(R"({"messages":[],"model":")" + huge + R"("})", options(Compat::kGalley))
          .error()
          .what.size(),
      300U);
}

// Eight times the input may take about eight times as long; quadratic code would take 64 times.
TEST(Request, TimeIsLinearInTheBody) {
  const auto body = [](int count) {
    std::string tools;
    std::string uses;
    std::string results;
    for (int i = 0; i < count; ++i) {
      const std::string id = std::to_string(i);
      tools += R"(,{"name":"f)" + id + R"(","input_schema":{"type":"object"}})";
      uses += R"(,{"type":"tool_use","id":"i)" + id + R"(","name":"f","input":{}})";
      results += R"(,{"type":"tool_result","tool_use_id":"i)" + id +
                 R"(","content":[{"type":"tool_reference","tool_name":"f)" + id + R"("}]})";
    }
    return R"({"model":"m","tools":[)" + tools.substr(1) +
           R"(],"messages":[{"role":"assistant","content":[)" + uses.substr(1) +
           R"(]},{"role":"user","content":[)" + results.substr(1) + "]}]}";
  };
  const auto ticks = [&](int count) {
    const std::string text = body(count);
    std::clock_t best = std::numeric_limits<std::clock_t>::max();
    for (int round = 0; round < 5; ++round) {
      const std::clock_t start = std::clock();
      EXPECT_TRUE(parse_messages_request(text, options(Compat::kGalley)));
      best = std::min(best, std::clock() - start);
    }
    return static_cast<double>(best);
  };
  EXPECT_LT(ticks(1600) / ticks(200), 32.0);
}

TEST(Request, GoldenMaxTokens) {
  for (const Json& record : golden_records("max_tokens", "chat")) {
    const std::string& id = golden_string(record, "id");
    const Result<Request> request =
        parse_chat_request(golden_string(record, "body"), options_of(record));
    ASSERT_TRUE(request) << id;
    const Result<std::int64_t> tokens = effective_max_tokens(
        *request, *record.find("prompt_tokens")->int64(), *record.find("context_limit")->int64());
    if (const std::int64_t* const want = record.find("result")->int64()) {
      ASSERT_TRUE(tokens) << id;
      EXPECT_EQ(*tokens, *want) << id;
    } else {
      ASSERT_FALSE(tokens) << id;
      EXPECT_EQ(tokens.error().what, golden_string(record, "message")) << id;
      EXPECT_EQ(tokens.error().code, Code::kInvalidArgument) << id;
    }
  }
}

// C038: a prompt that does not fit is refused with the counts, never cut.
TEST(Request, C038ContextOverflow) {
  Request request;
  request.conversation.thinking = false;
  EXPECT_EQ(*effective_max_tokens(request, 90, 100), 10);
  EXPECT_FALSE(effective_max_tokens(request, 100, 100));  // one token must fit
  request.compat = Compat::kRecipe02;
  EXPECT_EQ(*effective_max_tokens(request, 100, 100), 1);
  request.compat = Compat::kGalley;
  EXPECT_EQ(effective_max_tokens(request, 101, 100).error().what,
            "This model's maximum context length is 100 tokens. However, you requested 101 tokens "
            "(101 in the messages, 0 in the completion). Please reduce the length of the messages "
            "or completion.");
  EXPECT_EQ(*effective_max_tokens(request, 0, kContextTokensDefault), 8'192);
  request.conversation.thinking = true;
  request.conversation.effort = Effort::kXhigh;
  EXPECT_EQ(*effective_max_tokens(request, 0, kContextTokensDefault), 65'536);
  request.conversation.effort = Effort::kMax;
  EXPECT_EQ(*effective_max_tokens(request, 0, kContextTokensDefault), 131'072);
  request.sampling.max_tokens = 7;
  EXPECT_EQ(*effective_max_tokens(request, 93, 100), 7);
  EXPECT_FALSE(effective_max_tokens(request, 94, 100));
  EXPECT_FALSE(effective_max_tokens(request, std::numeric_limits<std::int64_t>::max(), 100));
}

TEST(RequestFields, PathsSpellThemselves) {
  const Path body;
  const Path messages = body.member("messages");
  const Path message = messages.element(12);
  const Path content = message.member("content");
  EXPECT_EQ(body.text(), "");
  EXPECT_EQ(message.text(), "messages[12]");
  EXPECT_EQ(content.element(0).text(), "messages[12].content[0]");
}

TEST(RequestFields, ClipsBetweenCharacters) {
  EXPECT_EQ(clipped("short"), "short");
  EXPECT_EQ(clipped(std::string(65, 'a')).size(), 64U);
  EXPECT_EQ(clipped(std::string(63, 'a') + "é").size(), 63U);
}

// What a client sent comes back short, wherever an error repeats it.
TEST(RequestErrors, RepeatLittleOfWhatWasSent) {
  struct Case {
    Protocol protocol;
    std::string body;  // LONG stands for 100,000 bytes
  };
  const std::string chat = R"({"model":"m","messages":[)";
  const std::string user = R"({"role":"user","content":"q"})";
  const std::string tool = R"("function":{"name":"f","arguments":"{}"}})";
  const std::string two_calls =
      R"({"role":"assistant","tool_calls":[{"id":"LONG","type":"function",)" + tool +
      R"(,{"id":"LONG","type":"function",)" + tool + "]}";
  const std::string one_call =
      R"({"role":"assistant","tool_calls":[{"id":"LONG","type":"function",)" + tool + "]},";
  const std::string answer = R"({"role":"tool","tool_call_id":"LONG","content":"r"})";
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f","parameters":)";
  const std::string messages = R"({"model":"m","max_tokens":9,"messages":[)";
  const std::string responses = R"({"model":"m","input":[)";
  const std::string output = R"({"type":"function_call_output","call_id":"LONG","output":"r"})";
  const std::string call =
      R"({"type":"function_call","call_id":"LONG","name":"f","arguments":"{}"})";
  for (
      const Case& it : {
          Case{Protocol::kChat, R"({"model":"LONG","messages":[]})"},
          Case{Protocol::kChat, chat + user + "," + two_calls + "]}"},
          Case{Protocol::kChat, chat + user + "," + one_call + answer + "," + answer + "]}"},
          Case{Protocol::kChat, chat + user + "," + one_call +
                                    R"({"role":"tool","tool_call_id":"LONGER","content":""}]})"},
          Case{Protocol::kChat, chat + user + "]," + tools +
                                    R"({"type":"object"}}}],"tool_choice":{"type":)" +
                                    R"("function","function":{"name":"LONG"}}})"},
          Case{Protocol::kChat, chat + user + "]," + tools + R"({"type":["LONG"]}}}]})"},
          Case{Protocol::kChat, chat + user + "]," + tools + R"({"$ref":"LONG"}}}]})"},
          Case{Protocol::kChat,
               chat + user + "]," + tools +
                   R"({"type":"object","properties":{"a":{"type":"string"}},"required":["LONG"]},)"
                   R"("strict":true}}]})"},
          Case{Protocol::kChat, chat + R"({"role":"LONG","content":"q"}]})"},
          Case{Protocol::kMessages, messages + R"({"role":"user","content":[{"type":"tool_result",)"
                                               R"("tool_use_id":"LONG"}]}]})"},
          Case{Protocol::kMessages,
               messages + R"({"role":"assistant","content":[{"type":"tool_use","id":"LONG",)"
                          R"("name":"f","input":{}}]},{"role":"user","content":"x"}]})"},
          Case{Protocol::kMessages, messages +
                                        R"({"role":"user","content":[{"type":"image","source":)"
                                        R"({"type":"url","url":"LONG"}}]}]})"},
          Case{
              Protocol::kMessages,
              messages + user +
                  R"(],"tool_choice":{"type":"tool","name":"LONG"},"tools":[{"name":"f","input_schema":{"type":"object"}}]})"},
          Case{Protocol::kMessages,
               messages + R"({"role":"system","content":[{"type":"tool_addition","tool":)"
                          R"({"type":"tool_reference","name":"LONG"}}]}]})"},
          Case{Protocol::kResponses, responses + output + "]}"},
          Case{Protocol::kResponses, responses + call + "," + call + "]}"},
          Case{Protocol::kResponses, responses + call + "," + user + "]}"},
          Case{Protocol::kResponses, responses + call + "," + output + "," + output + "]}"},
          Case{Protocol::kResponses,
               responses + user + R"(],"tools":[{"type":"custom","name":"LONG"}]})"},
          Case{Protocol::kResponses, responses + user + R"(],"truncation":"LONG"})"},
      }) {
    std::string body = it.body;
    for (std::size_t at = 0; (at = body.find("LONG", at)) != std::string::npos;) {
      body.replace(at, 4, std::string(100'000, 'x'));
      at += 100'000;
    }
    CodecOptions options;
    options.models["m"] = ModelVersion::kV41;
    const Result<Request> request = parse_request(it.protocol, body, options);
    EXPECT_FALSE(request) << it.body;
    if (request) {
      continue;
    }
    EXPECT_LT(request.error().what.size() + request.error().where.size(), 1000U)
        << it.body << "\n"
        << request.error().what.substr(0, 200);
  }
}

TEST(RequestFields, DataUrls) {
  struct Case {
    std::string_view url;
    DataUrlFault want;
  };
  using enum DataUrlFault;
  constexpr Case kCases[] = {
      {"data:image/png;base64,iVBORw0KGgo=", kNone},
      {" \tDA\nTA:IMAGE/WebP ; charset=x;base64 ,iVBO Rw0K\nGgo= ", kNone},
      {"data:image/jpg; BASE64,/9j/", kNone},
      {"data:image/png;base64,iVBORw0KGgo", kNone},      // padding may be left out
      {"data:image/png;base64,iVBORw0KGgo%3D", kNone},   // and may be percent-encoded
      {"data:image/png;base64,AAAA#base64,!", kNone},    // a fragment is no payload
      {"data:image/png;base64,iVBORw0KGgo==", kBase64},  // or wrong
      {"data:image/png;base64,A", kBase64},
      {"data:image/png;base64,AA=A", kBase64},
      {"data:image/png;base64,AAAA=", kBase64},
      {"data:image/png;base64,AA-_", kBase64},
      {"data:image/png,anything", kNone},
      {"data:image/bmp;base64,AAAA", kMediaType},
      {"data:;base64,AAAA", kMediaType},
      {"data:image/pngx;base64,AAAA", kMediaType},
      {"data:base64,AAAA", kMediaType},
      {"data:image/png;base64", kNoUrl},
      {"data:image/png#;base64,AAAA", kNoUrl},
      {"date:image/png;base64,AAAA", kNoUrl},
      {"dat", kNoUrl},
      {"", kNoUrl},
  };
  for (const Case& c : kCases) {
    EXPECT_EQ(data_url_fault(c.url), c.want) << c.url;
  }
}

TEST(RequestFields, Base64) {
  for (const std::string_view good : {"", "AAAA", "AA==", "AAA=", "+/09", "Zm8="}) {
    EXPECT_TRUE(is_base64(good)) << good;
  }
  for (const std::string_view bad :
       {"A", "AA", "AAA", "A===", "====", "AB==", "AAB=", "AA=A", "A A=", "AA-_", "AAAA="}) {
    EXPECT_FALSE(is_base64(bad)) << bad;
  }
}

TEST(RequestFields, AppendMovesImages) {
  Content content = text_block("ab");
  content.append({.text = "cd", .images = {{.offset = 1, .reference = "r"}}});
  EXPECT_EQ(content.text, "abcd");
  ASSERT_EQ(content.images.size(), 1U);
  EXPECT_EQ(content.images[0].offset, 3U);
}

TEST(Names, GoThereAndBack) {
  using Kind = Constraint::Kind;
  EXPECT_EQ(name_of(Kind::kNone), "none");
  EXPECT_EQ(name_of(Kind::kToolCall), "tool_call");
  EXPECT_EQ(name_of(Kind::kToolCallRequired), "tool_call_required");
  EXPECT_EQ(name_of(Kind::kJson), "json");
  EXPECT_EQ(name_of(Kind::kRegex), "regex");
  EXPECT_EQ(named<Kind>("tool_call_required"), Kind::kToolCallRequired);
  EXPECT_EQ(named<Protocol>("messages"), Protocol::kMessages);
  EXPECT_EQ(named<ModelVersion>("v4.1"), ModelVersion::kV41);
  EXPECT_EQ(named<SourceFinish>("content_filter"), SourceFinish::kContentFilter);
  EXPECT_EQ(named<SourceFinish>("none"), std::nullopt);
  EXPECT_EQ(named<Effort>(""), std::nullopt);
}

}  // namespace
}  // namespace galley::recipe
