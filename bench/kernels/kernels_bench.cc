// Rates of the kernels beside the limits of the machine they run on. See README.md.
#include <algorithm>
#include <array>
#include <benchmark/benchmark.h>
#include <cstdint>
#include <cstdio>
#include <fmt/core.h>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/ceil_div.h"
#include "base/cpu_count.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "base/worker_pool.h"
#include "bench/kernels/measure.h"
#include "bench/kernels/peer.h"
#include "bench/kernels/random_weights.h"
#include "bench/kernels/report.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/formats.h"
#include "kernels/isa.h"
#include "kernels/matmul_input.h"
#include "kernels/probe.h"
#include "kernels/product.h"
#include "kernels/row_kernels.h"
#include "kernels/tile_kernels.h"
#include "kernels/weight.h"

namespace galley::bench {
namespace {

using kernels::Isa;
using kernels::Product;
using kernels::WeightFormat;

constexpr std::size_t kGiB = std::size_t{1} << 30U;
constexpr std::size_t kOutputs = 5632;
constexpr std::size_t kInputs = 2048;
constexpr std::array<std::size_t, 6> kRows = {1, 4, 16, 64, 256, 512};
constexpr std::array<std::pair<WeightFormat, const char*>, 3> kFormats = {
    {{WeightFormat::kBf16, "bf16"}, {WeightFormat::kFp8Block, "fp8"}, {WeightFormat::kFp4, "fp4"}}};
// The prefill of a mixture: what 512 tokens make of 32 experts, and the shared one.
constexpr std::size_t kTokens = 512;
constexpr std::size_t kExperts = 32;
constexpr std::size_t kChosen = 6;
constexpr std::size_t kIntermediate = 768;
// Index heads of the released models, and keys that fill half of a small second-level cache.
constexpr std::size_t kIndexHeads = 64;
constexpr std::size_t kIndexWidth = 128;
constexpr std::size_t kKeys = 256;  // of a task, as the selection of the device has it

// What all benchmarks share. `memory` is read by probes only, so that they leave no weights of the
// benchmark in any cache.
struct Machine {
  Isa isa;
  bool has_peer;
  RealClock clock;
  WorkerPool one{1};
  WorkerPool all{cpu_count()};
  std::unique_ptr<kernels::Device> device = kernels::create_cpu_device(cpu_count(), isa);
  kernels::ProbeMemory memory{all, kGiB};
  RandomWeights weights{*device, kGiB + (std::size_t{32} << 20U)};
  Lines lines;

  void fill(WeightFormat format) { weights.fill(all, {format, kOutputs, kInputs}); }
};

// y[rows, kOutputs] = x W^T, one matrix after another.
class DenseProducts {
 public:
  DenseProducts(Machine& machine, WorkerPool& pool, std::size_t rows)
      : machine_(machine),
        pool_(pool),
        product_(machine.isa),
        rows_(rows),
        x_(random_rows(rows, kInputs)),
        y_(machine.device->allocate(rows * kOutputs * sizeof(float))) {
    input_.assign(pool, product_.form(), x_.data(), kInputs, rows, kInputs);
  }

  // With results where the next operation reads them, as the device's linear() has it.
  void step() {
    float* const y = reinterpret_cast<float*>(y_->data());
    run([this, y](const kernels::Weight& weight, std::size_t first, std::size_t count,
                  std::size_t row, std::size_t rows) {
      product_.for_outputs(weight, first, count, input_, row, rows,
                           [&](std::size_t t, std::size_t at, std::span<const float> values) {
                             std::ranges::copy(values, y + (row + t) * kOutputs + first + at);
                           });
    });
  }
  // Results stay in the worker's own memory, which the next task overwrites.
  void bare_step() {
    run([this](const kernels::Weight& weight, std::size_t first, std::size_t count, std::size_t row,
               std::size_t rows) {
      product_.for_outputs(weight, first, count, input_, row, rows,
                           [](std::size_t, std::size_t, std::span<const float>) {});
    });
  }
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(kOutputs * kInputs);
  }

 private:
  // task(weight, first output, outputs, first row, rows) for all of them, in the order of the
  // device's tasks (kernels/cpu_device.cc).
  template <class Task>
  void run(Task task) {
    const auto& matrices = machine_.weights.matrices();
    const kernels::Weight& weight = matrices[next_++ % matrices.size()];
    const std::size_t width = Product::outputs_per_task(kOutputs, rows_, pool_.threads());
    const std::size_t across = ceil_div(kOutputs, width);
    pool_.run(across * ceil_div(rows_, kernels::kRowsMax), [&](std::size_t i) {
      const std::size_t first = i % across * width;
      const std::size_t row = i / across * kernels::kRowsMax;
      task(weight, first, std::min(width, kOutputs - first), row,
           std::min(kernels::kRowsMax, rows_ - row));
    });
  }

  Machine& machine_;
  WorkerPool& pool_;
  Product product_;
  kernels::MatmulInput input_;
  std::size_t rows_;
  std::size_t next_ = 0;
  std::vector<float> x_;
  std::unique_ptr<kernels::Buffer> y_;
};

// Either the weights come no faster, or their products.
Ceiling product_ceiling(Machine& machine, WorkerPool& pool, double bytes, double flops) {
  const double read = kernels::read_rate(pool, machine.clock, machine.memory.bytes()) / bytes;
  const double product = kernels::product_limit(machine.isa, pool, machine.clock) / flops;
  if (product == 0 || read < product) {
    return {read, "read"};
  }
  return {product, std::string(isa_name(machine.isa))};
}

void take_rounds(benchmark::State& state, Rounds& rounds, Machine& machine, Line line) {
  for ([[maybe_unused]] auto _ : state) {
    state.SetIterationTime(rounds.take());
  }
  line.measured = rounds.medians();
  line.by_bytes = line.measured.why == "read";
  machine.lines[fmt::format("{}/{}/{}", line.what, line.rows, line.cores)] = std::move(line);
}

void bench_product(benchmark::State& state,
                   Machine& machine,
                   WorkerPool& pool,
                   std::pair<WeightFormat, const char*> format,
                   std::size_t rows) {
  machine.fill(format.first);
  if (!machine.weights.verify(machine.all, Product(machine.isa))) {
    state.SkipWithError("the product is wrong");
    return;
  }
  DenseProducts products(machine, pool, rows);
  const auto bytes = static_cast<double>(machine.weights.matrix_bytes());
  std::unique_ptr<Peer> peer;
  std::function<void()> peer_step;
  if (machine.has_peer && format.first == WeightFormat::kBf16) {
    peer = std::make_unique<Peer>(*machine.device, machine.isa, rows, kOutputs, kInputs,
                                  pool.threads());
    const std::size_t ours = machine.weights.matrix_bytes();
    if (peer->weight_bytes() % ours == 0) {
      // Of float32 one of its matrices is as long as two of ours, which lie one behind the other.
      peer_step = [&, each = peer->weight_bytes() / ours, next = std::size_t{0}]() mutable {
        const auto& matrices = machine.weights.matrices();
        peer->run(matrices[next++ % (matrices.size() / each) * each].packed);
      };
    }
  }
  Rounds rounds(machine.clock,
                {.ceiling = [&] { return product_ceiling(machine, pool, bytes, products.flops()); },
                 .step = [&] { products.step(); },
                 .bare = [&] { products.bare_step(); },
                 .peer = peer_step});
  take_rounds(state, rounds, machine,
              {.what = format.second,
               .rows = rows,
               .cores = pool.threads(),
               .step_bytes = bytes,
               .step_flops = products.flops(),
               .by_bytes = false,
               .measured = {}});
  if (peer_step && !peer->sound()) {
    state.SkipWithError("the peer's product is wrong");
  }
}

// One layer of experts, its weights somewhere in the memory of all.
struct Layer {
  std::vector<kernels::ExpertWeights> experts;
  kernels::ExpertWeights shared;
};

std::vector<Layer> cut_layers(RandomWeights& weights) {
  std::size_t offset = 0;
  const auto expert = [&] {
    const kernels::Weight w1 = weights.cut(kIntermediate, kInputs, offset);
    const kernels::Weight w2 = weights.cut(kInputs, kIntermediate, offset);
    const kernels::Weight w3 = weights.cut(kIntermediate, kInputs, offset);
    return kernels::ExpertWeights{w1, w2, w3};
  };
  std::vector<Layer> layers(1);
  for (;;) {
    Layer& layer = layers.back();
    for (std::size_t e = 0; e < kExperts; ++e) {
      layer.experts.push_back(expert());
    }
    layer.shared = expert();
    const std::size_t layer_bytes = offset / layers.size();
    if (offset + layer_bytes > weights.bytes()) {
      return layers;
    }
    layers.emplace_back();
  }
}

// Distinct experts for each token, ascending, as the router gives them.
std::vector<std::int32_t> random_choice() {
  Random random(Seed(4), 0);
  std::vector<std::int32_t> out;
  for (std::size_t t = 0; t < kTokens; ++t) {
    std::uint64_t left = kChosen;
    for (std::uint64_t e = 0; e < kExperts; ++e) {
      if (random.next_below(kExperts - e) < left) {
        out.push_back(static_cast<std::int32_t>(e));
        --left;
      }
    }
  }
  return out;
}

void bench_experts(benchmark::State& state, Machine& machine, WorkerPool& pool) {
  machine.fill(WeightFormat::kFp4);
  const std::vector<Layer> layers = cut_layers(machine.weights);
  const std::unique_ptr<kernels::Device> device =
      kernels::create_cpu_device(pool.threads(), machine.isa);
  const std::unique_ptr<kernels::Stream> stream = device->create_stream();
  const std::vector<float> x = random_rows(kTokens, kInputs);
  std::vector<float> y(x.size());
  const std::vector<std::int32_t> choice = random_choice();
  const std::vector<float> weights(choice.size(), 1.0F / kChosen);
  std::size_t next = 0;
  const auto step = [&] {
    const Layer& layer = layers[next++ % layers.size()];
    stream->experts({.rows = kTokens,
                     .hidden = kInputs,
                     .intermediate = kIntermediate,
                     .chosen = kChosen,
                     .x = x.data(),
                     .experts = layer.experts,
                     .shared = layer.shared,
                     .expert_ids = choice.data(),
                     .weights = weights.data(),
                     .limit = 10,
                     .y = y.data(),
                     .round = kernels::Round::kBf16});
    stream->synchronise();
  };
  step();  // its working memory is touched
  constexpr double kFlops = 2.0 * kTokens * (kChosen + 1) * 3 * kIntermediate * kInputs;
  DenseProducts dense(machine, pool, kTokens);
  const auto ceiling = [&] {
    const double rate = call_rate(machine.clock, [&] { dense.step(); });
    return Ceiling{rate * dense.flops() / kFlops, "dense fp4"};
  };
  Rounds rounds(machine.clock, {.ceiling = ceiling, .step = step, .bare = {}, .peer = {}});
  take_rounds(state, rounds, machine,
              {.what = "experts",
               .rows = kTokens,
               .cores = pool.threads(),
               .step_bytes = 0,
               .step_flops = kFlops,
               .by_bytes = false,
               .measured = {}});
}

// What multiplies rows of float32, as a limit of operations on rows.
Ceiling fma_ceiling(const Machine& machine, WorkerPool& pool, double flops) {
  const double rate = machine.isa == Isa::kAvx2
                          ? kernels::product_limit(Isa::kAvx2, pool, machine.clock)
                          : kernels::fma_rate(pool, machine.clock);
  return {rate / flops, "fma"};
}

void take_row_rounds(benchmark::State& state,
                     Machine& machine,
                     WorkerPool& pool,
                     const char* what,
                     double flops,
                     const std::function<void()>& step) {
  const auto ceiling = [&] { return fma_ceiling(machine, pool, flops); };
  Rounds rounds(machine.clock, {.ceiling = ceiling, .step = step, .bare = {}, .peer = {}});
  take_rounds(state, rounds, machine,
              {.what = what,
               .rows = 1,
               .cores = pool.threads(),
               .step_bytes = 0,
               .step_flops = flops,
               .by_bytes = false,
               .measured = {}});
}

std::vector<float> random_bf16_rows(std::size_t count, std::size_t width) {
  std::vector<float> out = random_rows(count, width);
  std::ranges::transform(out, out.begin(), kernels::round_to_bf16);
  return out;
}

// A task reads the keys that its core has just unpacked.
void bench_index_scores(benchmark::State& state, Machine& machine, WorkerPool& pool) {
  const kernels::RowKernels& kernel =
      machine.isa == Isa::kAvx2 ? kernels::kAvx2Rows : kernels::kAvx512Rows;
  const bool tiles = machine.isa == Isa::kAmx;
  const std::vector<float> q = random_bf16_rows(kIndexHeads, kIndexWidth);
  const std::vector<float> weights = random_rows(1, kIndexHeads);
  const std::vector<float> keys = random_bf16_rows(kKeys, kIndexWidth);
  kernels::AlignedBytes bytes;
  std::byte* const arranged = bytes.reserve(keys.size() * sizeof(std::uint16_t));
  for (std::size_t at = 0; tiles && at < keys.size(); at += kernels::kTileKeys * kIndexWidth) {
    std::array<std::uint16_t, kernels::kTileKeys * kIndexWidth> narrow{};
    kernels::kAmxTiles.narrow(keys.data() + at, narrow.size(), narrow.data());
    kernels::kAmxTiles.arrange_keys(narrow.data(), kernels::kTileKeys, kIndexWidth,
                                    arranged + at * sizeof(std::uint16_t));
  }
  const std::size_t tasks = 64 * static_cast<std::size_t>(pool.threads());
  std::vector<float> scores(tasks * kKeys);
  const auto score = [&](std::size_t task) {
    float* const out = scores.data() + task * kKeys;
    if (!tiles) {
      return kernel.index_scores(
          {q.data(), weights.data(), kIndexHeads, kIndexWidth, keys.data(), kKeys, out});
    }
    thread_local kernels::AlignedBytes scratch;
    kernels::kAmxTiles.index_scores({q.data(), weights.data(), kIndexHeads, kIndexWidth, arranged,
                                     kKeys, out, scratch.reserve(kernels::kTileScoresScratch)});
  };
  take_row_rounds(state, machine, pool, "index",
                  2.0 * static_cast<double>(tasks * kKeys * kIndexHeads * kIndexWidth),
                  [&] { pool.run(tasks, score); });
}

// All heads of a row with its window and the compressed rows chosen for it.
void bench_attention(benchmark::State& state, Machine& machine, WorkerPool& pool) {
  constexpr std::size_t kHeads = 64;
  constexpr std::size_t kWidth = 512;
  constexpr std::size_t kSeen = 128 + 512;
  const kernels::RowKernels& kernel =
      machine.isa == Isa::kAvx2 ? kernels::kAvx2Rows : kernels::kAvx512Rows;
  const bool tiles = machine.isa == Isa::kAmx;
  const std::vector<float> q = random_bf16_rows(kHeads, kWidth);
  const std::vector<float> keys = random_bf16_rows(kSeen, kWidth);
  std::vector<std::uint16_t> narrow(keys.size());
  if (tiles) {
    kernels::kAmxTiles.narrow(keys.data(), keys.size(), narrow.data());
  }
  std::vector<const float*> rows;
  std::vector<const std::uint16_t*> narrow_rows;
  for (std::size_t j = 0; j < kSeen; ++j) {
    rows.push_back(keys.data() + j * kWidth);
    narrow_rows.push_back(narrow.data() + j * kWidth);
  }
  const std::vector<float> sinks = random_rows(1, kHeads);
  const std::size_t tasks = 4 * static_cast<std::size_t>(pool.threads());
  std::vector<float> out(tasks * kHeads * kWidth);
  const auto attend = [&](std::size_t task) {
    constexpr float kScale = 0.044F;
    float* const to = out.data() + task * kHeads * kWidth;
    thread_local kernels::AlignedBytes scratch;
    if (tiles) {
      return kernels::kAmxTiles.attend(
          {q.data(), kHeads, kWidth, narrow_rows.data(), kSeen, kScale, sinks.data(), to,
           scratch.reserve(kernels::tile_attend_scratch(kHeads, kWidth, kSeen))});
    }
    auto* const scores = reinterpret_cast<float*>(scratch.reserve(kHeads * kSeen * sizeof(float)));
    kernel.attend({q.data(), kHeads, kWidth, rows.data(), kSeen, kScale, sinks.data(), to, scores});
  };
  // Scores and values: a multiplication and an addition each.
  take_row_rounds(state, machine, pool, "attention",
                  4.0 * static_cast<double>(tasks * kHeads * kSeen * kWidth),
                  [&] { pool.run(tasks, attend); });
}

// Names are WHAT/ROWS/CORES, for --benchmark_filter.
void register_all(Machine& machine, int round_count) {
  const auto add = [&](std::string name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), std::move(run))
        ->UseManualTime()
        ->Iterations(round_count);
  };
  std::vector<WorkerPool*> pools = {&machine.one};
  if (machine.all.threads() > 1) {
    pools.push_back(&machine.all);
  }
  for (const auto& format : kFormats) {
    for (WorkerPool* const pool : pools) {
      for (const std::size_t rows : kRows) {
        add(fmt::format("{}/{}/{}", format.second, rows, pool->threads()),
            [&machine, pool, format, rows](benchmark::State& state) {
              bench_product(state, machine, *pool, format, rows);
            });
      }
    }
  }
  for (WorkerPool* const pool : pools) {
    add(fmt::format("experts/{}/{}", kTokens, pool->threads()),
        [&machine, pool](benchmark::State& state) { bench_experts(state, machine, *pool); });
  }
  for (WorkerPool* const pool : pools) {
    add(fmt::format("index/1/{}", pool->threads()),
        [&machine, pool](benchmark::State& state) { bench_index_scores(state, machine, *pool); });
  }
  for (WorkerPool* const pool : pools) {
    add(fmt::format("attention/1/{}", pool->threads()),
        [&machine, pool](benchmark::State& state) { bench_attention(state, machine, *pool); });
  }
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes its own options out of argv
  CLI::App app(
      "Rates of Galley's kernels, as shares of the machine's limits. --benchmark_filter=REGEX "
      "chooses lines by WHAT/ROWS/CORES, for example fp4/1/ or bf16.");
  std::string wanted(kernels::wanted_isa());
  bool json = false;
  int rounds = 5;
  app.add_option("--isa", wanted, "Instruction set. Default: the best of this machine.");
  app.add_flag("--json", json, "Prints a JSON array instead of a table.");
  app.add_option("--rounds", rounds, "A line is the median of as many.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const Result<Isa> isa = kernels::choose_isa(wanted);
  if (!isa || *isa == Isa::kReference) {
    fmt::print(stderr, "{}\n",
               isa ? "the reference has no limit to be measured by" : to_string(isa.error()));
    return 2;
  }
  Machine machine{.isa = *isa, .has_peer = Peer::available(*isa), .clock = {}, .lines = {}};
  register_all(machine, rounds);
  TableReporter reporter(machine.lines, std::string(isa_name(*isa)), json);
  const bool found = benchmark::RunSpecifiedBenchmarks(&reporter) > 0;
  benchmark::Shutdown();
  return found && !reporter.failed() ? 0 : 1;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run(argc, argv);
}
