#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "kernels/probe_loops.h"

// The fastest loops of float32, of bfloat16 pairs and of reading that AVX-512 has.
namespace galley::kernels {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::size_t kVectorBytes = 64;
constexpr std::size_t kVectors = kProbeValueBytes / kVectorBytes;
// More than the latency of 4 to 6 cycles times two units, and few enough that g++ 12 unrolls the
// loops over them: it would keep sums of a loop in memory.
constexpr std::size_t kSums = 16;
constexpr std::size_t kRounds = std::size_t{1} << 16U;

__m512 load(const std::byte* values, std::size_t vector) {
  return _mm512_load_ps(reinterpret_cast<const float*>(values + vector * kVectorBytes));
}

float total(const __m512 (&sums)[kSums]) {
  __m512 all = sums[0];
  for (std::size_t i = 1; i < kSums; ++i) {
    all = _mm512_add_ps(all, sums[i]);
  }
  alignas(kVectorBytes) float lanes[kLanes];
  _mm512_store_ps(lanes, all);
  float out = 0;
  for (const float lane : lanes) {
    out += lane;
  }
  return out;
}

// As in avx2/probe.cc.
float fma(const std::byte* values) {
  const __m512 factor = _mm512_set1_ps(0.7071F);
  __m512 sums[kSums];
  for (std::size_t i = 0; i < kSums; ++i) {
    sums[i] = load(values, i);
  }
  for (std::size_t round = 0; round < kRounds; ++round) {
    const __m512 value = load(values, round % kVectors);
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(sum, factor, value);
    }
  }
  return total(sums);
}

float dot(const std::byte* values) {
  constexpr std::size_t kFactors = 4;
  __m512 sums[kSums];
  for (std::size_t i = 0; i < kSums; ++i) {
    sums[i] = load(values, i);
  }
  __m512bh factors[kFactors];
  for (std::size_t i = 0; i < kFactors; ++i) {
    factors[i] = reinterpret_cast<__m512bh>(load(values, kSums + i));
  }
  for (std::size_t round = 0; round < kRounds; ++round) {
    const auto value = reinterpret_cast<__m512bh>(load(values, round % kVectors));
    for (std::size_t i = 0; i < kSums; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], factors[i % kFactors], value);
    }
  }
  return total(sums);
}

// As in avx2/probe.cc.
std::uint64_t read(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kStep = kReadStep / kReadStreams;
  constexpr std::size_t kParts = 8;
  __m512i parts[kParts] = {};
  for (std::size_t at = 0; at < bytes / kReadStreams; at += kStep) {
    for (std::size_t stream = 0; stream < kReadStreams; ++stream) {
      const std::byte* const from = data + stream * (bytes / kReadStreams) + at;
      for (std::size_t i = 0; i < kStep / kVectorBytes; ++i) {
        const std::byte* const line = from + i * kVectorBytes;
        _mm_prefetch(reinterpret_cast<const char*>(line + kReadAhead), _MM_HINT_T0);
        __m512i& part = parts[(stream * kStep / kVectorBytes + i) % kParts];
        part = _mm512_add_epi64(part, _mm512_load_si512(line));
      }
    }
  }
  for (std::size_t i = 1; i < kParts; ++i) {
    parts[0] = _mm512_add_epi64(parts[0], parts[i]);
  }
  alignas(kVectorBytes) std::uint64_t lanes[kVectorBytes / sizeof(std::uint64_t)];
  _mm512_store_si512(lanes, parts[0]);
  std::uint64_t out = 0;
  for (const std::uint64_t lane : lanes) {
    out += lane;
  }
  return out;
}

}  // namespace

const ComputeLoop kAvx512FmaLoop = {2.0 * kLanes * kSums * kRounds, fma};
const ComputeLoop kAvx512DotLoop = {4.0 * kLanes * kSums * kRounds, dot};
const ReadLoop kAvx512ReadLoop = read;

}  // namespace galley::kernels
