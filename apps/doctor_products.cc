#include "apps/doctor_products.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/random.h"
#include "kernels/formats.h"
#include "kernels/matmul_input.h"
#include "kernels/packed_weight.h"
#include "kernels/probe.h"
#include "kernels/product.h"
#include "kernels/weight.h"

namespace galley::apps {
namespace {

using kernels::Isa;
using kernels::Product;
using kernels::Weight;
using kernels::WeightFormat;

// In the order of kProductFormats.
constexpr std::array<WeightFormat, kProductFormats.size()> kFormats = {
    WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kFp4};
constexpr std::size_t kBlock = 32;
constexpr Seed kSeed{2};

// A matrix that owns its bytes.
struct Matrix {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  kernels::AlignedBytes packed;
  Weight weight;
};

float random_value(Random& random) {
  return 2.0F * random.next_float() - 1.0F;
}

// Codes of every value but NaN, scales 2^-10 ... 2^10.
void fill_random(Matrix& m, std::size_t format, std::size_t rows, std::size_t columns) {
  GALLEY_ASSERT(columns % kBlock == 0);
  m.weight = {.format = kFormats[format], .rows = rows, .columns = columns, .block = kBlock};
  Random random(kSeed, format);
  const std::size_t count = rows * columns;
  std::size_t scales = 0;
  if (m.weight.format == WeightFormat::kBf16) {
    m.data.resize(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t bits = kernels::to_bf16(random_value(random));
      std::memcpy(m.data.data() + 2 * i, &bits, sizeof(bits));
    }
  } else {
    const bool fp8 = m.weight.format == WeightFormat::kFp8Block;
    m.data.resize(fp8 ? count : count / 2);
    scales = fp8 ? ceil_div(rows, kBlock) * columns / kBlock : count / kBlock;
    for (std::byte& code : m.data) {
      code = static_cast<std::byte>(random.next_u32());
      if (fp8 && (code & std::byte{0x7f}) == std::byte{0x7f}) {
        code = std::byte{0x7e};
      }
    }
    m.weight.scale_format = kernels::ScaleFormat::kE8m0;
  }
  for (std::size_t i = 0; i < scales; ++i) {
    m.scales.push_back(static_cast<std::byte>(117 + random.next_below(21)));
  }
  m.weight.data = m.data.data();
  m.weight.scales = m.scales.data();
}

void pack(Matrix& m, WorkerPool& pool) {
  const auto shape = kernels::packed_shape(m.weight);
  GALLEY_ASSERT(shape.has_value());
  const std::size_t groups = ceil_div(m.weight.rows, kernels::kGroupRows);
  std::byte* const out = m.packed.reserve(groups * shape->group_bytes);
  std::atomic<bool> whole{true};
  pool.run(groups, [&](std::size_t group) {
    if (!kernels::pack_group(m.weight, *shape, group, out + group * shape->group_bytes)) {
      whole = false;
    }
  });
  GALLEY_ASSERT(whole);
  m.weight.packed = out;
}

// Of bfloat16 numbers, which is what the network's products get, or of all bits of a float32, which
// take three products.
std::vector<float> random_rows(std::size_t rows, std::size_t columns, bool bf16) {
  Random random(kSeed, kFormats.size());
  std::vector<float> x(rows * columns);
  for (float& value : x) {
    value = random_value(random);
    value = bf16 ? kernels::round_to_bf16(value) : value;
  }
  return x;
}

// --- Checks.

constexpr std::size_t kCheckOutputs = 48;
// Several pieces, the last of them not whole; and few enough that the bound is tight: an input's
// second part left out is past it.
constexpr std::size_t kCheckColumns[] = {1056, 64};
constexpr std::size_t kCheckRows = 70;
// Row counts that kernels treat differently; the first rows of the same input.
constexpr std::size_t kCheckSome[] = {1, 2, 17, 35, kCheckRows};

// y[rows, kCheckOutputs]
std::vector<float> multiply(Isa isa,
                            const Weight& weight,
                            const std::vector<float>& x,
                            std::size_t rows,
                            WorkerPool& pool) {
  const Product product(isa);
  kernels::MatmulInput input;
  input.assign(pool, product.form(), x.data(), weight.columns, rows, weight.columns);
  std::vector<float> y(rows * kCheckOutputs);
  for (std::size_t first = 0; first < kCheckOutputs; first += Product::kOutputs) {
    const std::size_t count = std::min(Product::kOutputs, kCheckOutputs - first);
    const Product::Block block = product.outputs(weight, first, count, input, 0, rows);
    for (std::size_t t = 0; t < rows; ++t) {
      std::copy_n(block.c + t * block.stride, count, y.data() + t * kCheckOutputs + first);
    }
  }
  return y;
}

// Sums in double, and how far from them float32 sums of K products may be in any order: each takes
// part in K + 2 roundings at most (an input in three parts adds two), so (K + 2) u sum |w x| with
// u = 2^-24; and numbers below 2^-126 may count as zero.
void exact_sums(const Weight& weight,
                const std::vector<float>& x,
                std::vector<double>& sums,
                std::vector<double>& bounds) {
  const std::size_t columns = weight.columns;
  std::vector<float> w(columns);
  sums.resize(kCheckRows * kCheckOutputs);
  bounds.resize(sums.size());
  for (std::size_t r = 0; r < kCheckOutputs; ++r) {
    kernels::dequantise_row(weight, r, w);
    for (std::size_t t = 0; t < kCheckRows; ++t) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t k = 0; k < columns; ++k) {
        const double product = static_cast<double>(w[k]) * static_cast<double>(x[t * columns + k]);
        sum += product;
        magnitude += std::fabs(product);
      }
      sums[t * kCheckOutputs + r] = sum;
      bounds[t * kCheckOutputs + r] = magnitude * static_cast<double>(columns + 2) * 0x1p-24 +
                                      static_cast<double>(columns) * 0x1p-120;
    }
  }
}

// Of one format, into `checks`: those of that format.
void check_format(std::size_t format,
                  std::size_t columns,
                  WorkerPool& pool,
                  std::span<ProductCheck> checks) {
  Matrix m;
  fill_random(m, format, kCheckOutputs, columns);
  pack(m, pool);
  for (const bool bf16 : {true, false}) {
    const std::vector<float> x = random_rows(kCheckRows, columns, bf16);
    std::vector<double> sums;
    std::vector<double> bounds;
    exact_sums(m.weight, x, sums, bounds);
    for (ProductCheck& check : checks) {
      if (check.format != kProductFormats[format]) {
        continue;
      }
      for (const std::size_t rows : kCheckSome) {
        compare(multiply(check.isa, m.weight, x, rows, pool), sums, bounds, check);
      }
    }
  }
}

}  // namespace

void compare(std::span<const float> values,
             std::span<const double> exact,
             std::span<const double> bounds,
             ProductCheck& check) {
  for (std::size_t i = 0; i < values.size() && !std::isnan(check.share); ++i) {
    const double error = std::fabs(static_cast<double>(values[i]) - exact[i]);
    const double share =
        std::isfinite(error) ? error / bounds[i] : std::numeric_limits<double>::quiet_NaN();
    if (!(share <= check.share)) {
      check.error = error;
      check.bound = bounds[i];
      check.share = share;
    }
  }
}

std::vector<ProductCheck> check_products(WorkerPool& pool) {
  std::vector<ProductCheck> out;
  for (const Isa isa : kernels::supported_isas()) {
    for (const char* const format : kProductFormats) {
      out.push_back({.isa = isa, .format = format});
    }
  }
  for (std::size_t format = 0; format < kFormats.size(); ++format) {
    for (const std::size_t columns : kCheckColumns) {
      check_format(format, columns, pool, out);
    }
  }
  return out;
}

// --- Rates: 256 rows, a matrix of real size.

struct ProductTimer::Parts {
  explicit Parts(Isa isa) : product(isa) {}

  static constexpr std::size_t kSide = 2048;

  Product product;
  std::array<Matrix, kFormats.size()> matrices;
  std::vector<float> x;
  kernels::MatmulInput input;
};

ProductTimer::ProductTimer(Isa isa, WorkerPool& pool) {
  GALLEY_ASSERT(isa != Isa::kReference);
  auto parts = std::make_unique<Parts>(isa);
  for (std::size_t format = 0; format < kFormats.size(); ++format) {
    fill_random(parts->matrices[format], format, Parts::kSide, Parts::kSide);
    pack(parts->matrices[format], pool);
  }
  parts->x = random_rows(kernels::kRowsMax, Parts::kSide, true);
  parts->input.assign(pool, parts->product.form(), parts->x.data(), Parts::kSide, kernels::kRowsMax,
                      Parts::kSide);
  parts_ = std::move(parts);
}

ProductTimer::~ProductTimer() = default;

double ProductTimer::rate(std::size_t format, WorkerPool& pool, const Clock& clock) const {
  constexpr std::size_t kTasks = Parts::kSide / Product::kOutputs;
  constexpr double kOperations = 2.0 * kernels::kRowsMax * Parts::kSide * Product::kOutputs;
  const Weight& weight = parts_->matrices[format].weight;
  const auto multiply = [&](std::size_t task) {
    const Product::Block block =
        parts_->product.outputs(weight, task % kTasks * Product::kOutputs, Product::kOutputs,
                                parts_->input, 0, kernels::kRowsMax);
    GALLEY_ASSERT(std::isfinite(block.c[task % Product::kOutputs]));
  };
  // Once before it counts: a thread's first product allocates, and the first pass behind the probes
  // of memory at times took 20 times as long as the next, in a virtual machine.
  pool.run(kTasks, multiply);
  const double tasks = kernels::task_rate(pool, clock, kTasks, multiply);
  return tasks * kOperations;
}

}  // namespace galley::apps
