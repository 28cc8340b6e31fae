#include "kernels/matmul.h"

#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "kernels/tile-inl.h"

// Products in float32 with fused multiply-add. Output n of a row is two chains, the even and the
// odd inputs in ascending order, added at the end. Chains are neighbouring lanes: a vector holds a
// pair of inputs for four outputs, as tiles have them, and meets a pair of the row's values.
namespace galley::kernels {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kPairs = kTileColumns / kChains;
constexpr std::size_t kPairValues = kChains * kGroupRows;  // of a pair of inputs
constexpr std::size_t kVectors = kPairValues / kLanes;     // the same in vectors
constexpr std::size_t kHalves = 2;                         // of a group: eight outputs, two vectors
constexpr std::size_t kBlockRows = 3;                      // 12 of 16 registers hold sums
constexpr std::size_t kTileBytes = kTileValues * sizeof(float);
constexpr std::size_t kAheadBytes = 4096;  // one row waits for memory: it asks so far ahead

// Widening hands its vectors to a `Sink`: put<half>(pair, outputs 0 to 3 of the half, 4 to 7).

// To [pair][4 vectors], for several rows.
class StoreWide {
 public:
  explicit StoreWide(float* out) : out_(out) {}
  template <std::size_t Half>
  void put(std::size_t pair, __m256 first, __m256 second) const {
    float* const at = out_ + pair * kPairValues + Half * kHalves * kLanes;
    _mm256_store_ps(at, first);
    _mm256_store_ps(at + kLanes, second);
  }

 private:
  float* out_;
};

__m256 load_pair(const float* x) {
  return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
}

// A row's sums, or a pair's weights. Members, and rows as a pack: g++ 12 keeps in memory what a
// loop indexes.
struct PairVectors {
  __m256 a, b, c, d;
};

PairVectors load_vectors(const float* at) {
  return {_mm256_load_ps(at), _mm256_load_ps(at + kLanes), _mm256_load_ps(at + 2 * kLanes),
          _mm256_load_ps(at + 3 * kLanes)};
}

void store_vectors(const PairVectors& vectors, float* at) {
  _mm256_store_ps(at, vectors.a);
  _mm256_store_ps(at + kLanes, vectors.b);
  _mm256_store_ps(at + 2 * kLanes, vectors.c);
  _mm256_store_ps(at + 3 * kLanes, vectors.d);
}

// Straight to the sums of one row.
class AddToRow {
 public:
  AddToRow(const float* x, PairVectors& sums) : x_(x), sums_(sums) {}
  template <std::size_t Half>
  void put(std::size_t pair, __m256 first, __m256 second) const {
    const __m256 values = load_pair(x_ + pair * kChains);
    __m256& low = Half == 0 ? sums_.a : sums_.c;
    __m256& high = Half == 0 ? sums_.b : sums_.d;
    low = _mm256_fmadd_ps(first, values, low);
    high = _mm256_fmadd_ps(second, values, high);
  }

 private:
  const float* x_;
  PairVectors& sums_;
};

__m256i load(const std::byte* at) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
}

template <std::size_t Half, class Sink>
void put_bf16(const std::byte* tile, std::size_t pair, const Sink& sink) {
  const std::byte* const at = tile + (pair * kHalves + Half) * sizeof(__m256i);
  const auto value = [at](std::size_t i) {
    const __m128i words = _mm_load_si128(reinterpret_cast<const __m128i*>(at) + i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  };
  sink.template put<Half>(pair, value(0), value(1));
}

template <class Sink>
void widen_bf16(const std::byte* tile, const Sink& sink) {
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    put_bf16<0>(tile, pair, sink);
    put_bf16<1>(tile, pair, sink);
  }
}

// 2^(scale - 127 + more) as float32; packing keeps it in the normal range.
float scale_value(std::byte scale, int more) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((static_cast<int>(scale) + more) << 23)));
}

// An e4m3 byte, shifted to where float16 has exponent and mantissa, reads as 2^-8 of its value,
// subnormals too.
constexpr int kE4m3Power = 8;

template <class Sink>
void widen_fp8(const std::byte* tile, const std::byte* scale, const Sink& sink) {
  const __m256 factor = _mm256_set1_ps(scale_value(*scale, kE4m3Power));
  const __m256i kept = _mm256_set1_epi16(static_cast<std::int16_t>(0xbf80U));
  const auto wide = [&](__m128i half) { return _mm256_mul_ps(_mm256_cvtph_ps(half), factor); };
  for (std::size_t pair = 0; pair < kPairs; ++pair) {
    const std::byte* const at = tile + pair * sizeof(__m256i);
    // Of 16 bytes b: b << 8, arithmetically one to the right, without the copy of the sign.
    const auto halves = [&](std::size_t i) {
      const __m256i bytes = _mm256_slli_epi16(
          _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(at) + i)), 8);
      return _mm256_and_si256(_mm256_srai_epi16(bytes, 1), kept);
    };
    const __m256i first = halves(0);
    sink.template put<0>(pair, wide(_mm256_castsi256_si128(first)),
                         wide(_mm256_extracti128_si256(first, 1)));
    const __m256i second = halves(1);
    sink.template put<1>(pair, wide(_mm256_castsi256_si128(second)),
                         wide(_mm256_extracti128_si256(second, 1)));
  }
}

// Scales of four outputs, each for a pair of lanes.
__m256 pair_factors(const std::byte* scales) {
  const __m128i bytes = _mm_cvtsi32_si128(*reinterpret_cast<const int*>(scales));
  const __m128i pairs = _mm_unpacklo_epi8(bytes, bytes);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(pairs), 23));
}

// Four pairs of eight outputs. Codes are looked up as the two bytes of a bfloat16.
template <std::size_t Half, class Sink>
void put_fp4(const std::byte* tile,
             std::size_t quad,
             __m256 first_factors,
             __m256 second_factors,
             const Sink& sink) {
  const __m256i high_bytes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80,
                                                -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i low_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  const __m256i high = _mm256_set1_epi16(static_cast<std::int16_t>(0xff00U));
  const __m256i zero = _mm256_setzero_si256();
  // Unpacking works in both halves of a vector by itself: what it makes neighbours is apart here.
  const __m256i codes = _mm256_permute4x64_epi64(
      load(tile + (quad * kHalves + Half) * sizeof(__m256i)), 0b11'01'10'00);
  const auto put = [&](std::size_t j, __m256i words) {
    sink.template put<Half>(
        quad * 4 + j,
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, words)), first_factors),
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, words)), second_factors));
  };
  // The two bytes of a word hold pairs 0 and 2, and above them 1 and 3.
  const __m256i even = _mm256_and_si256(codes, nibble);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
  const __m256i even_upper = _mm256_shuffle_epi8(high_bytes, even);
  const __m256i even_lower = _mm256_shuffle_epi8(low_bytes, even);
  const __m256i odd_upper = _mm256_shuffle_epi8(high_bytes, odd);
  const __m256i odd_lower = _mm256_shuffle_epi8(low_bytes, odd);
  put(0, _mm256_blendv_epi8(even_lower, _mm256_slli_epi16(even_upper, 8), high));
  put(1, _mm256_blendv_epi8(odd_lower, _mm256_slli_epi16(odd_upper, 8), high));
  put(2, _mm256_blendv_epi8(_mm256_srli_epi16(even_lower, 8), even_upper, high));
  put(3, _mm256_blendv_epi8(_mm256_srli_epi16(odd_lower, 8), odd_upper, high));
}

template <class Sink>
void widen_fp4(const std::byte* tile, const std::byte* scales, const Sink& sink) {
  const __m256 factors[kVectors] = {pair_factors(scales), pair_factors(scales + 4),
                                    pair_factors(scales + 8), pair_factors(scales + 12)};
  for (std::size_t quad = 0; quad < kPairs / 4; ++quad) {
    put_fp4<0>(tile, quad, factors[0], factors[1], sink);
    put_fp4<1>(tile, quad, factors[2], factors[3], sink);
  }
}

template <PackedFormat Format, class Sink>
void widen(const PackedView& w, const std::byte* data, std::size_t tile, const Sink& sink) {
  const std::byte* const at = data + tile_offset(Format, w.tiles, tile);
  const std::byte* const scales = data + scale_offset(Format, tile);
  for (std::size_t line = 0; line < tile_bytes(Format); line += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(at + kAheadBytes + line), _MM_HINT_T0);
  }
  if constexpr (Format == PackedFormat::kBf16) {
    widen_bf16(at, sink);
  } else if constexpr (Format == PackedFormat::kFp8) {
    widen_fp8(at, scales, sink);
  } else {
    widen_fp4(at, scales, sink);
  }
}

// Adds in both halves of the vectors by itself, so outputs 2 and 3 come behind 4 and 5.
__m256 add_chains(__m256 first, __m256 second) {
  const __m256d added = _mm256_castps_pd(_mm256_hadd_ps(first, second));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(added, 0b11'01'10'00));
}

void store_outputs(const PairVectors& sums, float* c) {
  _mm256_storeu_ps(c, add_chains(sums.a, sums.b));
  _mm256_storeu_ps(c + kLanes, add_chains(sums.c, sums.d));
}

template <PackedFormat Format>
void multiply_row(const PackedView& w, std::size_t groups, const float* x, float* c) {
  for (std::size_t group = 0; group < groups; ++group) {
    PairVectors sums{};
    for (std::size_t tile = 0; tile < w.tiles; ++tile) {
      // Rows lie in blocks of 16.
      widen<Format>(w, w.data + group * w.group_bytes, tile,
                    AddToRow(x + tile * kTileValues, sums));
    }
    store_outputs(sums, c + group * kGroupRows);
  }
}

void add_pair(const PairVectors& weights, __m256 values, PairVectors& sums) {
  sums.a = _mm256_fmadd_ps(weights.a, values, sums.a);
  sums.b = _mm256_fmadd_ps(weights.b, values, sums.b);
  sums.c = _mm256_fmadd_ps(weights.c, values, sums.c);
  sums.d = _mm256_fmadd_ps(weights.d, values, sums.d);
}

// sums[row][16][2] += `tiles` wide tiles times rows first_row + Row.
template <std::size_t... Row>
void add_products(const float* wide,
                  std::size_t tiles,
                  const Activations& x,
                  std::size_t first_tile,
                  std::size_t first_row,
                  float* sums) {
  const float* const at[] = {reinterpret_cast<const float*>(
      x.terms[0] + ((first_row + Row) / kGroupRows * x.tiles + first_tile) * kTileBytes +
      (first_row + Row) % kGroupRows * kTileColumns * sizeof(float))...};
  PairVectors acc[] = {load_vectors(sums + (first_row + Row) * kPairValues)...};
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (std::size_t pair = 0; pair < kPairs; ++pair) {
      const PairVectors weights = load_vectors(wide + (tile * kPairs + pair) * kPairValues);
      const std::size_t value = tile * kTileValues + pair * kChains;
      (add_pair(weights, load_pair(at[Row] + value), acc[Row]), ...);
    }
  }
  (store_vectors(acc[Row], sums + (first_row + Row) * kPairValues), ...);
}

template <PackedFormat Format>
void multiply_rows(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch) {
  auto* const wide = reinterpret_cast<float*>(scratch);
  auto* const all_sums = reinterpret_cast<float*>(scratch + kPieceBytes);
  const std::size_t group_sums = x.rows * kPairValues;
  for (std::size_t i = 0; i < groups * group_sums; i += kLanes) {
    _mm256_store_ps(all_sums + i, _mm256_setzero_ps());
  }
  for (std::size_t first = 0; first < w.tiles; first += kPieceTiles) {
    const std::size_t left = w.tiles - first;
    const std::size_t count = left < kPieceTiles ? left : kPieceTiles;
    // All groups before the next piece: the second one finds the rows in the second-level cache.
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t i = 0; i < count; ++i) {
        widen<Format>(w, w.data + group * w.group_bytes, first + i,
                      StoreWide(wide + i * kTileValues));
      }
      float* const sums = all_sums + group * group_sums;
      std::size_t row = 0;
      for (; row + kBlockRows <= x.rows; row += kBlockRows) {
        add_products<0, 1, 2>(wide, count, x, first, row, sums);
      }
      if (x.rows - row == 2) {
        add_products<0, 1>(wide, count, x, first, row, sums);
      } else if (x.rows - row == 1) {
        add_products<0>(wide, count, x, first, row, sums);
      }
    }
  }
  for (std::size_t group = 0; group < groups; ++group) {
    for (std::size_t row = 0; row < x.rows; ++row) {
      store_outputs(load_vectors(all_sums + group * group_sums + row * kPairValues),
                    c + (row * groups + group) * kGroupRows);
    }
  }
}

template <PackedFormat Format>
void multiply_format(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch) {
  if (x.rows == 1) {
    multiply_row<Format>(w, groups, reinterpret_cast<const float*>(x.terms[0]), c);
  } else {
    multiply_rows<Format>(w, groups, x, c, scratch);
  }
}

void multiply(
    const PackedView& w, std::size_t groups, const Activations& x, float* c, std::byte* scratch) {
  switch (w.format) {
    case PackedFormat::kBf16:
      return multiply_format<PackedFormat::kBf16>(w, groups, x, c, scratch);
    case PackedFormat::kFp8:
      return multiply_format<PackedFormat::kFp8>(w, groups, x, c, scratch);
    case PackedFormat::kFp4:
      return multiply_format<PackedFormat::kFp4>(w, groups, x, c, scratch);
  }
}

}  // namespace

constinit const MatmulKernel kAvx2Matmul = {ActivationForm::kF32, multiply};

}  // namespace galley::kernels
