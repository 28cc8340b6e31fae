#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace galley {

// FNV-1a with 64 bits, over bytes in the order they are added. For files and tests that name
// content by a hash; not for hash tables, not against adversaries.
// Source: RFC draft "The FNV Non-Cryptographic Hash Algorithm", draft-eastlake-fnv.
class Fnv1a {
 public:
  constexpr void add(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3U; }
  constexpr void add(std::string_view bytes) {
    for (const char c : bytes) {
      add(static_cast<std::uint8_t>(c));
    }
  }
  // Four bytes, the least significant first.
  constexpr void add(std::uint32_t word) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      add(static_cast<std::uint8_t>(word >> shift));
    }
  }

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  // 16 lower-case hex digits.
  [[nodiscard]] std::string hex() const {
    std::string out(16, '0');
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = "0123456789abcdef"[(value_ >> (60 - 4 * i)) & 15U];
    }
    return out;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

}  // namespace galley
