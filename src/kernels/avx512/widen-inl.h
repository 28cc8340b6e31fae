#pragma once

#include <cstddef>
#include <immintrin.h>

#include "kernels/matmul.h"
#include "kernels/tile-inl.h"

// Narrow tiles to bfloat16 (packed_weight.h), 16 vectors of 16 outputs x one pair of inputs. Exact:
// a power-of-two scale is added to the exponent. Included by files with AVX-512 flags only;
// everything here has internal linkage (see matmul.h).
namespace galley::kernels {
namespace {

constexpr std::size_t kPairs = kTileColumns / 2;
constexpr std::size_t kVectorBytes = 64;
constexpr std::size_t kWideTileBytes = kPairs * kVectorBytes;
constexpr int kMantissaBits = 7;   // of bfloat16
constexpr short kScaleBias = 127;  // of e8m0

inline void prefetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}

// Value of every e2m1 code, twice: the table is looked up by five bits, the fifth is not ours.
inline __m512i fp4_table() {
  alignas(kVectorBytes) static constexpr unsigned short kValues[32] = {
      0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
      0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
      0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
  return _mm512_load_si512(kValues);
}

// `ahead`: what will be wanted soon, as many bytes as the tile has.
inline void widen_fp4(const std::byte* tile,
                      const std::byte* scales,
                      const std::byte* ahead,
                      std::byte* out) {
  const __m512i table = fp4_table();
  const __m512i magnitude = _mm512_set1_epi16(7);
  // Output n's exponent in both halves of its 32 bits.
  __m512i exponent =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
  exponent = _mm512_or_si512(exponent, _mm512_slli_epi32(exponent, 16));
  exponent =
      _mm512_slli_epi16(_mm512_sub_epi16(exponent, _mm512_set1_epi16(kScaleBias)), kMantissaBits);
  for (std::size_t q = 0; q < kPairs / 4; ++q) {
    prefetch(ahead + q * kVectorBytes);
    __m512i codes = _mm512_load_si512(tile + q * kVectorBytes);
    for (std::size_t j = 0; j < 4; ++j) {
      const __m512i value = _mm512_permutexvar_epi16(codes, table);
      const __mmask32 not_zero = _mm512_test_epi16_mask(codes, magnitude);
      _mm512_store_si512(out + (4 * q + j) * kVectorBytes,
                         _mm512_mask_add_epi16(value, not_zero, value, exponent));
      codes = _mm512_srli_epi16(codes, 4);
    }
  }
}

// Whether none of a tile's codes has the exponent 0, which few have: zeros and subnormals.
inline bool all_normal(const std::byte* tile) {
  const __m512i exponent_bits = _mm512_set1_epi8(0x78);
  __mmask64 small = 0;
  for (std::size_t line = 0; line < kTileValues; line += kVectorBytes) {
    small |= _mm512_testn_epi8_mask(_mm512_load_si512(tile + line), exponent_bits);
  }
  return small == 0;
}

template <bool Normal>
void widen_fp8_pairs(const std::byte* tile,
                     short exponent,
                     const std::byte* ahead,
                     std::byte* out) {
  // Subnormal codes 0 ... 7 times 2^-9.
  alignas(kVectorBytes) static constexpr unsigned short kSubnormals[32] = {
      0x0000, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  constexpr __mmask32 kNotZero = 0xfe;
  constexpr short kExponentBias = 127 - 7;  // from e4m3's to bfloat16's
  __m512i subnormals = _mm512_load_si512(kSubnormals);
  subnormals = _mm512_mask_add_epi16(subnormals, kNotZero, subnormals, _mm512_set1_epi16(exponent));
  const __m512i bias =
      _mm512_set1_epi16(static_cast<short>(exponent + kExponentBias * (1 << kMantissaBits)));
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x87f0));
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  const __m512i exponent_bits = _mm512_set1_epi16(0x78);
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    const std::byte* const at = tile + pair * kVectorBytes / 2;
    if (pair % 2 == 0) {
      prefetch(ahead + pair * kVectorBytes / 2);
    }
    const __m512i codes =
        _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
    __m512i value = _mm512_add_epi16(_mm512_and_si512(_mm512_slli_epi16(codes, 4), kept), bias);
    if constexpr (!Normal) {
      value = _mm512_mask_permutexvar_epi16(value, _mm512_testn_epi16_mask(codes, exponent_bits),
                                            codes, subnormals);
      constexpr int kOrAnd = 0xf8;  // a | (b & c)
      value = _mm512_ternarylogic_epi32(value, codes, sign, kOrAnd);
    }
    _mm512_store_si512(out + pair * kVectorBytes, value);
  }
}

inline void widen_fp8(const std::byte* tile,
                      const std::byte* scale,
                      const std::byte* ahead,
                      std::byte* out) {
  const auto exponent =
      static_cast<short>((static_cast<short>(*scale) - kScaleBias) * (1 << kMantissaBits));
  if (all_normal(tile)) {
    widen_fp8_pairs<true>(tile, exponent, ahead, out);
  } else {
    widen_fp8_pairs<false>(tile, exponent, ahead, out);
  }
}

// What is asked for while tile `tile` is read: the same group a little further on, or the same
// place of the group that follows the `groups` being read.
constexpr std::size_t kAheadBytes = 2048;
inline const std::byte* ahead_of(const PackedView& w,
                                 std::size_t groups,
                                 const std::byte* group,
                                 std::size_t offset) {
  const std::size_t at = offset + kAheadBytes;
  return group + (at < w.group_bytes ? at : at + (groups - 1) * w.group_bytes);
}

// Tile `tile` of group `group`, of `groups` that are read side by side, as bfloat16: where it lies,
// or widened into `scratch`.
inline const std::byte* wide_tile(const PackedView& w,
                                  std::size_t groups,
                                  std::size_t group,
                                  std::size_t tile,
                                  std::byte* scratch) {
  const std::byte* const data = w.data + group * w.group_bytes;
  const std::size_t offset = tile_offset(w.format, w.tiles, tile);
  const std::byte* const ahead = ahead_of(w, groups, data, offset);
  const std::byte* const scales = data + scale_offset(w.format, tile);
  switch (w.format) {
    case PackedFormat::kBf16:
      for (std::size_t line = 0; line < kWideTileBytes; line += kVectorBytes) {
        prefetch(ahead + line);
      }
      return data + offset;
    case PackedFormat::kFp8:
      widen_fp8(data + offset, scales, ahead, scratch);
      return scratch;
    case PackedFormat::kFp4:
      if (tile % kUnitTiles == 0) {
        prefetch(ahead - kLineBytes);
      }
      widen_fp4(data + offset, scales, ahead, scratch);
      return scratch;
  }
  return nullptr;
}

// Tiles [first, first + count) of a group.
inline const std::byte* wide_tiles(const PackedView& w,
                                   std::size_t groups,
                                   std::size_t group,
                                   std::size_t first,
                                   std::size_t count,
                                   std::byte* scratch) {
  if (w.format == PackedFormat::kBf16) {
    return w.data + group * w.group_bytes + tile_offset(w.format, w.tiles, first);
  }
  for (std::size_t i = 0; i < count; ++i) {
    wide_tile(w, groups, group, first + i, scratch + i * kWideTileBytes);
  }
  return scratch;
}

}  // namespace
}  // namespace galley::kernels
