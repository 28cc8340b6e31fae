#include <string>
#include <utility>

#include "gateway/sources/dialect.h"

// vLLM's /v1/completions with ids as the prompt and `return_token_ids`, which it has since 0.10.2.
// How much of the prompt its cache had it says at the end, if at all: too late for the sink.
namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonObject;
using recipe::SourceFinish;

Result<std::optional<SourceFinish>> finish_in(const Json& choice) {
  const Json* const reason = choice.find("finish_reason");
  if (reason == nullptr || reason->is_null()) {
    return std::nullopt;
  }
  const std::string* const text = reason->string();
  if (text != nullptr && *text == "length") {
    return SourceFinish::kLength;
  }
  if (text != nullptr && *text == "abort") {
    return fail(Code::kUnavailable, "aborted the request");
  }
  if (text != nullptr && *text == "error") {
    return fail(Code::kUnavailable, "failed within the request");
  }
  return SourceFinish::kStop;
}

class Reader final : public DialectReader {
 public:
  Result<DialectPiece> read(const Json& event) override {
    GALLEY_CHECK_OK(check_event(event));
    const Json* const choices = event.find("choices");
    if (choices == nullptr || choices->array() == nullptr) {
      return fail(Code::kInternal, "its event has no `choices`");
    }
    if (choices->array()->empty()) {
      return DialectPiece{};  // the usage, behind all
    }
    const Json& choice = choices->array()->front();
    DialectPiece piece;
    GALLEY_TRY(piece.finish, finish_in(choice));
    if (piece.finish && choice.find("token_ids") == nullptr) {
      return piece;
    }
    GALLEY_TRY(piece.ids, ids_in(choice, "token_ids"));
    return piece;
  }
};

class Vllm final : public Dialect {
 public:
  [[nodiscard]] std::string_view name() const override { return "vLLM"; }
  [[nodiscard]] std::string_view path() const override { return "/v1/completions"; }

  [[nodiscard]] std::string body(const recipe::Generation& generation,
                                 std::span<const TokenId> delivered) const override {
    JsonObject rest{
        {"stream", true},
        {"return_token_ids", true},
        {"max_tokens", generation.max_tokens - std::ssize(delivered)},
    };
    add_sampling(generation, "seed", rest);
    if (std::string salt = cache_salt(generation); !salt.empty()) {
      rest.push_back({"cache_salt", std::move(salt)});
    }
    return with_ids("prompt", generation, delivered, std::move(rest));
  }

  [[nodiscard]] std::unique_ptr<DialectReader> reader(
      const recipe::Generation& /*generation*/) const override {
    return std::make_unique<Reader>();
  }
};

}  // namespace

std::unique_ptr<const Dialect> vllm_dialect() {
  return std::make_unique<Vllm>();
}

}  // namespace galley::gateway
