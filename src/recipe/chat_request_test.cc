// Goal: Chat Completions bodies become the typed requests the reference makes of them, and what the
// reference leaves out is honoured, refused by name or noted (spec recipe 5, 6.2, 9.5). Method:
// golden records in both modes, then tables of small bodies.
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "recipe/golden_for_test.h"
#include "recipe/limits.h"

namespace galley::recipe {
namespace {

constexpr std::string_view kUser = R"({"role":"user","content":"json please"})";
constexpr std::string_view kTool =
    R"({"type":"function","function":{"name":"f","parameters":{"type":"object"}}})";

// A body with one user message and further members.
std::string with(std::string_view members, std::string_view messages = kUser) {
  return R"({"model":"m","messages":[)" + std::string(messages) + "]" + std::string(members) + "}";
}

CodecOptions options(Compat compat = Compat::kGalley, ModelVersion version = ModelVersion::kV41) {
  CodecOptions out{.compat = compat};
  out.models["m"] = version;
  return out;
}

Request parsed(std::string_view body, const CodecOptions& with_options = options()) {
  Result<Request> request = parse_chat_request(body, with_options);
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
    EXPECT_EQ(outcome(Protocol::kChat, row.body, with_options), row.want) << row.body;
  }
}

TEST(ChatRequest, Goldens) {
  // C011: call arguments that are no JSON are refused, and empty ones are an empty object.
  check_galley_prompts(
      "chat", Protocol::kChat,
      [](std::string_view body, const Result<Request>& request) {
        return request ? body.find(R"("arguments":"")") != std::string_view::npos
                       : request.error().where.ends_with("function.arguments");
      },
      7);
}

TEST(ChatRequest, GoldenErrors) {
  check_error_places("chat", Protocol::kChat);
}

TEST(ChatRequest, TypeErrorsNameThePlace) {
  check(
      {
          {R"([])", "body: Invalid type for 'body': expected an object, but got an array instead."},
          {R"({"messages":[]})", "model: Missing required parameter: 'model'."},
          {R"({"model":"m"})", "messages: Missing required parameter: 'messages'."},
          {with("", R"({"role":"user","content":[{"type":"text"}]})"),
           "messages[0].content[0].text: Missing required parameter: "
           "'messages[0].content[0].text'."},
          {with("", std::string(kUser) + R"(,{"role":"user","content":[{"type":"video"}]})"),
           "messages[1].content[0].type: Invalid value: 'video'. Supported values are: 'text', "
           "'image_url', 'file'."},
          {with("", R"({"role":"user","content":5})"),
           "messages[0].content: Invalid type for 'messages[0].content': expected a string or an "
           "array of objects, but got an integer instead."},
          {with(R"(,"n":1.5)"),
           "n: Invalid type for 'n': expected an integer, but got a number instead."},
          {with(R"(,"max_tokens":4294967296)"),
           "max_tokens: Invalid value for 'max_tokens': expected an integer from 0 to 4294967295, "
           "but got 4294967296 instead."},
          {with(R"(,"tools":[{"type":"function","function":{"name":7}}])"),
           "tools[0].function.name: Invalid type for 'tools[0].function.name': expected a string, "
           "but got an integer instead."},
          {with(R"(,"stop":["a",null])"),
           "stop[1]: Invalid type for 'stop[1]': expected a string, but got null instead."},
      },
      options());
}

TEST(ChatRequest, ErrorTextsOfRareCases) {
  const std::string call =
      R"({"role":"assistant","tool_calls":[{"id":"a","type":"function","function":)"
      R"({"name":"f","arguments":"{}"}}]})";
  const std::string long_link = "http" + std::string(kImageLinkBytesMax, 'x');
  check(
      {
          {with(R"(,"tools":[{"type":"function","function":{"name":")" + std::string(129, 'n') +
                R"("}}])"),
           "tools[0].function.name: Invalid 'tools[0].function.name': string too long. Expected a "
           "string with maximum length 128, but got a string with length 129 instead."},
          {with("", call + R"(,{"role":"tool","tool_call_id":"b","content":"r"})"),
           "messages[1].tool_call_id: An assistant message with 'tool_calls' must be followed by "
           "tool messages responding to each 'tool_call_id', The following tool_call_ids did not "
           "have response messages: b"},
          {with("", R"({"role":"assistant","tool_calls":[{"id":"a","type":"function","function":)"
                    R"({"name":"f","arguments":""}},{"id":"a","type":"function","function":)"
                    R"({"name":"f","arguments":""}}]})"),
           "messages[0].tool_calls[1].id: Duplicate value for 'tool_call_id' of a in message[0]"},
          {with("", R"({"role":"user","content":[{"type":"image_url","image_url":{"url":")" +
                        long_link + R"("}}]})"),
           "messages[0].content[0].image_url.url: .messages[0].image_url.url[0]: image_url.url "
           "external link length 8196 too long, max link length 8192. Consider passing file data "
           "directly with base64 data url instead."},
          {with("", R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]})"),
           "messages[0]: .messages[0]: Unsupported image_url format"},
          {with("", R"({"role":"user","content":[{"type":"image_url","image_url":)"
                    R"({"url":"data:image/png;base64,A"}}]})"),
           "messages[0]: .messages[0]: Invalid base64 data"},
          {with("", R"({"role":"assistant","content":[{"type":"image_url","image_url":)"
                    R"({"url":"http://x"}}]})"),
           "messages[0]: Image in assistant message is not supported"},
          {with("", R"({"role":"user","content":[{"type":"file","file_id":"i","filename":"n"}]})"),
           "messages[0].content[0].file_id: .messages[0]: file cannot have filename when file_id "
           "is present"},
          {with("", R"({"role":"user","content":[{"type":"file","file_data":"data:x/y,z"}]})"),
           "messages[0].content[0].file_data: .messages[0]: You have uploaded an unsupported file. "
           "Please make sure your file is valid and has one of the following formats: webp, png, "
           "jpeg, and gif."},
          {with(R"(,"frequency_penalty":2.1)"),
           "frequency_penalty: Invalid frequency_penalty value, the valid range of "
           "frequency_penalty is [-2, 2]"},
          {with(R"(,"stop":["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"])"),
           "stop: Stop string array too long: 17"},
          {with(R"(,"response_format":{"type":"json_object"})",
                R"({"role":"user","content":"jso n"})"),
           "messages: Prompt must contain the word 'json' in some form to use 'response_format' of "
           "type 'json_object'."},
          {with(R"(,"response_format":{"type":"json_object"})",
                std::string(kUser) + R"(,{"role":"assistant","content":"a","prefix":true})"),
           "response_format: response_format json_object should not be used with prefix"},
          {with(R"(,"response_format":{"type":"json_schema","json_schema":)"
                R"({"strict":true,"schema":{"type":"string"}}})"),
           "response_format.json_schema.schema: The top level of the json schema must be an "
           "object."},
      },
      options(Compat::kRecipe02));
}

// Single precision decides the ranges (spec 5.1): the largest float below the bound of a double.
TEST(ChatRequest, RangesAtTheBound) {
  check(
      {
          {with(R"(,"temperature":2.00000001)"), "ok"},
          {with(R"(,"temperature":2.0000003)"),
           "temperature: Invalid temperature value, the valid range of temperature is [0, 2]"},
          {with(R"(,"temperature":-1e-50)"), "ok"},
          {with(R"(,"temperature":1e300)"),
           "temperature: Invalid temperature value, the valid range of temperature is [0, 2]"},
          {with(R"(,"top_p":1.00000001)"), "ok"},
          {with(R"(,"top_p":1e-50)"),
           "top_p: Invalid top_p value, the valid range of top_p is (0, 1.0]"},
          {with(R"(,"top_p":1e-45)"), "ok"},
          {with(R"(,"presence_penalty":-2)"), "ok"},
          {with(R"(,"seed":9223372036854775807)"), "ok"},
          {with(R"(,"seed":9223372036854775808)"),
           "seed: Invalid seed value, the valid range of seed is [0, 2^63)"},
          {with(R"(,"seed":-1)"), "seed: Invalid seed value, the valid range of seed is [0, 2^63)"},
          {with(R"(,"max_tokens":393216)"), "ok"},
          {with(R"(,"max_tokens":393217)"),
           "max_tokens: Invalid max_tokens value, the valid range of max_tokens is [1, 393216]"},
          {with(R"(,"logprobs":true,"top_logprobs":20)"), "ok"},
          {with(R"(,"stop":[])"), "ok"},
      },
      options());
  EXPECT_EQ(parsed(with(R"(,"temperature":0.3)")).sampling.temperature, 0.3F);
}

TEST(ChatRequest, ChecksRunInTheReferencesOrder) {
  // Each body breaks two rules; the earlier one is reported.
  const std::string bad_tool = R"(,"tools":[{"type":"function","function":{"name":""}}])";
  const std::string forced =
      std::string(R"(,"tools":[)") + std::string(kTool) + R"(],"tool_choice":"required")";
  const auto starts = [](const std::string& body, std::string_view where) {
    const std::string got = outcome(Protocol::kChat, body, options(Compat::kRecipe02));
    EXPECT_TRUE(got.starts_with(where)) << body << " " << got;
  };
  starts(R"({"model":"zz","messages":[],"n":"x"})", "n: ");
  starts(R"({"model":"zz","messages":[])" + bad_tool + "}", "model: ");
  starts(R"({"model":"m","messages":[])" + bad_tool + "}", "tools[0].function.name: ");
  starts(with(R"(,"response_format":{"type":"json_object"})",
              R"({"role":"assistant","content":"a","prefix":true},{"role":"user","content":"b"})"),
         "messages[0].prefix: ");
  starts(with(R"(,"response_format":{"type":"json_object"})" + forced,
              R"({"role":"user","content":"q"})"),
         "messages: Prompt must");
  starts(with(forced + R"(,"stop":"")"), "tool_choice: ");
  starts(with(R"(,"stop":"","stream_options":{})"), "stop: ");
  starts(with(R"(,"stream_options":{},"n":2)"), "stream_options: ");
  starts(with(R"(,"n":2,"presence_penalty":3)"), "n: ");
  starts(with(R"(,"presence_penalty":3,"frequency_penalty":3)"), "presence_penalty: ");
  starts(with(R"(,"frequency_penalty":3,"temperature":3)"), "frequency_penalty: ");
  starts(with(R"(,"temperature":3,"top_p":3)"), "temperature: ");
  starts(with(R"(,"top_p":3,"top_logprobs":3)"), "top_p: ");
  starts(with(R"(,"top_logprobs":3,"max_tokens":0)"), "top_logprobs: ");
  starts(with(R"(,"max_tokens":0,"seed":9223372036854775808)"), "max_tokens: ");
}

TEST(ChatRequest, SamplingThatWasSentIsHonoured) {
  const std::string body = with(
      R"(,"temperature":0.25,"top_p":0.5,"n":3,"presence_penalty":1,"frequency_penalty":-1,)"
      R"("top_k":40,"min_p":0.5,"logit_bias":{"128821":-100,"7":2.5},"max_completion_tokens":11,"user":"u 1")");
  const Request ours = parsed(body);
  EXPECT_EQ(ours.sampling.temperature, 0.25F);
  EXPECT_EQ(ours.sampling.top_p, 0.5F);
  EXPECT_EQ(ours.sampling.n, 3);
  EXPECT_EQ(ours.sampling.presence_penalty, 1.0F);
  EXPECT_EQ(ours.sampling.frequency_penalty, -1.0F);
  EXPECT_EQ(ours.sampling.top_k, 40);
  EXPECT_EQ(ours.sampling.min_p, 0.5F);
  EXPECT_EQ(ours.sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{128821, -100.0F}, {7, 2.5F}}));
  EXPECT_EQ(ours.sampling.max_tokens, 11);
  EXPECT_EQ(ours.user, "u 1");
  EXPECT_TRUE(ours.notes.empty());

  // The reference overrides both in thinking mode and ignores what it does not know.
  const Request theirs =
      parsed(with(R"(,"temperature":0.25,"top_p":0.5,"max_completion_tokens":"x","top_k":"x")"),
             options(Compat::kRecipe02));
  EXPECT_EQ(theirs.sampling.temperature, 1.0F);
  EXPECT_EQ(theirs.sampling.top_p, 0.95F);
  EXPECT_EQ(theirs.sampling.max_tokens, std::nullopt);
}

TEST(ChatRequest, DefaultsAreTheReferences) {
  const std::string tools = std::string(R"(,"tools":[)") + std::string(kTool) + "]";
  for (const Compat compat : {Compat::kGalley, Compat::kRecipe02}) {
    EXPECT_EQ(parsed(with(""), options(compat)).sampling.top_p, 1.0F);
    EXPECT_EQ(parsed(with(tools), options(compat, ModelVersion::kV4)).sampling.top_p, 0.95F);
    EXPECT_EQ(parsed(with(""), options(compat, ModelVersion::kV4)).sampling.top_p, 1.0F);
    EXPECT_EQ(parsed(with(R"(,"reasoning_effort":"none")"), options(compat)).sampling.temperature,
              1.0F);
  }
}

TEST(ChatRequest, ExtensionsAreChecked) {
  check(
      {
          {with(R"(,"n":16)"), "ok"},
          {with(R"(,"n":17)"), "n: Invalid n value, the valid range of n is [1, 16]"},
          {with(R"(,"n":0)"), "n: Invalid n value, the valid range of n is [1, 16]"},
          {with(R"(,"n":-1)"), "n: Invalid n value, the valid range of n is [1, 16]"},
          {with(R"(,"n":256)"), "n: Invalid n value, the valid range of n is [1, 16]"},
          {with(R"(,"max_completion_tokens":0)"),
           "max_completion_tokens: Invalid max_completion_tokens value, the valid range of "
           "max_completion_tokens is [1, 393216]"},
          {with(R"(,"logit_bias":{"x":1})"),
           "logit_bias: Invalid token id in logit_bias: 'x'. Expected an integer in decimal "
           "digits."},
          {with(R"(,"logit_bias":{"1":101})"),
           "logit_bias.1: Invalid logit_bias value, the valid range of logit_bias is [-100, 100]"},
          {with(R"(,"min_p":1.5)"),
           "min_p: Invalid min_p value, the valid range of min_p is [0, 1]"},
          {with(R"(,"top_k":2147483648)"),
           "top_k: Invalid top_k value, the valid range of top_k is [0, 2147483647]"},
          {with(R"(,"user_id":"a b")"),
           "user_id: Invalid 'user_id': expected 1 to 512 characters of '^[a-zA-Z0-9_-]+$'."},
          {with(R"(,"stop":")" + std::string(kStopBytesMax + 1, 's') + "\""),
           "stop: Stop string too long: 4097 bytes, the limit is 4096."},
          {with(R"(,"stop":")" + std::string(kStopBytesMax, 's') + "\""), "ok"},
          {with(R"(,"modalities":["text"])"), "ok"},
          {with(R"(,"modalities":["text","audio"])"),
           "modalities[1]: Invalid value: 'audio'. Supported values are: 'text'."},
          {with(R"(,"functions":[])"),
           "functions: Unsupported parameter: 'functions'. Use 'tools' instead."},
          {with(R"(,"function_call":"auto")"),
           "function_call: Unsupported parameter: 'function_call'. Use 'tool_choice' instead."},
          {with(R"(,"prediction":{})"),
           "prediction: Unsupported parameter: 'prediction'. Predicted outputs are not supported."},
          {with(R"(,"prediction":null,"audio":null)"), "ok"},
          {with("", R"({"role":"user","content":[{"type":"input_audio","input_audio":{}}]})"),
           "messages[0].content[0].type: Invalid value: 'input_audio'. Supported values are: "
           "'text', 'image_url', 'file'."},
      },
      options());
}

TEST(ChatRequest, NothingIsIgnoredSilently) {
  const Request request =
      parsed(with(R"(,"service_tier":"auto","store":null,"max_tokens":5,"max_completion_tokens":6,)"
                  R"("thinking":{"type":"enabled","budget_tokens":9},"stream":true,)"
                  R"("stream_options":{"include_usage":true,"x":1},"tool_choice":"required")",
                  R"({"role":"user","content":"q","name":"ann"})"));
  EXPECT_EQ(request.notes,
            (std::vector<std::string>{
                "`messages[].name` is ignored", "`stream_options.x` is ignored",
                "`thinking.budget_tokens` is ignored",
                "`max_completion_tokens` is ignored: `max_tokens` was sent too",
                "`service_tier` is ignored", "`tool_choice` is ignored: no tools are declared"}));
  EXPECT_EQ(request.sampling.max_tokens, 5);
  EXPECT_TRUE(request.include_usage);

  const Request nested = parsed(with(
      R"(,"response_format":{"type":"text","a":1},"tools":[{"type":"function","b":[1],"function":)"
      R"({"name":"f","parameters":{"type":"object","free":1},"c":{}}}],)"
      R"("tool_choice":{"type":"function","d":0,"function":{"name":"f","e":0}})",
      R"({"role":"user","prefix":false,"f":1,"nothing":null,"none":[],"content":[)"
      R"({"type":"text","text":"q","g":1},{"type":"image_url","h":1,"image_url":)"
      R"({"url":"data:image/png;base64,","i":1}},)"
      R"({"type":"file","j":1,"file":{"file_data":"data:image/png;base64,","k":1}}]},)"
      R"({"role":"assistant","content":"a","l":1,"refusal":"r","tool_calls":)"
      R"([{"id":"x","index":0,"type":"function","m":1,"function":{"name":"f","n":1}}]},)"
      R"({"role":"tool","tool_call_id":"x","content":"r","name":"f"})"));
  std::vector<std::string> noted;
  for (const std::string& note : nested.notes) {
    noted.push_back(note.substr(1, note.find('`', 1) - 1));
    EXPECT_TRUE(note.ends_with("` is ignored")) << note;
  }
  EXPECT_EQ(noted, (std::vector<std::string>{
                       "messages[].content[].g", "messages[].content[].h",
                       "messages[].content[].image_url.i", "messages[].content[].j",
                       "messages[].content[].file.k", "messages[].f", "messages[].tool_calls[].m",
                       "messages[].tool_calls[].function.n", "messages[].l", "messages[].refusal",
                       "messages[].name", "response_format.a", "tools[].b", "tools[].function.c",
                       "tool_choice.d", "tool_choice.function.e"}));

  std::string many;
  for (int i = 0; i < 1000; ++i) {
    many += ",\"x" + std::to_string(i) + "\":1";
  }
  EXPECT_EQ(parsed(with(many)).notes.size(), kNoteCountMax);
}

TEST(ChatRequest, OnlyTheLastMessageIsContinued) {
  const auto at = [](std::string_view place) {
    return std::string(place) +
           ".prefix: Invalid completion message: prefix set true with message which is not final "
           "message or message role is not assistant";
  };
  const std::string user(kUser);
  const std::string prefix = R"({"role":"assistant","content":"a","prefix":true})";
  const std::string empty_system = R"({"role":"system","content":""})";
  const auto got = [&](const std::string& messages, Compat compat = Compat::kGalley) {
    return outcome(Protocol::kChat, with("", messages), options(compat));
  };
  EXPECT_EQ(got(user + "," + prefix), "ok");
  EXPECT_TRUE(parsed(with("", user + "," + prefix)).conversation.messages[1].prefix);
  EXPECT_EQ(got(user + "," + prefix + "," + user), at("messages[1]"));
  EXPECT_EQ(got(prefix + "," + prefix), at("messages[0]"));
  EXPECT_EQ(got(user + "," + prefix + "," + empty_system), at("messages[1]"));
  EXPECT_EQ(got(user + "," + prefix + "," + empty_system, Compat::kRecipe02), "ok");
  for (const std::string_view message :
       {R"({"role":"user","content":"q","prefix":true})",
        R"({"role":"system","content":"q","prefix":true})",
        R"({"role":"developer","content":"q","prefix":true})",
        R"({"role":"latest_reminder","content":"q","prefix":true})",
        R"({"role":"tool","tool_call_id":"x","content":"q","prefix":true})"}) {
    EXPECT_EQ(got(user + "," + std::string(message)), at("messages[1]")) << message;
  }
  EXPECT_EQ(got(R"({"role":"user","content":"q","prefix":true})", Compat::kRecipe02), "ok");
  EXPECT_EQ(
      got(R"({"role":"user","content":"q","prefix":1})"),
      "messages[0].prefix: Invalid type for 'messages[0].prefix': expected a boolean, but got "
      "an integer instead.");
}

TEST(ChatRequest, DeveloperIsSystem) {
  const std::string body = with("", R"({"role":"developer","content":"d"},)" + std::string(kUser));
  EXPECT_EQ(
      prompt_of(parsed(body)),
      prompt_of(parsed(with("", R"({"role":"system","content":"d"},)" + std::string(kUser)))));
  EXPECT_EQ(outcome(Protocol::kChat, body, options(Compat::kRecipe02)),
            "messages[0].role: Invalid value: 'developer'. Supported values are: 'system', 'user', "
            "'assistant', 'tool', 'latest_reminder'.");
}

TEST(ChatRequest, C011MissingCallArgumentsAreNone) {
  const auto body = [](std::string_view arguments) {
    return with("", std::string(R"({"role":"user","content":"q"},{"role":"assistant",)"
                                R"("tool_calls":[{"id":"a","type":"function","function":)"
                                R"({"name":"f")") +
                        std::string(arguments) +
                        R"(}}]},{"role":"tool","tool_call_id":"a","content":"r"})");
  };
  for (const std::string_view empty :
       {R"(,"arguments":null)", R"(,"arguments":"")", R"(,"arguments":" \n")", ""}) {
    EXPECT_EQ(parsed(body(empty)).conversation.messages[1].tool_calls[0].arguments, "{}") << empty;
  }
  EXPECT_TRUE(outcome(Protocol::kChat, body(R"(,"arguments":"{not json")"), options())
                  .starts_with("messages[1].tool_calls[0].function.arguments: Invalid "
                               "'messages[1].tool_calls[0].function.arguments': expected JSON"));
  // JSON of another type keeps the reference's prompt; so does everything in its mode.
  EXPECT_EQ(parsed(body(R"(,"arguments":"[1]")")).conversation.messages[1].tool_calls[0].arguments,
            "[1]");
  const CodecOptions theirs = options(Compat::kRecipe02);
  EXPECT_EQ(parsed(body(R"(,"arguments":"{not")"), theirs)
                .conversation.messages[1]
                .tool_calls[0]
                .arguments,
            "{not");
  EXPECT_TRUE(outcome(Protocol::kChat, body(""), theirs)
                  .starts_with("messages[1].tool_calls[0].function.arguments: Missing"));
}

TEST(ChatRequest, C017ForcedCallWhileThinking) {
  const std::string tools = std::string(R"(,"tools":[)") + std::string(kTool) +
                            R"(,{"type":"function","function":{"name":"g"}}])";
  const Request required = parsed(with(tools + R"(,"tool_choice":"required")"));
  EXPECT_EQ(required.conversation.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(required.constraint.kind, Constraint::Kind::kToolCallRequired);
  EXPECT_FALSE(required.output.in_tool_block);
  EXPECT_EQ(required.output.stage, StartStage::kReasoningStart);
  EXPECT_EQ(prompt_of(required), prompt_of(parsed(with(tools))));

  const Request named =
      parsed(with(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"));
  EXPECT_EQ(named.constraint.kind, Constraint::Kind::kToolCallRequired);
  EXPECT_EQ(named.constraint.text,
            R"([{"type":"function","function":{"name":"g","description":null,"parameters":{},)"
            R"("strict":null}}])");

  // Without thinking the prompt opens the block, as the reference's does.
  const std::string direct =
      with(tools + R"(,"tool_choice":"required","thinking":{"type":"disabled"})");
  EXPECT_TRUE(parsed(direct).output.in_tool_block);
  EXPECT_EQ(prompt_of(parsed(direct)), prompt_of(parsed(direct, options(Compat::kRecipe02))));
}

TEST(ChatRequest, C008ToolChoiceNoneHidesTools) {
  const Request request =
      parsed(with(std::string(R"(,"tools":[)") + std::string(kTool) + R"(],"tool_choice":"none")"));
  EXPECT_EQ(prompt_of(request), prompt_of(parsed(with(""))));
  EXPECT_FALSE(request.output.parse_tool_calls);
  EXPECT_EQ(request.constraint.kind, Constraint::Kind::kNone);
}

TEST(ChatRequest, C020EarlierReasoningMayBeMissing) {
  const auto body = [](std::string_view reasoning) {
    return with(std::string(R"(,"tools":[)") + std::string(kTool) + "]",
                std::string(R"({"role":"user","content":"q"},{"role":"assistant")") +
                    std::string(reasoning) +
                    R"(,"tool_calls":[{"id":"a","type":"function","function":)"
                    R"({"name":"f","arguments":"{}"}}]},)"
                    R"({"role":"tool","tool_call_id":"a","content":"r"})");
  };
  EXPECT_NE(prompt_of(parsed(body(""))).find("<think></think>"), std::string::npos);
  const std::string given = prompt_of(parsed(body(R"(,"reasoning_content":"why")")));
  EXPECT_NE(given.find("<think>why</think>"), std::string::npos);
  // An alias some clients replay.
  EXPECT_EQ(prompt_of(parsed(body(R"(,"reasoning":"why")"))), given);
  EXPECT_EQ(prompt_of(parsed(body(R"(,"reasoning":{"x":1},"refusal":"no")"))),
            prompt_of(parsed(body(""))));

  CodecOptions strict = options();
  strict.reject_missing_reasoning = true;
  EXPECT_EQ(outcome(Protocol::kChat, body(""), strict),
            "messages[1].reasoning_content: The `reasoning_content` in the thinking mode must be "
            "passed back to the API.");
  std::string marked = body("");
  marked.replace(marked.find(R"("id":"a")"), 8, R"("id":"call_00_ET_x")");
  marked.replace(marked.find(R"("tool_call_id":"a")"), 18, R"("tool_call_id":"call_00_ET_x")");
  EXPECT_EQ(outcome(Protocol::kChat, marked, strict), "ok");
}

TEST(ChatRequest, C031ImagesAreCountedFromPartsOnly) {
  const Request request = parsed(
      with("", R"({"role":"assistant","content":"see <｜image｜>"},{"role":"user","content":[)"
               R"({"type":"text","text":"a"},{"type":"image_url","image_url":)"
               R"({"url":"HTTPS://x/y.png","detail":"low"}},{"type":"text","text":"b"}]})"));
  const Content& content = request.conversation.messages[1].content;
  EXPECT_EQ(content.text, "a\n\n\n\nb");
  ASSERT_EQ(content.images.size(), 1U);
  EXPECT_EQ(content.images[0].offset, 3U);
  EXPECT_EQ(content.images[0].kind, Image::Kind::kUrl);
  EXPECT_EQ(content.images[0].detail, ImageDetail::kLow);
  EXPECT_EQ(render(request.conversation, request.version).images.size(), 1U);
}

TEST(ChatRequest, ImagesOnV4BecomeTextAndANote) {
  const std::string body = with(
      "", R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"nonsense"}}]})");
  const Request request = parsed(body, options(Compat::kGalley, ModelVersion::kV4));
  EXPECT_EQ(request.conversation.messages[0].content.text, "[Unsupported Image]");
  EXPECT_EQ(request.notes.size(), 1U);
}

TEST(ChatRequest, FilesMayBeNested) {
  const std::string body =
      with("", R"({"role":"user","content":[{"type":"file","file":{"filename":"a.png",)"
               R"("file_data":"data:image/png;base64,iVBORw0KGgo="}}]})");
  EXPECT_EQ(parsed(body).conversation.messages[0].content.images.size(), 1U);
  EXPECT_EQ(outcome(Protocol::kChat, body, options(Compat::kRecipe02)),
            "messages[0].content[0]: .messages[0]: file must have a file_id or file_data");
}

TEST(ChatRequest, ImageLimits) {
  std::string parts;
  for (std::size_t i = 0; i <= kImageCountMax; ++i) {
    parts += R"(,{"type":"image_url","image_url":{"url":"http://x"}})";
  }
  const auto body = [](std::string_view list) {
    return with("", R"({"role":"user","content":"q"},{"role":"user","content":[)" +
                        std::string(list.substr(1)) + "]}");
  };
  EXPECT_EQ(outcome(Protocol::kChat, body(parts), options()),
            "messages[1]: Too many images, the limit is 600.");
  EXPECT_EQ(outcome(Protocol::kChat, body(parts), options(Compat::kRecipe02)), "ok");
  parts.erase(0, parts.size() / (kImageCountMax + 1));
  EXPECT_EQ(outcome(Protocol::kChat, body(parts), options()), "ok");
}

TEST(ChatRequest, BillingHeaderIsCut) {
  const auto system = [](std::string_view content) {
    const Request request = parsed(with(
        "", R"({"role":"system","content":)" + std::string(content) + "}," + std::string(kUser)));
    const Message& first = request.conversation.messages[0];
    return first.role == Role::kSystem ? first.content.text : "(dropped)";
  };
  EXPECT_EQ(system(R"("x-anthropic-billing-header: a\n \u2003\u00a0You are b")"), "You are b");
  EXPECT_EQ(system(R"("x-anthropic-billing-header: aYou are b\nc")"), "You are b\nc");
  EXPECT_EQ(system(R"("x-anthropic-billing-header: a")"), "(dropped)");
  EXPECT_EQ(system(R"("X-anthropic-billing-header: a")"), "X-anthropic-billing-header: a");
  EXPECT_EQ(system(R"("")"), "(dropped)");
  // Images stay where they are.
  const Request request = parsed(with(
      "", R"({"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header"},)"
          R"({"type":"image_url","image_url":{"url":"http://x"}},{"type":"text","text":"b"}]})"));
  const Content& content = request.conversation.messages[0].content;
  EXPECT_EQ(content.text, "\n\nb");
  ASSERT_EQ(content.images.size(), 1U);
  EXPECT_EQ(content.images[0].offset, 0U);
}

TEST(ChatRequest, ThinkingAndEffort) {
  struct Case {
    std::string_view members;
    bool default_thinking;
    bool thinking;
    std::optional<Effort> effort;
  };
  constexpr Case kCases[] = {
      {"", true, true, Effort::kHigh},
      {"", false, false, std::nullopt},
      {R"(,"reasoning_effort":"minimal")", false, true, Effort::kLow},
      {R"(,"reasoning_effort":"medium")", true, true, Effort::kHigh},
      {R"(,"reasoning_effort":"xhigh")", true, true, Effort::kXhigh},
      {R"(,"reasoning_effort":"ultra")", true, true, Effort::kMax},
      {R"(,"reasoning_effort":"none")", true, false, std::nullopt},
      {R"(,"reasoning_effort":"none","thinking":{"type":"adaptive"})", true, true, Effort::kHigh},
      {R"(,"reasoning_effort":"max","thinking":{"type":"disabled"})", true, false, std::nullopt},
  };
  for (const Case& c : kCases) {
    CodecOptions with_options = options();
    with_options.default_thinking = c.default_thinking;
    const Request request = parsed(with(c.members), with_options);
    EXPECT_EQ(request.conversation.thinking, c.thinking) << c.members;
    EXPECT_EQ(request.conversation.effort, c.effort) << c.members;
    EXPECT_EQ(request.output.thinking, c.thinking) << c.members;
  }
}

TEST(ChatRequest, LastDuplicateKeyWins) {
  EXPECT_EQ(parsed(R"({"model":"zz","stream":false,"messages":[{"role":"user","content":"a",)"
                   R"("content":"b"}],"model":"m","stream":true})")
                .conversation.messages[0]
                .content.text,
            "b");
}

// The grammar allows the format or a call; a forced call leaves no room for the format.
TEST(ChatRequest, C050FormatBesideAForcedCallIsNoted) {
  const std::string both = std::string(R"(,"tools":[)") + std::string(kTool) +
                           R"(],"response_format":{"type":"json_object"})";
  const Request request = parsed(with(both));
  EXPECT_EQ(request.constraint.kind, Constraint::Kind::kToolCall);
  EXPECT_EQ(request.notes, std::vector<std::string>{});
  EXPECT_EQ(
      parsed(with(both + R"(,"tool_choice":"required")")).notes,
      std::vector<std::string>{"the response format has no effect, because a call is required"});
}

}  // namespace
}  // namespace galley::recipe
