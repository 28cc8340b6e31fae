#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

struct evp_md_ctx_st;  // of OpenSSL

namespace galley::cache {

using Sha256Digest = std::array<std::byte, 32>;

// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Of all that was added. The last call.
  [[nodiscard]] Sha256Digest digest();

 private:
  evp_md_ctx_st* context_;
};

[[nodiscard]] Sha256Digest sha256(std::string_view text);

}  // namespace galley::cache
