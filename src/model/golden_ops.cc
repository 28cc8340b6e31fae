#include "model/golden_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/formats.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/quantise.h"

namespace galley::model {
namespace {

namespace ops = kernels::reference;

// Runs every operation on the inputs of the golden file and gathers one outcome a tensor.
class OpsCheck {
 public:
  explicit OpsCheck(const Safetensors& file) : file_(file) {}

  std::vector<GoldenOutcome> run() {
    tables();
    weights();
    fake_quantise();
    rms_norm();
    rope();
    hyper_connections();
    router_and_expert();
    attention_with_sink();
    compressors();
    indexer();
    engram_hash();
    return std::move(outcomes_);
  }

 private:
  const TensorView& view(const std::string& tensor) {
    const TensorView* const found = file_.find(tensor);
    GALLEY_ASSERT(found != nullptr);
    return *found;
  }
  template <class T>
  std::vector<T> read(const std::string& tensor) {
    const TensorView& found = view(tensor);
    GALLEY_ASSERT(bytes_of(found.dtype) == sizeof(T));
    std::vector<T> values(found.bytes.size() / sizeof(T));
    std::memcpy(values.data(), found.bytes.data(), found.bytes.size());
    return values;
  }
  std::vector<float> floats(const std::string& tensor) { return read<float>(tensor); }

  // 1e-5 x max(1, largest magnitude).
  void expect_near(const std::vector<float>& want,
                   const std::vector<float>& got,
                   const std::string& what) {
    GoldenOutcome outcome{.name = "ops/" + what, .passed = want.size() == got.size()};
    float largest = 1.0F;
    for (const float value : want) {
      largest = std::isfinite(value) ? std::max(largest, std::fabs(value)) : largest;
    }
    for (std::size_t i = 0; i < std::min(want.size(), got.size()); ++i) {
      const double error =
          want[i] == got[i] ? 0.0 : std::fabs(static_cast<double>(want[i]) - got[i]);
      outcome.max_error = std::max(outcome.max_error, std::isnan(error) ? HUGE_VAL : error);
    }
    outcome.passed = outcome.passed && outcome.max_error <= 1e-5 * static_cast<double>(largest);
    outcomes_.push_back(std::move(outcome));
  }

  // Exact; many calls of one name make one outcome.
  void expect(bool holds, const std::string& what) {
    const auto it = std::ranges::find(outcomes_, "ops/" + what, &GoldenOutcome::name);
    if (it == outcomes_.end()) {
      outcomes_.push_back({.name = "ops/" + what, .passed = holds});
    } else {
      it->passed = it->passed && holds;
    }
  }

  // `f(row, out)` over rows of `width`, out of `out_width`.
  template <class F>
  static std::vector<float> by_row(std::vector<float> x,
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

  void tables() {
    const auto e4m3 = floats("tables.e4m3");
    const auto e8m0 = floats("tables.e8m0");
    const auto e2m1 = floats("tables.e2m1");
    for (unsigned code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      if (std::isnan(e4m3[code])) {
        expect(std::isnan(kernels::from_e4m3(byte)), "tables");
      } else {
        expect(e4m3[code] == kernels::from_e4m3(byte), "tables");
        expect(byte == kernels::to_e4m3(e4m3[code]), "tables");
      }
      if (!std::isnan(e8m0[code])) {
        expect(e8m0[code] == kernels::from_e8m0(byte), "tables");
      }
    }
    for (unsigned code = 0; code < 16; ++code) {
      expect(e2m1[code] == kernels::from_e2m1(static_cast<std::uint8_t>(code)), "tables");
      expect(code == kernels::to_e2m1(e2m1[code]), "tables");
    }
  }

  void weights() {
    struct Case {
      const char* name;
      kernels::WeightFormat format;
      std::size_t block;
    };
    for (const Case& c : {Case{"fp8_weight_128", kernels::WeightFormat::kFp8Block, 128},
                          Case{"fp8_weight_32", kernels::WeightFormat::kFp8Block, 32},
                          Case{"fp4_weight", kernels::WeightFormat::kFp4, 32}}) {
      const std::string name = c.name;
      const TensorView& dequantised = view(name + ".dequant");
      const auto rows = static_cast<std::size_t>(dequantised.shape[0]);
      const auto columns = static_cast<std::size_t>(dequantised.shape[1]);
      const kernels::Weight weight = {.format = c.format,
                                      .scale_format = kernels::ScaleFormat::kE8m0,
                                      .rows = rows,
                                      .columns = columns,
                                      .block = c.block,
                                      .data = view(name + ".weight").bytes.data(),
                                      .scales = view(name + ".scale").bytes.data()};
      const auto want = floats(name + ".dequant");
      std::vector<float> row(columns);
      for (std::size_t r = 0; r < rows; ++r) {
        kernels::dequantise_row(weight, r, row);
        expect(std::equal(row.begin(), row.end(),
                          want.begin() + static_cast<std::ptrdiff_t>(r * columns)),
               "weights");
      }
    }
  }

  void fake_quantise() {
    using Quantise = void (*)(std::span<float>, std::size_t, ops::QuantiseParts);
    struct Case {
      const char* name;
      Quantise quantise;
      std::size_t block;
    };
    for (const Case& c :
         {Case{"fp8_b128", ops::fake_quantise_fp8, 128},
          Case{"fp8_b64", ops::fake_quantise_fp8, 64}, Case{"fp8_b32", ops::fake_quantise_fp8, 32},
          Case{"fp4_b32_ue8m0", ops::fake_quantise_fp4, 32},
          Case{"fp4_b16_e4m3", ops::fake_quantise_fp4_e4m3, 16}}) {
      const std::string name = std::string("fake_quant.") + c.name;
      std::vector<float> x = floats("fake_quant.x");
      std::vector<std::uint8_t> codes(x.size());
      std::vector<float> scales(x.size() / c.block);
      constexpr std::size_t kWidth = 128;
      for (std::size_t r = 0; r < x.size() / kWidth; ++r) {
        c.quantise(std::span(x).subspan(r * kWidth, kWidth), c.block,
                   {.codes = std::span(codes).subspan(r * kWidth, kWidth),
                    .scales = std::span(scales).subspan(r * kWidth / c.block, kWidth / c.block)});
      }
      expect(floats(name) == x, "fake_quantise");
      expect(read<std::uint8_t>(name + "_code") == codes, "fake_quantise");
      expect(floats(name + "_scale") == scales, "fake_quantise");
    }
  }

  void rms_norm() {
    const auto x = floats("rmsnorm.x");
    const auto w = floats("rmsnorm.w");
    const auto norm = [&](std::span<const float> weight, float eps) {
      return by_row(x, w.size(), w.size(),
                    [&](auto in, auto out, auto) { ops::rms_norm(in, weight, eps, out); });
    };
    expect_near(floats("rmsnorm.y_1e6"), norm(w, 1e-6F), "1e-6");
    expect_near(floats("rmsnorm.y_1e20"), norm(w, 1e-20F), "1e-20");
    expect_near(floats("rmsnorm.unweighted_1e6"), norm({}, 1e-6F), "unweighted");
  }

  void rope() {
    const ops::RopeScaling yarn = {
        .factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536};
    const auto main = ops::rope_frequencies(10000, 64, nullptr);
    const auto compress = ops::rope_frequencies(160000, 64, &yarn);
    expect_near(floats("rope.freq_main"), main, "main table");
    expect_near(floats("rope.freq_compress"), compress, "compress table");
    const auto positions = read<std::int64_t>("rope.pos");
    const auto rotate = [&](std::vector<float> x, std::span<const float> table, bool inverse) {
      for (std::size_t r = 0; r < x.size() / 96; ++r) {
        ops::rope(std::span(x).subspan(r * 96, 96), positions[r / 2], table, inverse);
      }
      return x;
    };
    expect_near(floats("rope.y_main"), rotate(floats("rope.x"), main, false), "main");
    const auto rotated = rotate(floats("rope.x"), floats("rope.freq_compress"), false);
    expect_near(floats("rope.y_compress"), rotated, "compress");
    expect_near(floats("rope.y_inverse"), rotate(rotated, floats("rope.freq_compress"), true),
                "inverse");
  }

  void hyper_connections() {
    const auto fn = floats("mhc.fn");
    const auto base = floats("mhc.base");
    const auto scale = floats("mhc.scale");
    const auto y = floats("mhc.y");
    const ops::MixOptions options = {.norm_eps = 1e-6F, .eps = 1e-6F, .sinkhorn_passes = 20};
    std::vector<float> pre(24);
    std::vector<float> post(24);
    std::vector<float> comb(96);
    std::vector<float> expanded = floats("mhc.X");
    std::vector<float> collapsed(std::size_t{6} * 64);
    std::vector<float> head(24);
    const auto head_fn = floats("mhc.head_fn");
    const auto head_base = floats("mhc.head_base");
    const auto head_scale = floats("mhc.head_scale");
    for (std::size_t t = 0; t < 6; ++t) {
      const auto streams = std::span(expanded).subspan(t * 256, 256);
      const auto row = [t](std::vector<float>& v, std::size_t n) {
        return std::span(v).subspan(t * n, n);
      };
      ops::mix(streams, {fn, base, scale}, options, row(pre, 4), row(post, 4), row(comb, 16));
      ops::mix_head(streams, {head_fn, head_base, head_scale}, options, row(head, 4));
      ops::collapse(streams, row(pre, 4), row(collapsed, 64));
      ops::expand(std::span(y).subspan(t * 64, 64), row(post, 4), row(comb, 16), streams);
    }
    expect_near(floats("mhc.pre"), pre, "pre");
    expect_near(floats("mhc.post"), post, "post");
    expect_near(floats("mhc.comb"), comb, "comb");
    expect_near(floats("mhc.collapsed"), collapsed, "collapsed");
    expect_near(floats("mhc.expanded"), expanded, "expanded");
    expect_near(floats("mhc.head_pre"), head, "head");
    for (const auto& [name, passes] : {std::pair{"it1", 1}, {"it2", 2}, {"it3", 3}, {"it20", 20}}) {
      auto logits = floats("sinkhorn.logits");
      ops::sinkhorn(logits, 4, passes, 1e-6F);
      expect_near(floats(std::string("sinkhorn.") + name), logits, name);
    }
  }

  void router_and_expert() {
    const auto gate = floats("router.gate");
    const kernels::Weight weight = {.format = kernels::WeightFormat::kF32,
                                    .rows = 8,
                                    .columns = 64,
                                    .data = reinterpret_cast<const std::byte*>(gate.data())};
    const auto bias = floats("router.bias");
    const auto want = read<std::int64_t>("router.idx");
    const auto want_weights = floats("router.weights");
    const auto fixed = read<std::int64_t>("router.hash_idx");
    const auto fixed_weights = floats("router.hash_weights");
    const auto scores = by_row(floats("router.x"), 64, 8, [&](auto in, auto out, auto r) {
      std::vector<float> logits(8);
      ops::linear(weight, 0, in, logits);
      ops::router_scores(logits, 1.0F, out);
      const auto check = [&](const std::vector<std::int64_t>& ids, const std::vector<float>& values,
                             std::span<const std::int32_t> experts,
                             std::span<const float> weights) {
        for (std::size_t i = 0; i < 2; ++i) {
          const std::size_t j =
              2 * r + (ids[2 * r] == experts[i] ? 0 : 1);  // lists are compared as sets
          expect(ids[j] == experts[i], "router_and_expert");
          expect(std::fabs(values[j] - weights[i]) <= 1e-5F, "router_and_expert");
        }
      };
      std::vector<std::int32_t> experts(2);
      std::vector<float> weights(2);
      ops::route(out, bias, 1.5F, {experts, weights});
      check(want, want_weights, experts, weights);
      ops::route_fixed(out, std::span(fixed).subspan(2 * r, 2), 1.5F, {experts, weights});
      check(fixed, fixed_weights, experts, weights);
    });
    expect_near(floats("router.scores"), scores, "scores");

    const auto gates = floats("expert.gate_pre");
    const auto ups = floats("expert.up_pre");
    const auto h = by_row(gates, 64, 64, [&](auto in, auto out, auto r) {
      ops::swiglu(in, std::span(ups).subspan(r * 64, 64), 10.0F, 1.0F, out);
    });
    expect_near(floats("expert.h"), h, "h");
  }

  void attention_with_sink() {
    const auto q = floats("attention_sink.q");
    const auto kv = floats("attention_sink.kv");
    const auto sink = floats("attention_sink.sink");
    const auto visible = read<std::uint8_t>("attention_sink.visible");
    const auto out = by_row(q, 128, 128, [&](auto in, auto o, auto r) {
      std::vector<const float*> keys;
      for (std::size_t j = 0; j < 20; ++j) {
        if (visible[r / 4 * 20 + j] != 0) {
          keys.push_back(kv.data() + j * 128);
        }
      }
      ops::attend(in, keys, 1.0F / std::sqrt(128.0F), sink[r % 4], o);
    });
    expect_near(floats("attention_sink.out"), out, "out");
  }

  void compressors() {
    const auto pooled = [&](const std::string& op, std::size_t width, std::size_t ratio,
                            bool overlap, bool ape) {
      const auto a = floats(op + ".a");
      auto g = floats(op + ".g");
      const std::size_t channels = overlap ? 2 * width : width;
      if (ape) {
        const auto bias = floats(op + ".ape");
        for (std::size_t i = 0; i < g.size(); ++i) {
          g[i] += bias[i % bias.size()];
        }
      }
      const std::size_t groups = a.size() / channels / ratio;
      std::vector<float> out(groups * width);
      for (std::size_t j = 0; j < groups; ++j) {
        std::vector<const float*> values;
        std::vector<const float*> gates;
        for (std::size_t s = 0; overlap && s < ratio; ++s) {
          values.push_back(j == 0 ? nullptr : a.data() + ((j - 1) * ratio + s) * channels);
          gates.push_back(j == 0 ? nullptr : g.data() + ((j - 1) * ratio + s) * channels);
        }
        for (std::size_t s = 0; s < ratio; ++s) {
          values.push_back(a.data() + (j * ratio + s) * channels + channels - width);
          gates.push_back(g.data() + (j * ratio + s) * channels + channels - width);
        }
        ops::pool(values, gates, std::span(out).subspan(j * width, width));
      }
      return out;
    };
    const auto csa = pooled("compressor_csa", 512, 4, true, true);
    expect_near(floats("compressor_csa.pooled"), csa, "csa");
    expect_near(floats("compressor_hca.pooled"), pooled("compressor_hca", 32, 128, false, true),
                "hca");
    const auto table = floats("rope.freq_compress");
    const auto norm = floats("compressor_csa.norm");
    const auto row = by_row(csa, 512, 512, [&](auto in, auto out, auto r) {
      ops::rms_norm(in, norm, 1e-6F, out);
      ops::rope(out, static_cast<std::int64_t>(4 * r), table);
    });
    expect_near(floats("compressor_csa.row"), row, "csa row");

    const auto latent_norm = floats("compressor_csa2.norm");
    const auto latent =
        by_row(pooled("compressor_csa2", 512, 2, false, false), 512, 512,
               [&](auto in, auto out, auto) { ops::rms_norm(in, latent_norm, 1e-20F, out); });
    expect_near(floats("compressor_csa2.latent"), latent, "latent");
    const auto wk = floats("compressor_csa2.wk");
    const kernels::Weight weight = {.format = kernels::WeightFormat::kF32,
                                    .rows = 64,
                                    .columns = 512,
                                    .data = reinterpret_cast<const std::byte*>(wk.data())};
    const auto k_norm = floats("compressor_csa2.k_norm");
    auto key = by_row(latent, 512, 64, [&](auto in, auto out, auto r) {
      ops::linear(weight, 0, in, out);
      ops::rms_norm(out, k_norm, 1e-20F, out);
      ops::rope(out, static_cast<std::int64_t>(2 * r), table);
    });
    expect_near(floats("compressor_csa2.key"), key, "key");
  }

  void indexer() {
    const auto q = floats("indexer.q");
    const auto k = floats("indexer.k");
    const auto w = floats("indexer.w");
    const auto visible = read<std::int64_t>("indexer.n_visible");
    auto rotated = by_row(q, 128, 128, [](auto in, auto out, auto) {
      std::ranges::copy(in, out.begin());
      ops::hadamard(out);
    });
    expect_near(floats("indexer.hadamard_q"), rotated, "hadamard");
    const auto scores = [&](const std::vector<float>& queries, const std::vector<float>& keys,
                            std::size_t t) {
      std::vector<float> weights(4);
      for (std::size_t h = 0; h < 4; ++h) {
        weights[h] = w[t * 4 + h] * static_cast<float>(std::pow(128.0, -0.5) * std::pow(4.0, -0.5));
      }
      std::vector<float> out;
      out.reserve(static_cast<std::size_t>(visible[t]));
      for (std::size_t j = 0; j < static_cast<std::size_t>(visible[t]); ++j) {
        out.push_back(ops::index_score(std::span(queries).subspan(t * 512, 512), weights,
                                       std::span(keys).subspan(j * 128, 128)));
      }
      return out;
    };
    const auto expect_list = [&](const std::string& tensor, std::size_t t,
                                 const std::vector<std::int32_t>& got) {
      const auto want = read<std::int64_t>(tensor);
      for (std::size_t i = 0; i < 8; ++i) {
        expect(want[t * 8 + i] == (i < got.size() ? got[i] : -1), "indexer");
      }
    };
    const auto candidates = read<std::uint8_t>("indexer.candidates");
    for (std::size_t t = 0; t < 12; ++t) {
      auto plain = scores(q, k, t);
      expect_list("indexer.top8_plain", t, ops::top_k(plain, 8));
      expect_list("indexer.top8_v4", t,
                  ops::top_k(scores(floats("indexer.q_fp4"), floats("indexer.k_fp4"), t), 8));
      std::vector<std::uint8_t> kept(plain.size());
      ops::keep_candidates(plain, 8, 3, kept);
      for (std::size_t j = 0; j < plain.size(); ++j) {
        expect(candidates[t * 40 + j] == kept[j], "indexer");
        if (kept[j] == 0) {
          plain[j] = -std::numeric_limits<float>::infinity();
        }
      }
      expect_list("indexer.top8_in_candidates", t, ops::top_k(plain, 8));
    }
  }

  void engram_hash() {
    const auto layouts = ops::engram_layouts({.layers = {1, 14},
                                              .vocabulary = 16'000'000,
                                              .ngram = 4,
                                              .heads = 8,
                                              .compressed_vocabulary = 99'092});
    const auto tokens = read<std::int64_t>("engram_hash.t");
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string layer = i == 0 ? "L1" : "L14";
      expect(read<std::int64_t>("engram_hash.mult_" + layer) == layouts[i].multipliers,
             "engram_hash");
      expect(read<std::int64_t>("engram_hash.primes_" + layer) == layouts[i].primes, "engram_hash");
      const auto want = read<std::int64_t>("engram_hash." + layer);
      for (std::size_t t = 0; t < 4; ++t) {
        std::vector<std::int64_t> rows(24);
        ops::engram_hash(layouts[i], 8, std::span(tokens).subspan(t * 4, 4), rows);
        expect(std::equal(rows.begin(), rows.end(),
                          want.begin() + static_cast<std::ptrdiff_t>(t * 24)),
               "engram_hash");
      }
    }
    expect(layouts[0].rows == 384'006'168, "engram_hash");
    expect(layouts[1].rows == 384'016'682, "engram_hash");
  }

  const Safetensors& file_;
  std::vector<GoldenOutcome> outcomes_;
};

}  // namespace

std::vector<GoldenOutcome> check_golden_ops(const Safetensors& ops_file) {
  return OpsCheck(ops_file).run();
}

}  // namespace galley::model
