#include "kernels/packed_weight.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "base/ceil_div.h"
#include "base/check.h"
#include "kernels/tile-inl.h"

namespace galley::kernels {
namespace {

// The smallest magnitude of an e4m3 code is 2^-9, the largest 448 < 2^9; of e2m1 2^-1 and 6 < 2^3.
// A scale 2^(s - 127) keeps every product of the two a normal bfloat16 number (2^-126 ... 2^127)
// when s is in this range.
constexpr std::uint8_t kFp8ScaleMin = 10;
constexpr std::uint8_t kFp8ScaleMax = 245;
constexpr std::uint8_t kFp4ScaleMin = 2;
constexpr std::uint8_t kFp4ScaleMax = 251;

constexpr std::uint8_t kE4m3Nan = 0x7f;  // either sign
constexpr std::uint16_t kBf16Exponent = 0x7f80;

std::uint8_t byte_at(const std::byte* bytes, std::size_t index) {
  return std::to_integer<std::uint8_t>(bytes[index]);
}

// The scale as an e8m0 byte; null when it is no power of two.
std::optional<std::uint8_t> e8m0_at(const Weight& weight, std::size_t index) {
  if (weight.scale_format == ScaleFormat::kE8m0) {
    return byte_at(weight.scales, index);
  }
  std::uint32_t bits = 0;
  std::memcpy(&bits, weight.scales + index * sizeof(float), sizeof(bits));
  constexpr std::uint32_t kExponentBits = 0x7f800000U;
  if ((bits & ~kExponentBits) != 0 || bits == 0) {
    return std::nullopt;
  }
  return static_cast<std::uint8_t>(bits >> 23U);
}

struct Group {
  const Weight& weight;
  const PackedView& shape;
  std::size_t first_row;
  std::size_t rows;
  std::byte* out;

  // use(n, tile, bytes) with the bytes of the 32 inputs of every output and tile, `pair_bytes` for
  // a pair of inputs; zeros stand for inputs behind the last.
  template <class Use>
  void for_pieces(std::size_t pair_bytes, Use use) const {
    const std::size_t row_bytes = weight.columns * pair_bytes / 2;
    const std::size_t piece_bytes = kTileColumns / 2 * pair_bytes;
    std::array<std::byte, kTileColumns * sizeof(std::uint16_t)> padded{};
    for (std::size_t begin = 0; begin < row_bytes; begin += piece_bytes) {
      for (std::size_t n = 0; n < rows; ++n) {
        const std::byte* piece = weight.data + (first_row + n) * row_bytes + begin;
        if (begin + piece_bytes > row_bytes) {
          std::copy_n(piece, row_bytes - begin, padded.begin());
          piece = padded.data();
        }
        use(n, begin / piece_bytes, piece);
      }
    }
  }

  [[nodiscard]] std::byte* tile_at(std::size_t tile) const {
    return out + tile_offset(shape.format, shape.tiles, tile);
  }
  [[nodiscard]] std::byte* scale_at(std::size_t tile) const {
    return out + scale_offset(shape.format, tile);
  }

  // Pairs of inputs one behind the other become pairs 16 outputs apart.
  template <class Pair>
  void spread_pairs(std::size_t n, std::size_t tile, const std::byte* piece) const {
    std::byte* const to = tile_at(tile) + n * sizeof(Pair);
    for (std::size_t pair = 0; pair < kTileColumns / 2; ++pair) {
      std::memcpy(to + pair * kGroupRows * sizeof(Pair), piece + pair * sizeof(Pair), sizeof(Pair));
    }
  }

  [[nodiscard]] bool pack_bf16() const {
    unsigned odd = 0;  // infinite or not a number
    for_pieces(2 * sizeof(std::uint16_t),
               [&](std::size_t n, std::size_t tile, const std::byte* piece) {
                 for (std::size_t k = 0; k < kTileColumns; ++k) {
                   std::uint16_t bits = 0;
                   std::memcpy(&bits, piece + k * sizeof(bits), sizeof(bits));
                   odd |= (bits & kBf16Exponent) == kBf16Exponent ? 1U : 0U;
                 }
                 spread_pairs<std::uint32_t>(n, tile, piece);
               });
    return odd == 0;
  }

  [[nodiscard]] bool pack_fp8() const {
    unsigned nans = 0;
    for_pieces(2, [&](std::size_t n, std::size_t tile, const std::byte* piece) {
      for (std::size_t k = 0; k < kTileColumns; ++k) {
        nans |= (byte_at(piece, k) & kE4m3Nan) == kE4m3Nan ? 1U : 0U;
      }
      spread_pairs<std::uint16_t>(n, tile, piece);
    });
    const std::size_t scale_columns = ceil_div(weight.columns, weight.block);
    for (std::size_t tile = 0; tile < shape.tiles; ++tile) {
      const std::optional<std::uint8_t> scale = e8m0_at(
          weight, first_row / weight.block * scale_columns + tile * kTileColumns / weight.block);
      if (!scale || *scale < kFp8ScaleMin || *scale > kFp8ScaleMax) {
        return false;
      }
      *scale_at(tile) = std::byte{*scale};
    }
    return nans == 0;
  }

  [[nodiscard]] bool pack_fp4() const {
    constexpr std::uint32_t kEven = 0x0f0f0f0fU;  // of four bytes, the inputs 0, 2, 4 and 6
    for_pieces(1, [this](std::size_t n, std::size_t tile, const std::byte* piece) {
      for (std::size_t quad = 0; quad < kTileColumns / 8; ++quad) {
        std::uint32_t codes = 0;
        std::memcpy(&codes, piece + quad * sizeof(codes), sizeof(codes));
        const std::uint32_t words = _pext_u32(codes, kEven) | _pext_u32(codes, ~kEven) << 16U;
        std::memcpy(tile_at(tile) + quad * kLineBytes + n * sizeof(words), &words, sizeof(words));
      }
    });
    const std::size_t scale_columns = weight.columns / weight.block;
    for (std::size_t n = 0; n < rows; ++n) {
      for (std::size_t tile = 0; tile < scale_columns; ++tile) {
        const std::optional<std::uint8_t> scale =
            e8m0_at(weight, (first_row + n) * scale_columns + tile);
        if (!scale || *scale < kFp4ScaleMin || *scale > kFp4ScaleMax) {
          return false;
        }
        scale_at(tile)[n] = std::byte{*scale};
      }
    }
    return true;
  }
};

}  // namespace

std::optional<PackedView> packed_shape(const Weight& weight) {
  PackedView view{};
  view.tiles = ceil_div(weight.columns, kTileColumns);
  switch (weight.format) {
    case WeightFormat::kBf16:
      view.format = PackedFormat::kBf16;
      view.group_bytes = view.tiles * tile_bytes(view.format);
      return view;
    case WeightFormat::kFp8Block:
      if (weight.block % kTileColumns != 0) {
        return std::nullopt;
      }
      view.format = PackedFormat::kFp8;
      view.group_bytes = fp8_scale_bytes(view.tiles) + view.tiles * tile_bytes(view.format);
      return view;
    case WeightFormat::kFp4:
      if (weight.block != kTileColumns || weight.columns % kTileColumns != 0) {
        return std::nullopt;
      }
      view.format = PackedFormat::kFp4;
      view.tiles = ceil_div(view.tiles, kUnitTiles) * kUnitTiles;
      view.group_bytes = view.tiles / kUnitTiles * kUnitBytes;
      return view;
    default:
      return std::nullopt;
  }
}

bool pack_group(const Weight& weight, const PackedView& shape, std::size_t group, std::byte* out) {
  const std::size_t first = group * kGroupRows;
  GALLEY_ASSERT(first < weight.rows);
  std::fill_n(out, shape.group_bytes, std::byte{0});
  // Scales of what is missing: one, for zero codes are zero at any scale but nan.
  constexpr std::byte kOne{127};
  for (std::size_t tile = 0; tile < shape.tiles && shape.format != PackedFormat::kBf16; ++tile) {
    std::fill_n(out + scale_offset(shape.format, tile),
                shape.format == PackedFormat::kFp4 ? kGroupRows : 1, kOne);
  }
  const Group job{weight, shape, first, std::min(kGroupRows, weight.rows - first), out};
  switch (shape.format) {
    case PackedFormat::kBf16:
      return job.pack_bf16();
    case PackedFormat::kFp8:
      return job.pack_fp8();
    case PackedFormat::kFp4:
      return job.pack_fp4();
  }
  return false;
}

}  // namespace galley::kernels
