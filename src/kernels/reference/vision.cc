#include "kernels/reference/vision.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/ops.h"

namespace galley::kernels::reference {

void rope_grid(std::span<float> head,
               std::int64_t row,
               std::int64_t column,
               std::span<const float> frequencies) {
  const std::size_t half = head.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const bool by_row = i < frequencies.size();
    const auto place = static_cast<float>(by_row ? row : column);
    const double angle = place * frequencies[by_row ? i : i - frequencies.size()];
    const auto c = static_cast<float>(std::cos(angle));
    const auto s = static_cast<float>(std::sin(angle));
    const float a = head[i];
    const float b = head[half + i];
    head[i] = a * c - b * s;
    head[half + i] = b * c + a * s;
  }
}

void attend_values(std::span<const float> q,
                   std::span<const float* const> keys,
                   std::span<const float* const> values,
                   float scale,
                   std::span<float> out) {
  std::vector<float> scores(keys.size());
  for (std::size_t j = 0; j < keys.size(); ++j) {
    scores[j] = dot(q, {keys[j], q.size()}) * scale;
  }
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores) {
    sum += std::exp(score - largest);
  }
  std::ranges::fill(out, 0.0F);
  for (std::size_t j = 0; j < values.size(); ++j) {
    const auto p = static_cast<float>(std::exp(scores[j] - largest) / sum);
    for (std::size_t c = 0; c < out.size(); ++c) {
      out[c] += p * values[j][c];
    }
  }
}

void silu_gate(std::span<const float> x, std::span<float> y) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double gate = x[i];
    y[i] = static_cast<float>(gate / (1.0 + std::exp(-gate))) * x[y.size() + i];
  }
}

void gelu(std::span<float> x) {
  for (float& value : x) {
    const double wide = value;
    value = static_cast<float>(0.5 * wide * (1.0 + std::erf(wide / std::sqrt(2.0))));
  }
}

void gather_cell(const PatchGrid& grid,
                 std::size_t side,
                 std::size_t row,
                 std::size_t column,
                 std::span<float> out) {
  for (std::size_t dy = 0; dy < side; ++dy) {
    for (std::size_t dx = 0; dx < side; ++dx) {
      const std::size_t y = row * side + dy;
      const std::size_t x = column * side + dx;
      const float* const patch = y < grid.rows && x < grid.columns
                                     ? grid.patches + (y * grid.columns + x) * grid.width
                                     : nullptr;
      for (std::size_t c = 0; c < grid.width; ++c) {
        out[(c * side + dy) * side + dx] = patch == nullptr ? 0.0F : patch[c];
      }
    }
  }
}

}  // namespace galley::kernels::reference
