#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/secret.h"
#include "cache/sha256.h"

namespace galley::gateway {

// What the holder of a key may use; 0 is no limit.
struct KeyLimits {
  std::int64_t concurrency = 0;          // generations at once
  std::int64_t requests_per_minute = 0;  // generations begun
  // Weighted: a prompt token that had to be computed counts 1, a token of the answer
  // kAnswerTokenWeight.
  std::int64_t tokens_per_minute = 0;
  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

// Of a key only its hash is known here.
struct ApiKey {
  std::string name;  // the tenant; several keys may share one
  cache::Sha256Digest hash{};
  KeyLimits limits;
};

inline constexpr std::size_t kApiKeyCountMax = 1'000;  // each is looked at for each request
inline constexpr std::size_t kApiKeysFileBytesMax = std::size_t{1} << 20U;
inline constexpr std::string_view kApiKeyPrefix = "gk-";

// Who may use the server. No keys: everybody. Format of the file: docs/formats/api_keys.md.
class ApiKeys {
 public:
  // Error: kInvalidArgument or kTooLarge; `where` is "line N". What a line holds is not repeated.
  static Result<ApiKeys> parse(std::string_view text);

  // One more. Error: kInvalidArgument when it is known already, or its name with other limits.
  Result<void> add(ApiKey key);

  [[nodiscard]] bool empty() const { return keys_.empty(); }
  // The key a client presents. Takes the same time wherever and whether it is found.
  [[nodiscard]] const ApiKey* find(std::string_view presented) const;

 private:
  Result<void> add_line(std::string_view line);

  std::vector<ApiKey> keys_;
};

// A line of the file for a new key.
[[nodiscard]] std::string api_key_line(std::string_view name, const Secret& key);

}  // namespace galley::gateway
