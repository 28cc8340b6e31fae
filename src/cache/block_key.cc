#include "cache/block_key.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "cache/sha256.h"

namespace galley::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are hashed as they lie");

// What a run of hashed bytes is. Part of every key: numbers never change.
enum class Tag : std::uint8_t {
  kLayout = 1,
  kWeights = 2,
  kSalt = 3,
  kParent = 4,
  kTokens = 5,
  kImage = 6,
};

// Tagged fields -> key.
class KeyHash {
 public:
  void add(Tag tag, std::span<const std::byte> bytes) {
    const std::uint64_t size = bytes.size();
    hash_.add(std::as_bytes(std::span(&tag, 1)));
    hash_.add(std::as_bytes(std::span(&size, 1)));
    hash_.add(bytes);
  }
  void add(Tag tag, std::string_view text) { add(tag, std::as_bytes(std::span(text))); }

  [[nodiscard]] BlockKey key() {
    const Sha256Digest digest = hash_.digest();
    BlockKey key;
    std::ranges::copy(std::span(digest).first(key.bytes.size()), key.bytes.begin());
    return key;
  }

 private:
  Sha256 hash_;
};

}  // namespace

BlockKey root_key(const KeyScope& scope) {
  KeyHash hash;
  hash.add(Tag::kLayout, scope.layout);
  hash.add(Tag::kWeights, scope.weights);
  hash.add(Tag::kSalt, scope.salt);
  return hash.key();
}

BlockKey next_key(const BlockKey& parent,
                  std::span<const TokenId> tokens,
                  std::span<const BlockImage> images) {
  GALLEY_ASSERT(tokens.size() == kBlockTokens);
  KeyHash hash;
  hash.add(Tag::kParent, parent.bytes);
  hash.add(Tag::kTokens, std::as_bytes(tokens));
  for (const BlockImage& image : images) {
    const std::array<std::int32_t, 3> where{image.first_token, image.tokens, image.index};
    std::array<std::byte, sizeof(image.hash) + sizeof(where)> bytes{};
    const auto rest = std::ranges::copy(image.hash, bytes.begin()).out;
    std::ranges::copy(std::as_bytes(std::span(where)), rest);
    hash.add(Tag::kImage, bytes);
  }
  return hash.key();
}

std::string to_string(const BlockKey& key) {
  std::string text;
  for (const std::byte byte : key.bytes) {
    fmt::format_to(std::back_inserter(text), "{:02x}", std::to_integer<unsigned>(byte));
  }
  return text;
}

}  // namespace galley::cache
