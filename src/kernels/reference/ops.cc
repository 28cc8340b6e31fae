#include "kernels/reference/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace galley::kernels::reference {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

float sigmoid(float x) {
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(x))));
}

// Sum of squares over K, in the order of `dot`.
float mean_square(std::span<const float> x) {
  return dot(x, x) / static_cast<float>(x.size());
}

float inverse_root(float value) {
  return 1.0F / std::sqrt(value);
}

}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  const std::size_t whole = a.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane];
    }
  }
  for (std::size_t i = whole; i < a.size(); ++i) {
    sums[i - whole] += a[i] * b[i];
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) {
      sums[lane] += sums[lane + width];
    }
  }
  return sums[0];
}

void linear(const Weight& weight,
            std::size_t row_begin,
            std::span<const float> x,
            std::span<float> y) {
  GALLEY_ASSERT(x.size() == weight.columns);
  std::vector<float> row(weight.columns);
  for (std::size_t r = 0; r < y.size(); ++r) {
    dequantise_row(weight, row_begin + r, row);
    y[r] = dot(row, x);
  }
}

void rms_norm(std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
  const float factor = inverse_root(mean_square(x) + eps);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = x[i] * factor;
    y[i] = w.empty() ? value : value * w[i];
  }
}

std::vector<float> rope_frequencies(double theta,
                                    std::size_t rope_dims,
                                    const RopeScaling* scaling) {
  std::vector<float> frequencies(rope_dims / 2);
  const auto dims = static_cast<double>(rope_dims);
  double low = 0;
  double high = 0;
  if (scaling != nullptr) {
    const auto turns = [&](double beta) {
      return dims * std::log(scaling->original_positions / (2 * M_PI * beta)) /
             (2 * std::log(theta));
    };
    low = std::max(std::floor(turns(scaling->beta_fast)), 0.0);
    high = std::min(std::ceil(turns(scaling->beta_slow)), dims - 1);
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dims);
    const float plain = 1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    if (scaling == nullptr) {
      frequencies[i] = plain;
      continue;
    }
    const auto ramp = static_cast<float>(
        std::clamp((static_cast<double>(i) - low) / std::max(high - low, 1e-3), 0.0, 1.0));
    frequencies[i] = plain / static_cast<float>(scaling->factor) * ramp + plain * (1.0F - ramp);
  }
  return frequencies;
}

void rope_angles(std::int64_t position,
                 std::span<const float> frequencies,
                 bool inverse,
                 std::span<float> angles) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    // float32 angle as the reference has it, then an accurate sine and cosine of that angle.
    const auto angle = static_cast<double>(static_cast<float>(position) * frequencies[i]);
    const auto sine = static_cast<float>(std::sin(angle));
    angles[i] = static_cast<float>(std::cos(angle));
    angles[frequencies.size() + i] = inverse ? -sine : sine;
  }
}

void rotate(std::span<float> row, std::span<const float> angles) {
  const std::size_t pairs = angles.size() / 2;
  float* const pair = row.data() + row.size() - angles.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const float a = pair[2 * i];
    const float b = pair[2 * i + 1];
    pair[2 * i] = a * angles[i] - b * angles[pairs + i];
    pair[2 * i + 1] = a * angles[pairs + i] + b * angles[i];
  }
}

void rope(std::span<float> row,
          std::int64_t position,
          std::span<const float> frequencies,
          bool inverse) {
  std::vector<float> angles(2 * frequencies.size());
  rope_angles(position, frequencies, inverse, angles);
  rotate(row, angles);
}

void sinkhorn(std::span<float> logits, std::size_t n, int passes, float eps) {
  const auto at = [&](std::size_t j, std::size_t k) -> float& { return logits[j * n + k]; };
  for (std::size_t j = 0; j < n; ++j) {
    double largest = at(j, 0);
    for (std::size_t k = 1; k < n; ++k) {
      largest = std::max(largest, static_cast<double>(at(j, k)));
    }
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) {
      sum += std::exp(at(j, k) - largest);
    }
    for (std::size_t k = 0; k < n; ++k) {
      at(j, k) = static_cast<float>(std::exp(at(j, k) - largest) / sum) + eps;
    }
  }
  const auto normalise_columns = [&] {
    for (std::size_t k = 0; k < n; ++k) {
      float sum = 0;
      for (std::size_t j = 0; j < n; ++j) {
        sum += at(j, k);
      }
      for (std::size_t j = 0; j < n; ++j) {
        at(j, k) /= sum + eps;
      }
    }
  };
  const auto normalise_rows = [&] {
    for (std::size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < n; ++k) {
        sum += at(j, k);
      }
      for (std::size_t k = 0; k < n; ++k) {
        at(j, k) /= sum + eps;
      }
    }
  };
  normalise_columns();
  for (int pass = 1; pass < passes; ++pass) {
    normalise_rows();
    normalise_columns();
  }
}

void mix_coefficients(std::span<const float> projected,
                      float mean_square,
                      const MixWeights& weights,
                      const MixOptions& options,
                      std::span<float> pre,
                      std::span<float> post,
                      std::span<float> comb) {
  const std::size_t n = pre.size();
  const float factor = inverse_root(mean_square + options.norm_eps);
  const auto scaled = [&](std::size_t i, std::size_t scale) {
    return projected[i] * factor * weights.scale[scale] + weights.base[i];
  };
  for (std::size_t i = 0; i < n; ++i) {
    pre[i] = sigmoid(scaled(i, 0)) + options.eps;
  }
  if (post.empty()) {
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    post[i] = 2.0F * sigmoid(scaled(n + i, 1));
  }
  for (std::size_t i = 0; i < n * n; ++i) {
    comb[i] = scaled(2 * n + i, 2);
  }
  sinkhorn(comb, n, options.sinkhorn_passes, options.eps);
}

void mix(std::span<const float> streams,
         const MixWeights& weights,
         const MixOptions& options,
         std::span<float> pre,
         std::span<float> post,
         std::span<float> comb) {
  std::vector<float> projected(weights.base.size());
  for (std::size_t i = 0; i < projected.size(); ++i) {
    projected[i] = dot(weights.fn.subspan(i * streams.size(), streams.size()), streams);
  }
  mix_coefficients(projected, mean_square(streams), weights, options, pre, post, comb);
}

void collapse(std::span<const float> streams, std::span<const float> pre, std::span<float> x) {
  for (std::size_t c = 0; c < x.size(); ++c) {
    x[c] = pre[0] * streams[c];
  }
  for (std::size_t i = 1; i < pre.size(); ++i) {
    for (std::size_t c = 0; c < x.size(); ++c) {
      x[c] += pre[i] * streams[i * x.size() + c];
    }
  }
}

void expand(std::span<const float> y,
            std::span<const float> post,
            std::span<const float> comb,
            std::span<float> streams) {
  const std::size_t n = post.size();
  constexpr std::size_t kChannels = 64;  // taken at a time, so that the old values stay near
  std::vector<float> old(n * kChannels);
  for (std::size_t begin = 0; begin < y.size(); begin += kChannels) {
    const std::size_t count = std::min(kChannels, y.size() - begin);
    for (std::size_t j = 0; j < n; ++j) {
      std::copy_n(streams.data() + j * y.size() + begin, count, old.data() + j * kChannels);
    }
    for (std::size_t k = 0; k < n; ++k) {
      std::array<float, kChannels> mixed{};
      for (std::size_t c = 0; c < count; ++c) {
        mixed[c] = comb[k] * old[c];
      }
      for (std::size_t j = 1; j < n; ++j) {
        for (std::size_t c = 0; c < count; ++c) {
          mixed[c] += comb[j * n + k] * old[j * kChannels + c];
        }
      }
      float* const out = streams.data() + k * y.size() + begin;
      for (std::size_t c = 0; c < count; ++c) {
        out[c] = post[k] * y[begin + c] + mixed[c];
      }
    }
  }
}

void router_scores(std::span<const float> logits, float temperature, std::span<float> scores) {
  constexpr double kIdentityAbove = 20.0;  // softplus is the identity there in the reference
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const double logit = logits[e] / temperature;
    const double softplus = logit > kIdentityAbove ? logit : std::log1p(std::exp(logit));
    scores[e] = std::sqrt(static_cast<float>(softplus));
  }
}

namespace {

// Weights of the chosen experts; then both lists in ascending order of the expert, which fixes the
// order of summation.
void finish_routing(std::span<const float> scores, float scale, Routing routing) {
  std::ranges::sort(routing.experts);
  constexpr float kEps = 1e-20F;
  float sum = 0;
  for (const std::int32_t expert : routing.experts) {
    sum += scores[static_cast<std::size_t>(expert)];
  }
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    routing.weights[i] =
        scores[static_cast<std::size_t>(routing.experts[i])] / (sum + kEps) * scale;
  }
}

}  // namespace

void route(std::span<const float> scores,
           std::span<const float> bias,
           float scale,
           Routing routing) {
  std::vector<float> selection(scores.begin(), scores.end());
  for (std::size_t e = 0; e < bias.size(); ++e) {
    selection[e] += bias[e];
  }
  // Overflown activations give nan: some experts are chosen all the same, and their weights carry
  // the nan on to the logits, where it is an error of the request.
  for (float& score : selection) {
    score = score > kNegInf ? score : std::numeric_limits<float>::lowest();
  }
  const std::vector<std::int32_t> best = top_k(selection, routing.experts.size());
  std::ranges::copy(best, routing.experts.begin());
  finish_routing(scores, scale, routing);
}

void route_fixed(std::span<const float> scores,
                 std::span<const std::int64_t> experts,
                 float scale,
                 Routing routing) {
  for (std::size_t i = 0; i < experts.size(); ++i) {
    routing.experts[i] = static_cast<std::int32_t>(experts[i]);
  }
  finish_routing(scores, scale, routing);
}

void swiglu(std::span<const float> gate,
            std::span<const float> up,
            float limit,
            float weight,
            std::span<float> h) {
  for (std::size_t i = 0; i < h.size(); ++i) {
    const double g = std::min(gate[i], limit);
    const auto silu = static_cast<float>(g / (1.0 + std::exp(-g)));
    h[i] = silu * std::clamp(up[i], -limit, limit) * weight;
  }
}

void attend(std::span<const float> q,
            std::span<const float* const> keys,
            float scale,
            float sink,
            std::span<float> out) {
  std::ranges::fill(out, 0.0F);
  std::vector<float> scores(keys.size());
  float largest = sink;
  for (std::size_t j = 0; j < keys.size(); ++j) {
    scores[j] = dot(q, {keys[j], q.size()}) * scale;
    largest = std::max(largest, scores[j]);
  }
  double sum = std::exp(static_cast<double>(sink) - largest);
  for (const float score : scores) {
    sum += std::exp(static_cast<double>(score) - largest);
  }
  for (std::size_t j = 0; j < keys.size(); ++j) {
    const auto p = static_cast<float>(std::exp(static_cast<double>(scores[j]) - largest) / sum);
    for (std::size_t c = 0; c < out.size(); ++c) {
      out[c] += p * keys[j][c];
    }
  }
}

void pool(std::span<const float* const> values,
          std::span<const float* const> gates,
          std::span<float> out) {
  for (std::size_t c = 0; c < out.size(); ++c) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const float* const gate : gates) {
      if (gate != nullptr) {
        largest = std::max(largest, static_cast<double>(gate[c]));
      }
    }
    double sum = 0;
    double weighted = 0;
    for (std::size_t s = 0; s < gates.size(); ++s) {
      if (gates[s] != nullptr) {
        const double e = std::exp(static_cast<double>(gates[s][c]) - largest);
        sum += e;
        weighted += e * static_cast<double>(values[s][c]);
      }
    }
    out[c] = static_cast<float>(weighted / sum);
  }
}

float index_score(std::span<const float> q,
                  std::span<const float> weights,
                  std::span<const float> key) {
  float score = 0;
  for (std::size_t h = 0; h < weights.size(); ++h) {
    score += std::max(0.0F, dot(q.subspan(h * key.size(), key.size()), key)) * weights[h];
  }
  return score;
}

std::vector<std::int32_t> top_k(std::span<const float> scores, std::size_t k) {
  std::vector<std::int32_t> order;
  order.reserve(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > kNegInf) {
      order.push_back(static_cast<std::int32_t>(i));
    }
  }
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (order.size() > k) {
    std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(k), better);
    order.resize(k);
  }
  std::ranges::sort(order);
  return order;
}

void keep_candidates(std::span<const float> scores,
                     std::size_t block,
                     std::size_t blocks_kept,
                     std::span<std::uint8_t> kept) {
  std::ranges::fill(kept, std::uint8_t{0});
  if (scores.empty()) {
    return;
  }
  std::vector<float> best((scores.size() + block - 1) / block, kNegInf);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    best[j / block] = std::max(best[j / block], scores[j]);
  }
  best.back() = std::numeric_limits<float>::infinity();  // the block of the newest position
  for (const std::int32_t b : top_k(best, blocks_kept)) {
    const std::size_t begin = static_cast<std::size_t>(b) * block;
    std::ranges::fill(kept.subspan(begin, std::min(block, kept.size() - begin)), std::uint8_t{1});
  }
}

void engram_hash(const EngramLayout& layout,
                 int heads,
                 std::span<const std::int64_t> tokens,
                 std::span<std::int64_t> rows) {
  std::int64_t hash = tokens[0] * layout.multipliers[0];
  std::size_t column = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    hash ^= tokens[i] * layout.multipliers[i];
    for (int head = 0; head < heads; ++head, ++column) {
      rows[column] = hash % layout.primes[column] + layout.offsets[column];
    }
  }
}

void engram_add(const EngramGate& gate,
                std::span<const float> keys,
                std::span<const float> value,
                bool dead,
                std::span<float> streams,
                std::span<float> gates) {
  const std::size_t hidden = value.size();
  constexpr float kFloor = 1e-6F;
  const auto scale = static_cast<float>(std::pow(static_cast<double>(hidden), -0.5));
  std::vector<float> weighted(hidden);
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const std::span<float> stream = streams.subspan(i * hidden, hidden);
    const std::span<const float> key = keys.subspan(i * hidden, hidden);
    for (std::size_t c = 0; c < hidden; ++c) {
      weighted[c] = stream[c] * gate.q_weight[i * hidden + c] * gate.k_weight[i * hidden + c];
    }
    float d = dot(weighted, key);
    d = d * inverse_root(mean_square(stream) + gate.eps) *
        inverse_root(mean_square(key) + gate.eps) * scale;
    gates[i] = dead ? 0.0F : sigmoid(std::copysign(std::sqrt(std::max(std::fabs(d), kFloor)), d));
    for (std::size_t c = 0; c < hidden; ++c) {
      stream[c] += gates[i] * value[c];
    }
  }
}

}  // namespace galley::kernels::reference
