#include "bench/kernels/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/random.h"
#include "kernels/formats.h"
#include "kernels/matmul_input.h"
#include "kernels/packed_weight.h"

namespace galley::bench {
namespace {

using kernels::ScaleFormat;
using kernels::Weight;
using kernels::WeightFormat;

constexpr std::size_t kBlock = 32;  // V4.1's, of FP8 and FP4
constexpr Seed kSeed{3};

// A matrix as a checkpoint has it.
struct Raw {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  Weight weight;
};

// Sequence by Marsaglia, "Xorshift RNGs" (2003), as fast as memory is filled.
class Xorshift {
 public:
  explicit Xorshift(std::uint64_t stream) {
    const RandomBlock seed = random_block(kSeed, stream, 0);
    state_ = (std::uint64_t{seed[0]} << 32U | seed[1]) | 1U;
  }
  std::uint64_t next() {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return state_;
  }

 private:
  std::uint64_t state_;
};

void make_raw(const RandomWeights::Shape& shape, std::size_t index, Raw& out) {
  out.weight = {
      .format = shape.format, .rows = shape.rows, .columns = shape.columns, .block = kBlock};
  const std::size_t count = shape.rows * shape.columns;
  GALLEY_ASSERT(shape.columns % kBlock == 0 && count % sizeof(std::uint64_t) == 0);
  std::size_t scales = 0;
  switch (shape.format) {
    case WeightFormat::kBf16:
      out.data.resize(2 * count);
      break;
    case WeightFormat::kFp8Block:
      out.data.resize(count);
      scales = ceil_div(shape.rows, kBlock) * shape.columns / kBlock;
      break;
    case WeightFormat::kFp4:
      out.data.resize(count / 2);
      scales = count / kBlock;
      break;
    default:
      GALLEY_ASSERT(false);
  }
  Xorshift random(index);
  for (std::size_t at = 0; at < out.data.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = random.next();
    if (shape.format == WeightFormat::kBf16) {
      // Sign and mantissa at random; exponents 120 to 123.
      word = (word & 0x81ff'81ff'81ff'81ffU) | 0x3c00'3c00'3c00'3c00U;
    } else if (shape.format == WeightFormat::kFp8Block) {
      // No exponent of 15, which NaN has: the highest bit of it is cleared where all are set.
      const std::uint64_t full =
          (word & word << 1U & word << 2U & word << 3U) & 0x4040'4040'4040'4040U;
      word &= ~full;
    }
    std::memcpy(out.data.data() + at, &word, sizeof(word));
  }
  out.scales.resize(scales);
  for (std::byte& scale : out.scales) {
    scale = static_cast<std::byte>(118 + random.next() % 5);
  }
  if (scales > 0) {
    out.weight.scale_format = ScaleFormat::kE8m0;
  }
  out.weight.data = out.data.data();
  out.weight.scales = out.scales.data();
}

}  // namespace

RandomWeights::RandomWeights(kernels::Device& device, std::size_t bytes)
    : memory_(device.allocate(bytes)) {}

void RandomWeights::fill(WorkerPool& pool, const Shape& shape) {
  if (shape_ == shape) {
    return;
  }
  shape_ = shape;
  matrices_.clear();
  Raw first;
  make_raw(shape, 0, first);
  const std::optional<kernels::PackedView> packed = kernels::packed_shape(first.weight);
  GALLEY_ASSERT(packed.has_value());
  const std::size_t groups = ceil_div(shape.rows, kernels::kGroupRows);
  matrix_bytes_ = groups * packed->group_bytes;
  matrices_.resize(memory_->size() / matrix_bytes_);
  pool.run(matrices_.size(), [&](std::size_t i) {
    thread_local Raw raw;
    make_raw(shape, i, raw);
    std::byte* const out = memory_->data() + i * matrix_bytes_;
    for (std::size_t group = 0; group < groups; ++group) {
      GALLEY_ASSERT(
          kernels::pack_group(raw.weight, *packed, group, out + group * packed->group_bytes));
    }
    // Nothing reads codes and scales where the packed form is, but no matrix may be without.
    matrices_[i] = raw.weight;
    matrices_[i].data = out;
    matrices_[i].scales = out;
    matrices_[i].packed = out;
  });
}

Weight RandomWeights::cut(std::size_t rows, std::size_t columns, std::size_t& offset) {
  GALLEY_ASSERT(shape_ && shape_->format == WeightFormat::kFp4);
  Weight out = matrices_.front();
  out.rows = rows;
  out.columns = columns;
  const std::size_t bytes =
      ceil_div(rows, kernels::kGroupRows) * kernels::packed_shape(out)->group_bytes;
  GALLEY_ASSERT(offset + bytes <= memory_->size());
  out.data = out.scales = out.packed = memory_->data() + offset;
  offset += bytes;
  return out;
}

bool RandomWeights::verify(WorkerPool& pool, const kernels::Product& product) const {
  constexpr std::size_t kRows = 3;
  Raw raw;
  make_raw(*shape_, 0, raw);
  const std::vector<float> x = random_rows(kRows, shape_->columns);
  kernels::MatmulInput input;
  input.assign(pool, product.form(), x.data(), shape_->columns, kRows, shape_->columns);
  const kernels::Product::Block block =
      product.outputs(matrices_.front(), 0, kernels::Product::kOutputs, input, 0, kRows);
  std::vector<float> w(shape_->columns);
  for (std::size_t n = 0; n < kernels::Product::kOutputs; ++n) {
    kernels::dequantise_row(raw.weight, n, w);
    for (std::size_t t = 0; t < kRows; ++t) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t k = 0; k < w.size(); ++k) {
        const double term = double{w[k]} * double{x[t * w.size() + k]};
        sum += term;
        magnitude += std::fabs(term);
      }
      // Each of K products is rounded K + 2 times at most, by 2^-24.
      const double bound = magnitude * static_cast<double>(w.size() + 2) * 0x1p-24;
      if (!(std::fabs(double{block.c[t * block.stride + n]} - sum) <= bound)) {
        return false;
      }
    }
  }
  return true;
}

std::vector<float> random_rows(std::size_t rows, std::size_t columns) {
  Random random(kSeed, ~std::uint64_t{0});
  std::vector<float> out(rows * columns);
  std::ranges::generate(out,
                        [&] { return kernels::round_to_bf16(2.0F * random.next_float() - 1.0F); });
  return out;
}

}  // namespace galley::bench
