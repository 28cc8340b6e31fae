#pragma once

#include <cstddef>

#include "kernels/exponential-inl.h"
#include "kernels/row_kernels.h"

// RowKernels over `Vec`, 16 float32 side by side, which the including file defines before this: so
// AVX2 and AVX-512 sum in one order. Everything here has internal linkage (see matmul.h).
namespace galley::kernels {
namespace {

constexpr std::size_t kHeadTile = 4;
constexpr std::size_t kKeyTile = 4;

// dots[h][j] = q[h] . keys[j] for a tile of heads and keys.
template <std::size_t Heads, std::size_t Keys>
void dot_tile(const float* q,
              std::size_t width,
              const float* const* keys,
              float (&dots)[Heads][Keys]) {
  Vec acc[Heads][Keys];
  for (auto& row : acc) {
    for (Vec& sum : row) {
      sum = set(0.0F);
    }
  }
  for (std::size_t c = 0; c < width; c += kRowLanes) {
    Vec key[Keys];
    for (std::size_t j = 0; j < Keys; ++j) {
      key[j] = load(keys[j] + c);
    }
    for (std::size_t h = 0; h < Heads; ++h) {
      const Vec value = load(q + h * width + c);
      for (std::size_t j = 0; j < Keys; ++j) {
        acc[h][j] = fma(value, key[j], acc[h][j]);
      }
    }
  }
  for (std::size_t h = 0; h < Heads; ++h) {
    for (std::size_t j = 0; j < Keys; ++j) {
      dots[h][j] = sum_lanes(acc[h][j]);
    }
  }
}

template <std::size_t Heads>
void score_keys(const AttendRow& row, std::size_t head, std::size_t stride) {
  const float* const q = row.q + head * row.width;
  float* const scores = row.scores + head * stride;
  std::size_t j = 0;
  for (; j + kKeyTile <= row.count; j += kKeyTile) {
    float dots[Heads][kKeyTile];
    dot_tile(q, row.width, row.keys + j, dots);
    for (std::size_t h = 0; h < Heads; ++h) {
      for (std::size_t i = 0; i < kKeyTile; ++i) {
        scores[h * stride + j + i] = dots[h][i] * row.scale;
      }
    }
  }
  for (; j < row.count; ++j) {
    float dots[Heads][1];
    dot_tile(q, row.width, row.keys + j, dots);
    for (std::size_t h = 0; h < Heads; ++h) {
      scores[h * stride + j] = dots[h][0] * row.scale;
    }
  }
}

// Scores of one head to e^(score - largest), those behind the last key to 0; returns their sum with
// the sink's.
float softmax_weights(float* scores, std::size_t count, std::size_t stride, float sink) {
  constexpr float kLowest = -3.0e38F;
  for (std::size_t j = count; j < stride; ++j) {
    scores[j] = kLowest;
  }
  Vec largest = set(sink);
  for (std::size_t j = 0; j < stride; j += kRowLanes) {
    largest = maximum(largest, load(scores + j));
  }
  const float top = max_lanes(largest);
  // The sink counts in the first lane alone.
  float first[kRowLanes] = {sink};
  for (std::size_t lane = 1; lane < kRowLanes; ++lane) {
    first[lane] = kLowest;
  }
  Vec sum = exponential(sub(load(first), set(top)));
  for (std::size_t j = 0; j < stride; j += kRowLanes) {
    const Vec e = exponential(sub(load(scores + j), set(top)));
    store(scores + j, e);
    sum = add(sum, e);
  }
  return sum_lanes(sum);
}

// out[h][c ...] = sum_j e_j keys[j][c ...] / total over all keys in order, for a tile of heads and
// of channels.
template <std::size_t Heads, std::size_t Vectors>
void mix_tile(const AttendRow& row,
              const float (&totals)[Heads],
              std::size_t head,
              std::size_t stride,
              std::size_t channel) {
  Vec acc[Heads][Vectors];
  for (auto& out : acc) {
    for (Vec& sum : out) {
      sum = set(0.0F);
    }
  }
  const float* const e = row.scores + head * stride;
  for (std::size_t j = 0; j < row.count; ++j) {
    Vec key[Vectors];
    for (std::size_t v = 0; v < Vectors; ++v) {
      key[v] = load(row.keys[j] + channel + v * kRowLanes);
    }
    for (std::size_t h = 0; h < Heads; ++h) {
      const Vec weight = set(e[h * stride + j]);
      for (std::size_t v = 0; v < Vectors; ++v) {
        acc[h][v] = fma(weight, key[v], acc[h][v]);
      }
    }
  }
  for (std::size_t h = 0; h < Heads; ++h) {
    for (std::size_t v = 0; v < Vectors; ++v) {
      store(row.out + (head + h) * row.width + channel + v * kRowLanes,
            divide(acc[h][v], set(totals[h])));
    }
  }
}

template <std::size_t Heads>
void attend_heads(const AttendRow& row, std::size_t head, std::size_t stride) {
  score_keys<Heads>(row, head, stride);
  float totals[Heads];
  for (std::size_t h = 0; h < Heads; ++h) {
    totals[h] =
        softmax_weights(row.scores + (head + h) * stride, row.count, stride, row.sinks[head + h]);
  }
  std::size_t channel = 0;
  for (; channel + 4 * kRowLanes <= row.width; channel += 4 * kRowLanes) {
    mix_tile<Heads, 4>(row, totals, head, stride, channel);
  }
  for (; channel < row.width; channel += kRowLanes) {
    mix_tile<Heads, 1>(row, totals, head, stride, channel);
  }
}

void attend(const AttendRow& row) {
  const std::size_t stride = (row.count + kRowLanes - 1) / kRowLanes * kRowLanes;
  std::size_t head = 0;
  for (; head + kHeadTile <= row.heads; head += kHeadTile) {
    attend_heads<kHeadTile>(row, head, stride);
  }
  for (; head < row.heads; ++head) {
    attend_heads<1>(row, head, stride);
  }
}

template <std::size_t Keys>
void score_tile(const ScoreRows& rows, std::size_t first) {
  const float* keys[Keys];
  float sums[Keys] = {};
  for (std::size_t j = 0; j < Keys; ++j) {
    keys[j] = rows.keys + (first + j) * rows.width;
  }
  const auto add_heads = [&]<std::size_t Heads>(std::size_t head, float(&dots)[Heads][Keys]) {
    dot_tile(rows.q + head * rows.width, rows.width, keys, dots);
    for (std::size_t h = 0; h < Heads; ++h) {
      for (std::size_t j = 0; j < Keys; ++j) {
        sums[j] += (dots[h][j] > 0.0F ? dots[h][j] : 0.0F) * rows.weights[head + h];
      }
    }
  };
  std::size_t head = 0;
  for (; head + kHeadTile <= rows.heads; head += kHeadTile) {
    float dots[kHeadTile][Keys];
    add_heads(head, dots);
  }
  for (; head < rows.heads; ++head) {
    float dots[1][Keys];
    add_heads(head, dots);
  }
  for (std::size_t j = 0; j < Keys; ++j) {
    rows.scores[first + j] = sums[j];
  }
}

void index_scores(const ScoreRows& rows) {
  std::size_t j = 0;
  for (; j + kKeyTile <= rows.count; j += kKeyTile) {
    score_tile<kKeyTile>(rows, j);
  }
  for (; j < rows.count; ++j) {
    score_tile<1>(rows, j);
  }
}

constexpr std::size_t kAheadFloats = 512;  // `a` may be parameters, read once

// Four sums side by side, added pairwise; what does not fill a vector comes last.
template <std::size_t ARows, std::size_t BRows>
void dot_block(const DotRows& rows, std::size_t first_a, std::size_t first_b) {
  constexpr std::size_t kChains = 4;
  const float* const a = rows.a + first_a * rows.width;
  const float* const b = rows.b + first_b * rows.width;
  Vec acc[ARows][BRows][kChains];
  for (auto& of_a : acc) {
    for (auto& of_b : of_a) {
      for (Vec& sum : of_b) {
        sum = set(0.0F);
      }
    }
  }
  const auto add_vectors = [&](std::size_t k, std::size_t chain) {
    Vec right[BRows];
    for (std::size_t j = 0; j < BRows; ++j) {
      right[j] = load(b + j * rows.width + k);
    }
    for (std::size_t i = 0; i < ARows; ++i) {
      const Vec left = load(a + i * rows.width + k);
      for (std::size_t j = 0; j < BRows; ++j) {
        acc[i][j][chain] = fma(left, right[j], acc[i][j][chain]);
      }
    }
  };
  std::size_t k = 0;
  for (; k + kChains * kRowLanes <= rows.width; k += kChains * kRowLanes) {
    for (std::size_t chain = 0; chain < kChains; ++chain) {
      for (std::size_t i = 0; i < ARows; ++i) {
        prefetch(a + i * rows.width + k + kAheadFloats + chain * kRowLanes);
      }
      add_vectors(k + chain * kRowLanes, chain);
    }
  }
  for (; k + kRowLanes <= rows.width; k += kRowLanes) {
    add_vectors(k, 0);
  }
  for (std::size_t i = 0; i < ARows; ++i) {
    for (std::size_t j = 0; j < BRows; ++j) {
      float rest = 0.0F;
      for (std::size_t at = k; at < rows.width; ++at) {
        rest += a[i * rows.width + at] * b[j * rows.width + at];
      }
      const Vec(&sums)[kChains] = acc[i][j];
      rows.products[(first_b + j) * rows.stride + first_a + i] =
          sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3]))) + rest;
    }
  }
}

void dots(const DotRows& rows) {
  std::size_t i = 0;
  for (; i + kDotRows <= rows.a_rows; i += kDotRows) {
    std::size_t j = 0;
    for (; j + kDotRows <= rows.b_rows; j += kDotRows) {
      dot_block<kDotRows, kDotRows>(rows, i, j);
    }
    for (; j < rows.b_rows; ++j) {
      dot_block<kDotRows, 1>(rows, i, j);
    }
  }
  for (; i < rows.a_rows; ++i) {
    for (std::size_t j = 0; j < rows.b_rows; ++j) {
      dot_block<1, 1>(rows, i, j);
    }
  }
}

inline Vec swiglu16(Vec gate, Vec up, Vec limit, Vec weight) {
  const Vec g = minimum(limit, gate);  // of a nan both of these leave the second
  const Vec e = exponential(sub(set(0.0F), magnitude(g)));  // of -|g|: never overflows
  const Vec one = set(1.0F);
  // g / (1 + e^-g), for negative g as g e^g / (1 + e^g).
  const Vec silu = divide(mul(g, where_negative(g, e, one)), add(one, e));
  return mul(mul(silu, maximum(sub(set(0.0F), limit), minimum(limit, up))), weight);
}

void swiglu(const SwigluRow& row) {
  const Vec limit = set(row.limit);
  const Vec weight = set(row.weight);
  std::size_t i = 0;
  for (; i + kRowLanes <= row.count; i += kRowLanes) {
    store(row.h + i, swiglu16(load(row.gate + i), load(row.up + i), limit, weight));
  }
  if (i < row.count) {
    float gate[kRowLanes] = {};
    float up[kRowLanes] = {};
    float h[kRowLanes];
    for (std::size_t lane = 0; i + lane < row.count; ++lane) {
      gate[lane] = row.gate[i + lane];
      up[lane] = row.up[i + lane];
    }
    store(h, swiglu16(load(gate), load(up), limit, weight));
    for (std::size_t lane = 0; i + lane < row.count; ++lane) {
      row.h[i + lane] = h[lane];
    }
  }
}

constexpr RowKernels kRows = {attend, index_scores, dots, swiglu};

}  // namespace
}  // namespace galley::kernels
