#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace galley {

// A number that cannot be mixed up with another kind of number: using BlockId = Id<struct
// BlockTag>.
template <class Tag, class Rep = std::uint64_t>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  Rep value_{};
};

// Position in the vocabulary. A plain integer on purpose: token ids are stored by the million,
// handed to kernels and written to disk as 32-bit words.
using TokenId = std::uint32_t;

// Tokens of a cache block: the unit of caching and sharing, in every model (design 4).
inline constexpr int kBlockTokens = 128;

}  // namespace galley

template <class Tag, class Rep>
struct std::hash<galley::Id<Tag, Rep>> {
  std::size_t operator()(galley::Id<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
