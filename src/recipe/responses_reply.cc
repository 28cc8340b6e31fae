#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recipe/custom_input.h"
#include "recipe/json.h"
#include "recipe/reply_parts.h"

// Responses replies (spec recipe 6.5).
namespace galley::recipe {
namespace {

// Members of a Response between `error` and `model`, `output` and `usage`, in order. A request's
// echo replaces the value given here.
struct Member {
  std::string_view key;
  std::string_view value;
};
constexpr std::array kBeforeModel = std::to_array<Member>({
    {"frequency_penalty", "0.0"},
});
constexpr std::array kAfterDetails = std::to_array<Member>({
    {"instructions", "null"},
    {"max_output_tokens", "null"},
    {"max_tool_calls", "null"},
});
constexpr std::array kAfterOutput = std::to_array<Member>({
    {"parallel_tool_calls", "true"},
    {"presence_penalty", "0.0"},
    {"previous_response_id", "null"},
    {"prompt_cache_key", "null"},
    {"prompt_cache_retention", "null"},
    {"reasoning", R"({"effort":null,"summary":null})"},
    {"safety_identifier", "null"},
    {"service_tier", "\"default\""},
    {"store", "false"},
    {"temperature", "1.0"},
    {"text", R"({"format":{"type":"text"},"verbosity":null})"},
    {"tool_choice", "\"auto\""},
    {"tools", "[]"},
    {"top_logprobs", "0"},
    {"top_p", "1.0"},
    {"truncation", "\"disabled\""},
});
constexpr std::array kAfterUsage = std::to_array<Member>({
    {"user", "null"},
    {"metadata", "{}"},
});

// `,"key":value` for each member.
std::string echo_members(const Json& echo, std::span<const Member> members) {
  std::string out;
  for (const Member& member : members) {
    out.append(",\"").append(member.key).append("\":");
    if (const Json* value = echo.find(member.key)) {
      append_json(*value, {}, out);
    } else {
      out.append(member.value);
    }
  }
  return out;
}

std::string json_escaped(std::string_view text) {
  std::string out;
  append_json_escaped(text, out);
  return out;
}

std::string_view error_code(Code code) {
  switch (code) {
    case Code::kOverloaded:
      return "rate_limit_exceeded";
    case Code::kInvalidArgument:
      return "invalid_prompt";
    default:
      return "server_error";
  }
}

enum class Kind : std::uint8_t { kMessage, kReasoning, kFunction, kCustom, kToolSearch };

struct Item {
  Kind kind{};
  std::string id;  // JSON-escaped
  std::string_view status = "in_progress";
  std::string_view phase = "final_answer";  // message
  std::string text;                         // text, arguments or input
  std::string logprobs;                     // message: encoded list elements
  std::string call_id;
  std::string name;
  std::string name_space;
  bool arguments_parse = true;  // tool search
};

// One reply: keeps the items, and writes events when it has somewhere to write them.
class ResponsesReply {
 public:
  ResponsesReply(const Request& request, const ReplyInfo& info, std::string* out);

  void on_event(const Event& event);
  void fail(const Error& error);
  [[nodiscard]] std::string response() const;

 private:
  void on_started();
  void on_text(Kind kind, std::string_view text, std::span<const TokenLogprob> logprobs);
  void on_call(std::string_view name);
  void on_arguments(std::string_view text);
  void on_finished(const Finished& finished);

  void open(Item item);
  void close(bool incomplete, bool before_call);
  void write_close(const Item& item);

  [[nodiscard]] std::size_t index() const { return items_.size() - 1; }
  void begin_event(std::string_view type);  // `event: T\ndata: {"type":"T"`
  void end_event();                         // `,"sequence_number":N}\n\n`
  void append_sequence();
  void append_place();  // `,"item_id":...,"output_index":N`
  void append_delta(std::string_view text, std::string_view logprobs);
  void prepare_delta();
  static void append_part(const Item& item, std::string& out);
  void append_item(const Item& item, std::string& out) const;

  std::string* out_;  // null: nothing is streamed
  CallIds call_ids_;
  std::string id_;  // JSON-escaped: callers choose it
  std::int64_t created_s_;
  std::string model_;
  std::vector<NamespacedTool> namespaced_tools_;
  std::vector<std::string> custom_tools_;
  bool client_tool_search_;
  std::string before_model_;
  std::string after_details_;
  std::string after_output_;
  std::string after_usage_;

  std::vector<Item> items_;
  bool open_ = false;  // the last item is
  bool ended_ = false;
  CustomInput custom_input_;
  std::int64_t sequence_ = 0;
  const Clock* clock_;
  std::int64_t completed_s_ = 0;  // once it is
  std::string_view status_ = "in_progress";
  std::string incomplete_reason_;
  std::string error_ = "null";
  std::optional<Usage> usage_;
  // A delta event is `begin` text `middle` logprobs `end` number `}`.
  std::string delta_begin_;
  std::string delta_middle_;
  std::string delta_end_;
  std::string scratch_;
};

ResponsesReply::ResponsesReply(const Request& request, const ReplyInfo& info, std::string* out)
    : out_(out),
      call_ids_(info.call_ids, request.output.thinking),
      id_(json_escaped(info.id)),
      created_s_(info.created_s),
      model_(request.model),
      namespaced_tools_(request.namespaced_tools),
      custom_tools_(request.custom_tools),
      client_tool_search_(request.client_tool_search),
      before_model_(echo_members(request.responses_echo, kBeforeModel)),
      after_details_(echo_members(request.responses_echo, kAfterDetails)),
      after_output_(echo_members(request.responses_echo, kAfterOutput)),
      after_usage_(echo_members(request.responses_echo, kAfterUsage)),
      clock_(info.clock) {}

void ResponsesReply::on_event(const Event& event) {
  if (ended_) {
    return;
  }
  if (const auto* content = std::get_if<ContentText>(&event)) {
    on_text(Kind::kMessage, content->text, content->logprobs);
  } else if (const auto* reasoning = std::get_if<ReasoningText>(&event)) {
    call_ids_.reasoning_seen();
    on_text(Kind::kReasoning, reasoning->text, {});
  } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
    on_arguments(arguments->text);
  } else if (const auto* call = std::get_if<CallNamed>(&event)) {
    on_call(call->name);
  } else if (std::holds_alternative<Started>(event)) {
    on_started();
  } else {
    on_finished(std::get<Finished>(event));
  }
}

void ResponsesReply::on_started() {
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    begin_event(type);
    if (out_ != nullptr) {
      out_->append(",\"response\":").append(response());
    }
    end_event();
  }
}

void ResponsesReply::on_text(Kind kind,
                             std::string_view text,
                             std::span<const TokenLogprob> logprobs) {
  if (!open_ || items_.back().kind != kind) {
    close(false, false);
    open({.kind = kind});
  }
  Item& item = items_.back();
  item.text.append(text);
  scratch_.clear();
  if (!logprobs.empty()) {
    append_logprobs(logprobs, scratch_);
    item.logprobs.append(item.logprobs.empty() ? "" : ",").append(scratch_);
  }
  append_delta(text, scratch_);
}

void ResponsesReply::on_call(std::string_view name) {
  close(false, true);
  Item item{.kind = Kind::kFunction, .call_id = call_ids_.next(), .name = std::string(name)};
  const auto split = std::ranges::find(namespaced_tools_, name, &NamespacedTool::flat_name);
  if (client_tool_search_ && name == "tool_search") {
    item.kind = Kind::kToolSearch;
  } else if (std::ranges::find(custom_tools_, name) != custom_tools_.end()) {
    item.kind = Kind::kCustom;
    custom_input_ = {};
  } else if (split != namespaced_tools_.end()) {
    item.name_space = split->name_space;
    item.name = split->name;
  }
  open(std::move(item));
}

void ResponsesReply::on_arguments(std::string_view text) {
  Item& item = items_.back();
  if (item.kind == Kind::kCustom) {
    scratch_.clear();
    custom_input_.feed(text, scratch_);
    item.text.append(scratch_);
    if (!scratch_.empty()) {
      append_delta(scratch_, {});
    }
    return;
  }
  item.text.append(text);
  if (item.kind == Kind::kFunction) {
    append_delta(text, {});
  }
}

void ResponsesReply::open(Item item) {
  constexpr std::array<std::string_view, 5> kPrefix = {"msg", "rs", "fc", "ctc", "tsc"};
  item.id =
      fmt::format("{}_{}_{}", kPrefix[static_cast<std::size_t>(item.kind)], id_, items_.size());
  items_.push_back(std::move(item));
  open_ = true;
  if (out_ == nullptr) {
    return;
  }
  const Item& opened = items_.back();
  begin_event("response.output_item.added");
  out_->append(",\"item\":");
  append_item(opened, *out_);
  out_->append(",\"output_index\":");
  append_int(static_cast<std::int64_t>(index()), *out_);
  end_event();
  if (opened.kind == Kind::kMessage || opened.kind == Kind::kReasoning) {
    begin_event("response.content_part.added");
    out_->append(",\"content_index\":0");
    append_place();
    out_->append(",\"part\":");
    append_part(opened, *out_);
    end_event();
  }
  prepare_delta();
}

void ResponsesReply::close(bool incomplete, bool before_call) {
  if (!open_) {
    return;
  }
  Item& item = items_.back();
  if (item.kind == Kind::kCustom) {
    scratch_.clear();
    custom_input_.finish(scratch_);
    item.text.append(scratch_);
    if (!scratch_.empty()) {
      append_delta(scratch_, {});
    }
  }
  if (item.kind == Kind::kToolSearch) {
    item.arguments_parse = is_json(item.text);
  }
  if (item.kind == Kind::kMessage && before_call) {
    item.phase = "commentary";
  }
  item.status = incomplete || !item.arguments_parse ? "incomplete" : "completed";
  open_ = false;
  if (out_ != nullptr) {
    write_close(item);
  }
}

void ResponsesReply::write_close(const Item& item) {
  switch (item.kind) {
    case Kind::kMessage:
    case Kind::kReasoning: {
      const bool message = item.kind == Kind::kMessage;
      begin_event(message ? "response.output_text.done" : "response.reasoning_text.done");
      out_->append(",\"content_index\":0,\"item_id\":\"").append(item.id).append("\"");
      if (message) {
        out_->append(",\"logprobs\":[").append(item.logprobs).append("]");
      }
      out_->append(",\"output_index\":");
      append_int(static_cast<std::int64_t>(index()), *out_);
      append_sequence();
      out_->append(",\"text\":");
      append_json_string(item.text, *out_);
      out_->append("}\n\n");
      begin_event("response.content_part.done");
      out_->append(",\"content_index\":0");
      append_place();
      out_->append(",\"part\":");
      append_part(item, *out_);
      end_event();
      break;
    }
    case Kind::kFunction:
      begin_event("response.function_call_arguments.done");
      out_->append(",\"arguments\":");
      append_json_string(item.text, *out_);
      append_place();
      end_event();
      break;
    case Kind::kCustom:
      begin_event("response.custom_tool_call_input.done");
      out_->append(",\"input\":");
      append_json_string(item.text, *out_);
      append_place();
      end_event();
      break;
    case Kind::kToolSearch:
      break;
  }
  begin_event("response.output_item.done");
  out_->append(",\"item\":");
  append_item(item, *out_);
  out_->append(",\"output_index\":");
  append_int(static_cast<std::int64_t>(index()), *out_);
  end_event();
}

void ResponsesReply::on_finished(const Finished& finished) {
  switch (finished.reason) {
    case FinishReason::kLength:
      incomplete_reason_ = "max_output_tokens";
      break;
    case FinishReason::kContentFilter:
      incomplete_reason_ = "content_filter";
      break;
    case FinishReason::kBrokenCall:
      incomplete_reason_ = "broken_tool_call";
      break;
    default:
      break;
  }
  const bool incomplete = !incomplete_reason_.empty();
  close(incomplete, false);
  status_ = incomplete ? "incomplete" : "completed";
  completed_s_ = clock_ == nullptr ? created_s_ : clock_->unix_seconds();
  usage_ = finished.usage;
  begin_event(incomplete ? "response.incomplete" : "response.completed");
  if (out_ != nullptr) {
    out_->append(",\"response\":").append(response());
  }
  end_event();
  ended_ = true;
}

void ResponsesReply::fail(const Error& error) {
  if (ended_) {
    return;
  }
  status_ = "failed";
  error_ = fmt::format("{{\"code\":\"{}\",\"message\":", error_code(error.code));
  append_json_string(error.what, error_);
  error_.push_back('}');
  begin_event("response.failed");
  out_->append(",\"response\":").append(response());
  end_event();
  ended_ = true;
}

std::string ResponsesReply::response() const {
  std::string out = "{\"id\":\"";
  out.append(id_).append("\",\"object\":\"response\",\"created_at\":");
  append_int(created_s_, out);
  out.append(",\"status\":\"").append(status_).append("\",\"background\":false,\"completed_at\":");
  if (status_ == "completed" || status_ == "incomplete") {
    append_int(completed_s_, out);
  } else {
    out.append("null");
  }
  out.append(",\"content_filters\":null,\"error\":").append(error_).append(before_model_);
  out.append(",\"incomplete_details\":");
  out.append(incomplete_reason_.empty() ? "null"
                                        : fmt::format("{{\"reason\":\"{}\"}}", incomplete_reason_));
  out.append(after_details_).append(",\"model\":");
  append_json_string(model_, out);
  out.append(",\"moderation\":null,\"output\":[");
  for (std::size_t i = 0; i < items_.size(); ++i) {
    out.append(i > 0 ? "," : "");
    append_item(items_[i], out);
  }
  out.append("]").append(after_output_).append(",\"usage\":");
  if (usage_) {
    fmt::format_to(std::back_inserter(out),
                   R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},)"
                   R"("output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},)"
                   R"("total_tokens":{}}})",
                   usage_->prompt_tokens, usage_->cached_tokens, usage_->completion_tokens,
                   usage_->reasoning_tokens.value_or(0),
                   usage_->prompt_tokens + usage_->completion_tokens);
  } else {
    out.append("null");
  }
  out.append(after_usage_).append("}");
  return out;
}

void ResponsesReply::begin_event(std::string_view type) {
  if (out_ != nullptr) {
    out_->append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).append("\"");
  }
}

void ResponsesReply::end_event() {
  if (out_ != nullptr) {
    append_sequence();
    out_->append("}\n\n");
  }
}

void ResponsesReply::append_sequence() {
  out_->append(",\"sequence_number\":");
  append_int(sequence_++, *out_);
}

void ResponsesReply::append_place() {
  out_->append(",\"item_id\":\"").append(items_.back().id).append("\",\"output_index\":");
  append_int(static_cast<std::int64_t>(index()), *out_);
}

void ResponsesReply::prepare_delta() {
  const Item& item = items_.back();
  const std::string_view type = item.kind == Kind::kMessage     ? "response.output_text.delta"
                                : item.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                : item.kind == Kind::kFunction
                                    ? "response.function_call_arguments.delta"
                                    : "response.custom_tool_call_input.delta";
  const bool part = item.kind == Kind::kMessage || item.kind == Kind::kReasoning;
  delta_begin_ = fmt::format("event: {0}\ndata: {{\"type\":\"{0}\"{1},\"delta\":\"", type,
                             part ? ",\"content_index\":0" : "");
  delta_middle_ = fmt::format("\",\"item_id\":\"{}\"{}", item.id,
                              item.kind == Kind::kMessage ? ",\"logprobs\":[" : "");
  delta_end_ = fmt::format("{},\"output_index\":{},\"sequence_number\":",
                           item.kind == Kind::kMessage ? "]" : "", index());
}

void ResponsesReply::append_delta(std::string_view text, std::string_view logprobs) {
  if (out_ == nullptr) {
    return;
  }
  out_->append(delta_begin_);
  append_json_escaped(text, *out_);
  out_->append(delta_middle_).append(logprobs).append(delta_end_);
  append_int(sequence_++, *out_);
  out_->append("}\n\n");
}

void ResponsesReply::append_part(const Item& item, std::string& out) {
  if (item.kind == Kind::kMessage) {
    // A part is announced empty: `open` calls this before there is text.
    out.append(R"({"type":"output_text","annotations":[],"logprobs":[)");
    out.append(item.logprobs).append("],\"text\":");
  } else {
    out.append(R"({"type":"reasoning_text","text":)");
  }
  append_json_string(item.text, out);
  out.push_back('}');
}

void ResponsesReply::append_item(const Item& item, std::string& out) const {
  constexpr std::array<std::string_view, 5> kType = {"message", "reasoning", "function_call",
                                                     "custom_tool_call", "tool_search_call"};
  out.append("{\"type\":\"").append(kType[static_cast<std::size_t>(item.kind)]);
  out.append("\",\"id\":\"").append(item.id).append("\",\"status\":\"").append(item.status);
  out.push_back('"');
  const bool begun = item.status != "in_progress";
  if (item.kind == Kind::kMessage) {
    out.append(",\"role\":\"assistant\",\"phase\":\"").append(item.phase).append("\"");
  }
  if (item.kind == Kind::kMessage || item.kind == Kind::kReasoning) {
    out.append(",\"content\":[");
    if (begun) {
      append_part(item, out);
    }
    out.push_back(']');
    if (item.kind == Kind::kReasoning) {
      out.append(",\"summary\":[],\"encrypted_content\":\"").append(id_).append("-0\"");
    }
    out.push_back('}');
    return;
  }
  out.append(",\"call_id\":\"").append(item.call_id).append("\"");
  if (item.kind == Kind::kToolSearch) {
    out.append(",\"execution\":\"client\",\"arguments\":");
    out.append(begun && item.arguments_parse ? item.text : "{}").append("}");
    return;
  }
  out.append(",\"name\":");
  append_json_string(item.name, out);
  if (!item.name_space.empty()) {
    out.append(",\"namespace\":");
    append_json_string(item.name_space, out);
  }
  out.append(item.kind == Kind::kCustom ? ",\"input\":" : ",\"arguments\":");
  append_json_string(item.text, out);
  out.push_back('}');
}

class ResponsesStream final : public StreamEncoder {
 public:
  ResponsesStream(const Request& request, const ReplyInfo& info, std::string& out)
      : out_(out), reply_(request, info, &out) {}
  void on_event(const Event& event) override { reply_.on_event(event); }
  void fail(const Error& error) override { reply_.fail(error); }
  void keep_alive() override { out_.append(kKeepAliveComment); }
  [[nodiscard]] std::string whole() const override { return reply_.response(); }

 private:
  std::string& out_;
  ResponsesReply reply_;
};

class ResponsesWhole final : public WholeEncoder {
 public:
  ResponsesWhole(const Request& request, const ReplyInfo& info) : reply_(request, info, nullptr) {}
  void on_event(const Event& event) override { reply_.on_event(event); }
  [[nodiscard]] std::string body() override { return reply_.response(); }

 private:
  ResponsesReply reply_;
};

}  // namespace

std::unique_ptr<StreamEncoder> make_responses_stream(const Request& request,
                                                     const ReplyInfo& info,
                                                     std::string& out) {
  return std::make_unique<ResponsesStream>(request, info, out);
}

std::unique_ptr<WholeEncoder> make_responses_whole(const Request& request, const ReplyInfo& info) {
  return std::make_unique<ResponsesWhole>(request, info);
}

}  // namespace galley::recipe
