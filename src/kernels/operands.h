#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// What several values of an operation are called together, for the interface (device.h) and for the
// reference alike. Shapes as in reference/ops.h.
namespace galley::kernels {

// Hyper-connections (spec model 5).
struct MixWeights {
  std::span<const float> fn;     // [(2 + n) * n, n * H] row-major; head form [n, n * H]
  std::span<const float> base;   // [(2 + n) * n] or [n]
  std::span<const float> scale;  // [3] or [1]
};
struct MixOptions {
  float norm_eps{};
  float eps{};
  int sinkhorn_passes{};
};

// How an engram layer's table is laid out and hashed (spec model 7).
struct EngramLayout {
  std::vector<std::int64_t> primes;       // [(ngram - 1) * heads]
  std::vector<std::int64_t> offsets;      // of each column in the table
  std::vector<std::int64_t> multipliers;  // [ngram]
  std::int64_t rows{};                    // of the table
};

// What opens an engram's values to the streams (spec model 7).
struct EngramGate {
  std::span<const float> q_weight;  // [n, H]
  std::span<const float> k_weight;  // [n, H]
  float eps{};
};

// A grid of rows of C channels; token (r, c) covers `side` x `side` of them.
struct PatchGrid {
  const float* patches{};  // [rows, columns, width], row-major
  std::size_t rows{};
  std::size_t columns{};
  std::size_t width{};
};

}  // namespace galley::kernels
