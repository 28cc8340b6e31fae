#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipe/event.h"
#include "recipe/json.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"

// Feeding the output parser and keeping what it said. For tests and fuzzing only.
namespace galley::recipe {

struct Transcript {
  struct Call {
    std::string name;
    std::string arguments;
    friend bool operator==(const Call&, const Call&) = default;
  };

  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  std::vector<std::string> logprob_tokens;  // of reasoning, then content, in order
  FinishReason reason{};
  std::string stop_sequence;
  Usage usage;
  int starts = 0;
  int finishes = 0;
  std::string problem;  // a rule of event.h that was broken

  // What a client sees: how the text was cut does not show.
  friend bool operator==(const Transcript& a, const Transcript& b) {
    return a.reasoning == b.reasoning && a.content == b.content && a.calls == b.calls &&
           a.logprob_tokens == b.logprob_tokens && a.reason == b.reason &&
           a.stop_sequence == b.stop_sequence && a.starts == b.starts && a.finishes == b.finishes &&
           a.problem == b.problem && a.usage.completion_tokens == b.usage.completion_tokens &&
           a.usage.reasoning_tokens == b.usage.reasoning_tokens;
  }

  // Half a call may be left open only when the reply says that it was cut short.
  [[nodiscard]] bool may_end_open() const {
    return reason == FinishReason::kLength || reason == FinishReason::kContentFilter ||
           reason == FinishReason::kBrokenCall;
  }
};

class TranscriptSink final : public EventSink {
 public:
  void on_event(const Event& event) override {
    Transcript& t = transcript;
    if (t.finishes > 0) {
      t.problem = "an event after Finished";
    }
    if (t.starts == 0 && !std::holds_alternative<Started>(event)) {
      t.problem = "an event before Started";
    }
    if (std::holds_alternative<Started>(event)) {
      ++t.starts;
    } else if (const auto* reasoning = std::get_if<ReasoningText>(&event)) {
      if (!t.content.empty() || !t.calls.empty()) {
        t.problem = "reasoning after the answer began";
      }
      text(reasoning->text, reasoning->logprobs, t.reasoning);
    } else if (const auto* content = std::get_if<ContentText>(&event)) {
      if (!t.calls.empty()) {
        t.problem = "content after a call";
      }
      text(content->text, content->logprobs, t.content);
    } else if (const auto* call = std::get_if<CallNamed>(&event)) {
      t.calls.push_back({std::string(call->name), {}});
    } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      if (t.calls.empty()) {
        t.problem = "arguments before a call";
      } else {
        t.calls.back().arguments.append(arguments->text);
      }
    } else {
      const auto& finished = std::get<Finished>(event);
      ++t.finishes;
      t.reason = finished.reason;
      t.stop_sequence = finished.stop_sequence;
      t.usage = finished.usage;
    }
  }

  Transcript transcript;

 private:
  void text(std::string_view piece, std::span<const TokenLogprob> logprobs, std::string& all) {
    if (piece.empty()) {
      transcript.problem = "an empty text event";
    }
    if (!parse_json("\"" + json_escaped(piece) + "\"")) {
      transcript.problem = "a text event with half a character";
    }
    all.append(piece);
    for (const TokenLogprob& logprob : logprobs) {
      transcript.logprob_tokens.push_back(logprob.token);
    }
  }
  static std::string json_escaped(std::string_view text) {
    std::string out;
    append_json_escaped(text, out);
    return out;
  }
};

// `feed` gets the parser, before its end.
inline Transcript transcript_of(const Request& request,
                                std::shared_ptr<const Tokenizer> tokenizer,
                                std::optional<SourceFinish> finish,
                                const std::function<void(OutputParser&)>& feed) {
  TranscriptSink sink;
  const auto parser = OutputParser::create(request, std::move(tokenizer), sink);
  feed(*parser);
  parser->finish(finish);
  return std::move(sink.transcript);
}

// `chunks` as text, one token each.
inline Transcript transcript_of(const Request& request,
                                const std::vector<std::string_view>& chunks,
                                std::optional<SourceFinish> finish = SourceFinish::kStop) {
  return transcript_of(request, nullptr, finish, [&](OutputParser& parser) {
    for (const std::string_view chunk : chunks) {
      parser.feed_text(chunk, 0);
    }
  });
}

// Every call's arguments are a JSON object; the last one may be cut when the reply says so.
inline std::string problem_with_calls(const Transcript& transcript) {
  for (std::size_t i = 0; i < transcript.calls.size(); ++i) {
    const Result<Json> arguments = parse_json(transcript.calls[i].arguments);
    const bool open = i + 1 == transcript.calls.size() && transcript.may_end_open();
    if (!open && (!arguments || arguments->object() == nullptr)) {
      return "not a JSON object: " + transcript.calls[i].arguments;
    }
  }
  return {};
}

}  // namespace galley::recipe
