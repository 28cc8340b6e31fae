#include <fmt/core.h>
#include <string>
#include <utility>

#include "gateway/sources/dialect.h"

// SGLang's /generate with `input_ids`. An event has all ids so far, or only the new ones where it
// was started with --incremental-streaming-output, which long answers need: the count beside them
// tells which.
namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonObject;
using recipe::SourceFinish;

constexpr std::size_t kShownBytesMax = 300;

Result<std::optional<SourceFinish>> finish_in(const Json& about) {
  const Json* const reason = about.find("finish_reason");
  if (reason == nullptr || reason->is_null()) {
    return std::nullopt;
  }
  const Json* const type = reason->find("type");
  const std::string* const text = type == nullptr ? nullptr : type->string();
  if (text != nullptr && *text == "stop") {
    return SourceFinish::kStop;
  }
  if (text != nullptr && *text == "length") {
    return SourceFinish::kLength;
  }
  const Json* const message = reason->find("message");
  return fail(Code::kUnavailable,
              message != nullptr && message->string() != nullptr
                  ? "aborted the request: " + message->string()->substr(0, kShownBytesMax)
                  : "aborted the request");
}

class Reader final : public DialectReader {
 public:
  Result<DialectPiece> read(const Json& event) override {
    GALLEY_CHECK_OK(check_event(event));
    const Json* const about = event.find("meta_info");
    if (about == nullptr || about->object() == nullptr) {
      return fail(Code::kInternal, "its event has no `meta_info`");
    }
    DialectPiece piece;
    GALLEY_TRY(piece.finish, finish_in(*about));
    if (about->find("cached_tokens") != nullptr) {
      GALLEY_TRY(piece.cached_tokens, count_in(*about, "cached_tokens"));
    }
    GALLEY_TRY(const std::int64_t total, count_in(*about, "completion_tokens"));
    GALLEY_TRY(piece.ids, ids_in(event, "output_ids"));
    const auto shown = std::ssize(piece.ids);
    if (shown == total && total >= taken_) {
      piece.ids.erase(piece.ids.begin(), piece.ids.begin() + taken_);
    } else if (shown != total - taken_) {
      return fail(Code::kInternal, fmt::format("its event has {} ids where {} of {} are known",
                                               shown, taken_, total));
    }
    taken_ = total;
    return piece;
  }

 private:
  std::int64_t taken_ = 0;
};

class Sglang final : public Dialect {
 public:
  [[nodiscard]] std::string_view name() const override { return "SGLang"; }
  [[nodiscard]] std::string_view path() const override { return "/generate"; }

  [[nodiscard]] std::string body(const recipe::Generation& generation,
                                 std::span<const TokenId> delivered) const override {
    JsonObject parameters{
        {"max_new_tokens", generation.max_tokens - std::ssize(delivered)},
        {"skip_special_tokens", false},
    };
    add_sampling(generation, "sampling_seed", parameters);
    JsonObject rest{{"sampling_params", std::move(parameters)}, {"stream", true}};
    if (std::string salt = cache_salt(generation); !salt.empty()) {
      rest.push_back({"extra_key", std::move(salt)});
    }
    return with_ids("input_ids", generation, delivered, std::move(rest));
  }

  [[nodiscard]] std::unique_ptr<DialectReader> reader(
      const recipe::Generation& /*generation*/) const override {
    return std::make_unique<Reader>();
  }
};

}  // namespace

std::unique_ptr<const Dialect> sglang_dialect() {
  return std::make_unique<Sglang>();
}

}  // namespace galley::gateway
