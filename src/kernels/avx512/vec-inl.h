#pragma once

#include <cstddef>
#include <immintrin.h>

// 16 float32 side by side in one register. Included by files with AVX-512 flags only; everything
// here has internal linkage (see matmul.h).
namespace galley::kernels {
namespace {

struct Vec {
  __m512 v;
};

inline Vec load(const float* at) {
  return {_mm512_loadu_ps(at)};
}
inline void store(float* at, Vec a) {
  _mm512_storeu_ps(at, a.v);
}
inline void prefetch(const float* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}
inline Vec set(float value) {
  return {_mm512_set1_ps(value)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec add(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec sub(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec mul(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec divide(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec maximum(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
// Of a nan in either: the second.
inline Vec minimum(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Vec magnitude(Vec a) {
  return {_mm512_abs_ps(a.v)};
}
// Lane by lane: `then` where the sign of `a` is set, else `other`.
inline Vec where_negative(Vec a, Vec then, Vec other) {
  return {_mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(a.v)), other.v, then.v)};
}
inline Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// p * 2^n for whole n.
inline Vec times_power(Vec p, Vec n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), exponent))};
}
// `value` where not x < limit, else 0.
inline Vec zero_below(Vec x, float limit, Vec value) {
  const __mmask16 kept = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(kept, value.v)};
}

// Lanes 8 apart, then 4, 2 and 1 apart: as AVX2 adds them.
inline float sum_lanes(Vec a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
inline float max_lanes(Vec a) {
  return _mm512_reduce_max_ps(a.v);
}

}  // namespace
}  // namespace galley::kernels
