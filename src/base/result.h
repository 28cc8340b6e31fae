#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

// The one way Galley reports an expected failure: bad input, a full queue, a peer that is gone, a
// corrupt block. A broken invariant is not an Error, see base/check.h. No exception crosses a
// module boundary.
namespace galley {

enum class Code : std::uint8_t {
  kInvalidArgument,   // the caller sent something wrong; retrying unchanged cannot help
  kUnauthenticated,   // no key, or a wrong one
  kNotFound,          // no such route, model, file or key
  kTooLarge,          // larger than a documented limit
  kOverloaded,        // a bounded queue is full; retry later
  kUnimplemented,     // known, named, and not built
  kCancelled,         // the client went away or asked for it
  kDeadlineExceeded,  // the time the request was given is over
  kCorruption,        // stored bytes do not verify
  kUnavailable,       // the thing behind us (disk, peer, model) cannot answer now
  kInternal,          // we failed and the caller is not to blame
};

[[nodiscard]] std::string_view name(Code code);

struct Error {
  Code code{};
  std::string what;  // one sentence, names the offending value
  // Offending path or place ("messages[3].content[0].type"), empty when there is none.
  std::string where = {};
  // A fixed name by which programs tell this error from others of its code, empty for most. Views
  // a literal.
  std::string_view reason = {};
};

template <class T>
using Result = std::expected<T, Error>;

[[nodiscard]] inline std::unexpected<Error> fail(Code code,
                                                 std::string what,
                                                 std::string where = {},
                                                 std::string_view reason = {}) {
  return std::unexpected(Error{code, std::move(what), std::move(where), reason});
}

// Puts the name of a step in front of an error on its way outward: "tokenizer.json: no model".
[[nodiscard]] inline std::unexpected<Error> in_step(std::string_view step, Error error) {
  error.what.insert(0, ": ").insert(0, step);
  return std::unexpected(std::move(error));
}

// "kInvalidArgument: message (at where)", for logs and test failures.
[[nodiscard]] std::string to_string(const Error& error);

}  // namespace galley

#define GALLEY_CONCAT_INNER(a, b) a##b
#define GALLEY_CONCAT(a, b) GALLEY_CONCAT_INNER(a, b)

// GALLEY_TRY(const Tokens prompt, tokenize(text));  returns the error of `expr` or declares the
// value.
#define GALLEY_TRY(declaration, ...) \
  GALLEY_TRY_INNER(GALLEY_CONCAT(galley_result_, __LINE__), declaration, __VA_ARGS__)
#define GALLEY_TRY_INNER(result, declaration, ...)     \
  auto result = (__VA_ARGS__);                         \
  if (!result) {                                       \
    return std::unexpected(std::move(result).error()); \
  }                                                    \
  declaration = std::move(result).value()

// GALLEY_CHECK_OK(validate(x));  for a Result<void>.
#define GALLEY_CHECK_OK(...)                                  \
  if (auto galley_status = (__VA_ARGS__); !galley_status) {   \
    return std::unexpected(std::move(galley_status).error()); \
  }                                                           \
  static_assert(true)
