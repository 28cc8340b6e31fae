#include "kernels/matmul.h"

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "kernels/tile-inl.h"

// Products in float32 with fused multiply-add. Output n of a row is two chains, the even and the
// odd inputs in ascending order, added at the end.
namespace galley::kernels {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kHalves = kGroupRows / kLanes;  // vectors of a group
constexpr std::size_t kBlockRows = 3;                 // 12 of 16 registers hold sums
constexpr std::size_t kPairs = kTileColumns / 2;
constexpr std::size_t kTileBytes = kTileValues * sizeof(float);

__m256i load(const std::byte* at) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
}

// A pair of bfloat16 in each 32-bit lane -> its two values as float32, to [input][16 outputs].
void store_pair(__m256i pair, std::size_t half, float* out) {
  _mm256_store_ps(out + half * kLanes, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
  _mm256_store_ps(out + kGroupRows + half * kLanes,
                  _mm256_castsi256_ps(_mm256_and_si256(pair, high)));
}

void widen_bf16(const std::byte* tile, float* out) {
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    for (std::size_t half = 0; half < kHalves; ++half) {
      store_pair(load(tile + (pair * kHalves + half) * sizeof(__m256i)), half,
                 out + pair * 2 * kGroupRows);
    }
  }
}

// 2^(scale - 127) as float32, for the normal range that packing guarantees.
float scale_value(std::byte scale) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(scale) << 23)));
}

void widen_fp8(const std::byte* tile, const std::byte* scale, float* out) {
  const __m256 factor = _mm256_set1_ps(scale_value(*scale));
  const __m256i magnitude = _mm256_set1_epi32(0x7f);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000U));
  const __m256i exponent_bias = _mm256_set1_epi32((127 - 7) << 23);  // from e4m3's to float32's
  const __m256i first_normal = _mm256_set1_epi32(8);
  const __m256 one = _mm256_set1_ps(0x1p-7F);  // what a subnormal code m reads as: 2^-7 (1 + m / 8)
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    for (std::size_t half = 0; half < kHalves; ++half) {
      const __m128i codes = _mm_load_si128(
          reinterpret_cast<const __m128i*>(tile + (pair * kHalves + half) * sizeof(__m128i)));
      // Even inputs in the low bytes of the 16-bit pairs, odd ones in the high bytes.
      const __m256i pairs = _mm256_cvtepu16_epi32(codes);
      const auto value = [&](__m256i code) {
        const __m256i plain = _mm256_and_si256(code, magnitude);
        const __m256 normal =
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(plain, 20), exponent_bias));
        const __m256 less = _mm256_sub_ps(normal, one);
        const __m256 both =
            _mm256_blendv_ps(normal, _mm256_add_ps(less, less),
                             _mm256_castsi256_ps(_mm256_cmpgt_epi32(first_normal, plain)));
        const __m256i negative = _mm256_and_si256(_mm256_slli_epi32(code, 24), sign);
        return _mm256_xor_ps(_mm256_mul_ps(both, factor), _mm256_castsi256_ps(negative));
      };
      float* const at = out + pair * 2 * kGroupRows + half * kLanes;
      _mm256_store_ps(at, value(pairs));
      _mm256_store_ps(at + kGroupRows, value(_mm256_srli_epi32(pairs, 8)));
    }
  }
}

void widen_fp4(const std::byte* tile, const std::byte* scales, float* out) {
  // Values of the eight magnitudes; bit 3 of a code is the sign.
  const __m256 table = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000U));
  for (std::size_t half = 0; half < kHalves; ++half) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + half * kLanes));
    const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23));
    for (std::size_t quad = 0; quad < kPairs / 4; ++quad) {
      const __m256i codes = load(tile + (quad * kHalves + half) * sizeof(__m256i));
      for (std::size_t j = 0; j < 4; ++j) {
        for (std::size_t odd = 0; odd < 2; ++odd) {
          const auto shift = static_cast<int>(4 * j + 16 * odd);
          const __m256i code = _mm256_srli_epi32(codes, shift);
          const __m256 value = _mm256_mul_ps(_mm256_permutevar8x32_ps(table, code), factor);
          const __m256i negative = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign);
          _mm256_store_ps(out + ((4 * quad + j) * 2 + odd) * kGroupRows + half * kLanes,
                          _mm256_xor_ps(value, _mm256_castsi256_ps(negative)));
        }
      }
    }
  }
}

void widen(const PackedView& w, std::size_t group, std::size_t tile, float* out) {
  const std::byte* const data = w.data + group * w.group_bytes;
  const std::byte* const at = data + tile_offset(w.format, w.tiles, tile);
  const std::byte* const scales = data + scale_offset(w.format, tile);
  switch (w.format) {
    case PackedFormat::kBf16:
      widen_bf16(at, out);
      return;
    case PackedFormat::kFp8:
      widen_fp8(at, scales, out);
      return;
    case PackedFormat::kFp4:
      widen_fp4(at, scales, out);
      return;
  }
}

// sums[row][chain][16] += `tiles` wide tiles times rows [first_row, first_row + Rows).
template <std::size_t Rows>
void add_products(const float* wide,
                  std::size_t tiles,
                  const Activations& x,
                  std::size_t first_tile,
                  std::size_t first_row,
                  float* sums) {
  __m256 acc[Rows][kChains][kHalves];
  const float* at[Rows];
  for (std::size_t r = 0; r < Rows; ++r) {
    const std::size_t row = first_row + r;
    at[r] = reinterpret_cast<const float*>(x.terms[0] +
                                           (row / kGroupRows * x.tiles + first_tile) * kTileBytes +
                                           row % kGroupRows * kTileColumns * sizeof(float));
    for (std::size_t i = 0; i < kChains * kHalves; ++i) {
      acc[r][i / kHalves][i % kHalves] =
          _mm256_load_ps(sums + (r * kChains * kHalves + i) * kLanes);
    }
  }
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    // Unrolled, or the choice of chain puts all sums into memory.
#pragma GCC unroll 2
    for (std::size_t k = 0; k < kTileColumns; ++k) {
      const float* const w = wide + (tile * kTileColumns + k) * kGroupRows;
      const __m256 low = _mm256_load_ps(w);
      const __m256 high = _mm256_load_ps(w + kLanes);
#pragma GCC unroll 3
      for (std::size_t r = 0; r < Rows; ++r) {
        const __m256 value = _mm256_broadcast_ss(at[r] + tile * kTileValues + k);
        __m256* const chain = acc[r][k % kChains];
        chain[0] = _mm256_fmadd_ps(low, value, chain[0]);
        chain[1] = _mm256_fmadd_ps(high, value, chain[1]);
      }
    }
  }
  for (std::size_t r = 0; r < Rows; ++r) {
    for (std::size_t i = 0; i < kChains * kHalves; ++i) {
      _mm256_store_ps(sums + (r * kChains * kHalves + i) * kLanes,
                      acc[r][i / kHalves][i % kHalves]);
    }
  }
}

void multiply(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch) {
  auto* const wide = reinterpret_cast<float*>(scratch);
  auto* const sums = reinterpret_cast<float*>(scratch + kPieceBytes);
  constexpr std::size_t kSumsOfRow = kChains * kGroupRows;
  for (std::size_t group = 0; group < groups; ++group) {
    for (std::size_t i = 0; i < x.rows * kSumsOfRow; i += kLanes) {
      _mm256_store_ps(sums + i, _mm256_setzero_ps());
    }
    for (std::size_t first = 0; first < w.tiles; first += kPieceTiles) {
      const std::size_t left = w.tiles - first;
      const std::size_t count = left < kPieceTiles ? left : kPieceTiles;
      for (std::size_t i = 0; i < count; ++i) {
        widen(w, group, first + i, wide + i * kTileValues);
      }
      std::size_t row = 0;
      for (; row + kBlockRows <= x.rows; row += kBlockRows) {
        add_products<kBlockRows>(wide, count, x, first, row, sums + row * kSumsOfRow);
      }
      for (; row < x.rows; ++row) {
        add_products<1>(wide, count, x, first, row, sums + row * kSumsOfRow);
      }
    }
    for (std::size_t row = 0; row < x.rows; ++row) {
      for (std::size_t half = 0; half < kHalves; ++half) {
        const float* const chain = sums + row * kSumsOfRow + half * kLanes;
        _mm256_storeu_ps(c + (row * groups + group) * kGroupRows + half * kLanes,
                         _mm256_add_ps(_mm256_load_ps(chain), _mm256_load_ps(chain + kGroupRows)));
      }
    }
  }
}

}  // namespace

constinit const MatmulKernel kAvx2Matmul = {ActivationForm::kF32, multiply};

}  // namespace galley::kernels
