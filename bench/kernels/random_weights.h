#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/product.h"
#include "kernels/weight.h"

namespace galley::bench {

// More packed random matrices than any cache holds, in memory that is touched once and used for
// one format after another.
class RandomWeights {
 public:
  struct Shape {
    kernels::WeightFormat format;
    std::size_t rows;
    std::size_t columns;
    bool operator==(const Shape&) const = default;
  };

  RandomWeights(kernels::Device& device, std::size_t bytes);

  // Makes them; nothing to do when they are of that shape already. Codes are random, scales
  // around 2^-7.
  void fill(WorkerPool& pool, const Shape& shape);

  [[nodiscard]] const std::vector<kernels::Weight>& matrices() const { return matrices_; }
  [[nodiscard]] std::size_t matrix_bytes() const { return matrix_bytes_; }  // packed
  // Of FP4 only. Packed FP4 is a sequence of units that know nothing of their matrix's size
  // (kernels/packed_weight.h), so that random matrices of one shape are some of any other.
  [[nodiscard]] kernels::Weight cut(std::size_t rows, std::size_t columns, std::size_t& offset);
  [[nodiscard]] std::size_t bytes() const { return matrices_.size() * matrix_bytes_; }

  // Whether `product` makes of the first matrix's beginning, packed, what the reference makes of
  // its codes, within the rounding of the sums.
  [[nodiscard]] bool verify(WorkerPool& pool, const kernels::Product& product) const;

 private:
  std::unique_ptr<kernels::Buffer> memory_;
  std::optional<Shape> shape_;
  std::size_t matrix_bytes_ = 0;
  std::vector<kernels::Weight> matrices_;
};

// Rows of bfloat16 numbers in [-1, 1), as float32.
[[nodiscard]] std::vector<float> random_rows(std::size_t rows, std::size_t columns);

}  // namespace galley::bench
