#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "kernels/isa.h"
#include "kernels/matmul.h"
#include "kernels/matmul_input.h"
#include "kernels/weight.h"

namespace galley::kernels {

// y = W x of one instruction set, for some outputs and a few hundred rows at a time: what a worker
// does in one task.
class Product {
 public:
  static constexpr std::size_t kOutputs = kGroupsMax * kGroupRows;

  explicit Product(Isa isa);

  // What MatmulInput::assign wants.
  [[nodiscard]] const ActivationForm* form() const {
    return kernel_ == nullptr ? nullptr : &kernel_->form;
  }

  // c[rows, stride] of one thread, valid until its next call with the same `stretch`.
  struct Block {
    const float* c;
    std::size_t stride;
    std::size_t outputs;
  };
  // Outputs that lie in at most two groups of 16.
  [[nodiscard]] Block outputs(const Weight& weight,
                              std::size_t first,
                              std::size_t count,
                              const MatmulInput& x,
                              std::size_t row,
                              std::size_t rows,
                              std::size_t stretch = 0) const;

  // Several stretches of kOutputs: what is stored then goes out in runs of half a kilobyte, where
  // single stretches of many rows would each touch a page of their own.
  static constexpr std::size_t kStretchesMax = 4;
  // How many outputs a task should take at once so that `threads` workers have several tasks each.
  [[nodiscard]] static std::size_t outputs_per_task(std::size_t outputs,
                                                    std::size_t rows,
                                                    int threads);

  // use(t, i, values) for every row t < rows of `x` from `row` on, in ascending order, with some of
  // the outputs [first, first + count), those from first + i on; count <= kOutputs * kStretchesMax
  // - first % kOutputs. `row` is a multiple of 16, rows <= kRowsMax. Weights lie packed, or are
  // packed on the way, which gives the same bits; what has no packed form is left to the reference.
  template <class Use>
  void for_outputs(const Weight& weight,
                   std::size_t first,
                   std::size_t count,
                   const MatmulInput& x,
                   std::size_t row,
                   std::size_t rows,
                   Use use) const {
    std::array<Block, kStretchesMax> blocks{};
    std::size_t stretches = 0;
    for (std::size_t at = first; at < first + count; ++stretches) {
      const std::size_t end = std::min(first + count, (at / kOutputs + 1) * kOutputs);
      blocks[stretches] = outputs(weight, at, end - at, x, row, rows, stretches);
      at = end;
    }
    for (std::size_t t = 0; t < rows; ++t) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < stretches; ++i) {
        const Block& block = blocks[i];
        use(t, at, std::span<const float>(block.c + t * block.stride, block.outputs));
        at += block.outputs;
      }
    }
  }

 private:
  const MatmulKernel* kernel_;  // null: the reference
};

}  // namespace galley::kernels
