// Goal: every instruction set multiplies as the reference does, within the rounding of its sums,
// and a row's result does not depend on the rows beside it. Method: random weights of every format
// and shape against sums in double; inputs with a single one, which must give back the weight
// itself; rows alone and together, weights packed and not.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "base/worker_pool.h"
#include "kernels/formats.h"
#include "kernels/isa.h"
#include "kernels/packed_weight.h"
#include "kernels/product.h"
#include "kernels/weight.h"

namespace galley::kernels {
namespace {

using Random = std::mt19937_64;

struct Shape {
  WeightFormat format;
  std::size_t rows;
  std::size_t columns;
  std::size_t block = 32;
  ScaleFormat scale_format = ScaleFormat::kE8m0;
};

std::string name_of(const Shape& shape) {
  return std::to_string(static_cast<int>(shape.format)) + " " + std::to_string(shape.rows) + "x" +
         std::to_string(shape.columns);
}

// A matrix that owns its bytes.
struct Matrix {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  AlignedBytes packed;
  Weight weight;

  [[nodiscard]] std::vector<float> row(std::size_t r) const {
    std::vector<float> out(weight.columns);
    dequantise_row(weight, r, out);
    return out;
  }
  // False: some group has no packed form.
  bool pack() {
    const std::optional<PackedView> shape = packed_shape(weight);
    const std::size_t groups = ceil_div(weight.rows, kGroupRows);
    std::byte* const out = packed.reserve(groups * shape->group_bytes);
    for (std::size_t group = 0; group < groups; ++group) {
      if (!pack_group(weight, *shape, group, out + group * shape->group_bytes)) {
        return false;
      }
    }
    weight.packed = out;
    return true;
  }
};

std::byte random_byte(Random& random) {
  return static_cast<std::byte>(random());
}

// Codes of every value; scales 2^-10 ... 2^10.
Matrix random_matrix(const Shape& shape, Random& random) {
  Matrix m;
  m.weight = {.format = shape.format,
              .scale_format = shape.scale_format,
              .rows = shape.rows,
              .columns = shape.columns,
              .block = shape.block};
  const std::size_t count = shape.rows * shape.columns;
  std::size_t scales = 0;
  switch (shape.format) {
    case WeightFormat::kBf16:
    case WeightFormat::kF32: {
      m.data.resize(count * (shape.format == WeightFormat::kBf16 ? 2 : 4));
      std::normal_distribution<float> normal;
      for (std::size_t i = 0; i < count; ++i) {
        const float value = normal(random);
        const std::uint16_t bits = to_bf16(value);
        if (shape.format == WeightFormat::kBf16) {
          std::memcpy(m.data.data() + 2 * i, &bits, 2);
        } else {
          std::memcpy(m.data.data() + 4 * i, &value, 4);
        }
      }
      break;
    }
    case WeightFormat::kFp4:
      m.data.resize(count / 2);
      scales = count / shape.block;
      break;
    default:
      m.data.resize(count);
      scales = ceil_div(shape.rows, shape.block) * ceil_div(shape.columns, shape.block);
  }
  if (scales > 0) {
    std::ranges::generate(m.data, [&] { return random_byte(random); });
    for (std::byte& code : m.data) {
      if (shape.format == WeightFormat::kFp8Block && (code & std::byte{0x7f}) == std::byte{0x7f}) {
        code = std::byte{0x7e};  // 448, not NaN
      }
    }
    for (std::size_t i = 0; i < scales; ++i) {
      const auto exponent = static_cast<std::uint8_t>(117 + random() % 21);
      if (shape.scale_format == ScaleFormat::kE8m0) {
        m.scales.push_back(std::byte{exponent});
      } else {
        const float value = from_e8m0(exponent);
        const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
        m.scales.insert(m.scales.end(), bytes, bytes + sizeof(value));
      }
    }
  }
  m.weight.data = m.data.data();
  m.weight.scales = m.scales.data();
  return m;
}

std::vector<float> random_rows(std::size_t count, bool bf16, Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  std::ranges::generate(x, [&] { return bf16 ? round_to_bf16(normal(random)) : normal(random); });
  return x;
}

// y[rows, weight.rows]
std::vector<float> multiply(Isa isa,
                            const Weight& weight,
                            const std::vector<float>& x,
                            WorkerPool& pool) {
  const std::size_t rows = x.size() / weight.columns;
  const Product product(isa);
  MatmulInput input;
  input.assign(pool, product.form(), x.data(), weight.columns, rows, weight.columns);
  std::vector<float> y(rows * weight.rows);
  for (std::size_t first = 0; first < weight.rows; first += Product::kOutputs) {
    const std::size_t count = std::min(Product::kOutputs, weight.rows - first);
    for (std::size_t row = 0; row < rows; row += kRowsMax) {
      const std::size_t some = std::min(kRowsMax, rows - row);
      const Product::Block block = product.outputs(weight, first, count, input, row, some);
      for (std::size_t t = 0; t < some; ++t) {
        std::copy_n(block.c + t * block.stride, count, y.data() + (row + t) * weight.rows + first);
      }
    }
  }
  return y;
}

class MatmulTest : public testing::TestWithParam<Isa> {
 protected:
  WorkerPool pool_{2};
  Random random_{1};  // NOLINT(cert-msc51-cpp): a fixed seed
};

std::vector<Shape> shapes() {
  return {
      {WeightFormat::kBf16, 16, 32},
      {WeightFormat::kBf16, 1, 1},
      {WeightFormat::kBf16, 4, 40},
      {WeightFormat::kBf16, 33, 31},
      {WeightFormat::kBf16, 48, 1056},
      {WeightFormat::kFp8Block, 16, 32},
      {WeightFormat::kFp8Block, 96, 1024},
      {WeightFormat::kFp8Block, 5, 70},
      {WeightFormat::kFp8Block, 130, 300, 128},
      {WeightFormat::kFp8Block, 64, 96, 32, ScaleFormat::kF32},
      {WeightFormat::kFp4, 16, 32},
      {WeightFormat::kFp4, 40, 64},
      {WeightFormat::kFp4, 3, 544},
      {WeightFormat::kFp4, 64, 2048},
      {WeightFormat::kF32, 20, 50},
  };
}

// A sum of K products in any order, each of K + 2 roundings at most (an input in three parts adds
// two): |error| <= (K + 2) u sum |w x|, u = 2^-24. Tile units treat numbers below 2^-126 as zero.
void expect_close(const Matrix& m, const std::vector<float>& x, const std::vector<float>& y) {
  const std::size_t columns = m.weight.columns;
  for (std::size_t r = 0; r < m.weight.rows; ++r) {
    const std::vector<float> w = m.row(r);
    for (std::size_t t = 0; t < x.size() / columns; ++t) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t k = 0; k < columns; ++k) {
        const double product = static_cast<double>(w[k]) * static_cast<double>(x[t * columns + k]);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double bound = magnitude * static_cast<double>(columns + 2) * 0x1p-24 +
                           static_cast<double>(columns) * 0x1p-120;
      ASSERT_NEAR(y[t * m.weight.rows + r], sum, bound) << "row " << t << " output " << r;
    }
  }
}

TEST_P(MatmulTest, AgreesWithExactSums) {
  for (const Shape& shape : shapes()) {
    for (const std::size_t rows : {1UL, 2UL, 3UL, 12UL, 15UL, 16UL, 17UL, 31UL, 32UL, 33UL, 50UL}) {
      for (const bool bf16 : {true, false}) {
        SCOPED_TRACE(name_of(shape) + " rows " + std::to_string(rows));
        Matrix m = random_matrix(shape, random_);
        const std::vector<float> x = random_rows(rows * shape.columns, bf16, random_);
        expect_close(m, x, multiply(GetParam(), m.weight, x, pool_));
      }
    }
  }
}

TEST_P(MatmulTest, MoreRowsThanOneCallTakes) {
  Matrix m = random_matrix({WeightFormat::kFp4, 16, 64}, random_);
  ASSERT_TRUE(m.pack());
  for (const bool bf16 : {true, false}) {
    const std::vector<float> x = random_rows((2 * kRowsMax + 5) * 64, bf16, random_);
    expect_close(m, x, multiply(GetParam(), m.weight, x, pool_));
  }
}

// Parts of a grouped projection may begin anywhere; the bits are those of the whole.
TEST_P(MatmulTest, OutputsFromAnywhere) {
  Matrix m = random_matrix({WeightFormat::kFp8Block, 64, 96}, random_);
  ASSERT_TRUE(m.pack());
  const std::vector<float> x = random_rows(3 * 96, true, random_);
  const std::vector<float> whole = multiply(GetParam(), m.weight, x, pool_);
  const Product product(GetParam());
  MatmulInput input;
  input.assign(pool_, product.form(), x.data(), 96, 3, 96);
  for (const auto& [first, count] :
       {std::pair<std::size_t, std::size_t>{24, 8}, {1, 31}, {40, 24}, {63, 1}}) {
    const Product::Block block = product.outputs(m.weight, first, count, input, 0, 3);
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t r = 0; r < count; ++r) {
        EXPECT_EQ(block.c[t * block.stride + r], whole[t * 64 + first + r]) << first << " " << r;
      }
    }
  }
}

TEST_P(MatmulTest, ARowAloneGivesTheSameBits) {
  for (const Shape& shape : shapes()) {
    Matrix m = random_matrix(shape, random_);
    constexpr std::size_t kRows = 70;
    std::vector<float> x = random_rows(kRows * shape.columns, true, random_);
    // Some rows that are not bfloat16 among rows that are.
    for (std::size_t t = 3; t < kRows; t += 20) {
      for (std::size_t k = 0; k < shape.columns; ++k) {
        x[t * shape.columns + k] *= 1.001F;
      }
    }
    const std::vector<float> together = multiply(GetParam(), m.weight, x, pool_);
    for (std::size_t t = 0; t < kRows; ++t) {
      const std::vector<float> row(
          x.begin() + static_cast<std::ptrdiff_t>(t * shape.columns),
          x.begin() + static_cast<std::ptrdiff_t>((t + 1) * shape.columns));
      const std::vector<float> alone = multiply(GetParam(), m.weight, row, pool_);
      ASSERT_EQ(
          std::memcmp(alone.data(), together.data() + t * shape.rows, shape.rows * sizeof(float)),
          0)
          << name_of(shape) << " row " << t;
    }
  }
}

TEST_P(MatmulTest, PackedOnTheWayGivesTheSameBits) {
  for (const Shape& shape : shapes()) {
    if (shape.format == WeightFormat::kF32) {
      continue;
    }
    Matrix m = random_matrix(shape, random_);
    const std::vector<float> x = random_rows(9 * shape.columns, true, random_);
    const std::vector<float> unpacked = multiply(GetParam(), m.weight, x, pool_);
    ASSERT_TRUE(m.pack());
    if (GetParam() != Isa::kReference) {
      std::ranges::fill(m.data, std::byte{0});  // the packed bytes are all that is read
    }
    EXPECT_EQ(multiply(GetParam(), m.weight, x, pool_), unpacked) << name_of(shape);
  }
}

// Every code at the smallest, the largest and middle scales, given back exactly.
TEST_P(MatmulTest, WideningIsExact) {
  struct Case {
    WeightFormat format;
    std::size_t codes;
    bool normal;  // zeros and subnormals, which whole tiles may lack, are left out
    std::vector<int> scales;
  };
  for (const Case& c : {Case{WeightFormat::kFp8Block, 256, false, {10, 11, 127, 200, 244, 245}},
                        Case{WeightFormat::kFp8Block, 256, true, {10, 11, 127, 200, 244, 245}},
                        Case{WeightFormat::kFp4, 16, false, {2, 3, 127, 128, 250, 251}}}) {
    for (const int scale : c.scales) {
      Matrix m = random_matrix({c.format, 32, 32}, random_);
      std::ranges::fill(m.scales, static_cast<std::byte>(scale));
      for (std::size_t i = 0; i < m.data.size(); ++i) {
        m.data[i] = static_cast<std::byte>(c.codes == 256 ? i % 256 : i * 37 % 256);
        if (c.codes == 256 && (i % 128) == 0x7f) {
          m.data[i] = std::byte{0x7e};
        }
        if (c.normal && (m.data[i] & std::byte{0x78}) == std::byte{0}) {
          m.data[i] |= std::byte{0x08};
        }
      }
      std::vector<float> x(32 * 32);
      for (std::size_t k = 0; k < 32; ++k) {
        x[k * 32 + k] = 1.0F;
      }
      const std::vector<float> y = multiply(GetParam(), m.weight, x, pool_);
      for (std::size_t r = 0; r < 32; ++r) {
        const std::vector<float> w = m.row(r);
        for (std::size_t k = 0; k < 32; ++k) {
          ASSERT_EQ(y[k * 32 + r], w[k]) << "scale " << scale << " row " << r << " column " << k;
        }
      }
    }
  }
}

TEST_P(MatmulTest, WhatHasNoPackedFormIsLeftToTheReference) {
  for (const int bad : {0, 1, 252, 255}) {
    Matrix m = random_matrix({WeightFormat::kFp4, 48, 64}, random_);
    m.scales[2 * 20] = static_cast<std::byte>(bad);  // of row 20
    EXPECT_FALSE(m.pack()) << bad;
  }
  for (const int bad : {0, 9, 246, 255}) {
    Matrix m = random_matrix({WeightFormat::kFp8Block, 48, 64}, random_);
    m.scales[3] = static_cast<std::byte>(bad);
    EXPECT_FALSE(m.pack()) << bad;
  }
  Matrix infinite = random_matrix({WeightFormat::kBf16, 48, 64}, random_);
  infinite.data[2 * (20 * 64 + 5) + 1] = std::byte{0x7f};
  infinite.data[2 * (20 * 64 + 5)] = std::byte{0x80};
  Matrix nan = random_matrix({WeightFormat::kFp8Block, 48, 64}, random_);
  nan.data[20 * 64 + 5] = std::byte{0xff};
  Matrix odd = random_matrix({WeightFormat::kFp8Block, 48, 64, 32, ScaleFormat::kF32}, random_);
  const float third = 1.0F / 3.0F;
  std::memcpy(odd.scales.data() + 4, &third, sizeof(third));
  const std::vector<float> x = random_rows(3 * 64, true, random_);
  for (Matrix* const m : {&infinite, &nan, &odd}) {
    EXPECT_FALSE(m->pack());
    const std::vector<float> y = multiply(GetParam(), m->weight, x, pool_);
    const std::vector<float> reference = multiply(Isa::kReference, m->weight, x, pool_);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i % m->weight.rows < Product::kOutputs) {  // computed in one call with the odd rows
        EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(reference[i]))
            << i;
      }
    }
  }
}

TEST_P(MatmulTest, InfinityAndNanComeThrough) {
  Matrix m = random_matrix({WeightFormat::kBf16, 16, 32}, random_);
  const std::vector<float> ones(32, 1.0F);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::bit_cast<float>(0x7f800001U), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(2 * 32, 0.5F);
    x[7] = odd;
    const std::vector<float> y = multiply(GetParam(), m.weight, x, pool_);
    for (std::size_t r = 0; r < 16; ++r) {
      EXPECT_FALSE(std::isfinite(y[r])) << r;
      EXPECT_EQ(std::isnan(y[r]), std::isnan(odd)) << r;
      EXPECT_TRUE(std::isfinite(y[16 + r])) << "the row beside it, output " << r;
    }
  }
}

// The largest float32 has no neighbour in bfloat16 above it.
TEST_P(MatmulTest, TheLargestInputsStayFinite) {
  Matrix m = random_matrix({WeightFormat::kFp4, 16, 32}, random_);
  std::ranges::fill(m.scales, std::byte{117});
  const std::vector<float> x(32, std::numeric_limits<float>::max());
  for (const float value : multiply(GetParam(), m.weight, x, pool_)) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa,
                         MatmulTest,
                         testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

}  // namespace
}  // namespace galley::kernels
