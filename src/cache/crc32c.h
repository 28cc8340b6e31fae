#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace galley::cache {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4): of "123456789" it is 0xe3069283. `before` is that
// of the bytes in front. Finds every flip of up to 3 bits in a block of 112 KiB and every burst of
// up to 32; other damage passes once in 2^32. By isa-l, with the instructions the machine has.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace galley::cache
