#pragma once

#include <cstddef>
#include <cstdint>

#include "base/row_file.h"
#include "kernels/weight.h"

namespace galley::kernels {

// A matrix of a checkpoint that stays on disk and is read by row (engram tables, 203 GB in the real
// model): resident memory does not grow with it. `shape` is what a Weight of the whole would be,
// without pointers; its format has its scales along a row (kFp8Row) or none (kF32, kBf16).
struct DiskTable {
  RowFile data;
  RowFile scales;  // not open without scales
  std::uint64_t data_offset{};
  std::uint64_t scales_offset{};
  Weight shape;

  [[nodiscard]] std::size_t row_bytes() const {
    switch (shape.format) {
      case WeightFormat::kF32:
        return shape.columns * sizeof(float);
      case WeightFormat::kBf16:
        return shape.columns * sizeof(std::uint16_t);
      default:
        return shape.columns;
    }
  }
  // Scale bytes of one row.
  [[nodiscard]] std::size_t scale_bytes() const {
    const std::size_t one = shape.scale_format == ScaleFormat::kF32    ? sizeof(float)
                            : shape.scale_format == ScaleFormat::kE8m0 ? 1
                                                                       : 0;
    return one == 0 ? 0 : (shape.columns + shape.block - 1) / shape.block * one;
  }
};

}  // namespace galley::kernels
