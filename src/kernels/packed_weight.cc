#include "kernels/packed_weight.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

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

// Where the value of output n and input k of a tile lies among its values.
std::size_t place(std::size_t n, std::size_t k) {
  return k / 2 * 2 * kGroupRows + 2 * n + k % 2;
}

struct Group {
  const Weight& weight;
  const PackedView& shape;
  std::size_t first_row;
  std::size_t rows;
  std::byte* out;

  [[nodiscard]] std::byte* tile_of(std::size_t k) const {
    return out + tile_offset(shape.format, shape.tiles, k / kTileColumns);
  }
  [[nodiscard]] std::byte* scale_of(std::size_t tile) const {
    return out + scale_offset(shape.format, tile);
  }

  void pack_bf16() const {
    for (std::size_t n = 0; n < rows; ++n) {
      const std::byte* const row = weight.data + (first_row + n) * weight.columns * 2;
      for (std::size_t k = 0; k < weight.columns; ++k) {
        std::memcpy(tile_of(k) + place(n, k % kTileColumns) * 2, row + 2 * k, 2);
      }
    }
  }

  [[nodiscard]] bool pack_fp8() const {
    for (std::size_t n = 0; n < rows; ++n) {
      const std::byte* const row = weight.data + (first_row + n) * weight.columns;
      for (std::size_t k = 0; k < weight.columns; ++k) {
        if ((byte_at(row, k) & kE4m3Nan) == kE4m3Nan) {
          return false;
        }
        tile_of(k)[place(n, k % kTileColumns)] = row[k];
      }
    }
    const std::size_t scale_columns = ceil_div(weight.columns, weight.block);
    for (std::size_t tile = 0; tile < shape.tiles; ++tile) {
      const std::optional<std::uint8_t> scale = e8m0_at(
          weight, first_row / weight.block * scale_columns + tile * kTileColumns / weight.block);
      if (!scale || *scale < kFp8ScaleMin || *scale > kFp8ScaleMax) {
        return false;
      }
      *scale_of(tile) = std::byte{*scale};
    }
    return true;
  }

  [[nodiscard]] bool pack_fp4() const {
    const std::size_t scale_columns = weight.columns / weight.block;
    for (std::size_t n = 0; n < rows; ++n) {
      const std::byte* const row = weight.data + (first_row + n) * weight.columns / 2;
      for (std::size_t k = 0; k < weight.columns; ++k) {
        const std::size_t in_tile = k % kTileColumns;
        const auto code = static_cast<std::uint8_t>((byte_at(row, k / 2) >> (k % 2 * 4)) & 15U);
        const std::size_t pair = in_tile / 2;
        // Byte of the word, then which half of the byte.
        std::byte& to =
            tile_of(k)[pair / 4 * kLineBytes + 2 * (2 * n + in_tile % 2) + pair % 4 / 2];
        to |= std::byte{code} << (pair % 2 * 4);
      }
      for (std::size_t tile = 0; tile < scale_columns; ++tile) {
        const std::optional<std::uint8_t> scale =
            e8m0_at(weight, (first_row + n) * scale_columns + tile);
        if (!scale || *scale < kFp4ScaleMin || *scale > kFp4ScaleMax) {
          return false;
        }
        scale_of(tile)[n] = std::byte{*scale};
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
      if (weight.block != kTileColumns) {
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
      job.pack_bf16();
      return true;
    case PackedFormat::kFp8:
      return job.pack_fp8();
    case PackedFormat::kFp4:
      return job.pack_fp4();
  }
  return false;
}

}  // namespace galley::kernels
