#include <fmt/format.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recipe/json.h"
#include "recipe/reply_parts.h"

// Chat Completions replies (spec recipe 6.3).
namespace galley::recipe {
namespace {

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kContentFilter:
      return "content_filter";
    case FinishReason::kLength:
    case FinishReason::kBrokenCall:  // cut short as well: clients must not trust an open call
      return "length";
    case FinishReason::kStop:
    case FinishReason::kStopSequence:
    case FinishReason::kEndOfStream:
      break;
  }
  return "stop";
}

// Tells a refused call from the token limit; clients skip members they do not know.
std::string_view broken_call_member(FinishReason reason) {
  return reason == FinishReason::kBrokenCall ? ",\"broken_tool_call\":true" : "";
}

bool starts_in_reasoning(const OutputFormat& output) {
  return output.thinking && (output.stage == StartStage::kReasoningStart ||
                             output.stage == StartStage::kReasoningContinuation);
}

class ChatStream final : public StreamEncoder {
 public:
  ChatStream(const Request& request, ReplyInfo info, std::string& out)
      : out_(out),
        call_ids_(info.call_ids, request.output.thinking),
        info_(std::move(info)),
        model_(request.model),
        compat_(request.compat),
        thinking_(request.output.thinking),
        starts_in_reasoning_(starts_in_reasoning(request.output)),
        include_usage_(request.include_usage) {}

  void on_event(const Event& event) override {
    if (ended_) {
      return;
    }
    if (const auto* content = std::get_if<ContentText>(&event)) {
      text(content_begin_, content->text, "content", content->logprobs, content_end_);
    } else if (const auto* reasoning = std::get_if<ReasoningText>(&event)) {
      call_ids_.reasoning_seen();
      text(reasoning_begin_, reasoning->text, "reasoning_content", reasoning->logprobs, "\"");
    } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      text(arguments_begin_, arguments->text, {}, {}, "\"}}]");
    } else if (const auto* call = std::get_if<CallNamed>(&event)) {
      on_call(*call);
    } else if (const auto* started = std::get_if<Started>(&event)) {
      on_started(*started);
    } else {
      on_finished(std::get<Finished>(event));
    }
  }

  void fail(const Error& error) override {
    if (!ended_) {
      ended_ = true;
      append_openai_stream_error(compat_, error, out_);
    }
  }

  void keep_alive() override { out_.append(kKeepAliveComment); }

 private:
  // One chunk: begin (up to the opening quote), text, end of the delta's last member.
  void text(std::string_view begin,
            std::string_view text,
            std::string_view logprobs_key,
            std::span<const TokenLogprob> logprobs,
            std::string_view end) {
    out_.append(begin);
    append_json_escaped(text, out_);
    out_.append(end);
    if (logprobs.empty()) {
      out_.append(plain_end_);
      return;
    }
    out_.append("},\"logprobs\":{\"").append(logprobs_key).append("\":[");
    append_logprobs(logprobs, out_);
    out_.append("]},\"finish_reason\":null}]").append(usage_null_).append("}\n\n");
  }

  void on_started(const Started& started) {
    head_ = "data: {\"id\":";
    append_json_string(info_.id, head_);
    head_.append(",\"object\":\"chat.completion.chunk\",\"created\":");
    append_int(info_.created_s, head_);
    head_.append(",\"model\":");
    append_json_string(model_, head_);
    head_.append(",\"system_fingerprint\":");
    if (started.fingerprint) {
      append_json_string(*started.fingerprint, head_);
    } else {
      head_.append("null");
    }
    head_.append(",\"choices\":[");
    delta_ = head_ + "{\"index\":" + std::to_string(info_.choice) + ",\"delta\":{";
    usage_null_ = include_usage_ ? ",\"usage\":null" : "";
    content_begin_ = delta_ + "\"content\":\"";
    content_end_ = thinking_ ? "\",\"reasoning_content\":null" : "\"";
    reasoning_begin_ = delta_ + "\"content\":null,\"reasoning_content\":\"";
    plain_end_ = "},\"logprobs\":null,\"finish_reason\":null}]" + usage_null_ + "}\n\n";

    out_.append(delta_).append("\"role\":\"assistant\",");
    if (starts_in_reasoning_) {
      out_.append("\"content\":null,\"reasoning_content\":\"\"");
    } else {
      out_.append("\"content\":\"").append(content_end_);
    }
    out_.append(plain_end_);
  }

  void on_call(const CallNamed& call) {
    const std::string index = std::to_string(call_count_++);
    arguments_begin_ =
        delta_ + "\"tool_calls\":[{\"index\":" + index + ",\"function\":{\"arguments\":\"";
    out_.append(delta_).append("\"tool_calls\":[{\"index\":").append(index).append(",\"id\":\"");
    out_.append(call_ids_.next()).append("\",\"type\":\"function\",\"function\":{\"name\":");
    append_json_string(call.name, out_);
    out_.append(",\"arguments\":\"\"}}]").append(plain_end_);
  }

  void on_finished(const Finished& finished) {
    ended_ = true;
    const bool last = !info_.choices || info_.choices->end(info_.choice, "", finished.usage);
    const Usage& usage = info_.choices ? info_.choices->usage() : finished.usage;
    out_.append(content_begin_).append(content_end_).append("},\"logprobs\":null");
    out_.append(",\"finish_reason\":\"").append(finish_name(finished.reason)).append("\"");
    out_.append(broken_call_member(finished.reason)).append("}],\"usage\":");
    if (!last) {
      out_.append("null}\n\n");
      return;
    }
    append_openai_usage(usage, out_);
    out_.append("}\n\n");
    if (info_.usage_chunk && include_usage_) {
      out_.append(head_).append("],\"usage\":");
      append_openai_usage(usage, out_);
      out_.append("}\n\n");
    }
    out_.append("data: [DONE]\n\n");
  }

  std::string& out_;
  CallIds call_ids_;
  ReplyInfo info_;
  std::string model_;
  Compat compat_;
  bool thinking_;
  bool starts_in_reasoning_;
  bool include_usage_;
  bool ended_ = false;
  int call_count_ = 0;
  // Frames are alike but for their text; these are the parts around it.
  std::string head_;   // up to the choices
  std::string delta_;  // up to the delta's members
  std::string usage_null_;
  std::string content_begin_;
  std::string content_end_;
  std::string reasoning_begin_;
  std::string arguments_begin_;  // of the last call
  std::string plain_end_;
};

class ChatWhole final : public WholeEncoder {
 public:
  ChatWhole(const Request& request, ReplyInfo info)
      : call_ids_(info.call_ids, request.output.thinking),
        info_(std::move(info)),
        model_(request.model) {
    if (starts_in_reasoning(request.output)) {
      reasoning_.emplace();
    }
  }

  void on_event(const Event& event) override {
    if (const auto* content = std::get_if<ContentText>(&event)) {
      content_.append(content->text);
      add_logprobs(content->logprobs, content_logprobs_);
    } else if (const auto* reasoning = std::get_if<ReasoningText>(&event)) {
      call_ids_.reasoning_seen();
      reasoning_ = std::move(reasoning_).value_or("").append(reasoning->text);
      add_logprobs(reasoning->logprobs, reasoning_logprobs_);
    } else if (const auto* call = std::get_if<CallNamed>(&event)) {
      calls_.push_back({call_ids_.next(), std::string(call->name), {}});
    } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      calls_.back().arguments.append(arguments->text);
    } else if (const auto* started = std::get_if<Started>(&event)) {
      fingerprint_ = started->fingerprint;
    } else {
      const auto& finished = std::get<Finished>(event);
      reason_ = finished.reason;
      usage_ = finished.usage;
    }
  }

  [[nodiscard]] std::string body() override {
    std::string choices = choice();
    if (info_.choices != nullptr) {
      if (!info_.choices->end(info_.choice, std::move(choices), usage_)) {
        return {};
      }
      choices = info_.choices->texts();
      usage_ = info_.choices->usage();
    }
    std::string out = "{\"id\":";
    append_json_string(info_.id, out);
    out.append(",\"object\":\"chat.completion\",\"created\":");
    append_int(info_.created_s, out);
    out.append(",\"model\":");
    append_json_string(model_, out);
    out.append(",\"choices\":[").append(choices).append("],\"usage\":");
    append_openai_usage(usage_, out);
    out.append(",\"system_fingerprint\":");
    if (fingerprint_) {
      append_json_string(*fingerprint_, out);
    } else {
      out.append("null");
    }
    out.push_back('}');
    return out;
  }

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };

  [[nodiscard]] std::string choice() const {
    std::string out = "{\"index\":" + std::to_string(info_.choice) +
                      ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_json_string(content_, out);
    if (reasoning_) {
      out.append(",\"reasoning_content\":");
      append_json_string(*reasoning_, out);
    }
    append_calls(out);
    out.append("},\"logprobs\":");
    append_logprob_lists(out);
    out.append(",\"finish_reason\":\"").append(finish_name(reason_)).append("\"");
    out.append(broken_call_member(reason_)).push_back('}');
    return out;
  }

  static void add_logprobs(std::span<const TokenLogprob> logprobs, std::string& list) {
    if (!logprobs.empty()) {
      list.append(list.empty() ? "" : ",");
      append_logprobs(logprobs, list);
    }
  }

  void append_calls(std::string& out) const {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      out.append(i == 0 ? ",\"tool_calls\":[" : ",").append("{\"index\":");
      append_int(static_cast<std::int64_t>(i), out);
      out.append(",\"id\":\"").append(calls_[i].id);
      out.append("\",\"type\":\"function\",\"function\":{\"name\":");
      append_json_string(calls_[i].name, out);
      out.append(",\"arguments\":");
      append_json_string(calls_[i].arguments, out);
      out.append("}}");
    }
    out.append(calls_.empty() ? "" : "]");
  }

  void append_logprob_lists(std::string& out) const {
    if (content_logprobs_.empty() && reasoning_logprobs_.empty()) {
      out.append("null");
      return;
    }
    out.push_back('{');
    if (!content_logprobs_.empty()) {
      out.append("\"content\":[").append(content_logprobs_).append("]");
    }
    if (!reasoning_logprobs_.empty()) {
      out.append(content_logprobs_.empty() ? "" : ",");
      out.append("\"reasoning_content\":[").append(reasoning_logprobs_).append("]");
    }
    out.push_back('}');
  }

  CallIds call_ids_;
  ReplyInfo info_;
  std::string model_;
  std::optional<std::string> fingerprint_;
  std::string content_;
  std::optional<std::string> reasoning_;  // present from the start when the reply begins with it
  std::string content_logprobs_;          // encoded list elements
  std::string reasoning_logprobs_;
  std::vector<Call> calls_;
  FinishReason reason_ = FinishReason::kEndOfStream;
  Usage usage_;
};

}  // namespace

std::unique_ptr<StreamEncoder> make_chat_stream(const Request& request,
                                                ReplyInfo info,
                                                std::string& out) {
  return std::make_unique<ChatStream>(request, std::move(info), out);
}

std::unique_ptr<WholeEncoder> make_chat_whole(const Request& request, ReplyInfo info) {
  return std::make_unique<ChatWhole>(request, std::move(info));
}

}  // namespace galley::recipe
