#include <algorithm>
#include <fmt/core.h>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "gateway/sources/dialect.h"

// llama.cpp's /completion. Its stream leaves out each token behind which the text ends within a
// character, and tells only how many there were. The bytes of the next event's token are theirs and
// its own (with `n_probs`; its text would have lost what is no UTF-8), so what was left out is
// found by cutting those bytes into as many tokens. One is certain; several can be cut in more than
// one way, all of which read the same. Behind the last whole character nothing follows, so there
// the tokens are lost, and so is half a character.
namespace galley::gateway {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::JsonObject;
using recipe::SourceFinish;

// Of tokens left out at once: no character has more than four bytes, and what is no UTF-8 does not
// hold back for long.
constexpr std::size_t kLeftOutMax = 16;
constexpr std::size_t kLeftOutBytesMax = 256;

// Tokens by their bytes.
class TokensByBytes {
 public:
  explicit TokensByBytes(std::shared_ptr<const recipe::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {
    for (std::size_t i = 0; i < tokenizer_->vocabulary_size(); ++i) {
      const auto id = static_cast<TokenId>(i);
      if (const auto bytes = tokenizer_->bytes(id); !bytes.empty() && !tokenizer_->is_added(id)) {
        ids_.emplace(bytes, id);
      }
    }
  }

  [[nodiscard]] std::string_view bytes(TokenId id) const { return tokenizer_->bytes(id); }

  // `bytes` as exactly `count` tokens, each as long as can be from the left on. Empty: there is no
  // such way.
  [[nodiscard]] std::vector<TokenId> cut(std::string_view bytes, std::size_t count) const {
    if (count > kLeftOutMax || bytes.size() > kLeftOutBytesMax || bytes.size() < count) {
      return {};
    }
    // can[n][at]: what begins at `at` is n tokens.
    std::vector<std::vector<bool>> can(count + 1, std::vector<bool>(bytes.size() + 1));
    can[0][bytes.size()] = true;
    for (std::size_t n = 1; n <= count; ++n) {
      for (std::size_t at = 0; at < bytes.size(); ++at) {
        for (std::size_t end = at + 1; end <= bytes.size() && !can[n][at]; ++end) {
          can[n][at] = can[n - 1][end] && ids_.contains(bytes.substr(at, end - at));
        }
      }
    }
    std::vector<TokenId> out;
    std::size_t at = 0;
    for (std::size_t n = can[count][0] ? count : 0; n > 0; --n) {
      std::size_t end = bytes.size();
      while (!can[n - 1][end] || !ids_.contains(bytes.substr(at, end - at))) {
        --end;
      }
      out.push_back(ids_.at(bytes.substr(at, end - at)));
      at = end;
    }
    return out;
  }

 private:
  std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with the codec
  std::unordered_map<std::string_view, TokenId> ids_;   // views the tokenizer's
};

// Of the event's last token and of all that were left out before it.
Result<std::string> bytes_in(const Json& event) {
  const Json* const list = event.find("completion_probabilities");
  const bool has_one = list != nullptr && list->array() != nullptr && list->array()->size() == 1;
  const Json* const bytes = has_one ? list->array()->front().find("bytes") : nullptr;
  if (bytes == nullptr || bytes->array() == nullptr) {
    return fail(Code::kInternal, "its event has no bytes of its token");
  }
  std::string out;
  for (const Json& item : *bytes->array()) {
    const std::int64_t* const value = item.int64();
    if (value == nullptr || *value < 0 || *value > std::numeric_limits<unsigned char>::max()) {
      return fail(Code::kInternal, "its event has something else than bytes of its token");
    }
    out += static_cast<char>(*value);
  }
  return out;
}

Result<std::optional<SourceFinish>> finish_in(const Json& event) {
  const Json* const stop = event.find("stop");
  if (stop == nullptr || stop->boolean() == nullptr) {
    return fail(Code::kInternal, "its event has no `stop`");
  }
  if (!*stop->boolean()) {
    return std::nullopt;
  }
  const Json* const type = event.find("stop_type");
  const std::string* const text = type == nullptr ? nullptr : type->string();
  if (text != nullptr && *text == "limit") {
    return SourceFinish::kLength;
  }
  if (text != nullptr && (*text == "eos" || *text == "word")) {
    return SourceFinish::kStop;
  }
  return fail(Code::kUnavailable, "stopped without a reason");
}

// Its cache is one for all, and how much of a prompt it had says what others have sent.
bool may_share(const recipe::Generation& generation) {
  return generation.tenant.empty() && generation.user.empty();
}

class Reader final : public DialectReader {
 public:
  Reader(const TokensByBytes& tokens, bool tells_cached)
      : tokens_(tokens), tells_cached_(tells_cached) {}

  Result<DialectPiece> read(const Json& event) override {
    GALLEY_CHECK_OK(check_event(event));
    DialectPiece piece;
    if (const Json* const progress = event.find("prompt_progress")) {
      // Its `tokens` are none: they hold an id that was never drawn.
      GALLEY_TRY(const std::int64_t cached, count_in(*progress, "cache"));
      piece.cached_tokens = tells_cached_ ? cached : 0;
      return piece;
    }
    GALLEY_TRY(piece.finish, finish_in(event));
    GALLEY_TRY(piece.ids, ids_in(event, "tokens"));
    GALLEY_TRY(const std::int64_t total, count_in(event, "tokens_predicted"));
    const std::int64_t left_out = total - taken_ - std::ssize(piece.ids);
    taken_ = total;
    if (left_out < 0) {
      return fail(Code::kInternal, "its event counts fewer tokens than it has");
    }
    if (left_out > 0 && !piece.ids.empty()) {
      GALLEY_CHECK_OK(put_back(event, static_cast<std::size_t>(left_out), piece.ids));
    }
    return piece;
  }

 private:
  Result<void> put_back(const Json& event, std::size_t left_out, std::vector<TokenId>& ids) const {
    GALLEY_TRY(const std::string bytes, bytes_in(event));
    const std::string_view own = tokens_.bytes(ids.front());
    if (ids.size() == 1 && bytes.ends_with(own)) {
      const auto before =
          tokens_.cut(std::string_view(bytes).substr(0, bytes.size() - own.size()), left_out);
      ids.insert(ids.begin(), before.begin(), before.end());
    }
    if (ids.size() != left_out + 1) {
      return fail(Code::kInternal,
                  fmt::format("its stream leaves out {} tokens that end within a character, and "
                              "its bytes do not tell which: is it a model of this vocabulary?",
                              left_out));
    }
    return {};
  }

  const TokensByBytes& tokens_;
  const bool tells_cached_;
  std::int64_t taken_ = 0;
};

class LlamaCpp final : public Dialect {
 public:
  explicit LlamaCpp(std::shared_ptr<const recipe::Tokenizer> tokenizer)
      : tokens_(std::move(tokenizer)) {}

  [[nodiscard]] std::string_view name() const override { return "llama.cpp"; }
  [[nodiscard]] std::string_view path() const override { return "/completion"; }

  [[nodiscard]] std::string body(const recipe::Generation& generation,
                                 std::span<const TokenId> delivered) const override {
    const recipe::Sampling& sampling = generation.sampling;
    JsonObject rest{
        {"stream", true},
        {"return_tokens", true},
        {"return_progress", true},  // a prompt takes long, and tells what the cache had
        // For the bytes alone. Of the tokens that were drawn from, as the others would have to be
        // sorted.
        {"n_probs", 1},
        {"post_sampling_probs", true},
        {"cache_prompt", may_share(generation)},
        {"n_predict", generation.max_tokens - std::ssize(delivered)},
        // All of them: what is left out takes a value that cuts.
        {"temperature", static_cast<double>(sampling.temperature)},
        {"top_p", static_cast<double>(sampling.top_p)},
        {"top_k", std::int64_t{sampling.top_k.value_or(0)}},
        {"min_p", static_cast<double>(sampling.min_p)},
        {"typical_p", 1.0},
        {"presence_penalty", static_cast<double>(sampling.presence_penalty)},
        {"frequency_penalty", static_cast<double>(sampling.frequency_penalty)},
        {"repeat_penalty", 1.0},
    };
    if (const auto seed = choice_seed(generation)) {
      // Its seeds have 32 bits, and the largest means none.
      constexpr std::int64_t kSeeds = std::numeric_limits<std::uint32_t>::max();
      rest.push_back({"seed", (*seed % kSeeds + kSeeds) % kSeeds});
    }
    if (!sampling.logit_bias.empty()) {
      JsonArray bias;
      for (const auto& [id, value] : sampling.logit_bias) {
        bias.emplace_back(JsonArray{static_cast<std::int64_t>(id), static_cast<double>(value)});
      }
      rest.push_back({"logit_bias", std::move(bias)});
    }
    return with_ids("prompt", generation, delivered, std::move(rest));
  }

  [[nodiscard]] std::unique_ptr<DialectReader> reader(
      const recipe::Generation& generation) const override {
    return std::make_unique<Reader>(tokens_, may_share(generation));
  }

 private:
  const TokensByBytes tokens_;
};

}  // namespace

std::unique_ptr<const Dialect> llama_cpp_dialect(
    std::shared_ptr<const recipe::Tokenizer> tokenizer) {
  return std::make_unique<LlamaCpp>(std::move(tokenizer));
}

}  // namespace galley::gateway
