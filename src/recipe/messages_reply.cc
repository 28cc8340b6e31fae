#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "recipe/json.h"
#include "recipe/reply_parts.h"

// Messages replies (spec recipe 6.7).
namespace galley::recipe {
namespace {

std::string_view stop_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kToolCalls:
      return "tool_use";
    case FinishReason::kStopSequence:
      return "stop_sequence";
    case FinishReason::kContentFilter:
      return "refusal";
    case FinishReason::kLength:
    case FinishReason::kBrokenCall:  // cut short as well: clients must not trust an open call
      return "max_tokens";
    case FinishReason::kStop:
    case FinishReason::kEndOfStream:
      break;
  }
  return "end_turn";
}

// `"stop_reason":...,"stop_sequence":...`
void append_stop(const Finished& finished, std::string& out) {
  out.append("\"stop_reason\":\"").append(stop_reason(finished.reason));
  out.append("\",\"stop_sequence\":");
  if (finished.reason == FinishReason::kStopSequence) {
    append_json_string(finished.stop_sequence, out);
  } else {
    out.append("null");
  }
  if (finished.reason == FinishReason::kBrokenCall) {
    out.append(",\"broken_tool_call\":true");
  }
}

// Cache hits are not part of input_tokens here; the parts add up to the prompt.
void append_usage(const Usage& usage, std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"input_tokens":{},"cache_creation_input_tokens":0,)"
                 R"("cache_read_input_tokens":{},"output_tokens":{},"service_tier":"standard"}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens,
                 usage.completion_tokens);
}

// `{"id":...,"content":[`
void append_head(const std::string& id, const std::string& model, std::string& out) {
  out.append("{\"id\":");
  append_json_string(id, out);
  out.append(R"(,"type":"message","role":"assistant","model":)");
  append_json_string(model, out);
  out.append(",\"content\":[");
}

constexpr std::size_t kNowhere = std::string_view::npos;

// The quote that ends the JSON string whose opening quote is at `open`; kNowhere when none does.
std::size_t closing_quote(std::string_view text, std::size_t open) {
  for (std::size_t i = open + 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      return i;
    }
    i += text[i] == '\\' ? 1 : 0;
  }
  return kNowhere;
}

// What a client's SDK makes of a stream that ends inside the arguments of a call: the members that
// are complete, nested ones included, as a JSON object. A string, a number's last digits or a
// member that may go on is left out. `text` begins a JSON object; "{}" when it begins nothing.
std::string begun_object(std::string_view text) {
  std::string closers;            // of what is open, innermost last
  std::size_t complete = 0;       // bytes of `text` up to the end of its last complete value
  bool value_next = false;        // in an object: after the colon
  std::size_t scalar = kNowhere;  // where a number, true, false or null began
  const auto end_value = [&](std::size_t end) {
    complete = end;
    value_next = false;
  };
  const auto end_scalar = [&](std::size_t end) {
    if (scalar != kNowhere && is_json(text.substr(scalar, end - scalar))) {
      end_value(end);
    }
    scalar = kNowhere;
  };
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const std::size_t close = closing_quote(text, i);
      if (close == kNowhere) {
        break;
      }
      i = close;
      if (value_next || closers.ends_with(']')) {
        end_value(i + 1);
      }
    } else if (c == '{' || c == '[') {
      closers.push_back(c == '{' ? '}' : ']');
      end_value(i + 1);
    } else if (c == '}' || c == ']') {
      end_scalar(i);
      if (closers.empty()) {
        return "{}";
      }
      closers.pop_back();
      end_value(i + 1);
    } else if (c == ':') {
      value_next = true;
    } else if (c == ',') {
      end_scalar(i);
    } else if (scalar == kNowhere && std::string_view(" \t\r\n").find(c) == kNowhere) {
      scalar = i;
    }
  }
  end_scalar(i);
  std::string out(text.substr(0, complete));
  out.append(closers.rbegin(), closers.rend());
  return is_json(out) ? out : "{}";
}

enum class Block : std::uint8_t { kNone, kThinking, kText, kToolUse };

class MessagesStream final : public StreamEncoder {
 public:
  MessagesStream(const Request& request, ReplyInfo info, std::string& out)
      : out_(out),
        call_ids_(info.call_ids, request.output.thinking),
        info_(std::move(info)),
        model_(request.model),
        thinking_(request.output.thinking) {}

  void on_event(const Event& event) override {
    if (ended_) {
      return;
    }
    if (const auto* content = std::get_if<ContentText>(&event)) {
      enter(Block::kText);
      delta(content->text);
    } else if (const auto* reasoning = std::get_if<ReasoningText>(&event)) {
      call_ids_.reasoning_seen();
      enter(Block::kThinking);
      delta(reasoning->text);
    } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      delta(arguments->text);
    } else if (const auto* call = std::get_if<CallNamed>(&event)) {
      close();
      std::string block = "\"tool_use\",\"id\":\"" + call_ids_.next() + "\",\"name\":";
      append_json_string(call->name, block);
      open(Block::kToolUse, block + ",\"input\":{}", "input_json_delta", "partial_json");
    } else if (const auto* started = std::get_if<Started>(&event)) {
      on_started(*started);
    } else {
      on_finished(std::get<Finished>(event));
    }
  }

  void fail(const Error& error) override {
    if (!ended_) {
      ended_ = true;
      out_.append("event: error\ndata: ");
      append_anthropic_error(error, out_);
      out_.append("\n\n");
    }
  }

  void keep_alive() override { out_.append(started_ ? kPing : kKeepAliveComment); }

 private:
  static constexpr std::string_view kPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

  void on_started(const Started& started) {
    started_ = true;
    out_.append("event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    append_head(info_.id, model_, out_);
    out_.append(R"(],"stop_reason":null,"stop_sequence":null,"usage":)");
    append_usage({.prompt_tokens = started.prompt_tokens, .cached_tokens = started.cached_tokens},
                 out_);
    out_.append("}}\n\n");
    if (thinking_) {
      enter(Block::kThinking);
    }
  }

  void enter(Block block) {
    if (block_ == block) {
      return;
    }
    close();
    if (block == Block::kThinking) {
      open(block, R"("thinking","thinking":"","signature":"")", "thinking_delta", "thinking");
    } else {
      open(block, R"("text","text":"")", "text_delta", "text");
    }
  }

  void open(Block block,
            std::string_view members,
            std::string_view delta_type,
            std::string_view delta_key) {
    block_ = block;
    out_.append("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
    append_int(index_, out_);
    out_.append(",\"content_block\":{\"type\":").append(members).append("}}\n\n");
    if (index_ == 0) {
      out_.append(kPing);
    }
    delta_begin_ = fmt::format(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},"
        "\"delta\":{{\"type\":\"{}\",\"{}\":\"",
        index_, delta_type, delta_key);
  }

  void delta(std::string_view text) {
    out_.append(delta_begin_);
    append_json_escaped(text, out_);
    out_.append("\"}}\n\n");
  }

  void close() {
    if (block_ == Block::kNone) {
      return;
    }
    if (block_ == Block::kThinking) {
      out_.append("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
      append_int(index_, out_);
      out_.append(",\"delta\":{\"type\":\"signature_delta\",\"signature\":");
      append_json_string(info_.id, out_);
      out_.append("}}\n\n");
    }
    out_.append("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
    append_int(index_++, out_);
    out_.append("}\n\n");
    block_ = Block::kNone;
  }

  void on_finished(const Finished& finished) {
    close();
    ended_ = true;
    out_.append("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    append_stop(finished, out_);
    out_.append("},\"usage\":");
    append_usage(finished.usage, out_);
    out_.append("}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
  }

  std::string& out_;
  CallIds call_ids_;
  ReplyInfo info_;
  std::string model_;
  bool thinking_;
  bool started_ = false;
  bool ended_ = false;
  Block block_ = Block::kNone;
  int index_ = 0;
  std::string delta_begin_;  // of the open block, up to the text
};

class MessagesWhole final : public WholeEncoder {
 public:
  MessagesWhole(const Request& request, ReplyInfo info)
      : call_ids_(info.call_ids, request.output.thinking),
        info_(std::move(info)),
        model_(request.model),
        compat_(request.compat) {
    if (request.output.thinking) {
      blocks_.push_back({.kind = Block::kThinking});
    }
  }

  void on_event(const Event& event) override {
    if (const auto* content = std::get_if<ContentText>(&event)) {
      enter(Block::kText).text.append(content->text);
    } else if (const auto* reasoning = std::get_if<ReasoningText>(&event)) {
      call_ids_.reasoning_seen();
      enter(Block::kThinking).text.append(reasoning->text);
    } else if (const auto* call = std::get_if<CallNamed>(&event)) {
      blocks_.push_back(
          {.kind = Block::kToolUse, .id = call_ids_.next(), .name = std::string(call->name)});
    } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      blocks_.back().text.append(arguments->text);
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      append_stop(*finished, stop_);
      append_usage(finished->usage, usage_);
    }
  }

  [[nodiscard]] std::string body() override {
    std::string out;
    append_head(info_.id, model_, out);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      out.append(i > 0 ? "," : "");
      append_block(blocks_[i], out);
    }
    out.append("],").append(stop_).append(",\"usage\":").append(usage_).append("}");
    return out;
  }

 private:
  struct Content {
    Block kind{};
    std::string id;
    std::string name;
    std::string text;  // of a call: its arguments
  };

  Content& enter(Block kind) {
    if (blocks_.empty() || blocks_.back().kind != kind) {
      blocks_.push_back({.kind = kind});
    }
    return blocks_.back();
  }

  void append_block(const Content& block, std::string& out) const {
    if (block.kind == Block::kThinking) {
      out.append(R"({"type":"thinking","thinking":)");
      append_json_string(block.text, out);
      out.append(",\"signature\":");
      append_json_string(info_.id, out);
    } else if (block.kind == Block::kText) {
      out.append(R"({"type":"text","text":)");
      append_json_string(block.text, out);
    } else {
      out.append(R"({"type":"tool_use","id":")").append(block.id).append("\",\"name\":");
      append_json_string(block.name, out);
      out.append(",\"input\":");
      if (is_json(block.text)) {
        out.append(block.text);
      } else {  // cut short: `input` must be an object all the same
        out.append(compat_ == Compat::kGalley ? begun_object(block.text) : "{}");
      }
    }
    out.push_back('}');
  }

  CallIds call_ids_;
  ReplyInfo info_;
  std::string model_;
  Compat compat_;
  std::vector<Content> blocks_;
  std::string stop_;
  std::string usage_;
};

}  // namespace

std::unique_ptr<StreamEncoder> make_messages_stream(const Request& request,
                                                    ReplyInfo info,
                                                    std::string& out) {
  return std::make_unique<MessagesStream>(request, std::move(info), out);
}

std::unique_ptr<WholeEncoder> make_messages_whole(const Request& request, ReplyInfo info) {
  return std::make_unique<MessagesWhole>(request, std::move(info));
}

}  // namespace galley::recipe
