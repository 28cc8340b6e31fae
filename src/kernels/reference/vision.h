#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/operands.h"

// The operations of the vision tower, one plain function each (spec model 10.2, 10.3);
// normalisation, linear layers and summation order are those of ops.h. The same rules hold: one row
// from its inputs, in a fixed order, float32, transcendental functions in double and rounded once.
//
// Shapes: d channels of a head, C channels of a patch, m inner width of the MLP.
namespace galley::kernels::reference {

// Rotates one head of d channels by its patch's place: pair (i, i + d/2) by row * f_i for i < d/4,
// by column * f_(i - d/4) above. `frequencies`: [d/4]. Halves, unlike the interleaved pairs of
// text.
void rope_grid(std::span<float> head,
               std::int64_t row,
               std::int64_t column,
               std::span<const float> frequencies);

// out[d] = softmax_j(scale * q . key_j) weighted values, keys in the order given; no sink.
void attend_values(std::span<const float> q,
                   std::span<const float* const> keys,
                   std::span<const float* const> values,
                   float scale,
                   std::span<float> out);

// y[m] = silu(x[i]) * x[m + i], x[2 m].
void silu_gate(std::span<const float> x, std::span<float> y);

// x = x * (1 + erf(x / sqrt 2)) / 2, in place.
void gelu(std::span<float> x);

// The patches of one token, channel-major: out[c * side^2 + side * dy + dx]; beyond the grid zero.
void gather_cell(const PatchGrid& grid,
                 std::size_t side,
                 std::size_t row,
                 std::size_t column,
                 std::span<float> out);

}  // namespace galley::kernels::reference
