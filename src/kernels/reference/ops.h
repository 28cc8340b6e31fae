#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/operands.h"
#include "kernels/weight.h"

// The operations of the network, one plain function each. This is the specification every faster
// kernel is compared with. Each function computes one row (one token) from that row alone, in a
// fixed order, so a row's bits never depend on which other rows are computed with it
// (docs/decisions/, determinism contract). All values are float32; products and sums are float32,
// transcendental functions are evaluated in double and rounded once.
//
// Shapes: H hidden size, n streams (hc_mult), D head dim, R rope dims, K columns.
// Ties in every selection: the lower index first. This is the one tie rule of Galley.
namespace galley::kernels::reference {

// sum_k a[k] * b[k] in 16 interleaved partial sums, added as a fixed tree: the one summation order
// of this ISA.
[[nodiscard]] float dot(std::span<const float> a, std::span<const float> b);

// y[r - row_begin] = dot(W[r], x) for r in [row_begin, row_begin + y.size()), x[K].
void linear(const Weight& weight,
            std::size_t row_begin,
            std::span<const float> x,
            std::span<float> y);

// y = x * rsqrt(mean(x^2) + eps) * w; `w` empty: no weight (spec model 2.1). In place allowed.
void rms_norm(std::span<const float> x, std::span<const float> w, float eps, std::span<float> y);

// ---- rotary position (spec model 2.2)
// ---------------------------------------------------------------------------

struct RopeScaling {  // YaRN
  double factor{};
  double beta_fast{};
  double beta_slow{};
  double original_positions{};
};
// R/2 frequencies. `scaling` null: plain table.
[[nodiscard]] std::vector<float> rope_frequencies(double theta,
                                                  std::size_t rope_dims,
                                                  const RopeScaling* scaling);
// Cosines, then sines, of position * f, [2, frequencies.size()]; of -position * f when `inverse`.
void rope_angles(std::int64_t position,
                 std::span<const float> frequencies,
                 bool inverse,
                 std::span<float> angles);
// Rotates interleaved pairs of the last angles.size() channels.
void rotate(std::span<float> row, std::span<const float> angles);
// Both for one row.
void rope(std::span<float> row,
          std::int64_t position,
          std::span<const float> frequencies,
          bool inverse = false);

// ---- hyper-connections (spec model 5)
// ---------------------------------------------------------------------------

// streams[n, H] -> pre[n], post[n], comb[n, n] (comb[j, k]: from stream j to stream k). V4's head
// has pre only: empty post and comb.
void mix(std::span<const float> streams,
         const MixWeights& weights,
         const MixOptions& options,
         std::span<float> pre,
         std::span<float> post,
         std::span<float> comb);
// The same from what `weights.fn` projects, [base.size()], and the mean of the streams' squares.
void mix_coefficients(std::span<const float> projected,
                      float mean_square,
                      const MixWeights& weights,
                      const MixOptions& options,
                      std::span<float> pre,
                      std::span<float> post,
                      std::span<float> comb);
// logits[n, n] -> doubly normalised, exactly `passes` column passes, in place.
void sinkhorn(std::span<float> logits, std::size_t n, int passes, float eps);
// x[H] = sum_i pre[i] * streams[i].
void collapse(std::span<const float> streams, std::span<const float> pre, std::span<float> x);
// streams'[k] = post[k] * y + sum_j comb[j, k] * streams[j], in place.
void expand(std::span<const float> y,
            std::span<const float> post,
            std::span<const float> comb,
            std::span<float> streams);

// ---- mixture of experts (spec model 6)
// --------------------------------------------------------------------------

struct Routing {
  std::span<std::int32_t> experts;  // [k], ascending
  std::span<float> weights;         // [k]
};
// sqrt(softplus(logit / temperature)) per expert.
void router_scores(std::span<const float> logits, float temperature, std::span<float> scores);
// The k best of scores + bias; weights from the unbiased scores, normalised, times `scale`.
void route(std::span<const float> scores,
           std::span<const float> bias,
           float scale,
           Routing routing);
// The same with the experts given (hash layers).
void route_fixed(std::span<const float> scores,
                 std::span<const std::int64_t> experts,
                 float scale,
                 Routing routing);
// h = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight.
void swiglu(std::span<const float> gate,
            std::span<const float> up,
            float limit,
            float weight,
            std::span<float> h);

// ---- attention (spec model 2.4, 4)
// ------------------------------------------------------------------------------

// out[D] = softmax-with-sink(scale * q . key_j) weighted keys; no key: zeros. Keys are rows of D
// floats, in the order given: window rows ascending, then compressed rows ascending.
void attend(std::span<const float> q,
            std::span<const float* const> keys,
            float scale,
            float sink,
            std::span<float> out);

// out[c] = sum_s softmax_s(gates[s][c]) * values[s][c]; a null row is a missing slot (value 0, gate
// -inf).
void pool(std::span<const float* const> values,
          std::span<const float* const> gates,
          std::span<float> out);

// ---- index selection (spec model 4.3, 4.4)
// ----------------------------------------------------------------------

// sum_h weights[h] * max(0, q_h . key), q[heads, d].
[[nodiscard]] float index_score(std::span<const float> q,
                                std::span<const float> weights,
                                std::span<const float> key);
// Indices of the k best scores above -infinity, ascending; a nan is not above it.
[[nodiscard]] std::vector<std::int32_t> top_k(std::span<const float> scores, std::size_t k);
// Marks the positions of the `blocks_kept` best blocks (by their best score; the newest block
// always stays).
void keep_candidates(std::span<const float> scores,
                     std::size_t block,
                     std::size_t blocks_kept,
                     std::span<std::uint8_t> kept);

// ---- engram (spec model 7)
// --------------------------------------------------------------------------------------

struct EngramShape {
  std::vector<int> layers;
  std::int64_t vocabulary{};  // bucket base: primes start here
  int ngram{};
  int heads{};
  std::int64_t compressed_vocabulary{};
};
// Layouts of all engram layers, in order (primes are never reused across layers).
[[nodiscard]] std::vector<EngramLayout> engram_layouts(const EngramShape& shape);
// tokens[ngram]: compressed ids, tokens[i] = i tokens back -> row ids [(ngram - 1) * heads].
void engram_hash(const EngramLayout& layout,
                 int heads,
                 std::span<const std::int64_t> tokens,
                 std::span<std::int64_t> rows);
// streams[n, H] += gate_i * value; keys[n, H]; returns the gates in `gates[n]`. dead: gates are 0.
void engram_add(const EngramGate& gate,
                std::span<const float> keys,
                std::span<const float> value,
                bool dead,
                std::span<float> streams,
                std::span<float> gates);

}  // namespace galley::kernels::reference
