#include "recipe/reply.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <simdjson.h>
#include <utility>
#include <xxhash.h>

#include "recipe/json.h"
#include "recipe/reply_parts.h"

namespace galley::recipe {
namespace {

// What clients are told for a code (spec recipe 6.8). Where the table leaves the code of the
// OpenAI shape open, it repeats the type.
struct ErrorShape {
  int status;
  std::string_view openai_type;
  std::string_view openai_code;
  std::string_view anthropic_type;
};

ErrorShape shape_of(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return {400, "invalid_request_error", "invalid_request_error", "invalid_request_error"};
    case Code::kUnauthenticated:
      return {401, "authentication_error", "invalid_request_error", "authentication_error"};
    case Code::kNotFound:
      return {404, "invalid_request_error", "not_found", "not_found_error"};
    case Code::kTooLarge:
      return {413, "invalid_request_error", "invalid_request_error", "request_too_large"};
    case Code::kOverloaded:
      return {429, "rate_limit_error", "rate_limit_error", "rate_limit_error"};
    case Code::kUnimplemented:
      return {501, "invalid_request_error", "not_implemented", "invalid_request_error"};
    case Code::kCancelled:
      return {499, "internal_error", "cancelled", "api_error"};
    case Code::kDeadlineExceeded:
      return {504, "internal_error", "timeout", "timeout_error"};
    case Code::kUnavailable:
      return {503, "service_unavailable", "service_unavailable", "overloaded_error"};
    case Code::kCorruption:
    case Code::kInternal:
      break;
  }
  return {500, "internal_error", "internal_error", "api_error"};
}

std::string_view openai_code(Compat compat, const Error& error) {
  return compat == Compat::kGalley && !error.reason.empty() ? error.reason
                                                            : shape_of(error.code).openai_code;
}

// `"token":...,"logprob":...,"bytes":[...]`
void append_token(std::string_view token, float logprob, std::string& out) {
  out.append("\"token\":\"");
  append_token_text(token, out);
  out.append("\",\"logprob\":");
  append_float(logprob, out);
  out.append(",\"bytes\":[");
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (i > 0) {
      out.push_back(',');
    }
    append_int(static_cast<unsigned char>(token[i]), out);
  }
  out.push_back(']');
}

}  // namespace

std::string_view name(MissReason reason) {
  switch (reason) {
    case MissReason::kNotStored:
      return "not_stored";
    case MissReason::kDifferent:
      return "different";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kTooShort:
      return "too_short";
    case MissReason::kExpired:
      return "expired";
    case MissReason::kDamaged:
      return "damaged";
    case MissReason::kLate:
      return "late";
  }
  std::unreachable();
}

bool Choices::end(std::size_t index, std::string text, const Usage& usage) {
  texts_[index] = std::move(text);
  if (index == 0) {
    usage_.prompt_tokens = usage.prompt_tokens;
    usage_.cached_tokens = usage.cached_tokens;
    usage_.cache_miss = usage.cache_miss;
  }
  usage_.completion_tokens += usage.completion_tokens;
  if (usage.reasoning_tokens) {
    usage_.reasoning_tokens = usage_.reasoning_tokens.value_or(0) + *usage.reasoning_tokens;
  }
  return --left_ == 0;
}

std::string Choices::texts() const {
  std::string out;
  for (const std::string& text : texts_) {
    out.append(out.empty() ? "" : ",").append(text);
  }
  return out;
}

std::string CallIds::next() {
  const std::string random = source_->next_id();
  const std::string number = fmt::format("{:02}", count_++);
  const std::string_view flag = empty_thinking_ ? "ET" : "";
  const std::string hashed = fmt::format("call{}{}{}", number, flag, random);
  const std::uint64_t checksum = XXH3_64bits(hashed.data(), hashed.size()) % 10'000;
  return fmt::format("call_{}_{}{}{}{:04}", number, flag, flag.empty() ? "" : "_", random,
                     checksum);
}

void append_int(std::int64_t value, std::string& out) {
  char digits[24];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value);
  out.append(std::begin(digits), end.ptr);
}

void append_float(float value, std::string& out) {
  if (!std::isfinite(value)) {
    out.append("-9999.0");
    return;
  }
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value);
  const std::string_view text(std::begin(digits), end.ptr);
  out.append(text);
  if (text.find_first_of(".e") == std::string_view::npos) {
    out.append(".0");
  }
}

void append_token_text(std::string_view token, std::string& out) {
  if (simdjson::validate_utf8(token.data(), token.size())) {
    append_json_escaped(token, out);
    return;
  }
  for (const char byte : token) {
    fmt::format_to(std::back_inserter(out), "\\\\x{:02x}", static_cast<unsigned char>(byte));
  }
}

void append_openai_usage(const Usage& usage, std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{})",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
  if (usage.cache_miss) {
    fmt::format_to(std::back_inserter(out), R"(,"cache_miss":{{"reason":"{}","token":{}}})",
                   name(usage.cache_miss->reason), usage.cache_miss->token);
  }
  out.push_back('}');
  if (usage.reasoning_tokens) {
    fmt::format_to(std::back_inserter(out),
                   R"(,"completion_tokens_details":{{"reasoning_tokens":{}}})",
                   *usage.reasoning_tokens);
  }
  fmt::format_to(std::back_inserter(out),
                 R"(,"prompt_cache_hit_tokens":{},"prompt_cache_miss_tokens":{}}})",
                 usage.cached_tokens, usage.prompt_tokens - usage.cached_tokens);
}

void append_logprobs(std::span<const TokenLogprob> logprobs, std::string& out) {
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    out.append(i > 0 ? ",{" : "{");
    append_token(logprobs[i].token, logprobs[i].logprob, out);
    out.append(",\"top_logprobs\":[");
    for (std::size_t j = 0; j < logprobs[i].top.size(); ++j) {
      out.append(j > 0 ? ",{" : "{");
      append_token(logprobs[i].top[j].token, logprobs[i].top[j].logprob, out);
      out.push_back('}');
    }
    out.append("]}");
  }
}

void append_openai_error(Compat compat, const Error& error, std::string& out) {
  out.append("{\"message\":");
  append_json_string(error.what, out);
  out.append(",\"type\":");
  append_json_string(shape_of(error.code).openai_type, out);
  out.append(",\"param\":");
  if (compat == Compat::kRecipe02 || error.where.empty()) {
    out.append("null");
  } else {
    append_json_string(error.where, out);
  }
  out.append(",\"code\":");
  append_json_string(openai_code(compat, error), out);
  out.push_back('}');
}

void append_openai_stream_error(Compat compat, const Error& error, std::string& out) {
  out.append("data: {\"error\":");
  append_openai_error(compat, error, out);
  out.append("}\n\n");
}

void append_anthropic_error(const Error& error, std::string& out) {
  out.append("{\"type\":\"error\",\"error\":{\"type\":");
  append_json_string(shape_of(error.code).anthropic_type, out);
  out.append(",\"message\":");
  append_json_string(
      error.where.empty() ? error.what : fmt::format("{}: {}", error.where, error.what), out);
  out.append("},\"request_id\":null}");
}

bool is_json(std::string_view text) {
  return parse_json(text).has_value();
}

std::unique_ptr<StreamEncoder> StreamEncoder::create(const Request& request,
                                                     ReplyInfo info,
                                                     std::string& out) {
  switch (request.protocol) {
    case Protocol::kResponses:
      return make_responses_stream(request, std::move(info), out);
    case Protocol::kMessages:
      return make_messages_stream(request, std::move(info), out);
    case Protocol::kCompletions:
      return make_completions_stream(request, info, out);
    case Protocol::kChat:
      break;
  }
  return make_chat_stream(request, std::move(info), out);
}

std::unique_ptr<WholeEncoder> WholeEncoder::create(const Request& request, ReplyInfo info) {
  switch (request.protocol) {
    case Protocol::kResponses:
      return make_responses_whole(request, std::move(info));
    case Protocol::kMessages:
      return make_messages_whole(request, std::move(info));
    case Protocol::kCompletions:
      return make_completions_whole(request, info);
    case Protocol::kChat:
      break;
  }
  return make_chat_whole(request, std::move(info));
}

int http_status(Code code) {
  return shape_of(code).status;
}

std::string error_body(Protocol protocol, Compat compat, const Error& error) {
  std::string out;
  if (protocol == Protocol::kMessages && compat == Compat::kGalley) {
    append_anthropic_error(error, out);
  } else {
    out.append("{\"error\":");
    append_openai_error(compat, error, out);
    out.push_back('}');
  }
  return out;
}

}  // namespace galley::recipe
