// Goal: the bytes that clients of each protocol get (spec recipe 6.1 to 6.9). Method: exact
// frames for small replies, and for every recorded reply a client's view of the stream, put
// together event by event, against the whole body.

#include "recipe/reply.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "recipe/clock_for_test.h"
#include "recipe/event_tee.h"
#include "recipe/golden_for_test.h"
#include "recipe/output_parser.h"
#include "recipe/reply_for_test.h"
#include "recipe/reply_parts.h"
#include "recipe/tokenizer_for_test.h"

namespace galley::recipe {
namespace {

class FixedIds final : public IdSource {
 public:
  explicit FixedIds(std::string id = "abcdefghijABCDEFGHIJ") : id_(std::move(id)) {}
  std::string next_id() override { return id_; }

 private:
  std::string id_;
};

struct Replies {
  std::string stream;
  std::string body;
};

// `feed` gets the parser and ends it.
template <class Feed>
Replies replies_to(const Request& request,
                   std::shared_ptr<const Tokenizer> tokenizer,
                   const Feed& feed,
                   std::string id = "r1") {
  FixedIds ids;
  const FixedClock clock(9);
  const ReplyInfo info{.id = std::move(id), .created_s = 5, .call_ids = &ids, .clock = &clock};
  Replies out;
  const auto stream = StreamEncoder::create(request, info, out.stream);
  const auto whole = WholeEncoder::create(request, info);
  EventTee tee(*stream, *whole);
  const auto parser = OutputParser::create(request, std::move(tokenizer), tee);
  parser->start({.prompt_tokens = 3000, .cached_tokens = 2560, .fingerprint = "fp"});
  feed(*parser);
  out.body = whole->body();
  return out;
}

Replies replies_to(const Request& request,
                   const std::vector<std::string_view>& chunks,
                   std::optional<SourceFinish> finish = SourceFinish::kStop,
                   std::string id = "r1") {
  const auto feed = [&](OutputParser& parser) {
    for (const std::string_view chunk : chunks) {
      parser.feed_text(chunk, 1);
    }
    parser.finish(finish);
  };
  return replies_to(request, nullptr, feed, std::move(id));
}

Request request_for(Protocol protocol, bool thinking = false) {
  Request request;
  request.protocol = protocol;
  request.model = "m";
  request.conversation.thinking = thinking;
  request.output.thinking = thinking;
  request.output.stage = thinking ? StartStage::kReasoningStart : StartStage::kAnswer;
  request.output.parse_tool_calls = true;
  return request;
}

const std::string kCall =
    "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"cmd\" "
    "string=\"true\">id</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>";

// ---- a client's view of a stream

struct Frame {
  std::string name;
  Json data;
};

std::vector<Frame> frames_of(std::string_view stream) {
  std::vector<Frame> frames;
  while (!stream.empty()) {
    const auto end = stream.find("\n\n");
    EXPECT_NE(end, std::string_view::npos);
    std::string_view frame = stream.substr(0, end);
    stream.remove_prefix(end + 2);
    if (frame.starts_with(":")) {
      continue;
    }
    Frame& out = frames.emplace_back();
    if (frame.starts_with("event: ")) {
      out.name = frame.substr(7, frame.find('\n') - 7);
      frame.remove_prefix(frame.find('\n') + 1);
    }
    EXPECT_TRUE(frame.starts_with("data: ")) << frame;
    frame.remove_prefix(6);
    if (frame == "[DONE]") {
      out.data = "[DONE]";
      continue;
    }
    const Result<Json> data = parse_json(frame);
    EXPECT_TRUE(data) << frame;
    out.data = data.value_or(Json());
    if (!out.name.empty()) {
      EXPECT_EQ(out.name, *out.data.find("type")->string());
    }
  }
  return frames;
}

void append_to(Json& value, const Json& text) {
  value.string()->append(*text.string());
}

void append_list(Json& into, const Json& list) {
  if (into.is_null()) {
    into = JsonArray{};
  }
  for (const Json& element : *list.array()) {
    into.array()->push_back(element);
  }
}

// A chat stream as the whole object, without what only one of the two has.
Json assemble_chat(const std::vector<Frame>& frames) {
  JsonObject message{{"role", "assistant"}};
  Json content = "";
  Json reasoning;
  JsonArray calls;
  JsonObject logprobs;
  Json last;
  for (const Frame& frame : frames) {
    if (frame.data.string() != nullptr) {
      EXPECT_EQ(&frame, &frames.back());
      continue;
    }
    last = frame.data;
    const Json& choice = (*frame.data.find("choices")->array())[0];
    const Json& delta = *choice.find("delta");
    if (const Json* text = delta.find("content"); text != nullptr && text->string() != nullptr) {
      append_to(content, *text);
    }
    const Json* thought = delta.find("reasoning_content");
    if (thought != nullptr && thought->string() != nullptr) {
      reasoning = reasoning.is_null() ? Json("") : reasoning;
      append_to(reasoning, *thought);
    }
    if (const Json* list = delta.find("tool_calls")) {
      const Json& call = (*list->array())[0];
      if (call.find("id") != nullptr) {
        EXPECT_EQ(*call.find("index")->int64(), std::ssize(calls));
        calls.push_back(call);
      } else {
        append_to(*calls.back().find("function")->find("arguments"),
                  *call.find("function")->find("arguments"));
      }
    }
    if (const Json* lists = choice.find("logprobs"); lists->object() != nullptr) {
      for (const JsonMember& list : *lists->object()) {
        if (Json(logprobs).find(list.key) == nullptr) {
          set_member(logprobs, list.key, JsonArray{});
        }
        Json all(std::move(logprobs));
        append_list(*all.find(list.key), list.value);
        logprobs = *all.object();
      }
    }
  }
  set_member(message, "content", content);
  if (!reasoning.is_null()) {
    set_member(message, "reasoning_content", reasoning);
  }
  if (!calls.empty()) {
    set_member(message, "tool_calls", calls);
  }
  Json choice = (*last.find("choices")->array())[0];
  choice.object()->erase(choice.object()->begin() + 1);  // delta
  set_member(*choice.object(), "message", message);
  set_member(*choice.object(), "logprobs", logprobs.empty() ? Json() : Json(logprobs));
  set_member(*last.object(), "choices", JsonArray{choice});
  set_member(*last.object(), "object", "chat.completion");
  return last;
}

// The longest beginning of `text` that is JSON once what is open in it is closed: how clients read
// arguments that are still coming.
Json begun_json(std::string_view text) {
  for (std::size_t size = text.size(); size > 0; --size) {
    std::string closed(text.substr(0, size));
    std::string open;
    bool in_string = false;
    for (std::size_t i = 0; i < size; ++i) {
      const char c = text[i];
      if (in_string) {
        i += c == '\\' ? 1 : 0;
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        open.insert(0, 1, c == '{' ? '}' : ']');
      } else if (c == '}' || c == ']') {
        open.erase(0, 1);
      }
    }
    if (const Result<Json> value = parse_json(closed + open); value && !in_string) {
      return *value;
    }
  }
  return JsonObject{};
}

Json assemble_messages(const std::vector<Frame>& frames) {
  Json message;
  JsonArray blocks;
  std::string arguments;
  bool open = false;
  for (const Frame& frame : frames) {
    if (frame.name == "message_start") {
      message = *frame.data.find("message");
    } else if (frame.name == "content_block_start") {
      EXPECT_FALSE(open);
      EXPECT_EQ(*frame.data.find("index")->int64(), std::ssize(blocks));
      open = true;
      blocks.push_back(*frame.data.find("content_block"));
      arguments.clear();
    } else if (frame.name == "content_block_delta") {
      EXPECT_TRUE(open);
      const Json& delta = *frame.data.find("delta");
      for (const std::string_view key : {"text", "thinking", "signature"}) {
        if (const Json* text = delta.find(key)) {
          append_to(*blocks.back().find(key), *text);
        }
      }
      if (const Json* text = delta.find("partial_json")) {
        arguments.append(*text->string());
      }
    } else if (frame.name == "content_block_stop") {
      open = false;
      if (!arguments.empty()) {
        set_member(*blocks.back().object(), "input", begun_json(arguments));
      }
    } else if (frame.name == "message_delta") {
      for (const JsonMember& member : *frame.data.find("delta")->object()) {
        set_member(*message.object(), member.key, member.value);
      }
      set_member(*message.object(), "usage", *frame.data.find("usage"));
    } else {
      EXPECT_TRUE(frame.name == "ping" || frame.name == "message_stop") << frame.name;
    }
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(frames.back().name, "message_stop");
  set_member(*message.object(), "content", blocks);
  return message;
}

// Checks each event against the items of the final response.
Json assemble_responses(const std::vector<Frame>& frames) {
  const Json final_response = *frames.back().data.find("response");
  const JsonArray& output = *final_response.find("output")->array();
  std::vector<std::string> texts(output.size());
  std::vector<int> state(output.size());  // 1 added, 2 done
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const Json& data = frames[i].data;
    EXPECT_EQ(*data.find("sequence_number")->int64(), static_cast<std::int64_t>(i));
    const Json* index = data.find("output_index");
    if (index == nullptr) {
      EXPECT_NE(data.find("response"), nullptr);
      continue;
    }
    const auto at = static_cast<std::size_t>(*index->int64());
    const Json& item = output.at(at);
    if (const Json* item_id = data.find("item_id")) {
      EXPECT_EQ(*item_id, *item.find("id"));
    }
    if (frames[i].name == "response.output_item.added") {
      EXPECT_EQ(state[at]++, 0);
      const Json& added = *data.find("item");
      EXPECT_EQ(*added.find("id"), *item.find("id"));
      if (const Json* call_id = item.find("call_id")) {
        EXPECT_EQ(*added.find("call_id"), *call_id);
      }
    } else if (frames[i].name == "response.output_item.done") {
      EXPECT_EQ(state[at]++, 1);
      EXPECT_EQ(*data.find("item"), item);
    } else if (frames[i].name.ends_with(".delta")) {
      EXPECT_EQ(state[at], 1);
      texts[at].append(*data.find("delta")->string());
    } else if (frames[i].name.ends_with(".done")) {
      for (const std::string_view key : {"text", "arguments", "input"}) {
        if (const Json* text = data.find(key)) {
          EXPECT_EQ(texts[at], *text->string());
        }
      }
    }
  }
  for (const int end : state) {
    EXPECT_EQ(end, 2);
  }
  return final_response;
}

// The members of `a`, in any order, are those of `b`.
void expect_same_object(const Json& a, const Json& b) {
  std::map<std::string, Json> left;
  std::map<std::string, Json> right;
  for (const JsonMember& member : *a.object()) {
    left.emplace(member.key, member.value);
  }
  for (const JsonMember& member : *b.object()) {
    right.emplace(member.key, member.value);
  }
  ASSERT_EQ(left.size(), right.size()) << to_json(a) << "\n" << to_json(b);
  for (const auto& [key, value] : left) {
    ASSERT_TRUE(right.contains(key)) << key;
    if (value.object() != nullptr && right[key].object() != nullptr) {
      expect_same_object(value, right[key]);
    } else if (key == "choices") {
      expect_same_object((*value.array())[0], (*right[key].array())[0]);
    } else {
      EXPECT_EQ(to_json(value), to_json(right[key])) << key;
    }
  }
}

std::string text_of_completions(const std::vector<Frame>& frames) {
  std::string text;
  for (const Frame& frame : frames) {
    if (const Json* const choices = frame.data.find("choices")) {
      text += *choices->array()->front().find("text")->string();
    }
  }
  return text;
}

void expect_stream_equals_body(Protocol protocol, const Replies& replies) {
  const std::vector<Frame> frames = frames_of(replies.stream);
  Result<Json> body = parse_json(replies.body);
  ASSERT_TRUE(body) << replies.body;
  switch (protocol) {
    case Protocol::kChat:
      EXPECT_TRUE(replies.stream.ends_with("data: [DONE]\n\n"));
      expect_same_object(assemble_chat(frames), *body);
      break;
    case Protocol::kMessages:
      expect_same_object(assemble_messages(frames), *body);
      break;
    case Protocol::kResponses:
      EXPECT_EQ(to_json(assemble_responses(frames)), to_json(*body));
      break;
    case Protocol::kCompletions:
      EXPECT_EQ(text_of_completions(frames),
                *body->find("choices")->array()->front().find("text")->string());
      break;
  }
}

// ---- exact bytes

TEST(Reply, ChatFramesAreExact) {
  Request request = request_for(Protocol::kChat, true);
  request.include_usage = true;
  const std::string head =
      R"(data: {"id":"r1","object":"chat.completion.chunk","created":5,"model":"m",)"
      R"("system_fingerprint":"fp","choices":[{"index":0,"delta":)";
  const std::string tail = R"(,"logprobs":null,"finish_reason":null}],"usage":null})"
                           "\n\n";
  EXPECT_EQ(
      replies_to(request, {"a</think>b\"", kCall}).stream,
      head + R"({"role":"assistant","content":null,"reasoning_content":""})" + tail + head +
          R"({"content":null,"reasoning_content":"a"})" + tail + head +
          R"({"content":"b\"","reasoning_content":null})" + tail + head +
          R"({"tool_calls":[{"index":0,"id":"call_00_abcdefghijABCDEFGHIJ7095",)"
          R"("type":"function","function":{"name":"f","arguments":""}}]})" +
          tail + head + R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"cmd\": \""}}]})" +
          tail + head + R"({"tool_calls":[{"index":0,"function":{"arguments":"id"}}]})" + tail +
          head + R"({"tool_calls":[{"index":0,"function":{"arguments":"\""}}]})" + tail + head +
          R"({"tool_calls":[{"index":0,"function":{"arguments":"}"}}]})" + tail + head +
          R"({"content":"","reasoning_content":null},"logprobs":null,)"
          R"("finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3000,)"
          R"("completion_tokens":2,"total_tokens":3002,"prompt_tokens_details":)"
          R"({"cached_tokens":2560},"prompt_cache_hit_tokens":2560,)"
          R"("prompt_cache_miss_tokens":440}})"
          "\n\ndata: [DONE]\n\n");
}

TEST(Reply, C033_CachedTokensAreReportedAlikeStreamedAndWhole) {
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    const Replies replies = replies_to(request_for(protocol), {"a"});
    EXPECT_NE(replies.body.find("2560"), std::string::npos);
    expect_stream_equals_body(protocol, replies);
  }
}

TEST(Reply, C034_MessagesInputTokensLeaveCacheHitsOut) {
  const Json body = *parse_json(replies_to(request_for(Protocol::kMessages), {"a"}).body);
  EXPECT_EQ(to_json(*body.find("usage")),
            R"({"input_tokens":440,"cache_creation_input_tokens":0,"cache_read_input_tokens":2560,)"
            R"("output_tokens":1,"service_tier":"standard"})");
}

TEST(Reply, UsageChunkIsAnExtra) {
  Request request = request_for(Protocol::kChat);
  request.include_usage = true;
  FixedIds ids;
  std::string out;
  const auto stream =
      StreamEncoder::create(request, {.id = "r1", .call_ids = &ids, .usage_chunk = true}, out);
  stream->on_event(Started{});
  stream->on_event(Finished{.reason = FinishReason::kStop});
  const std::vector<Frame> frames = frames_of(out);
  ASSERT_EQ(frames.size(), 4U);
  EXPECT_TRUE(frames[2].data.find("choices")->array()->empty());
  EXPECT_NE(frames[2].data.find("usage")->object(), nullptr);
}

TEST(Reply, CallIdsCarryTheirChecksum) {
  FixedIds first("mFRYIEY1SS8Wpxen2A2K");  // ids that deepseek-recipe 0.2.0 made
  EXPECT_EQ(CallIds(&first, false).next(), "call_00_mFRYIEY1SS8Wpxen2A2K2566");
  FixedIds second("da1ihr5Z4OArxbUCoPOh");
  CallIds empty_thinking(&second, true);
  empty_thinking.next();
  EXPECT_EQ(empty_thinking.next(), "call_01_ET_da1ihr5Z4OArxbUCoPOh2174");
  CallIds thought(&second, true);
  thought.reasoning_seen();
  EXPECT_TRUE(thought.next().starts_with("call_00_da1"));
}

TEST(Reply, C016_ThinkingThatIsEmptyIsFlagged) {
  EXPECT_NE(
      replies_to(request_for(Protocol::kChat, true), {"</think>", kCall}).body.find("call_00_ET_"),
      std::string::npos);
  EXPECT_EQ(replies_to(request_for(Protocol::kChat, true), {"x</think>", kCall}).body.find("_ET_"),
            std::string::npos);
}

TEST(Reply, C044_MessagesArgumentsJoinToTheirObject) {
  const Replies replies = replies_to(request_for(Protocol::kMessages), {kCall});
  EXPECT_NE(replies.stream.find(R"("name":"f","input":{}}})"), std::string::npos);
  const Json body = *parse_json(replies.body);
  EXPECT_EQ(to_json(*(*body.find("content")->array())[0].find("input")), R"({"cmd":"id"})");
  expect_stream_equals_body(Protocol::kMessages, replies);
}

TEST(Reply, C041_ItemsAreTheSameInEventsAndInTheResponse) {
  Request request = request_for(Protocol::kResponses, true);
  request.namespaced_tools = {{.flat_name = "f", .name_space = "ns", .name = "g"}};
  const Replies replies = replies_to(request, {"a</think>b", kCall});
  expect_stream_equals_body(Protocol::kResponses, replies);
  const Json body = *parse_json(replies.body);
  const JsonArray& output = *body.find("output")->array();
  ASSERT_EQ(output.size(), 3U);
  EXPECT_EQ(*output[1].find("phase")->string(), "commentary");
  EXPECT_EQ(*output[2].find("name")->string(), "g");
  EXPECT_EQ(*output[2].find("namespace")->string(), "ns");
  EXPECT_EQ(*body.find("completed_at")->int64(), 9);
}

TEST(Reply, ResponsesRepeatTheRequest) {
  Request request = request_for(Protocol::kResponses);
  request.responses_echo = *parse_json(
      R"({"instructions":"be brief","temperature":0.123456789012,"tools":[{"type":"custom"}],"user":"u"})");
  const Json body = *parse_json(replies_to(request, {"a"}).body);
  EXPECT_EQ(*body.find("instructions")->string(), "be brief");
  EXPECT_EQ(to_json(*body.find("temperature")), "0.123456789012");
  EXPECT_EQ(to_json(*body.find("tools")), R"([{"type":"custom"}])");
  EXPECT_EQ(to_json(*body.find("top_p")), "1.0");
  EXPECT_EQ(*body.find("user")->string(), "u");
}

// Reference values: what deepseek-recipe 0.2.0 prints for these requests.
TEST(Reply, ResponsesRepeatSamplingValues) {
  struct Row {
    std::string_view sent;
    std::string_view galley;
    std::string_view reference;
  };
  constexpr Row kRows[] = {
      {"0.3", "0.3", "0.3"},
      {"0.123456789012", "0.123456789012", "0.12345679"},
      {"1", "1", "1.0"},
      {"0.30000000000000004", "0.30000000000000004", "0.3"},
      {"0.00001", "0.00001", "0.00001"},
      {"1e-7", "1e-7", "1e-7"},
      {"1e-40", "1e-40", "1e-40"},
      {"0.0000123456789", "0.0000123456789", "0.000012345679"},
  };
  for (const Row& row : kRows) {
    const std::string body = fmt::format(
        R"({{"model":"DeepSeek-V4-Pro","input":"q","temperature":{0},"top_p":{0}}})", row.sent);
    for (const Compat compat : {Compat::kGalley, Compat::kRecipe02}) {
      const Result<Request> request = parse_responses_request(body, {.compat = compat});
      ASSERT_TRUE(request) << to_string(request.error());
      const Replies replies = replies_to(*request, {"a"});
      const std::string_view want = compat == Compat::kGalley ? row.galley : row.reference;
      for (const std::string_view key : {"temperature", "top_p"}) {
        const std::string member = fmt::format("\"{}\":{},", key, want);
        EXPECT_NE(replies.body.find(member), std::string::npos) << member << replies.body;
        EXPECT_NE(replies.stream.find(member), std::string::npos) << member << replies.stream;
      }
    }
  }
}

TEST(Reply, ResponsesCustomToolsAndToolSearch) {
  Request request = request_for(Protocol::kResponses);
  request.custom_tools = {"apply_patch"};
  request.client_tool_search = true;
  const auto call = [](std::string_view name, std::string_view key, std::string_view value) {
    return "<｜DSML｜ invoke name=\"" + std::string(name) + "\"><｜DSML｜ parameter name=\"" +
           std::string(key) + "\" string=\"true\">" + std::string(value) +
           "</｜DSML｜ parameter></｜DSML｜ invoke>";
  };
  const std::string text = "<｜DSML｜ calls>" + call("apply_patch", "input", "a\"\n毕") +
                           call("tool_search", "q", "x") + "</｜DSML｜ calls>";
  const Replies replies = replies_to(request, {text});
  expect_stream_equals_body(Protocol::kResponses, replies);
  const Json body = *parse_json(replies.body);
  const JsonArray& output = *body.find("output")->array();
  EXPECT_EQ(*output[0].find("input")->string(), "a\"\n毕");
  EXPECT_EQ(to_json(*output[1].find("arguments")), R"({"q":"x"})");
  EXPECT_EQ(*output[1].find("execution")->string(), "client");
}

TEST(Reply, IdsAreFreeText) {
  const std::string id = "a\"\n\\b";
  const std::string escaped = R"(a\"\n\\b)";
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    Request request = request_for(protocol, true);
    request.custom_tools = {"apply_patch"};
    request.client_tool_search = true;
    std::string calls = kCall;
    for (const std::string_view name : {"apply_patch", "tool_search"}) {
      std::string call = kCall;
      calls += call.replace(call.find("\"f\"") + 1, 1, name);
    }
    const Replies replies =
        replies_to(request, {"thought</think>answer", calls}, SourceFinish::kStop, id);
    expect_stream_equals_body(protocol, replies);
    const Result<Json> body = parse_json(replies.body);
    ASSERT_TRUE(body) << replies.body;
    EXPECT_EQ(*body->find("id")->string(), id);
    // Nowhere the raw form, and every event is one frame of valid JSON (frames_of checks).
    EXPECT_EQ(replies.body.find(id), std::string::npos);
    EXPECT_EQ(replies.stream.find(id), std::string::npos);
    EXPECT_NE(replies.stream.find(escaped), std::string::npos);
    EXPECT_GT(frames_of(replies.stream).size(), 5U);
  }
}

TEST(Reply, ResponsesItemIdsContainTheReplysId) {
  const Replies replies = replies_to(request_for(Protocol::kResponses, true),
                                     {"t</think>a" + kCall}, SourceFinish::kStop, "a\"\nb");
  const Json body = *parse_json(replies.body);
  const JsonArray& output = *body.find("output")->array();
  ASSERT_EQ(output.size(), 3U);
  EXPECT_EQ(*output[0].find("id")->string(), "rs_a\"\nb_0");
  EXPECT_EQ(*output[0].find("encrypted_content")->string(), "a\"\nb-0");
  EXPECT_EQ(*output[1].find("id")->string(), "msg_a\"\nb_1");
  EXPECT_EQ(*output[2].find("id")->string(), "fc_a\"\nb_2");
}

TEST(Reply, C015_ACutCallIsNoToolCall) {
  const std::string cut = kCall.substr(0, kCall.find("id</"));
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    const Replies replies = replies_to(request_for(protocol), {cut + "i"}, SourceFinish::kLength);
    expect_stream_equals_body(protocol, replies);
    const std::string want = protocol == Protocol::kChat ? R"("finish_reason":"length")"
                             : protocol == Protocol::kMessages
                                 ? R"("stop_reason":"max_tokens")"
                                 : R"("incomplete_details":{"reason":"max_output_tokens"})";
    EXPECT_NE(replies.body.find(want), std::string::npos) << replies.body;
    EXPECT_NE(replies.stream.find(want), std::string::npos) << replies.stream;
    const std::string begun = protocol == Protocol::kMessages ? R"("input":{})"  // what is complete
                                                              : R"({\"cmd\": \"i)";
    EXPECT_NE(replies.body.find(begun), std::string::npos) << replies.body;
    if (protocol == Protocol::kResponses) {
      const Json body = *parse_json(replies.body);
      EXPECT_EQ(*(*body.find("output")->array())[0].find("status")->string(), "incomplete");
    }
  }
}

// The object that the official SDK has made of the same stream when it ends (checked with
// `anthropic`, whose parser of unfinished JSON leaves out what is not complete).
TEST(Reply, C015_MessagesKeepsTheCompleteArgumentsOfACutCall) {
  const std::string invoke = "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\">";
  const auto parameter = [](std::string_view name, bool string, std::string_view value) {
    return fmt::format("<｜DSML｜ parameter name=\"{}\" string=\"{}\">{}", name, string, value);
  };
  const std::string end = "</｜DSML｜ parameter>";
  const std::string whole = "</｜DSML｜ invoke>";
  struct Row {
    std::string text;
    std::string_view input;
  };
  const std::vector<Row> rows = {
      {parameter("a", true, ""), "{}"},
      {parameter("a", true, "x"), "{}"},
      {parameter("a", true, "x\\"), "{}"},
      {parameter("a", false, "12"), "{}"},
      {parameter("a", true, "x\"\\") + end, R"({"a":"x\"\\"})"},
      {parameter("a", false, "12") + end, R"({"a":12})"},
      {parameter("a", false, " -1.5e3 ") + end, R"({"a":-1500.0})"},
      {parameter("a", false, "true") + end + parameter("b", true, "y"), R"({"a":true})"},
      {parameter("a", true, "x") + end + parameter("b", false, "[1,"), R"({"a":"x"})"},
      {parameter("a", false, R"({"k":[1,{"l":"}]"}],"m":null})") + end + parameter("b", true, "{"),
       R"({"a":{"k":[1,{"l":"}]"}],"m":null}})"},
      {parameter("a", true, "x") + end + whole, R"({"a":"x"})"},
  };
  for (const Row& row : rows) {
    for (const SourceFinish finish : {SourceFinish::kLength, SourceFinish::kContentFilter}) {
      const Replies replies =
          replies_to(request_for(Protocol::kMessages), {invoke + row.text}, finish);
      expect_stream_equals_body(Protocol::kMessages, replies);
      const Json body = *parse_json(replies.body);
      const Json& call = (*body.find("content")->array())[0];
      EXPECT_EQ(to_json(*call.find("input")), row.input) << row.text;
      EXPECT_EQ(call.object()->size(), 4U) << replies.body;
    }
  }
}

TEST(Reply, C004_ARefusedCallEndsTheReplyAsCutShort) {
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    const Replies replies =
        replies_to(request_for(protocol), {"a<｜DSML｜ calls><invoke name=\"f\">"});
    expect_stream_equals_body(protocol, replies);
    EXPECT_NE(replies.body.find("broken_tool_call"), std::string::npos);
    EXPECT_EQ(replies.body.find("DSML"), std::string::npos);
  }
}

TEST(Reply, FinishReasonsOfEachProtocol) {
  const auto said = [](Protocol protocol, FinishReason reason) {
    FixedIds ids;
    const auto whole = WholeEncoder::create(request_for(protocol), {.id = "r", .call_ids = &ids});
    whole->on_event(Started{});
    whole->on_event(Finished{.reason = reason, .stop_sequence = "END"});
    const Json body = *parse_json(whole->body());
    return protocol == Protocol::kChat
               ? *(*body.find("choices")->array())[0].find("finish_reason")->string()
           : protocol == Protocol::kMessages
               ? *body.find("stop_reason")->string() + " " + to_json(*body.find("stop_sequence"))
               : *body.find("status")->string();
  };
  using enum FinishReason;
  const std::vector<std::tuple<FinishReason, std::string, std::string, std::string>> table = {
      {kStop, "stop", "end_turn null", "completed"},
      {kStopSequence, "stop", "stop_sequence \"END\"", "completed"},
      {kToolCalls, "tool_calls", "tool_use null", "completed"},
      {kLength, "length", "max_tokens null", "incomplete"},
      {kContentFilter, "content_filter", "refusal null", "incomplete"},
      {kEndOfStream, "stop", "end_turn null", "completed"},
      {kBrokenCall, "length", "max_tokens null", "incomplete"},
  };
  for (const auto& [reason, chat, messages, responses] : table) {
    EXPECT_EQ(said(Protocol::kChat, reason), chat);
    EXPECT_EQ(said(Protocol::kMessages, reason), messages);
    EXPECT_EQ(said(Protocol::kResponses, reason), responses);
  }
}

TEST(Reply, C045_KeepAlivesAreFramesEveryClientSkips) {
  FixedIds ids;
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    std::string out;
    const auto stream =
        StreamEncoder::create(request_for(protocol), {.id = "r", .call_ids = &ids}, out);
    stream->keep_alive();
    EXPECT_EQ(out, ": keep-alive\n\n");
    stream->on_event(Started{});
    out.clear();
    stream->keep_alive();
    EXPECT_EQ(out, protocol == Protocol::kMessages ? "event: ping\ndata: {\"type\":\"ping\"}\n\n"
                                                   : ": keep-alive\n\n");
  }
}

TEST(Reply, AFailedStreamNeverLooksComplete) {
  FixedIds ids;
  const Error error{.code = Code::kInternal, .what = "it broke"};
  for (const Protocol protocol : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages}) {
    std::string out;
    const auto stream =
        StreamEncoder::create(request_for(protocol), {.id = "r", .call_ids = &ids}, out);
    stream->on_event(Started{});
    out.clear();
    stream->fail(error);
    stream->fail(error);
    stream->on_event(Finished{});
    const std::vector<Frame> frames = frames_of(out);
    ASSERT_EQ(frames.size(), 1U);
    EXPECT_NE(out.find("it broke"), std::string::npos);
    EXPECT_EQ(frames[0].name, protocol == Protocol::kChat       ? ""
                              : protocol == Protocol::kMessages ? "error"
                                                                : "response.failed");
  }
}

TEST(Reply, ErrorBodiesOfEachProtocol) {
  const Error error{.code = Code::kInvalidArgument, .what = "no", .where = "messages[3].content"};
  EXPECT_EQ(
      error_body(Protocol::kChat, Compat::kGalley, error),
      R"({"error":{"message":"no","type":"invalid_request_error","param":"messages[3].content","code":"invalid_request_error"}})");
  EXPECT_EQ(
      error_body(Protocol::kMessages, Compat::kGalley, error),
      R"({"type":"error","error":{"type":"invalid_request_error","message":"messages[3].content: no"},"request_id":null})");
  EXPECT_EQ(
      error_body(Protocol::kMessages, Compat::kRecipe02, error),
      R"({"error":{"message":"no","type":"invalid_request_error","param":null,"code":"invalid_request_error"}})");
  EXPECT_EQ(http_status(Code::kInvalidArgument), 400);
  EXPECT_EQ(http_status(Code::kOverloaded), 429);
  EXPECT_EQ(http_status(Code::kUnimplemented), 501);
}

TEST(Reply, C038_ContextOverflowHasItsOwnCode) {
  const Error error = effective_max_tokens(Request{}, 9, 8).error();
  EXPECT_EQ(error.reason, kContextLengthExceeded);
  // Not by its words: a client's text may spell them.
  const Error other{.code = Code::kInvalidArgument, .what = error.what};
  EXPECT_EQ(error_body(Protocol::kChat, Compat::kGalley, other).find("context_length_exceeded"),
            std::string::npos);
  EXPECT_NE(error_body(Protocol::kChat, Compat::kGalley, error).find("context_length_exceeded"),
            std::string::npos);
  EXPECT_EQ(error_body(Protocol::kChat, Compat::kRecipe02, error).find("context_length_exceeded"),
            std::string::npos);
}

TEST(Reply, C036_LogprobsAreEachTokensOwn) {
  std::string out;
  append_logprobs(std::vector<TokenLogprob>{{.token = "a", .logprob = -0.1F, .top = {{"b", -2.0F}}},
                                            {.token = "\xe4\xbd", .logprob = -1.0F, .top = {}}},
                  out);
  EXPECT_EQ(
      out,
      R"({"token":"a","logprob":-0.1,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-2.0,"bytes":[98]}]},)"
      R"({"token":"\\xe4\\xbd","logprob":-1.0,"bytes":[228,189],"top_logprobs":[]})");
}

// ---- every recorded reply

Protocol protocol_of(const Json& record) {
  const std::string& p = golden_string(record, "p");
  return p == "chat"       ? Protocol::kChat
         : p == "messages" ? Protocol::kMessages
                           : Protocol::kResponses;
}

TEST(Reply, C012_RecordedStreamsPutTogetherEqualTheWholeBody) {
  std::mt19937 random(7);
  for (const Json& record : golden_records("parse")) {
    const Protocol protocol = protocol_of(record);
    CodecOptions options = options_of(record);
    for (const Compat compat : {Compat::kGalley, Compat::kRecipe02}) {
      options.compat = compat;
      const Result<Request> request =
          parse_request(protocol, golden_string(record, "body"), options);
      ASSERT_TRUE(request) << golden_string(record, "id");
      std::vector<std::string_view> pieces;
      std::string_view text = golden_string(record, "text");
      while (!text.empty()) {
        const std::size_t size = std::min<std::size_t>(1 + random() % 40, text.size());
        pieces.push_back(text.substr(0, size));
        text.remove_prefix(size);
      }
      const Replies replies = replies_to(*request, pieces, SourceFinish::kStop);
      SCOPED_TRACE(golden_string(record, "id"));
      if (compat == Compat::kGalley || protocol != Protocol::kMessages) {
        expect_stream_equals_body(protocol, replies);
      }
    }
  }
}

// A source may stop anywhere, for any reason, also inside a character.
TEST(Reply, C015_RecordedStreamsCutAnywhereEqualTheWholeBody) {
  constexpr std::size_t kCuts = 12;  // of each record and reason
  std::mt19937 random(15);
  for (const Json& record : golden_records("parse")) {
    const Protocol protocol = protocol_of(record);
    CodecOptions options = options_of(record);
    options.compat = Compat::kGalley;
    const Result<Request> request = parse_request(protocol, golden_string(record, "body"), options);
    ASSERT_TRUE(request) << golden_string(record, "id");
    const std::string_view text = golden_string(record, "text");
    for (const std::optional<SourceFinish> finish :
         {std::optional(SourceFinish::kLength), std::optional(SourceFinish::kContentFilter),
          std::optional(SourceFinish::kStop), std::optional<SourceFinish>()}) {
      for (std::size_t i = 0; i < kCuts; ++i) {
        const std::string_view begun = text.substr(0, random() % (text.size() + 1));
        SCOPED_TRACE(fmt::format("{} cut at byte {}", golden_string(record, "id"), begun.size()));
        expect_stream_equals_body(protocol, replies_to(*request, {begun}, finish));
      }
    }
  }
}

// The same of recorded ids, cut between any two tokens.
TEST(Reply, C015_RecordedTokensCutAnywhereEqualTheWholeBody) {
  const auto tokenizer = v4_tokenizer_for_test(ModelVersion::kV41);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  for (const Json& record : golden_records("tokens")) {
    const Protocol protocol = protocol_of(record);
    CodecOptions options = options_of(record);
    options.compat = Compat::kGalley;
    const Result<Request> request = parse_request(protocol, golden_string(record, "body"), options);
    ASSERT_TRUE(request) << golden_string(record, "id");
    std::vector<TokenId> ids;
    for (const Json& chunk : *record.find("chunks")->array()) {
      for (const Json& id : *chunk.array()) {
        ids.push_back(static_cast<TokenId>(*id.int64()));
      }
    }
    for (std::size_t count = 0; count <= ids.size(); ++count) {
      SCOPED_TRACE(fmt::format("{} cut at token {}", golden_string(record, "id"), count));
      const Replies replies = replies_to(*request, *tokenizer, [&](OutputParser& parser) {
        ASSERT_TRUE(parser.feed_tokens(std::span(ids).first(count)));
        parser.finish(SourceFinish::kLength);
      });
      expect_stream_equals_body(protocol, replies);
    }
  }
}

Request completion_of(std::string prompt, bool echo = false) {
  Request request;
  request.protocol = Protocol::kCompletions;
  request.model = "m";
  request.completion = Completion{.prompt = std::move(prompt), .echo = echo};
  request.output.stage = StartStage::kContentContinuation;
  return request;
}

constexpr std::string_view kCompletionHead =
    R"({"id":"r1","object":"text_completion","created":5,"model":"m","choices":[)";
constexpr std::string_view kCompletionUsage =
    R"({"prompt_tokens":3000,"completion_tokens":2,"total_tokens":3002,)"
    R"("prompt_tokens_details":{"cached_tokens":2560},"prompt_cache_hit_tokens":2560,)"
    R"("prompt_cache_miss_tokens":440})";

TEST(Reply, CompletionsWholeAndStreamed) {
  const auto frame = [](std::string_view text) {
    return fmt::format(
        "data: {}{{\"text\":\"{}\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}}]}}\n\n",
        kCompletionHead, text);
  };
  // The first line break belongs to the text, and so does what looks like a call.
  const Replies replies =
      replies_to(completion_of("p"), {"\na", "<｜DSML｜ b"}, SourceFinish::kLength);
  expect_stream_equals_body(Protocol::kCompletions, replies);
  EXPECT_EQ(replies.stream,
            frame("\\na") + frame("<｜DSML｜ b") +
                fmt::format("data: {}{{\"text\":\"\",\"index\":0,\"logprobs\":null,"
                            "\"finish_reason\":\"length\"}}],\"usage\":{}}}\n\ndata: [DONE]\n\n",
                            kCompletionHead, kCompletionUsage));
  EXPECT_EQ(replies.body,
            fmt::format("{}{{\"text\":\"\\na<｜DSML｜ b\",\"index\":0,\"logprobs\":null,"
                        "\"finish_reason\":\"length\"}}],\"usage\":{}}}",
                        kCompletionHead, kCompletionUsage));
}

TEST(Reply, CompletionsEchoTheirPromptFirst) {
  const Replies replies = replies_to(completion_of("pré", true), {"a", "b"});
  expect_stream_equals_body(Protocol::kCompletions, replies);
  EXPECT_NE(replies.body.find("\"text\":\"préab\""), std::string::npos) << replies.body;
  EXPECT_TRUE(
      replies.stream.starts_with(fmt::format("data: {}{{\"text\":\"pré\",", kCompletionHead)))
      << replies.stream;
}

TEST(Reply, CompletionsThatBreakOffSayNothingOfTheirEnd) {
  Request request = completion_of("p");
  request.include_usage = true;
  std::string out;
  FixedIds ids;
  const auto stream =
      StreamEncoder::create(request, {.id = "r1", .created_s = 5, .call_ids = &ids}, out);
  stream->on_event(Started{});
  stream->on_event(ContentText{.text = "a"});
  stream->keep_alive();
  stream->fail({.code = Code::kUnavailable, .what = "gone"});
  stream->fail({.code = Code::kUnavailable, .what = "again"});
  stream->on_event(ContentText{.text = "b"});
  EXPECT_EQ(out, fmt::format("data: {}{{\"text\":\"a\",\"index\":0,\"logprobs\":null,"
                             "\"finish_reason\":null}}],\"usage\":null}}\n\n: keep-alive\n\n"
                             "data: {{\"error\":{{\"message\":\"gone\",\"type\":"
                             "\"service_unavailable\",\"param\":null,\"code\":"
                             "\"service_unavailable\"}}}}\n\n",
                             kCompletionHead));
}

TEST(Reply, LogprobsOfCompletionsAreFourLists) {
  const auto tokenizer = v4_tokenizer_for_test(ModelVersion::kV41);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  std::vector<TokenId> ids;
  (*tokenizer)->encode("é b", ids);
  std::vector<TokenLogprob> logprobs;
  for (const TokenId id : ids) {
    const std::string token((*tokenizer)->bytes(id));
    logprobs.push_back({token, -0.5F, {{token, -0.5F}}});
  }
  const Replies replies = replies_to(completion_of("p"), *tokenizer, [&](OutputParser& parser) {
    ASSERT_TRUE(parser.feed_tokens(ids, logprobs));
    parser.finish(SourceFinish::kStop);
  });
  EXPECT_NE(replies.body.find(R"("logprobs":{"tokens":["é"," b"],"token_logprobs":[-0.5,-0.5],)"
                              R"("top_logprobs":[{"é":-0.5},{" b":-0.5}],"text_offset":[0,1]})"),
            std::string::npos)
      << replies.body;
  // Streamed a token at a time, the offsets go on.
  const Replies pieces = replies_to(completion_of("p"), *tokenizer, [&](OutputParser& parser) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ASSERT_TRUE(parser.feed_tokens(std::span(ids).subspan(i, 1),
                                     std::span<const TokenLogprob>(logprobs).subspan(i, 1)));
    }
    parser.finish(SourceFinish::kStop);
  });
  EXPECT_NE(pieces.stream.find(R"("text_offset":[0])"), std::string::npos) << pieces.stream;
  EXPECT_NE(pieces.stream.find(R"("text_offset":[1])"), std::string::npos) << pieces.stream;
  EXPECT_EQ(pieces.body, replies.body);
}

// A byte that is no character shows as one.
TEST(Reply, OffsetsOfCompletionsPointIntoTheText) {
  const auto tokenizer = v4_tokenizer_for_test(ModelVersion::kV41);
  ASSERT_TRUE(tokenizer) << to_string(tokenizer.error());
  std::vector<TokenId> bad;
  for (TokenId id = 3; bad.size() < 1; ++id) {
    if ((*tokenizer)->bytes(id) == "\xff") {
      bad.push_back(id);
    }
  }
  std::vector<TokenId> ids = {bad[0], bad[0]};
  (*tokenizer)->encode("b", ids);
  std::vector<TokenLogprob> logprobs;
  for (const TokenId id : ids) {
    logprobs.push_back({std::string((*tokenizer)->bytes(id)), -0.5F, {}});
  }
  const Replies replies = replies_to(completion_of("p"), *tokenizer, [&](OutputParser& parser) {
    ASSERT_TRUE(parser.feed_tokens(ids, logprobs));
    parser.finish(SourceFinish::kStop);
  });
  EXPECT_NE(replies.body.find("\"text\":\"\xEF\xBF\xBD\xEF\xBF\xBD"
                              "b\""),
            std::string::npos)
      << replies.body;
  EXPECT_NE(replies.body.find(R"("text_offset":[0,1,2])"), std::string::npos) << replies.body;
}

// Every token is shown, that of the end of thinking too: text before and behind it never joins.
TEST(Reply, CompletionsHideNothing) {
  Request request = completion_of("p");
  request.output.stop_sequences = {"ab"};
  const Replies replies = replies_to(request, {"a</think>b"});
  EXPECT_NE(replies.body.find("\"text\":\"a</think>b\""), std::string::npos) << replies.body;
  EXPECT_NE(replies.body.find("\"finish_reason\":\"stop\""), std::string::npos);
}

}  // namespace
}  // namespace galley::recipe
