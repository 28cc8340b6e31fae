#include "apps/stream_events.h"

#include <utility>

#include "base/quote.h"
#include "recipe/json.h"

namespace galley::apps {
namespace {

using recipe::FinishReason;
using recipe::Json;

constexpr std::size_t kShownBytesMax = 200;

const Json* at(const Json* value, std::string_view key) {
  return value == nullptr ? nullptr : value->find(key);
}

std::string text_at(const Json* value, std::string_view key) {
  const Json* const found = at(value, key);
  return found == nullptr || found->string() == nullptr ? std::string() : *found->string();
}

std::optional<std::int64_t> number_at(const Json* value, std::string_view key) {
  const Json* const found = at(value, key);
  return found == nullptr || found->int64() == nullptr ? std::nullopt
                                                       : std::optional(*found->int64());
}

std::optional<FinishReason> finish_of(std::string_view name) {
  if (name == "length" || name == "max_tokens" || name == "max_output_tokens") {
    return FinishReason::kLength;
  }
  return name.empty() ? std::nullopt : std::optional(FinishReason::kStop);
}

// Messages counts cached tokens apart, the others within.
void read_usage(const Json* usage, StreamPart& out) {
  const auto set = [](std::optional<std::int64_t>& where, std::optional<std::int64_t> value) {
    where = value ? value : where;
  };
  set(out.prompt_tokens, number_at(usage, "prompt_tokens"));
  set(out.answer_tokens, number_at(usage, "completion_tokens"));
  set(out.cached_tokens, number_at(at(usage, "prompt_tokens_details"), "cached_tokens"));
  const auto cached = number_at(usage, "cache_read_input_tokens");
  if (const auto input = number_at(usage, "input_tokens")) {
    out.prompt_tokens = *input + cached.value_or(0);
  }
  set(out.cached_tokens, cached);
  set(out.cached_tokens, number_at(at(usage, "input_tokens_details"), "cached_tokens"));
  set(out.answer_tokens, number_at(usage, "output_tokens"));
}

// Chat Completions and Completions.
void read_choice(const Json& choice, StreamPart& out) {
  const Json* const delta = at(&choice, "delta");
  out.text = delta == nullptr ? text_at(&choice, "text") : text_at(delta, "content");
  out.reasoning = text_at(delta, "reasoning_content");
  const Json* const calls = at(delta, "tool_calls");
  out.call = calls != nullptr && !calls->is_null();
  out.finish = finish_of(text_at(&choice, "finish_reason"));
}

// Responses and Messages, whose events have a type.
void read_typed(const Json& json, std::string_view type, StreamPart& out) {
  if (type == "response.output_text.delta") {
    out.text = text_at(&json, "delta");
  } else if (type == "response.reasoning_text.delta") {
    out.reasoning = text_at(&json, "delta");
  } else if (type.starts_with("response.") && type.ends_with(".delta")) {
    out.call = true;
  } else if (type == "response.completed" || type == "response.incomplete") {
    const Json* const response = at(&json, "response");
    const std::string reason = text_at(at(response, "incomplete_details"), "reason");
    out.finish = finish_of(reason.empty() ? "stop" : reason);
    read_usage(at(response, "usage"), out);
  } else if (type == "message_start") {
    read_usage(at(at(&json, "message"), "usage"), out);
  } else if (type == "content_block_delta") {
    const Json* const delta = at(&json, "delta");
    out.text = text_at(delta, "text");
    out.reasoning = text_at(delta, "thinking");
    out.call = at(delta, "partial_json") != nullptr;
  } else if (type == "message_delta") {
    out.finish = finish_of(text_at(at(&json, "delta"), "stop_reason"));
    read_usage(at(&json, "usage"), out);
  }
}

}  // namespace

Result<StreamPart> stream_part(std::string_view data) {
  StreamPart out;
  if (data == "[DONE]") {
    out.done = true;
    return out;
  }
  const auto json = recipe::parse_json(data);
  if (!json || json->object() == nullptr) {
    return fail(Code::kCorruption, "the server sends no event: " + quoted(data, kShownBytesMax));
  }
  const Json* error = json->find("error");
  error = error == nullptr ? at(json->find("response"), "error") : error;
  if (error != nullptr && !error->is_null()) {
    return fail(
        Code::kUnavailable,
        "the server says: " +
            harmless(std::string_view(text_at(error, "message")).substr(0, kShownBytesMax)));
  }
  const Json* const choices = json->find("choices");
  if (choices != nullptr && choices->array() != nullptr && !choices->array()->empty()) {
    read_choice(choices->array()->front(), out);
  } else {
    read_typed(*json, text_at(&*json, "type"), out);
  }
  read_usage(json->find("usage"), out);
  return out;
}

std::unexpected<Error> broken_off() {
  return fail(Code::kUnavailable,
              "the answer broke off: the stream closed without a finish_reason or [DONE]");
}

}  // namespace galley::apps
