#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

#include "base/ids.h"

// Names of blocks. A key stands for everything that the block's rows depend on: equal keys, equal
// rows.
namespace galley::cache {

// 128 bits of SHA-256.
struct BlockKey {
  std::array<std::byte, 16> bytes{};
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

// What separates timelines of equal tokens that must not share blocks (design 5, step 2).
struct KeyScope {
  std::string layout;   // fingerprint of the model's plan
  std::string weights;  // which weights
  std::string salt;     // of the tenant, from the server's own table
};

// An image in a block: its placeholders are hashed as (image, index), or two images would share
// blocks (spec runtime 4.7).
struct BlockImage {
  std::array<std::byte, 32> hash{};  // of the image and how it is prepared
  std::int32_t first_token{};        // of its placeholders, in the block
  std::int32_t tokens{};
  std::int32_t index{};  // of the first one in the image
};

// Parent of the first block. Every field is tagged and its length hashed, so that no two scopes can
// spell the same bytes.
[[nodiscard]] BlockKey root_key(const KeyScope& scope);
// Key of the block of `tokens`, exactly kBlockTokens, behind the block of `parent`.
[[nodiscard]] BlockKey next_key(const BlockKey& parent,
                                std::span<const TokenId> tokens,
                                std::span<const BlockImage> images = {});

// 32 hexadecimal digits.
[[nodiscard]] std::string to_string(const BlockKey& key);

}  // namespace galley::cache

template <>
struct std::hash<galley::cache::BlockKey> {
  std::size_t operator()(const galley::cache::BlockKey& key) const noexcept {
    std::size_t first = 0;  // any part of a cryptographic hash is one
    std::memcpy(&first, key.bytes.data(), sizeof(first));
    return first;
  }
};
