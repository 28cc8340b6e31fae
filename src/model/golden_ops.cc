#include "model/golden_ops.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "kernels/formats.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/quantise.h"
#include "model/golden_compare.h"

namespace galley::model {
namespace {

namespace ops = kernels::reference;

constexpr double kTolerance = 1e-5;  // times the largest magnitude of the golden, at least one

// Runs every operation on the inputs of the golden file and gathers an outcome a tensor.
class OpsCheck {
 public:
  explicit OpsCheck(Golden& golden) : golden_(golden) {}

  std::vector<GoldenOutcome> run() {
    tables();
    weights();
    fake_quantise();
    rms_norm();
    rope();
    hyper_connections();
    router();
    expert();
    attention_with_sink();
    compressors();
    compressor_v41();
    indexer();
    engram_hash();
    report_.file_problems(golden_);
    return report_.take();
  }

 private:
  std::vector<float> floats(const std::string& tensor, std::size_t count) {
    return golden_.floats(tensor, count);
  }
  std::vector<std::int64_t> integers(const std::string& tensor,
                                     std::size_t count,
                                     IntegerRange range = {}) {
    return golden_.integers(tensor, range, count);
  }

  void near(const std::string& tensor, std::span<const float> got) {
    const std::vector<float> want = floats(tensor, got.size());
    double largest = 1.0;
    for (const float value : want) {
      largest =
          std::isfinite(value) ? std::max(largest, std::fabs(static_cast<double>(value))) : largest;
    }
    report_.compare(tensor, want, got, {.max_abs = kTolerance * largest});
  }
  // Bit for bit, NaN like NaN.
  void exact(const std::string& tensor, std::span<const float> got) {
    const std::vector<float> want = floats(tensor, got.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool same = std::isnan(want[i])
                            ? std::isnan(got[i])
                            : want[i] == got[i] && std::signbit(want[i]) == std::signbit(got[i]);
      different += same ? 0 : 1;
    }
    report_.count(tensor, different, got.size(), 0);
  }
  void exact(const std::string& tensor, const std::vector<std::int64_t>& got) {
    report_.count(tensor, mismatches(integers(tensor, got.size()), got), got.size(), 0);
  }

  // `f(row, out, index)` over rows of `width`, out of `out_width`.
  template <class F>
  static std::vector<float> by_row(const std::vector<float>& x,
                                   std::size_t width,
                                   std::size_t out_width,
                                   F f) {
    std::vector<float> out(x.size() / width * out_width);
    for (std::size_t r = 0; r < x.size() / width; ++r) {
      f(std::span(x).subspan(r * width, width), std::span(out).subspan(r * out_width, out_width),
        r);
    }
    return out;
  }
  // y = W x of every row, W[out_width, width] in float32.
  static std::vector<float> linear(const std::vector<float>& w,
                                   const std::vector<float>& x,
                                   std::size_t width,
                                   std::size_t out_width) {
    const kernels::Weight weight = {.format = kernels::WeightFormat::kF32,
                                    .rows = out_width,
                                    .columns = width,
                                    .data = reinterpret_cast<const std::byte*>(w.data())};
    return by_row(x, width, out_width,
                  [&](auto in, auto out, auto) { ops::linear(weight, 0, in, out); });
  }
  using Quantise = void (*)(std::span<float>, std::size_t, ops::QuantiseParts);
  // The first `channels` of every row quantised.
  static std::vector<float> quantised(std::vector<float> x,
                                      std::size_t width,
                                      std::size_t channels,
                                      std::size_t block,
                                      Quantise quantise) {
    for (std::size_t r = 0; r < x.size() / width; ++r) {
      quantise(std::span(x).subspan(r * width, channels), block, {});
    }
    return x;
  }

  void tables() {
    std::vector<float> e4m3(256);
    std::vector<float> e8m0(256);
    std::vector<float> e2m1(16);
    for (unsigned code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      e4m3[code] = kernels::from_e4m3(byte);
      e8m0[code] = kernels::from_e8m0(byte);
    }
    for (unsigned code = 0; code < 16; ++code) {
      e2m1[code] = kernels::from_e2m1(static_cast<std::uint8_t>(code));
    }
    exact("tables.e4m3", e4m3);
    exact("tables.e8m0", e8m0);
    exact("tables.e2m1", e2m1);
    bool back = true;
    for (unsigned code = 0; code < 256; ++code) {
      back = back && (std::isnan(e4m3[code]) || kernels::to_e4m3(e4m3[code]) == code);
    }
    for (unsigned code = 0; code < 16; ++code) {
      back = back && kernels::to_e2m1(e2m1[code]) == code;
    }
    report_.require("tables back to codes", back, "a value has another code");
  }

  void weights() {
    struct Case {
      const char* name;
      kernels::WeightFormat format;
      std::size_t block;
      std::size_t rows;
      std::size_t columns;
    };
    for (const Case& c : {Case{"fp8_weight_128", kernels::WeightFormat::kFp8Block, 128, 132, 140},
                          Case{"fp8_weight_32", kernels::WeightFormat::kFp8Block, 32, 70, 45},
                          Case{"fp4_weight", kernels::WeightFormat::kFp4, 32, 16, 128}}) {
      const std::string name = c.name;
      const bool fp4 = c.format == kernels::WeightFormat::kFp4;
      const auto blocks = [&](std::size_t size) { return (size + c.block - 1) / c.block; };
      const auto data = golden_.bytes(name + ".weight", fp4 ? Dtype::kI8 : Dtype::kF8E4m3,
                                      c.rows * c.columns / (fp4 ? 2 : 1));
      const auto scales = golden_.bytes(name + ".scale", Dtype::kF8E8m0,
                                        (fp4 ? c.rows : blocks(c.rows)) * blocks(c.columns));
      const kernels::Weight weight = {.format = c.format,
                                      .scale_format = kernels::ScaleFormat::kE8m0,
                                      .rows = c.rows,
                                      .columns = c.columns,
                                      .block = c.block,
                                      .data = data.data(),
                                      .scales = scales.data()};
      std::vector<float> got(c.rows * c.columns);
      for (std::size_t r = 0; r < c.rows; ++r) {
        kernels::dequantise_row(weight, r, std::span(got).subspan(r * c.columns, c.columns));
      }
      exact(name + ".dequant", got);
    }
  }

  void fake_quantise() {
    struct Case {
      const char* name;
      Quantise quantise;
      std::size_t block;
    };
    constexpr std::size_t kRows = 12;
    constexpr std::size_t kWidth = 128;
    for (const Case& c :
         {Case{"fp8_b128", ops::fake_quantise_fp8, 128},
          Case{"fp8_b64", ops::fake_quantise_fp8, 64}, Case{"fp8_b32", ops::fake_quantise_fp8, 32},
          Case{"fp4_b32_ue8m0", ops::fake_quantise_fp4, 32},
          Case{"fp4_b16_e4m3", ops::fake_quantise_fp4_e4m3, 16}}) {
      const std::string name = std::string("fake_quant.") + c.name;
      std::vector<float> x = floats("fake_quant.x", kRows * kWidth);
      std::vector<std::uint8_t> codes(x.size());
      std::vector<float> scales(x.size() / c.block);
      for (std::size_t r = 0; r < kRows; ++r) {
        c.quantise(std::span(x).subspan(r * kWidth, kWidth), c.block,
                   {.codes = std::span(codes).subspan(r * kWidth, kWidth),
                    .scales = std::span(scales).subspan(r * kWidth / c.block, kWidth / c.block)});
      }
      report_.count(name, mismatches_of_values(floats(name, x.size()), x), x.size(), 0);
      exact(name + "_code", std::vector<std::int64_t>(codes.begin(), codes.end()));
      exact(name + "_scale", scales);
    }
  }
  // By value: zeros of either sign are equal.
  static std::size_t mismatches_of_values(const std::vector<float>& a,
                                          const std::vector<float>& b) {
    std::size_t different = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      different += a[i] == b[i] ? 0 : 1;
    }
    return different;
  }

  void rms_norm() {
    const auto x = floats("rmsnorm.x", std::size_t{5} * 512);
    const auto w = floats("rmsnorm.w", 512);
    const auto norm = [&](std::span<const float> weight, float eps) {
      return by_row(x, w.size(), w.size(),
                    [&](auto in, auto out, auto) { ops::rms_norm(in, weight, eps, out); });
    };
    near("rmsnorm.y_1e6", norm(w, 1e-6F));
    near("rmsnorm.y_1e20", norm(w, 1e-20F));
    near("rmsnorm.unweighted_1e6", norm({}, 1e-6F));
  }

  void rope() {
    const ops::RopeScaling yarn = {
        .factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536};
    const auto main = ops::rope_frequencies(10000, 64, nullptr);
    const auto compress = ops::rope_frequencies(160000, 64, &yarn);
    near("rope.freq_main", main);
    near("rope.freq_compress", compress);
    const auto positions = integers("rope.pos", 10, {0, std::int64_t{1} << 30});
    const auto rotate = [&](std::vector<float> x, std::span<const float> table, bool inverse) {
      for (std::size_t r = 0; r < x.size() / 96; ++r) {
        ops::rope(std::span(x).subspan(r * 96, 96), positions[r / 2], table, inverse);
      }
      return x;
    };
    const auto x = floats("rope.x", std::size_t{20} * 96);
    near("rope.y_main", rotate(x, main, false));
    const auto table = floats("rope.freq_compress", 32);
    const auto rotated = rotate(x, table, false);
    near("rope.y_compress", rotated);
    near("rope.y_inverse", rotate(rotated, table, true));
  }

  void hyper_connections() {
    const auto fn = floats("mhc.fn", std::size_t{24} * 256);
    const auto base = floats("mhc.base", 24);
    const auto scale = floats("mhc.scale", 3);
    const auto y = floats("mhc.y", std::size_t{6} * 64);
    const kernels::MixOptions options = {.norm_eps = 1e-6F, .eps = 1e-6F, .sinkhorn_passes = 20};
    std::vector<float> pre(24);
    std::vector<float> post(24);
    std::vector<float> comb(96);
    std::vector<float> expanded = floats("mhc.X", std::size_t{24} * 64);
    std::vector<float> collapsed(std::size_t{6} * 64);
    std::vector<float> head(24);
    std::vector<float> head_collapsed(std::size_t{6} * 64);
    const auto head_fn = floats("mhc.head_fn", std::size_t{4} * 256);
    const auto head_base = floats("mhc.head_base", 4);
    const auto head_scale = floats("mhc.head_scale", 1);
    for (std::size_t t = 0; t < 6; ++t) {
      const auto streams = std::span(expanded).subspan(t * 256, 256);
      const auto row = [t](std::vector<float>& v, std::size_t n) {
        return std::span(v).subspan(t * n, n);
      };
      ops::mix(streams, {fn, base, scale}, options, row(pre, 4), row(post, 4), row(comb, 16));
      ops::mix(streams, {head_fn, head_base, head_scale}, options, row(head, 4), {}, {});
      ops::collapse(streams, row(pre, 4), row(collapsed, 64));
      ops::collapse(streams, row(head, 4), row(head_collapsed, 64));
      ops::expand(std::span(y).subspan(t * 64, 64), row(post, 4), row(comb, 16), streams);
    }
    near("mhc.pre", pre);
    near("mhc.post", post);
    near("mhc.comb", comb);
    near("mhc.collapsed", collapsed);
    near("mhc.expanded", expanded);
    near("mhc.head_pre", head);
    near("mhc.head_collapsed", head_collapsed);
    for (const auto& [name, passes] : {std::pair{"it1", 1}, {"it2", 2}, {"it3", 3}, {"it20", 20}}) {
      auto logits = floats("sinkhorn.logits", 16);
      ops::sinkhorn(logits, 4, passes, 1e-6F);
      near(std::string("sinkhorn.") + name, logits);
    }
  }

  void router() {
    constexpr std::size_t kRows = 32;
    constexpr std::size_t kExperts = 8;
    const auto logits =
        linear(floats("router.gate", kExperts * 64), floats("router.x", kRows * 64), 64, kExperts);
    const auto scores = by_row(logits, kExperts, kExperts,
                               [](auto in, auto out, auto) { ops::router_scores(in, 1.0F, out); });
    near("router.scores", scores);
    const auto bias = floats("router.bias", kExperts);
    // Lists are compared as sets: both sides ascending, the weights beside their experts.
    const auto ascending = [](std::vector<std::int64_t>& experts, std::vector<float>& weights) {
      for (std::size_t r = 0; r < experts.size(); r += 2) {
        if (experts[r] > experts[r + 1]) {
          std::swap(experts[r], experts[r + 1]);
          std::swap(weights[r], weights[r + 1]);
        }
      }
    };
    // Reports the weights; returns both lists.
    const auto compare = [&](const std::string& list, const std::string& weight, auto route) {
      std::vector<std::int64_t> want = integers(list, kRows * 2, {0, kExperts - 1});
      std::vector<float> want_weights = floats(weight, kRows * 2);
      std::vector<std::int64_t> got;
      std::vector<float> got_weights;
      for (std::size_t r = 0; r < kRows; ++r) {
        std::vector<std::int32_t> experts(2);
        std::vector<float> weights(2);
        route(std::span(scores).subspan(r * kExperts, kExperts), std::span(want).subspan(2 * r, 2),
              ops::Routing{experts, weights});
        got.insert(got.end(), experts.begin(), experts.end());
        got_weights.insert(got_weights.end(), weights.begin(), weights.end());
      }
      ascending(want, want_weights);
      ascending(got, got_weights);
      report_.compare(weight, want_weights, got_weights, {.max_abs = kTolerance});
      return std::pair(std::move(want), std::move(got));
    };
    const auto [want, got] = compare(
        "router.idx", "router.weights",
        [&](auto row, auto, ops::Routing routing) { ops::route(row, bias, 1.5F, routing); });
    report_.count("router.idx", mismatches(want, got), want.size(), 0);
    // The table of a hash layer names the experts: they are an input.
    compare("router.hash_idx", "router.hash_weights", [](auto row, auto ids, ops::Routing routing) {
      ops::route_fixed(row, ids, 1.5F, routing);
    });
  }

  void expert() {
    constexpr std::size_t kRows = 8;
    constexpr std::size_t kWidth = 64;
    const auto x = floats("expert.x", kRows * kWidth);
    const auto w2 = floats("expert.w2", kWidth * kWidth);
    near("expert.gate_pre", linear(floats("expert.w1", kWidth * kWidth), x, kWidth, kWidth));
    near("expert.up_pre", linear(floats("expert.w3", kWidth * kWidth), x, kWidth, kWidth));
    const auto gates = floats("expert.gate_pre", kRows * kWidth);
    const auto ups = floats("expert.up_pre", kRows * kWidth);
    const auto weights = floats("expert.weight", kRows);
    const auto inner = [&](bool weighted) {
      return by_row(gates, kWidth, kWidth, [&](auto in, auto out, auto r) {
        ops::swiglu(in, std::span(ups).subspan(r * kWidth, kWidth), 10.0F,
                    weighted ? weights[r] : 1.0F, out);
      });
    };
    near("expert.h", inner(false));
    near("expert.y", linear(w2, inner(false), kWidth, kWidth));
    near("expert.y_weighted", linear(w2, inner(true), kWidth, kWidth));
  }

  void attention_with_sink() {
    const auto q = floats("attention_sink.q", std::size_t{12} * 128);
    const auto kv = floats("attention_sink.kv", std::size_t{20} * 128);
    const auto sink = floats("attention_sink.sink", 4);
    const auto visible = integers("attention_sink.visible", 60, {0, 1});
    near("attention_sink.out", by_row(q, 128, 128, [&](auto in, auto o, auto r) {
           std::vector<const float*> keys;
           for (std::size_t j = 0; j < 20; ++j) {
             if (visible[r / 4 * 20 + j] != 0) {
               keys.push_back(kv.data() + j * 128);
             }
           }
           ops::attend(in, keys, 1.0F / std::sqrt(128.0F), sink[r % 4], o);
         }));
  }

  struct Pooling {
    std::size_t tokens;
    std::size_t width;
    std::size_t ratio;
    bool overlap;
    bool bias;  // `ape` a token of a group
  };
  std::vector<float> pooled(const std::string& op, const Pooling& p) {
    const std::size_t channels = p.overlap ? 2 * p.width : p.width;
    const auto a = floats(op + ".a", p.tokens * channels);
    auto g = floats(op + ".g", p.tokens * channels);
    if (p.bias) {
      const auto bias = floats(op + ".ape", p.ratio * channels);
      for (std::size_t i = 0; i < g.size(); ++i) {
        g[i] += bias[i % bias.size()];
      }
    }
    const std::size_t groups = p.tokens / p.ratio;
    std::vector<float> out(groups * p.width);
    for (std::size_t j = 0; j < groups; ++j) {
      std::vector<const float*> values;
      std::vector<const float*> gates;
      for (std::size_t s = 0; p.overlap && s < p.ratio; ++s) {
        values.push_back(j == 0 ? nullptr : a.data() + ((j - 1) * p.ratio + s) * channels);
        gates.push_back(j == 0 ? nullptr : g.data() + ((j - 1) * p.ratio + s) * channels);
      }
      for (std::size_t s = 0; s < p.ratio; ++s) {
        values.push_back(a.data() + (j * p.ratio + s) * channels + channels - p.width);
        gates.push_back(g.data() + (j * p.ratio + s) * channels + channels - p.width);
      }
      ops::pool(values, gates, std::span(out).subspan(j * p.width, p.width));
    }
    return out;
  }

  void compressors() {
    const auto csa = pooled("compressor_csa", {16, 512, 4, true, true});
    near("compressor_csa.pooled", csa);
    near("compressor_hca.pooled", pooled("compressor_hca", {256, 32, 128, false, true}));
    const auto table = floats("rope.freq_compress", 32);
    const auto norm = floats("compressor_csa.norm", 512);
    near("compressor_csa.row", by_row(csa, 512, 512, [&](auto in, auto out, auto r) {
           ops::rms_norm(in, norm, 1e-6F, out);
           ops::rope(out, static_cast<std::int64_t>(4 * r), table);
         }));
    near("compressor_csa.row_q", quantised(floats("compressor_csa.row", std::size_t{4} * 512), 512,
                                           448, 64, ops::fake_quantise_fp8));
  }

  void compressor_v41() {
    const auto table = floats("rope.freq_compress", 32);
    const auto norm = floats("compressor_csa2.norm", 512);
    const auto latent =
        by_row(pooled("compressor_csa2", {8, 512, 2, false, false}), 512, 512,
               [&](auto in, auto out, auto) { ops::rms_norm(in, norm, 1e-20F, out); });
    near("compressor_csa2.latent", latent);
    const auto rotate = [&table](std::span<float> row, std::size_t r) {
      ops::rope(row, static_cast<std::int64_t>(2 * r), table);
    };
    const auto k_norm = floats("compressor_csa2.k_norm", 64);
    const auto projected =
        linear(floats("compressor_csa2.wk", std::size_t{64} * 512), latent, 512, 64);
    near("compressor_csa2.key", by_row(projected, 64, 64, [&](auto in, auto out, auto r) {
           ops::rms_norm(in, k_norm, 1e-20F, out);
           rotate(out, r);
         }));
    near("compressor_csa2.key_q", quantised(floats("compressor_csa2.key", std::size_t{4} * 64), 64,
                                            64, 32, ops::fake_quantise_fp4));
    near("compressor_csa2.row", by_row(latent, 512, 512, [&](auto in, auto out, auto r) {
           std::ranges::copy(in, out.begin());
           rotate(out, r);
         }));
    near("compressor_csa2.row_q", quantised(floats("compressor_csa2.row", std::size_t{4} * 512),
                                            512, 512, 16, ops::fake_quantise_fp4_e4m3));
  }

  static constexpr std::size_t kQueries = 12;
  static constexpr std::size_t kKeys = 40;

  // Scores of every query and the keys it sees; -inf for the others.
  std::vector<float> index_scores(const std::vector<float>& queries,
                                  const std::vector<float>& keys,
                                  const std::vector<std::int64_t>& visible) {
    const auto w = floats("indexer.w", kQueries * 4);
    std::vector<float> out(kQueries * kKeys, -std::numeric_limits<float>::infinity());
    for (std::size_t t = 0; t < kQueries; ++t) {
      std::vector<float> weights(4);
      for (std::size_t h = 0; h < 4; ++h) {
        weights[h] = w[t * 4 + h] * static_cast<float>(std::pow(128.0, -0.5) * std::pow(4.0, -0.5));
      }
      for (std::size_t j = 0; j < static_cast<std::size_t>(visible[t]); ++j) {
        out[t * kKeys + j] = ops::index_score(std::span(queries).subspan(t * 512, 512), weights,
                                              std::span(keys).subspan(j * 128, 128));
      }
    }
    return out;
  }
  // Lists of eight, ascending and padded.
  static std::vector<std::int64_t> lists(const std::vector<float>& scores) {
    constexpr std::size_t kChosen = 8;
    std::vector<std::int64_t> out;
    for (std::size_t t = 0; t < kQueries; ++t) {
      const auto chosen = ops::top_k(std::span(scores).subspan(t * kKeys, kKeys), kChosen);
      out.insert(out.end(), chosen.begin(), chosen.end());
      out.resize((t + 1) * kChosen, -1);
    }
    return out;
  }

  void indexer() {
    const auto q = floats("indexer.q", kQueries * 512);
    const auto k = floats("indexer.k", kKeys * 128);
    const auto visible = integers("indexer.n_visible", kQueries, {1, kKeys});
    const auto hadamard = [](const std::vector<float>& x) {
      return by_row(x, 128, 128, [](auto in, auto out, auto) {
        std::ranges::copy(in, out.begin());
        ops::hadamard(out);
      });
    };
    near("indexer.hadamard_q", hadamard(q));
    near("indexer.q_fp4", quantised(floats("indexer.hadamard_q", kQueries * 512), 128, 128, 32,
                                    ops::fake_quantise_fp4));
    near("indexer.k_fp4", quantised(hadamard(k), 128, 128, 32, ops::fake_quantise_fp4));
    const auto plain = index_scores(q, k, visible);
    const auto v4 = index_scores(floats("indexer.q_fp4", kQueries * 512),
                                 floats("indexer.k_fp4", kKeys * 128), visible);
    near("indexer.score_plain", plain);
    near("indexer.score_v4", v4);
    exact("indexer.top8_plain", lists(plain));
    exact("indexer.top8_v4", lists(v4));
    constexpr std::size_t kBlock = 8;
    std::vector<float> inside = plain;
    std::vector<std::int64_t> candidates(kQueries * kKeys);
    for (std::size_t t = 0; t < kQueries; ++t) {
      const auto seen = static_cast<std::size_t>(visible[t]);
      std::vector<std::uint8_t> kept(seen);
      ops::keep_candidates(std::span(plain).subspan(t * kKeys, seen), kBlock, 3, kept);
      for (std::size_t j = 0; j < kKeys; ++j) {
        // The golden keeps whole blocks, positions after the query included.
        const std::size_t first = j / kBlock * kBlock;
        candidates[t * kKeys + j] = first < seen ? kept[first] : 0;
        if (j < seen && kept[j] == 0) {
          inside[t * kKeys + j] = -std::numeric_limits<float>::infinity();
        }
      }
    }
    exact("indexer.candidates", candidates);
    exact("indexer.top8_in_candidates", lists(inside));
  }

  void engram_hash() {
    constexpr std::size_t kRows = 4;
    constexpr std::size_t kColumns = 24;
    const auto layouts = released_engram();
    const auto tokens = integers("engram_hash.t", kRows * 4, {0, kCompressed - 1});
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string layer = i == 0 ? "L1" : "L14";
      exact("engram_hash.mult_" + layer, layouts[i].multipliers);
      exact("engram_hash.primes_" + layer, layouts[i].primes);
      std::vector<std::int64_t> rows(kRows * kColumns);
      for (std::size_t t = 0; t < kRows; ++t) {
        ops::engram_hash(layouts[i], 8, std::span(tokens).subspan(t * 4, 4),
                         std::span(rows).subspan(t * kColumns, kColumns));
      }
      exact("engram_hash." + layer, rows);
    }
  }

 public:
  static constexpr std::int64_t kCompressed = 99'092;
  // Layers 1 and 14 of the released V4.1-Flash.
  static std::vector<kernels::EngramLayout> released_engram() {
    return ops::engram_layouts({.layers = {1, 14},
                                .vocabulary = 16'000'000,
                                .ngram = 4,
                                .heads = 8,
                                .compressed_vocabulary = kCompressed});
  }

 private:
  Golden& golden_;
  Report report_{"ops/"};
};

// ops.json says the same as the file beside it, and the sizes of the released engram tables. Its
// `engram_normalise` is for makers of engram_token_map.bin, which comes ready-made here.
Result<std::vector<GoldenOutcome>> check_list(const std::filesystem::path& path,
                                              const Safetensors& file) {
  constexpr std::size_t kListBytesMax = std::size_t{1} << 20U;
  GALLEY_TRY(const std::string text, read_file(path.string(), Bytes(kListBytesMax)));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  Report report("ops/ops.json ");
  std::set<std::string, std::less<>> listed;
  nlohmann::json rows;
  if (!json.is_object()) {
    return fail(Code::kCorruption, "want an object of operations", path.string());
  }
  bool readable = true;
  for (const auto& [operation, entry] : json.items()) {
    if (operation == "engram_normalise") {
      continue;
    }
    const nlohmann::json tensors =
        entry.is_object() ? entry.value("tensors", nlohmann::json()) : nlohmann::json();
    readable = readable && tensors.is_array();
    for (const nlohmann::json& tensor : tensors) {
      readable = readable && tensor.is_string();
      listed.insert(operation + "." + (tensor.is_string() ? tensor.get<std::string>() : "?"));
    }
    if (operation == "engram_hash" && entry.is_object()) {
      rows = entry.value("table_rows", nlohmann::json());
    }
  }
  report.require("lists tensors", readable, "want {operation: {tensors: [...]}}");
  for (const auto& [tensor, view] : file.tensors()) {
    report.require(tensor, listed.erase(tensor) == 1, "is not listed");
  }
  for (const std::string& tensor : listed) {
    report.require(tensor, false, "is listed, but not in the file");
  }
  const auto layouts = OpsCheck::released_engram();
  const nlohmann::json want = {layouts[0].rows, layouts[1].rows};
  report.require("engram_hash.table_rows", rows == want,
                 fmt::format("file says {}, the layout has {}", rows.dump(), want.dump()));
  return report.take();
}

}  // namespace

Result<std::vector<GoldenOutcome>> check_golden_ops(const std::filesystem::path& folder) {
  GALLEY_TRY(const Safetensors file, Safetensors::open(folder / "ops.safetensors"));
  Golden golden(file);
  std::vector<GoldenOutcome> outcomes = OpsCheck(golden).run();
  GALLEY_TRY(const std::vector<GoldenOutcome> list, check_list(folder / "ops.json", file));
  outcomes.insert(outcomes.end(), list.begin(), list.end());
  return outcomes;
}

}  // namespace galley::model
