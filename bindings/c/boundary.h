#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "bindings/common/session.h"
#include "bindings/common/vocabulary.h"
#include "galley/recipe.h"
#include "recipe/prompt.h"
#include "recipe/reply.h"
#include "recipe/request.h"

// What every function of the C interface does at its edge: checks what C can get wrong, and lets no
// exception out.

struct galley_error {
  galley_code code;
  galley::Error error;
  std::string body;
};
struct galley_ids {
  std::vector<galley::TokenId> ids;
};
struct galley_text {
  std::string text;
};
struct galley_tokenizer {
  std::shared_ptr<const galley::bindings::Vocabulary> vocabulary;
};
struct galley_options {
  galley::recipe::CodecOptions options;
};
struct galley_request {
  std::shared_ptr<const galley::recipe::Request> request;  // shared with the replies to it
  std::vector<galley_logit_bias> logit_bias;
};
struct galley_prompt {
  galley::recipe::Prompt prompt;
  galley::recipe::ModelVersion version;
  std::vector<galley_span> controls;
};
struct galley_reply {
  std::unique_ptr<galley::bindings::Session> session;
};

namespace galley::bindings {

// Whose words an error body is in.
struct Dialect {
  recipe::Protocol protocol = recipe::Protocol::kChat;
  recipe::Compat compat = recipe::Compat::kGalley;
};

static_assert(static_cast<int>(Code::kInvalidArgument) + 1 == GALLEY_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kInternal) + 1 == GALLEY_INTERNAL);

inline galley_code code_of(const Error& error) {
  return static_cast<galley_code>(error.code) + 1;
}

inline std::unique_ptr<galley_error> make_error(Error error, Dialect dialect) {
  std::string body = recipe::error_body(dialect.protocol, dialect.compat, error);
  const galley_code code = code_of(error);
  return std::make_unique<galley_error>(
      galley_error{.code = code, .error = std::move(error), .body = std::move(body)});
}

inline galley_code report(const Error& error, Dialect dialect, galley_error** out) {
  if (out != nullptr) {
    *out = make_error(error, dialect).release();
  }
  return code_of(error);
}

// Runs `body`, a function that returns Result<void>, and turns whatever comes out of it into a
// code.
template <class Body>
galley_code guarded(galley_error** out, Dialect dialect, const Body& body) noexcept {
  if (out != nullptr) {
    *out = nullptr;
  }
  try {
    try {
      const Result<void> result = body();
      return result ? GALLEY_OK : report(result.error(), dialect, out);
    } catch (const std::bad_alloc&) {
      return GALLEY_OUT_OF_MEMORY;
    } catch (const std::exception& failure) {
      return report(Error{Code::kInternal, failure.what(), {}}, dialect, out);
    }
  } catch (...) {  // no memory to describe what happened
    return GALLEY_OUT_OF_MEMORY;
  }
}

inline std::unexpected<Error> misuse(std::string what) {
  return galley::fail(Code::kInvalidArgument, std::move(what));
}

inline Result<void> require(bool condition, const char* what) {
  if (!condition) {
    return misuse(what);
  }
  return {};
}

inline Result<std::string_view> view(const char* data, std::size_t size, const char* name) {
  if (data == nullptr && size != 0) {
    return misuse(std::string(name) + " is NULL");
  }
  return data == nullptr ? std::string_view{} : std::string_view{data, size};
}

template <class T>
Result<std::span<const T>> array(const T* data, std::size_t count, const char* name) {
  if (data == nullptr && count != 0) {
    return misuse(std::string(name) + " is NULL");
  }
  return std::span<const T>{data, count};
}

// Of GALLEY_INVALID_ARGUMENT to GALLEY_INTERNAL: what a server may say about itself.
inline Result<Code> code_from(galley_code code) {
  if (code < GALLEY_INVALID_ARGUMENT || code > GALLEY_INTERNAL) {
    return misuse("no such error code: " + std::to_string(code));
  }
  return static_cast<Code>(code - 1);
}

template <class Enum>
Result<Enum> enum_of(std::int32_t value, Enum last, const char* name) {
  if (value < 0 || value > static_cast<std::int32_t>(last)) {
    return misuse("no such " + std::string(name) + ": " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

inline Result<bool> flag_of(std::int32_t value) {
  if (value != 0 && value != 1) {
    return misuse("a flag is 0 or 1, not " + std::to_string(value));
  }
  return value == 1;
}

inline galley_slice slice(std::string_view text) {
  return text.empty() ? galley_slice{nullptr, 0} : galley_slice{text.data(), text.size()};
}

// Structs with a leading struct_size: a caller built against an older header has a shorter one.
template <class T>
Result<T> read_struct(const T* in) {
  T value{};
  if (in != nullptr) {
    if (in->struct_size < sizeof(in->struct_size)) {
      return misuse("struct_size is not set");
    }
    std::memcpy(&value, in, std::min(in->struct_size, sizeof(T)));
  }
  return value;
}

template <class T>
Result<void> write_struct(T value, T* out) {
  if (out == nullptr || out->struct_size < sizeof(out->struct_size)) {
    return misuse("the struct is NULL or its struct_size is not set");
  }
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(value.struct_size, sizeof(T)));
  return {};
}

inline Dialect dialect_of(const galley_request* request) {
  return request == nullptr ? Dialect{}
                            : Dialect{request->request->protocol, request->request->compat};
}

}  // namespace galley::bindings
