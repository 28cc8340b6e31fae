#include "cache/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace galley::cache {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  GALLEY_ASSERT(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(context_);
}

void Sha256::add(std::span<const std::byte> bytes) {
  GALLEY_ASSERT(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::digest() {
  Sha256Digest digest{};
  GALLEY_ASSERT(
      EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

Sha256Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.digest();
}

}  // namespace galley::cache
