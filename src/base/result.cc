#include "base/result.h"

namespace galley {

std::string_view name(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kUnauthenticated:
      return "unauthenticated";
    case Code::kNotFound:
      return "not found";
    case Code::kTooLarge:
      return "too large";
    case Code::kOverloaded:
      return "overloaded";
    case Code::kUnimplemented:
      return "unimplemented";
    case Code::kCancelled:
      return "cancelled";
    case Code::kDeadlineExceeded:
      return "deadline exceeded";
    case Code::kCorruption:
      return "corruption";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kInternal:
      return "internal";
  }
  std::unreachable();
}

std::string to_string(const Error& error) {
  std::string text(name(error.code));
  text.append(": ").append(error.what);
  if (!error.where.empty()) {
    text.append(" (at ").append(error.where).append(")");
  }
  return text;
}

}  // namespace galley
