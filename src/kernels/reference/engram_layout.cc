// Primes and multipliers of the engram hash (spec model 7.2). The multipliers are what NumPy's
// default_rng draws, so its seeding (SeedSequence) and generator (PCG64, XSL-RR output) and its
// bounded draw (Lemire) are restated here.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <set>

#include "kernels/reference/ops.h"

namespace galley::kernels::reference {
namespace {

__extension__ using Wide = unsigned __int128;

// NumPy SeedSequence with one 32-bit entropy word and the default pool of four.
class SeedSequence {
 public:
  explicit SeedSequence(std::uint32_t entropy) {
    std::uint32_t constant = 0x43b0d7e5U;
    const auto hash = [&constant](std::uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875U;
      value *= constant;
      return value ^ (value >> 16U);
    };
    pool_ = {hash(entropy), hash(0), hash(0), hash(0)};
    for (std::size_t source = 0; source < pool_.size(); ++source) {
      for (std::size_t target = 0; target < pool_.size(); ++target) {
        if (source != target) {
          const std::uint32_t mixed =
              0xca01f9ddU * pool_[target] - 0x4973f715U * hash(pool_[source]);
          pool_[target] = mixed ^ (mixed >> 16U);
        }
      }
    }
  }

  [[nodiscard]] std::array<std::uint64_t, 4> state() const {
    std::array<std::uint64_t, 4> words{};
    std::uint32_t constant = 0x8b51f9ddU;
    for (std::size_t i = 0; i < 2 * words.size(); ++i) {
      std::uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38dedU;
      value *= constant;
      value ^= value >> 16U;
      words[i / 2] |= static_cast<std::uint64_t>(value) << (32U * (i % 2));
    }
    return words;
  }

 private:
  std::array<std::uint32_t, 4> pool_{};
};

class Pcg64 {
 public:
  explicit Pcg64(std::uint32_t seed) {
    const auto words = SeedSequence(seed).state();
    increment_ = (((Wide{words[2]} << 64U) | words[3]) << 1U) | 1U;
    step();
    state_ += (Wide{words[0]} << 64U) | words[1];
    step();
  }

  std::uint64_t next() {
    step();
    const auto folded =
        static_cast<std::uint64_t>(state_ >> 64U) ^ static_cast<std::uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122U));
  }

  // Uniform in [0, bound), bound > 2^32.
  std::uint64_t below(std::uint64_t bound) {
    Wide product = Wide{next()} * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(product) < threshold) {
        product = Wide{next()} * bound;
      }
    }
    return static_cast<std::uint64_t>(product >> 64U);
  }

 private:
  void step() {
    constexpr Wide kMultiplier = (Wide{0x2360ed051fc65da4U} << 64U) | 0x4385df649fccf645U;
    state_ = state_ * kMultiplier + increment_;
  }
  Wide state_{};
  Wide increment_{};
};

bool is_prime(std::int64_t n) {
  for (std::int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) {
      return false;
    }
  }
  return n > 1;
}

}  // namespace

std::vector<EngramLayout> engram_layouts(const EngramShape& shape) {
  std::set<std::int64_t> used;
  std::vector<EngramLayout> layouts;
  for (const int layer : shape.layers) {
    EngramLayout& layout = layouts.emplace_back();
    for (int n = 0; n < shape.ngram - 1; ++n) {
      std::int64_t candidate = shape.vocabulary - 1;
      for (int head = 0; head < shape.heads; ++head) {
        do {
          ++candidate;
        } while (used.contains(candidate) || !is_prime(candidate));
        used.insert(candidate);
        layout.offsets.push_back(layout.rows);
        layout.primes.push_back(candidate);
        layout.rows += candidate;
      }
    }
    const std::int64_t bound = std::max<std::int64_t>(
        1, std::numeric_limits<std::int64_t>::max() / shape.compressed_vocabulary / 2);
    Pcg64 random(static_cast<std::uint32_t>(10007 * layer));
    for (int i = 0; i < shape.ngram; ++i) {
      layout.multipliers.push_back(
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(bound))) * 2 + 1);
    }
  }
  return layouts;
}

}  // namespace galley::kernels::reference
