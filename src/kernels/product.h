#pragma once

#include <cstddef>

#include "kernels/isa.h"
#include "kernels/matmul.h"
#include "kernels/matmul_input.h"
#include "kernels/weight.h"

namespace galley::kernels {

// y = W x of one instruction set, for a few outputs and a few hundred rows at a time; what a worker
// does in one task.
class Product {
 public:
  static constexpr std::size_t kOutputs = kGroupsMax * kGroupRows;

  explicit Product(Isa isa);

  // What MatmulInput::assign wants.
  [[nodiscard]] const ActivationForm* form() const {
    return kernel_ == nullptr ? nullptr : &kernel_->form;
  }

  // c[rows, stride], valid until the next call on this thread.
  struct Block {
    const float* c;
    std::size_t stride;
  };
  // Outputs [first, first + count), which lie in at most two groups of 16, of rows [row, row +
  // rows) of `x`; `row` is a multiple of 16, rows <= kRowsMax. Weights lie packed, or are packed on
  // the way, which gives the same bits; what has no packed form is left to the reference.
  [[nodiscard]] Block outputs(const Weight& weight,
                              std::size_t first,
                              std::size_t count,
                              const MatmulInput& x,
                              std::size_t row,
                              std::size_t rows) const;

 private:
  const MatmulKernel* kernel_;  // null: the reference
};

}  // namespace galley::kernels
