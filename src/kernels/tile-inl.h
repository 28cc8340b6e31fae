#pragma once

#include <cstddef>

#include "kernels/matmul.h"

// Where a group's tiles and scales lie (packed_weight.h). Everything here has internal linkage: it
// is compiled with the flags of several instruction sets (see matmul.h).
namespace galley::kernels {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kUnitTiles = 4;  // kFp4: tiles that share a line of scales

constexpr std::size_t tile_bytes(PackedFormat format) {
  return format == PackedFormat::kBf16  ? kTileValues * 2
         : format == PackedFormat::kFp8 ? kTileValues
                                        : kTileValues / 2;
}

// What a unit of kFp4 takes: its scales, then its tiles.
constexpr std::size_t kUnitBytes = kLineBytes + kUnitTiles * tile_bytes(PackedFormat::kFp4);

// kFp8: the scales of a group of `tiles`, in whole lines in front of it.
constexpr std::size_t fp8_scale_bytes(std::size_t tiles) {
  return (tiles + kLineBytes - 1) / kLineBytes * kLineBytes;
}

constexpr std::size_t tile_offset(PackedFormat format, std::size_t tiles, std::size_t tile) {
  switch (format) {
    case PackedFormat::kBf16:
      return tile * tile_bytes(format);
    case PackedFormat::kFp8:
      return fp8_scale_bytes(tiles) + tile * tile_bytes(format);
    case PackedFormat::kFp4:
      return tile / kUnitTiles * kUnitBytes + kLineBytes + tile % kUnitTiles * tile_bytes(format);
  }
  return 0;
}

// Of a tile's scales: one byte for kFp8, 16 for kFp4.
constexpr std::size_t scale_offset(PackedFormat format, std::size_t tile) {
  return format == PackedFormat::kFp4
             ? tile / kUnitTiles * kUnitBytes + tile % kUnitTiles * kGroupRows
             : tile;
}

}  // namespace
}  // namespace galley::kernels
