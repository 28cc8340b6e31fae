#include "kernels/matmul.h"

#include <cstddef>
#include <immintrin.h>

#include "kernels/avx512/widen-inl.h"

// Products of bfloat16 pairs (vdpbf16ps). Output n of a row is two chains, the even and the odd
// pairs of inputs in ascending order, each pair's terms one after the other (leading bits first);
// the chains are added at the end.
namespace galley::kernels {
namespace {

constexpr std::size_t kBlockRows = 12;  // 24 of 32 registers hold sums
constexpr std::size_t kRowBytes = kTileColumns * 2;
constexpr std::size_t kTileBytes = kGroupRows * kRowBytes;

// sums[row][chain][16] += tiles of one group times rows [first, first + Rows).
template <std::size_t Rows, std::size_t Terms>
void add_products(const std::byte* wide,
                  std::size_t tiles,
                  const Activations& x,
                  std::size_t first_tile,
                  std::size_t first_row,
                  float* sums) {
  __m512 acc[Rows][kChains];
  const std::byte* at[Terms][Rows];
  for (std::size_t term = 0; term < Terms; ++term) {
    for (std::size_t r = 0; r < Rows; ++r) {
      const std::size_t row = first_row + r;
      at[term][r] = x.terms[term] + (row / kGroupRows * x.tiles + first_tile) * kTileBytes +
                    row % kGroupRows * kRowBytes;
    }
  }
#pragma GCC unroll 12
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (std::size_t chain = 0; chain < kChains; ++chain) {
      acc[r][chain] = _mm512_load_ps(sums + (r * kChains + chain) * kGroupRows);
    }
  }
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::byte* const w = wide + tile * kWideTileBytes;
#pragma GCC unroll 2
    for (std::size_t pair = 0; pair < kPairs; ++pair) {
      const __m512bh weights =
          reinterpret_cast<__m512bh>(_mm512_load_si512(w + pair * kVectorBytes));
#pragma GCC unroll 3
      for (std::size_t term = 0; term < Terms; ++term) {
        // Without the hint g++ 12 keeps more than 16 sums in memory.
#pragma GCC unroll 12
        for (std::size_t r = 0; r < Rows; ++r) {
          int two = 0;
          __builtin_memcpy(&two, at[term][r] + tile * kTileBytes + pair * sizeof(two), sizeof(two));
          const __m512i values = _mm512_set1_epi32(two);
          acc[r][pair % kChains] =
              _mm512_dpbf16_ps(acc[r][pair % kChains], weights, reinterpret_cast<__m512bh>(values));
        }
      }
    }
  }
#pragma GCC unroll 12
  for (std::size_t r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (std::size_t chain = 0; chain < kChains; ++chain) {
      _mm512_store_ps(sums + (r * kChains + chain) * kGroupRows, acc[r][chain]);
    }
  }
}

template <std::size_t Terms>
void add_products(std::size_t rows,
                  const std::byte* wide,
                  std::size_t tiles,
                  const Activations& x,
                  std::size_t first_tile,
                  float* sums) {
  constexpr std::size_t kSumsOfRow = kChains * kGroupRows;
  std::size_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows) {
    add_products<kBlockRows, Terms>(wide, tiles, x, first_tile, row, sums + row * kSumsOfRow);
  }
  for (; row + 4 <= rows; row += 4) {
    add_products<4, Terms>(wide, tiles, x, first_tile, row, sums + row * kSumsOfRow);
  }
  for (; row < rows; ++row) {
    add_products<1, Terms>(wide, tiles, x, first_tile, row, sums + row * kSumsOfRow);
  }
}

void multiply(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch) {
  auto* const sums = reinterpret_cast<float*>(scratch + kPieceBytes);
  for (std::size_t group = 0; group < groups; ++group) {
    for (std::size_t i = 0; i < x.rows * kChains * kGroupRows; i += kGroupRows) {
      _mm512_store_ps(sums + i, _mm512_setzero_ps());
    }
    for (std::size_t tile = 0; tile < w.tiles; tile += kPieceTiles) {
      const std::size_t left = w.tiles - tile;
      const std::size_t count = left < kPieceTiles ? left : kPieceTiles;
      const std::byte* const wide = wide_tiles(w, 1, group, tile, count, scratch);
      if (x.terms[1] == nullptr) {
        add_products<1>(x.rows, wide, count, x, tile, sums);
      } else {
        add_products<kTermsMax>(x.rows, wide, count, x, tile, sums);
      }
    }
    for (std::size_t row = 0; row < x.rows; ++row) {
      const float* const chains = sums + row * kChains * kGroupRows;
      // A sum flushed to -0 would become +0 by adding the product of a zero term, so it is +0
      // always.
      const __m512 sum = _mm512_add_ps(_mm512_load_ps(chains), _mm512_load_ps(chains + kGroupRows));
      _mm512_storeu_ps(c + (row * groups + group) * kGroupRows,
                       _mm512_add_ps(sum, _mm512_setzero_ps()));
    }
  }
}

}  // namespace

constinit const MatmulKernel kAvx512Matmul = {ActivationForm::kBf16Terms, multiply};

}  // namespace galley::kernels
