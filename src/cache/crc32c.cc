#include "cache/crc32c.h"

#include <algorithm>

#include <isa-l/crc.h>

namespace galley::cache {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 30U;  // isa-l counts in int
  std::uint32_t state = ~before;
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kAtOnce);
    // isa-l only reads, but its older signature says otherwise.
    auto* const data = const_cast<unsigned char*>(  // NOLINT(cppcoreguidelines-pro-type-const-cast)
        reinterpret_cast<const unsigned char*>(bytes.data()));
    state = ::crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

}  // namespace galley::cache
