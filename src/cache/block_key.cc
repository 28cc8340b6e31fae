#include "cache/block_key.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <openssl/evp.h>
#include <string_view>

#include "base/check.h"

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

class Sha256 {
 public:
  Sha256() { GALLEY_ASSERT(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1); }

  void add(Tag tag, std::span<const std::byte> bytes) {
    const std::uint64_t size = bytes.size();
    raw(std::as_bytes(std::span(&tag, 1)));
    raw(std::as_bytes(std::span(&size, 1)));
    raw(bytes);
  }
  void add(Tag tag, std::string_view text) { add(tag, std::as_bytes(std::span(text))); }

  [[nodiscard]] BlockKey key() {
    std::array<unsigned char, 32> digest{};
    GALLEY_ASSERT(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    BlockKey key;
    std::ranges::copy(std::as_bytes(std::span(digest)).first(key.bytes.size()), key.bytes.begin());
    return key;
  }

 private:
  void raw(std::span<const std::byte> bytes) {
    GALLEY_ASSERT(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }

  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_{EVP_MD_CTX_new()};
};

}  // namespace

BlockKey root_key(const KeyScope& scope) {
  Sha256 hash;
  hash.add(Tag::kLayout, scope.layout);
  hash.add(Tag::kWeights, scope.weights);
  hash.add(Tag::kSalt, scope.salt);
  return hash.key();
}

BlockKey next_key(const BlockKey& parent,
                  std::span<const TokenId> tokens,
                  std::span<const BlockImage> images) {
  GALLEY_ASSERT(tokens.size() == kBlockTokens);
  Sha256 hash;
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
