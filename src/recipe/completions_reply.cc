#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "recipe/json.h"
#include "recipe/reply_parts.h"
#include "recipe/text_decoder.h"

// Completions replies (spec recipe 6.9).
namespace galley::recipe {
namespace {

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContentFilter:
      return "content_filter";
    default:
      return "stop";
  }
}

std::size_t characters(std::string_view utf8) {
  return static_cast<std::size_t>(std::ranges::count_if(
      utf8, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

// The four lists of this protocol, which have an element for every token. Taken, they begin anew
// and their offsets go on.
class LogprobLists {
 public:
  void add(std::span<const TokenLogprob> logprobs) {
    for (const TokenLogprob& entry : logprobs) {
      const std::string_view comma = tokens_.empty() ? "" : ",";
      tokens_.append(comma).push_back('"');
      append_token_text(entry.token, tokens_);
      tokens_.push_back('"');
      values_.append(comma);
      append_float(entry.logprob, values_);
      offsets_.append(comma);
      append_int(static_cast<std::int64_t>(offset_), offsets_);
      // Of tokens, not of texts: a text may end inside a token that could have become a stop
      // string.
      text_.clear();
      decoder_.feed(entry.token, text_);
      offset_ += characters(text_);
      top_.append(comma).push_back('{');
      for (std::size_t i = 0; i < entry.top.size(); ++i) {
        top_.append(i > 0 ? ",\"" : "\"");
        append_token_text(entry.top[i].token, top_);
        top_.append("\":");
        append_float(entry.top[i].logprob, top_);
      }
      top_.push_back('}');
    }
  }
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  void take(std::string& out) {
    out.append("{\"tokens\":[").append(tokens_).append("],\"token_logprobs\":[");
    out.append(values_).append("],\"top_logprobs\":[").append(top_);
    out.append("],\"text_offset\":[").append(offsets_).append("]}");
    for (std::string* const list : {&tokens_, &values_, &top_, &offsets_}) {
      list->clear();
    }
  }

 private:
  std::size_t offset_ = 0;  // characters before the next token
  TextDecoder decoder_;
  std::string text_;    // of one token
  std::string tokens_;  // elements, without the brackets
  std::string values_;
  std::string top_;
  std::string offsets_;
};

// `{"id":...,"object":"text_completion","created":...,"model":...,"choices":[`
std::string head_of(const ReplyInfo& info, const std::string& model) {
  std::string head = "{\"id\":";
  append_json_string(info.id, head);
  head.append(",\"object\":\"text_completion\",\"created\":");
  append_int(info.created_s, head);
  head.append(",\"model\":");
  append_json_string(model, head);
  head.append(",\"choices\":[");
  return head;
}

class CompletionsStream final : public StreamEncoder {
 public:
  CompletionsStream(const Request& request, const ReplyInfo& info, std::string& out)
      : out_(out),
        compat_(request.compat),
        include_usage_(request.include_usage),
        choice_(info.choice),
        choices_(info.choices),
        echo_(request.completion->echo ? request.completion->prompt : std::string()),
        head_("data: " + head_of(info, request.model)) {}

  void on_event(const Event& event) override {
    if (ended_) {
      return;
    }
    if (const auto* content = std::get_if<ContentText>(&event)) {
      chunk(content->text, content->logprobs);
    } else if (std::holds_alternative<Started>(event)) {
      if (!echo_.empty()) {
        chunk(echo_, {});
      }
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      finish(*finished);
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
  void chunk(std::string_view text, std::span<const TokenLogprob> logprobs) {
    out_.append(head_).append("{\"text\":");
    append_json_string(text, out_);
    out_.append(",\"index\":");
    append_int(static_cast<std::int64_t>(choice_), out_);
    out_.append(",\"logprobs\":");
    if (logprobs.empty()) {
      out_.append("null");
    } else {
      logprobs_.add(logprobs);
      logprobs_.take(out_);
    }
    out_.append(",\"finish_reason\":null}]");
    out_.append(include_usage_ ? ",\"usage\":null}\n\n" : "}\n\n");
  }

  void finish(const Finished& finished) {
    ended_ = true;
    const bool last = choices_ == nullptr || choices_->end(choice_, "", finished.usage);
    out_.append(head_).append("{\"text\":\"\",\"index\":");
    append_int(static_cast<std::int64_t>(choice_), out_);
    out_.append(",\"logprobs\":null,\"finish_reason\":\"");
    out_.append(finish_name(finished.reason)).append("\"}],\"usage\":");
    if (!last) {
      out_.append("null}\n\n");
      return;
    }
    append_openai_usage(choices_ == nullptr ? finished.usage : choices_->usage(), out_);
    out_.append("}\n\ndata: [DONE]\n\n");
  }

  std::string& out_;
  Compat compat_;
  bool include_usage_;
  std::size_t choice_;
  Choices* choices_;
  std::string echo_;
  std::string head_;  // of every chunk, up to its choice
  LogprobLists logprobs_;
  bool ended_ = false;
};

class CompletionsWhole final : public WholeEncoder {
 public:
  CompletionsWhole(const Request& request, const ReplyInfo& info)
      : head_(head_of(info, request.model)),
        choice_(info.choice),
        choices_(info.choices),
        text_(request.completion->echo ? request.completion->prompt : std::string()) {}

  void on_event(const Event& event) override {
    if (const auto* content = std::get_if<ContentText>(&event)) {
      logprobs_.add(content->logprobs);
      text_.append(content->text);
    } else if (const auto* finished = std::get_if<Finished>(&event)) {
      reason_ = finished->reason;
      usage_ = finished->usage;
    }
  }

  [[nodiscard]] std::string body() override {
    std::string choice = "{\"text\":";
    append_json_string(text_, choice);
    choice.append(",\"index\":");
    append_int(static_cast<std::int64_t>(choice_), choice);
    choice.append(",\"logprobs\":");
    if (logprobs_.empty()) {
      choice.append("null");
    } else {
      logprobs_.take(choice);
    }
    choice.append(",\"finish_reason\":\"").append(finish_name(reason_)).append("\"}");
    if (choices_ != nullptr) {
      if (!choices_->end(choice_, std::move(choice), usage_)) {
        return {};
      }
      choice = choices_->texts();
      usage_ = choices_->usage();
    }
    std::string out = head_ + choice + "],\"usage\":";
    append_openai_usage(usage_, out);
    out.push_back('}');
    return out;
  }

 private:
  std::string head_;
  std::size_t choice_;
  Choices* choices_;
  std::string text_;
  LogprobLists logprobs_;  // none where the prompt is repeated
  FinishReason reason_ = FinishReason::kEndOfStream;
  Usage usage_;
};

}  // namespace

std::unique_ptr<StreamEncoder> make_completions_stream(const Request& request,
                                                       const ReplyInfo& info,
                                                       std::string& out) {
  return std::make_unique<CompletionsStream>(request, info, out);
}

std::unique_ptr<WholeEncoder> make_completions_whole(const Request& request,
                                                     const ReplyInfo& info) {
  return std::make_unique<CompletionsWhole>(request, info);
}

}  // namespace galley::recipe
