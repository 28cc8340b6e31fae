#include <cstddef>
#include <immintrin.h>

namespace galley::kernels {
namespace {

struct Vec {
  __m256 low;
  __m256 high;
};

inline Vec load(const float* at) {
  return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}
inline void store(float* at, Vec a) {
  _mm256_storeu_ps(at, a.low);
  _mm256_storeu_ps(at + 8, a.high);
}
inline void prefetch(const float* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}
inline Vec set(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vec add(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vec divide(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vec maximum(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vec minimum(Vec a, Vec b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Vec magnitude(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
// Lane by lane: `then` where the sign of `a` is set, else `other`.
inline Vec where_negative(Vec a, Vec then, Vec other) {
  return {_mm256_blendv_ps(other.low, then.low, a.low),
          _mm256_blendv_ps(other.high, then.high, a.high)};
}
inline Vec round(Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}
inline __m256 times_power(__m256 p, __m256 n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
}
// p * 2^n for whole n.
inline Vec times_power(Vec p, Vec n) {
  return {times_power(p.low, n.low), times_power(p.high, n.high)};
}
// `value` where not x < limit, else 0.
inline Vec zero_below(Vec x, float limit, Vec value) {
  const __m256 at = _mm256_set1_ps(limit);
  return {_mm256_and_ps(value.low, _mm256_cmp_ps(x.low, at, _CMP_NLT_UQ)),
          _mm256_and_ps(value.high, _mm256_cmp_ps(x.high, at, _CMP_NLT_UQ))};
}

constexpr std::size_t kDotRows = 1;  // four sums of two registers each

// Lanes 8 apart, then 4, 2 and 1 apart.
inline float sum_lanes(Vec a) {
  const __m256 half = _mm256_add_ps(a.low, a.high);
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
inline float max_lanes(Vec a) {
  const __m256 half = _mm256_max_ps(a.low, a.high);
  __m128 largest = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
  return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
}

}  // namespace
}  // namespace galley::kernels

#include "kernels/rows-inl.h"

namespace galley::kernels {

constinit const RowKernels kAvx2Rows = kRows;

}  // namespace galley::kernels
