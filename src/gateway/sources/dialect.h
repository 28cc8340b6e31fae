#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "recipe/json.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

// How engines of other projects are asked for tokens over HTTP, and what they answer: ids in, ids
// out, one server-sent event a step or more. Pure: sources/foreign.h has the sockets.
namespace galley::gateway {

// What one event says. Nothing of it may be there.
struct DialectPiece {
  std::optional<std::int64_t> cached_tokens;  // of the prompt; first known before any token
  std::vector<TokenId> ids;                   // new ones
  std::optional<recipe::SourceFinish> finish;
};

// Reads the events of one reply, in order.
class DialectReader {
 public:
  virtual ~DialectReader() = default;
  // Errors: what the engine says is wrong (kUnavailable where another attempt may help); kInternal
  // for what no version of it that we know says.
  virtual Result<DialectPiece> read(const recipe::Json& event) = 0;
};

// One engine's way. Immutable; any thread may ask it.
class Dialect {
 public:
  virtual ~Dialect() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // for people: "llama.cpp"
  [[nodiscard]] virtual std::string_view path() const = 0;  // that is asked for tokens
  // The body that asks `generation` to go on behind its prompt and `delivered`, which is shorter
  // than max_tokens.
  [[nodiscard]] virtual std::string body(const recipe::Generation& generation,
                                         std::span<const TokenId> delivered) const = 0;
  // Of the reply to one body of `generation`.
  [[nodiscard]] virtual std::unique_ptr<DialectReader> reader(
      const recipe::Generation& generation) const = 0;
};

inline constexpr std::string_view kHealthPath = "/health";  // of each: 200 when it can work
inline constexpr std::array<std::string_view, 3> kDialectNames{"llama.cpp", "vllm", "sglang"};

// `name` is one of kDialectNames. `tokenizer` is of the engine's model.
[[nodiscard]] std::unique_ptr<const Dialect> make_dialect(
    std::string_view name, std::shared_ptr<const recipe::Tokenizer> tokenizer);

// What no dialect asks for. Error: kUnimplemented, with the request field.
[[nodiscard]] Result<void> check_for_dialects(const recipe::Generation& generation);

// What the dialects share.

[[nodiscard]] std::unique_ptr<const Dialect> llama_cpp_dialect(
    std::shared_ptr<const recipe::Tokenizer> tokenizer);
[[nodiscard]] std::unique_ptr<const Dialect> vllm_dialect();
[[nodiscard]] std::unique_ptr<const Dialect> sglang_dialect();

// {"KEY":[prompt and delivered], rest}. A prompt can have a million ids: no tree is made of them.
[[nodiscard]] std::string with_ids(std::string_view key,
                                   const recipe::Generation& generation,
                                   std::span<const TokenId> delivered,
                                   recipe::JsonObject rest);
// Of vLLM and SGLang: appends how the answer is drawn and what ends it, the seed under its name
// there.
void add_sampling(const recipe::Generation& generation,
                  std::string_view seed_name,
                  recipe::JsonObject& out);
// Keeps tenants and users apart in an engine's cache; empty for the default tenant's. Engines are
// not told names.
[[nodiscard]] std::string cache_salt(const recipe::Generation& generation);
// The seed of this choice of a request's n.
[[nodiscard]] std::optional<std::int64_t> choice_seed(const recipe::Generation& generation);

// Members of an event. Error: kInternal, "its event has no `tokens`".
[[nodiscard]] Result<std::vector<TokenId>> ids_in(const recipe::Json& event, std::string_view key);
[[nodiscard]] Result<std::int64_t> count_in(const recipe::Json& event, std::string_view key);
// Error: the event tells of one.
[[nodiscard]] Result<void> check_event(const recipe::Json& event);

}  // namespace galley::gateway
