#pragma once

#include "kernels/code_tables.h"
#include "kernels/row_format.h"
#include "kernels/tile_kernels.h"

// Rows of the cache as TileKernels::unpack_fp4 reads them.
namespace galley::kernels {

[[nodiscard]] inline bool unpacks_by_tiles(const RowFormat& format) {
  return (format.codec == RowCodec::kFp4 || format.codec == RowCodec::kFp4E4m3) &&
         format.width % 32 == 0 && (format.block == 16 || format.block % 32 == 0);
}

[[nodiscard]] inline Fp4Row fp4_row(const RowFormat& format, const std::byte* row) {
  return {row, row + format.width / 2,
          format.codec == RowCodec::kFp4 ? kCodes.e8m0.data() : kCodes.e4m3.data(), format.block,
          format.width};
}

}  // namespace galley::kernels
