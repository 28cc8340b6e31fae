#pragma once

#include <cstddef>

// Operations on rows of one instruction set: attention, index scores, long dot products. Plain
// structs only, for the reason given in matmul.h. Every sum's order is fixed by lengths alone.
namespace galley::kernels {

inline constexpr std::size_t kRowLanes = 16;  // float32 side by side, on every instruction set

// out[h] = sum_j p_j keys[j] with p = softmax with sink of scale * q[h] . keys[j] (spec model 2.4).
struct AttendRow {
  const float* q;  // [heads, width]
  std::size_t heads;
  std::size_t width;  // a multiple of kRowLanes
  const float* const* keys;
  std::size_t count;  // may be 0: out is zero
  float scale;
  const float* sinks;  // [heads]
  float* out;          // [heads, width]
  float* scores;       // scratch [heads, count rounded up to kRowLanes]
};

// scores[j] = sum_h weights[h] * max(0, q[h] . keys[j]) (spec model 4.3, 4.4).
struct ScoreRows {
  const float* q;        // [heads, width]
  const float* weights;  // [heads]
  std::size_t heads;
  std::size_t width;  // a multiple of kRowLanes
  const float* keys;  // [count, width]
  std::size_t count;
  float* scores;
};

// products[r, n] = sum_k a[n][k] b[r][k], each as if it were computed alone.
struct DotRows {
  const float* a;  // [a_rows, width]; may be parameters, read once
  std::size_t a_rows;
  const float* b;  // [b_rows, width]
  std::size_t b_rows;
  std::size_t width;
  float* products;  // [b_rows, stride]
  std::size_t stride;
};

// h = silu(min(gate, limit)) * clamp(up, limit) * weight (spec model 6.2).
struct SwigluRow {
  const float* gate;
  const float* up;
  std::size_t count;
  float limit;
  float weight;
  float* h;
};

struct RowKernels {
  void (*attend)(const AttendRow& row);
  void (*index_scores)(const ScoreRows& rows);
  void (*dots)(const DotRows& rows);
  void (*swiglu)(const SwigluRow& row);
};

extern const RowKernels kAvx2Rows;
extern const RowKernels kAvx512Rows;

}  // namespace galley::kernels
