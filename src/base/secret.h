#pragma once

#include <string>
#include <utility>

namespace galley {

// A value that must not be seen: an API key, a password. It converts to nothing and prints
// nowhere; reveal() is the one way out, so a search for that word finds every use.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string value) : value_(std::move(value)) {}
  [[nodiscard]] const std::string& reveal() const { return value_; }
  [[nodiscard]] bool empty() const { return value_.empty(); }

 private:
  std::string value_;
};

}  // namespace galley
