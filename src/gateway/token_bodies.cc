#include "gateway/token_bodies.h"

#include <cstdint>
#include <fmt/format.h>
#include <iterator>
#include <span>
#include <vector>

#include "recipe/json.h"
#include "recipe/request_fields.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::Protocol;

Result<Json> parse_object(std::string_view body) {
  if (body.size() > kTokenBodyBytesMax) {
    return fail(
        Code::kTooLarge,
        fmt::format("the body has {} bytes, the limit is {}", body.size(), kTokenBodyBytesMax),
        "body");
  }
  GALLEY_TRY(Json json, recipe::parse_json(body));
  if (json.object() == nullptr) {
    return fail(Code::kInvalidArgument, "is not a JSON object", "body");
  }
  return json;
}

// The tokens that a tokenize() body asks for.
Result<std::vector<TokenId>> ids_of(const Codec& codec, std::string_view body, const Json& json) {
  if (const Json* const messages = json.find("messages");
      messages != nullptr && !messages->is_null()) {
    return codec.prompt(Protocol::kChat, body);
  }
  if (const Json* const model = json.find("model"); model != nullptr && !model->is_null()) {
    if (model->string() == nullptr) {
      return fail(Code::kInvalidArgument, "must be a string", "model");
    }
    GALLEY_TRY([[maybe_unused]] const auto version,
               recipe::find_model(codec.options(), *model->string()));
  }
  const Json* const prompt = json.find("prompt");
  if (prompt == nullptr || prompt->is_null()) {
    return fail(Code::kInvalidArgument, "is missing: a text, or else `messages`", "prompt");
  }
  if (prompt->string() == nullptr) {
    return fail(Code::kInvalidArgument, "must be a string", "prompt");
  }
  std::vector<TokenId> ids;
  codec.tokenizer()->encode(*prompt->string(), ids);
  return ids;
}

// `,"token_strs":[...],"control":[...]`
void append_texts(const recipe::Tokenizer& tokenizer,
                  std::span<const TokenId> ids,
                  std::string& out) {
  std::string control;
  out += ",\"token_strs\":[";
  for (std::size_t i = 0; i < ids.size(); ++i) {
    out += i > 0 ? "," : "";
    recipe::append_json_string(tokenizer.decode(ids.subspan(i, 1)), out);
    if (tokenizer.is_added(ids[i])) {
      fmt::format_to(std::back_inserter(control), "{}{}", control.empty() ? "" : ",", i);
    }
  }
  out.append("],\"control\":[").append(control).append("]");
}

Result<bool> wants_texts(const Json& json) {
  const Json* const value = json.find("return_token_strs");
  if (value == nullptr || value->is_null()) {
    return false;
  }
  if (value->boolean() == nullptr) {
    return fail(Code::kInvalidArgument, "must be true or false", "return_token_strs");
  }
  return *value->boolean();
}

}  // namespace

Result<std::string> count_tokens(const Codec& codec, std::string_view body) {
  GALLEY_TRY(const std::vector<TokenId> ids, codec.prompt(Protocol::kMessages, body));
  return fmt::format("{{\"input_tokens\":{}}}", ids.size());
}

Result<std::string> tokenize(const Codec& codec, std::string_view body) {
  GALLEY_TRY(const Json json, parse_object(body));
  GALLEY_TRY(const std::vector<TokenId> ids, ids_of(codec, body, json));
  std::string out = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[{}]", ids.size(),
                                codec.context_tokens(), fmt::join(ids, ","));
  GALLEY_TRY(const bool texts, wants_texts(json));
  if (texts) {
    append_texts(*codec.tokenizer(), ids, out);
  }
  return out + "}";
}

Result<std::string> detokenize(const Codec& codec, std::string_view body) {
  GALLEY_TRY(const Json json, parse_object(body));
  const Json* const tokens = json.find("tokens");
  const JsonArray* const array = tokens == nullptr ? nullptr : tokens->array();
  if (array == nullptr) {
    return fail(Code::kInvalidArgument, "must be an array of token ids", "tokens");
  }
  const auto count = static_cast<std::int64_t>(codec.tokenizer()->vocabulary_size());
  std::vector<TokenId> ids;
  ids.reserve(array->size());
  for (const Json& element : *array) {
    const std::int64_t* const id = element.int64();
    if (id == nullptr || *id < 0 || *id >= count) {
      return fail(Code::kInvalidArgument, fmt::format("must be a token id from 0 to {}", count - 1),
                  fmt::format("tokens[{}]", ids.size()));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  std::string out = "{\"prompt\":";
  recipe::append_json_string(codec.tokenizer()->decode(ids), out);
  return out + "}";
}

}  // namespace galley::gateway
