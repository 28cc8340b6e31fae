#include "gateway/sources/dialect.h"

#include <algorithm>
#include <fmt/core.h>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "cache/sha256.h"

namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonObject;

constexpr std::size_t kShownBytesMax = 300;  // of what an engine says
constexpr std::size_t kSaltBytes = 16;       // of the hash, half as many as there are

// Of an error within a stream, whose status was 200. Engines number them as HTTP does.
Code code_of(std::int64_t number) {
  if (number == 429) {
    return Code::kOverloaded;
  }
  return number >= 400 && number < 500 ? Code::kInvalidArgument : Code::kUnavailable;
}

}  // namespace

std::unique_ptr<const Dialect> make_dialect(std::string_view name,
                                            std::shared_ptr<const recipe::Tokenizer> tokenizer) {
  if (name == "llama.cpp") {
    return llama_cpp_dialect(std::move(tokenizer));
  }
  if (name == "vllm") {
    return vllm_dialect();
  }
  GALLEY_ASSERT(name == "sglang");
  return sglang_dialect();
}

Result<void> check_for_dialects(const recipe::Generation& generation) {
  if (generation.sampling.logprobs) {
    return fail(Code::kUnimplemented, "logprobs are not asked of other engines", "logprobs");
  }
  if (!generation.images.empty()) {
    return fail(Code::kUnimplemented, "images are not sent to other engines", "messages");
  }
  return {};
}

std::string with_ids(std::string_view key,
                     const recipe::Generation& generation,
                     std::span<const TokenId> delivered,
                     JsonObject rest) {
  std::string body = fmt::format("{{\"{}\":[", key);
  auto out = std::back_inserter(body);
  for (const std::span<const TokenId> part : {std::span(generation.prompt), delivered}) {
    for (const TokenId id : part) {
      fmt::format_to(out, "{}{}", body.back() == '[' ? "" : ",", id);
    }
  }
  GALLEY_ASSERT(!rest.empty());
  return body.append("],").append(to_json(Json(std::move(rest))), 1);
}

void add_sampling(const recipe::Generation& generation,
                  std::string_view seed_name,
                  JsonObject& out) {
  const recipe::Sampling& sampling = generation.sampling;
  // All of them: what is left out takes the value of the model's generation_config.json.
  out.push_back({"temperature", static_cast<double>(sampling.temperature)});
  out.push_back({"top_p", static_cast<double>(sampling.top_p)});
  out.push_back({"top_k", std::int64_t{sampling.top_k.value_or(-1)}});
  out.push_back({"min_p", static_cast<double>(sampling.min_p)});
  out.push_back({"presence_penalty", static_cast<double>(sampling.presence_penalty)});
  out.push_back({"frequency_penalty", static_cast<double>(sampling.frequency_penalty)});
  out.push_back({"repetition_penalty", 1.0});
  recipe::JsonArray stop;
  for (const TokenId id : generation.stop_ids) {
    stop.emplace_back(static_cast<std::int64_t>(id));
  }
  out.push_back({"stop_token_ids", std::move(stop)});
  if (const auto seed = choice_seed(generation)) {
    out.push_back({std::string(seed_name), *seed});
  }
  if (!sampling.logit_bias.empty()) {
    JsonObject bias;
    for (const auto& [id, value] : sampling.logit_bias) {
      bias.push_back({std::to_string(id), static_cast<double>(value)});
    }
    out.push_back({"logit_bias", std::move(bias)});
  }
}

std::string cache_salt(const recipe::Generation& generation) {
  std::string salt;
  if (!generation.tenant.empty() || !generation.user.empty()) {
    const auto hash = cache::sha256(
        fmt::format("{} {}{}", generation.tenant.size(), generation.tenant, generation.user));
    for (std::size_t i = 0; i < kSaltBytes; ++i) {
      fmt::format_to(std::back_inserter(salt), "{:02x}", static_cast<unsigned>(hash.at(i)));
    }
  }
  return salt;
}

std::optional<std::int64_t> choice_seed(const recipe::Generation& generation) {
  if (!generation.sampling.seed) {
    return std::nullopt;
  }
  // Wraps around, as engines take the whole range.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(*generation.sampling.seed) +
                                   generation.choice);
}

Result<std::vector<TokenId>> ids_in(const Json& event, std::string_view key) {
  const Json* const found = event.find(key);
  if (found == nullptr || found->array() == nullptr) {
    return fail(Code::kInternal, fmt::format("its event has no `{}`", key));
  }
  std::vector<TokenId> ids;
  ids.reserve(found->array()->size());
  for (const Json& item : *found->array()) {
    const std::int64_t* const id = item.int64();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<TokenId>::max()) {
      return fail(Code::kInternal, fmt::format("its event has no token ids as `{}`", key));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

Result<std::int64_t> count_in(const Json& event, std::string_view key) {
  const Json* const found = event.find(key);
  if (found == nullptr || found->int64() == nullptr || *found->int64() < 0) {
    return fail(Code::kInternal, fmt::format("its event has no count as `{}`", key));
  }
  return *found->int64();
}

Result<void> check_event(const Json& event) {
  if (event.object() == nullptr) {
    return fail(Code::kInternal, "its event is no object");
  }
  const Json* const error = event.find("error");
  if (error == nullptr || error->is_null()) {
    return {};
  }
  const Json* const code = error->find("code");
  const Json* const message = error->find("message");
  const std::string text =
      message != nullptr && message->string() != nullptr ? *message->string() : to_json(*error);
  return fail(code_of(code != nullptr && code->int64() != nullptr ? *code->int64() : 500),
              harmless(std::string_view(text).substr(0, kShownBytesMax)));
}

}  // namespace galley::gateway
