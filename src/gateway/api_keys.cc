#include "gateway/api_keys.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fmt/core.h>
#include <openssl/crypto.h>
#include <optional>
#include <utility>

#include "base/hex.h"

namespace galley::gateway {
namespace {

constexpr std::size_t kNameBytesMax = 64;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

std::optional<cache::Sha256Digest> parse_hash(std::string_view text) {
  cache::Sha256Digest hash{};
  if (text.size() != 2 * hash.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < hash.size(); ++i) {
    const int high = hex_digit(text[2 * i]);
    const int low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    hash[i] = static_cast<std::byte>(high * 16 + low);
  }
  return hash;
}

// The next word of `line`, which loses it; empty at the end.
std::string_view next_word(std::string_view& line) {
  constexpr std::string_view kSpace = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kSpace));
  line.remove_prefix(word.size());
  return word;
}

Result<void> set_limit(std::string_view word, KeyLimits& limits) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  std::int64_t* const limit = name == "concurrency" ? &limits.concurrency
                              : name == "requests"  ? &limits.requests_per_minute
                              : name == "tokens"    ? &limits.tokens_per_minute
                                                    : nullptr;
  if (limit == nullptr || equals == std::string_view::npos) {
    return fail(Code::kInvalidArgument,
                "a limit is concurrency=N, requests=N or tokens=N, the last two a minute");
  }
  const std::string_view digits = word.substr(equals + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *limit);
  if (error != std::errc{} || end != digits.data() + digits.size() || *limit <= 0) {
    return fail(Code::kInvalidArgument,
                fmt::format("the limit of {} is a whole number above 0", name));
  }
  return {};
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text) {
  if (text.size() > kApiKeysFileBytesMax) {
    return fail(Code::kTooLarge, fmt::format("more than {} bytes", kApiKeysFileBytesMax));
  }
  ApiKeys keys;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    ++number;
    if (auto added = keys.add_line(line); !added) {
      added.error().where = fmt::format("line {}", number);
      return std::unexpected(std::move(added).error());
    }
  }
  return keys;
}

Result<void> ApiKeys::add_line(std::string_view line) {
  const std::string_view name = next_word(line);
  if (name.empty() || name.starts_with('#')) {
    return {};
  }
  if (!is_name(name)) {
    return fail(Code::kInvalidArgument,
                fmt::format("a name has at most {} of [A-Za-z0-9._-]", kNameBytesMax));
  }
  const auto hash = parse_hash(next_word(line));
  if (!hash) {
    return fail(Code::kInvalidArgument,
                "behind the name comes the SHA-256 of the key, 64 hexadecimal digits");
  }
  ApiKey key{.name = std::string(name), .hash = *hash};
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    GALLEY_CHECK_OK(set_limit(word, key.limits));
  }
  return add(std::move(key));
}

Result<void> ApiKeys::add(ApiKey key) {
  for (const ApiKey& other : keys_) {
    if (other.hash == key.hash) {
      return fail(Code::kInvalidArgument, fmt::format("the key of {} is there twice", key.name));
    }
    if (other.name == key.name && !(other.limits == key.limits)) {
      return fail(Code::kInvalidArgument,
                  fmt::format("another key of {} has other limits: they count together", key.name));
    }
  }
  if (keys_.size() == kApiKeyCountMax) {
    return fail(Code::kTooLarge, fmt::format("more than {} keys", kApiKeyCountMax));
  }
  keys_.push_back(std::move(key));
  return {};
}

const ApiKey* ApiKeys::find(std::string_view presented) const {
  const cache::Sha256Digest hash = cache::sha256(presented);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (CRYPTO_memcmp(hash.data(), key.hash.data(), hash.size()) == 0) {
      found = &key;
    }
  }
  return found;
}

std::string api_key_line(std::string_view name, const Secret& key) {
  std::string line = fmt::format("{} ", name);
  for (const std::byte byte : cache::sha256(key.reveal())) {
    line += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return line;
}

}  // namespace galley::gateway
