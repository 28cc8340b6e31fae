#include <fmt/core.h>
#include <string>
#include <utility>

#include "recipe/conformance_parts.h"
#include "recipe/names.h"

// Entries of the vectors file (spec recipe 9.1).
namespace galley::recipe {
namespace {

// A vector entry as the golden record it corresponds to.
Json record_from_vector(const Json& entry, const Json& request, std::string_view protocol) {
  const std::span<const JsonMember> members = members_of(entry);
  JsonObject record(members.begin(), members.end());
  set_member(record, "p", protocol == "chat_completions" ? Json("chat") : Json(protocol));
  set_member(record, "v", text_of(entry, "model_version") == "v4" ? "v4" : "v4.1");
  set_member(record, "body", to_json(request));
  return Json(std::move(record));
}

}  // namespace

void check_render_vector(const Json& entry,
                         const ConformanceTokenizers& tokenizers,
                         Differences& out) {
  const Json record =
      record_from_vector(entry, member_of(entry, "request"), text_of(entry, "protocol"));
  const Result<Request> request = request_of(record);
  if (!request) {
    out.push_back("refused: " + to_string(request.error()));
    return;
  }
  const Prompt prompt = render(request->conversation, request->version);
  expect_text(text_of(entry, "prompt"), prompt.text, "prompt", out);
  expect_prompt_ids(entry, prompt, request->version, tokenizers, out);
}

void check_tokenize_vector(const Json& entry,
                           const ConformanceTokenizers& tokenizers,
                           Differences& out) {
  check_encode(entry, flag_of(entry, "added_tokens_recognized"), *tokenizers.v4, out);
}

void check_injection_vector(const Json& entry,
                            const ConformanceTokenizers& tokenizers,
                            Differences& out) {
  const Json message(JsonObject{{"role", "user"}, {"content", text_of(entry, "user_content")}});
  const Json request(JsonObject{
      {"model", "m"},
      {"messages", JsonArray{message}},
      {"thinking", JsonObject{{"type", flag_of(entry, "thinking") ? "enabled" : "disabled"}}}});
  const Result<Request> parsed = request_of(record_from_vector(entry, request, "chat"));
  if (!parsed) {
    out.push_back("refused: " + to_string(parsed.error()));
    return;
  }
  expect_prompt_ids(entry, render(parsed->conversation, parsed->version), parsed->version,
                    tokenizers, out);
}

// The formatter scripts of the checkpoints; only what a public API can express is checked.
void check_formatter_vector(const Json& entry,
                            const ConformanceTokenizers& /*tokenizers*/,
                            RecordCheck& check) {
  for (const Json& message : elements_of(member_of(entry, "messages"))) {
    if (message.find("task") != nullptr) {
      check.not_applicable = "task tokens are not reachable through any public API";
      return;
    }
  }
  JsonObject request = {
      {"model", "m"},
      {"messages", member_of(entry, "messages")},
      {"thinking",
       JsonObject{
           {"type", text_of(entry, "thinking_mode") == "thinking" ? "enabled" : "disabled"}}}};
  if (const Json* const effort = entry.find("reasoning_effort")) {
    request.emplace_back("reasoning_effort", *effort);
  }
  Json record = record_from_vector(entry, Json(std::move(request)), "chat");
  set_member(*record.object(), "v", text_of(entry, "formatter") == "hf-v4" ? "v4" : "v4.1");
  const Result<Request> parsed = request_of(record);
  if (!parsed) {
    check.differences.push_back("refused: " + to_string(parsed.error()));
    return;
  }
  expect_text(text_of(entry, "prompt"), render(parsed->conversation, parsed->version).text,
              "prompt", check.differences);
}

namespace {

// Joins events to what a client ends up with.
class Joined final : public EventSink {
 public:
  void on_event(const Event& event) override {
    if (const auto* const reasoning = std::get_if<ReasoningText>(&event)) {
      reasoning_.append(reasoning->text);
    } else if (const auto* const content = std::get_if<ContentText>(&event)) {
      text_.append(content->text);
    } else if (const auto* const call = std::get_if<CallNamed>(&event)) {
      calls_.emplace_back(std::string(call->name), std::string());
    } else if (const auto* const arguments = std::get_if<CallArguments>(&event)) {
      calls_.back().second.append(arguments->text);
    } else if (const auto* const finished = std::get_if<Finished>(&event)) {
      reason_ = finished->reason;
      stop_sequence_ = finished->stop_sequence;
    }
  }

  [[nodiscard]] Json result() const {
    JsonArray calls;
    for (const auto& [name, arguments] : calls_) {
      calls.emplace_back(JsonObject{{"name", name}, {"arguments", arguments}});
    }
    JsonObject result = {
        {"reasoning", reasoning_}, {"text", text_}, {"tool_calls", std::move(calls)}};
    return Json(std::move(result));
  }
  [[nodiscard]] std::string_view reason() const { return name_of(reason_); }
  [[nodiscard]] const std::string& stop_sequence() const { return stop_sequence_; }

 private:
  std::string reasoning_;
  std::string text_;
  std::vector<std::pair<std::string, std::string>> calls_;
  FinishReason reason_{};
  std::string stop_sequence_;
};

}  // namespace

void check_parse_vector(const Json& entry, Differences& out) {
  const Json& options = member_of(entry, "options");
  Request request;
  request.compat = Compat::kRecipe02;
  const std::string stage = text_of(options, "start_stage");
  request.output = {
      .thinking = stage != "answer",
      .parse_tool_calls = flag_of(options, "parse_tool_calls"),
      .in_tool_block = flag_of(options, "start_in_tool_block"),
      .json_output = flag_of(options, "json_output"),
      .stage = stage == "start"       ? StartStage::kReasoningStart
               : stage == "reasoning" ? StartStage::kReasoningContinuation
               : stage == "content"   ? StartStage::kContentContinuation
                                      : StartStage::kAnswer,
  };
  for (const Json& stop : elements_of(member_of(options, "stop_sequences"))) {
    request.output.stop_sequences.push_back(string_of(stop));
  }
  Joined joined;
  const auto parser = OutputParser::create(request, nullptr, joined);
  for (const Json& chunk : elements_of(member_of(entry, "chunks"))) {
    parser->feed_text(string_of(chunk), 1);
  }
  if (!parser->finished()) {
    parser->finish(finish_of(member_of(entry, "backend_finish")));
  }
  const Json& want = member_of(entry, "result");
  expect_json(want, joined.result(), "result", out);
  expect_text(text_of(entry, "finish_reason"), joined.reason(), "finish_reason", out);
  expect_text(text_of(entry, "stop_sequence"), joined.stop_sequence(), "stop_sequence", out);
}

void check_events_vector(const Json& entry, Differences& out) {
  std::vector<Piece> pieces;
  const std::span<const Json> counts = elements_of(member_of(entry, "token_counts"));
  for (const Json& chunk : elements_of(member_of(entry, "chunks"))) {
    pieces.push_back({.text = string_of(chunk),
                      .tokens = pieces.size() < counts.size() ? int_of(counts[pieces.size()]) : 0});
  }
  if (members_of(member_of(entry, "requests")).empty()) {
    out.emplace_back("requests: none, so there is nothing to check");
  }
  for (const JsonMember& member : members_of(member_of(entry, "requests"))) {
    const Result<Request> request = request_of(record_from_vector(entry, member.value, member.key));
    if (!request) {
      out.push_back(member.key + " refused: " + to_string(request.error()));
      continue;
    }
    const Started started{.prompt_tokens = 21, .cached_tokens = 16, .fingerprint = std::nullopt};
    const RecordedReply reply =
        reply_to(*request, pieces, finish_of(member_of(entry, "backend_finish")), nullptr, started);
    if (!reply.problem.empty()) {
      out.push_back(member.key + ": " + reply.problem);
    }
    Json want_terminal;
    Json got_terminal;
    const JsonArray want =
        canonical_stream(elements_of(member_of(entry, member.key)), want_terminal, out);
    const JsonArray got = canonical_stream(reply.events, got_terminal, out);
    expect_json(Json(want), Json(got), member.key, out);
    expect_json(want_terminal, got_terminal, member.key + " terminal response", out);
  }
}

void check_error_vector(const Json& entry, Differences& out) {
  const Json record =
      record_from_vector(entry, member_of(entry, "request"), text_of(entry, "protocol"));
  const Result<Request> request = request_of(record);
  if (request) {
    out.push_back("accepted, want error: " + text_of(entry, "message"));
  } else {
    expect_error(record, true, request.error(), out);
  }
}

}  // namespace galley::recipe
