#pragma once

#include <cstddef>
#include <cstdint>

// Rows as the cache keeps and shares them (spec model 8.2): the codes and scales that the model's
// quantisers choose, so nothing is lost that the network would have seen. One row is one run of
// bytes, little-endian:
//
//   kFp8      plain e4m3 codes, then width - plain bfloat16 channels (V4's rotated ones), then one
//             e8m0 scale for `block` codes, then zeros to a whole 8 bytes (V4 compressed row: 584)
//   kFp4      two e2m1 codes a byte, low nibble first, then one e8m0 scale for `block` codes (index
//             key: 68)
//   kFp4E4m3  the same with e4m3 scales (V4.1 compressed row: 288)
//   kF32      float32, for numerics that do not quantise
namespace galley::kernels {

enum class RowCodec : std::uint8_t { kF32, kFp8, kFp4, kFp4E4m3 };

struct RowFormat {
  RowCodec codec = RowCodec::kF32;
  std::size_t width{};  // channels
  std::size_t plain{};  // kFp8: the first that are quantised; else `width`
  std::size_t block{};  // channels of one scale

  [[nodiscard]] std::size_t scales() const { return (plain + block - 1) / block; }
  [[nodiscard]] std::size_t bytes() const {
    switch (codec) {
      case RowCodec::kF32:
        return width * sizeof(float);
      case RowCodec::kFp8:
        return plain == width ? width + scales()
                              : (plain + 2 * (width - plain) + scales() + 7) / 8 * 8;
      default:
        return (width + 1) / 2 + scales();
    }
  }
};

}  // namespace galley::kernels
