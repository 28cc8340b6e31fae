#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/manual_clock.h"
#include "base/random.h"
#include "base/virtual_disk.h"
#include "cache/segments/segment_store.h"

namespace galley::cache {

inline BlockKey key_for_test(std::uint64_t n) {
  BlockKey out;
  std::memcpy(out.bytes.data(), &n, sizeof(n));
  return out;
}

// Bytes that say whose they are.
inline std::vector<std::byte> bytes_for_test(std::uint64_t seed, std::size_t count) {
  std::vector<std::byte> out(count);
  Random random(Seed(seed), 77);
  for (std::byte& byte : out) {
    byte = static_cast<std::byte>(random.next_u32());
  }
  return out;
}

// A block of three parts of odd sizes.
struct BlockForTest {
  explicit BlockForTest(std::uint64_t n,
                        std::string_view space = "tenant",
                        std::size_t bytes = 5000)
      : parts{bytes_for_test(n, bytes), bytes_for_test(n + 1'000'000, 0),
              bytes_for_test(n + 2'000'000, 77)} {
    for (const auto& part : parts) {
      views.emplace_back(part);
    }
    block.facts = {.space = space, .key = key_for_test(n), .layout = 1, .numerics = 2};
    block.parts = views;
  }
  BlockForTest(const BlockForTest&) = delete;
  BlockForTest& operator=(const BlockForTest&) = delete;

  std::vector<std::vector<std::byte>> parts;
  std::vector<std::span<const std::byte>> views;
  NewBlock block;
};

inline bool same_parts(const BlockView& view, const BlockForTest& block) {
  return std::ranges::equal(view.parts, block.parts,
                            [](const auto& a, const auto& b) { return std::ranges::equal(a, b); });
}

}  // namespace galley::cache
