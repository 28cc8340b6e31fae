#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/matmul.h"

namespace galley::kernels {

// Memory that only grows, aligned to 64 bytes, not initialised.
class AlignedBytes {
 public:
  std::byte* reserve(std::size_t bytes);
  [[nodiscard]] std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// Rows of activations, as they are and in the form a kernel reads. Reused from product to product,
// so that nothing is allocated once it has seen the largest.
class MatmulInput {
 public:
  // `form` null: the rows as they are, for the reference. They must outlive the products.
  // No product asks for a null row.
  void assign(WorkerPool& pool,
              const ActivationForm* form,
              std::span<const float* const> rows,
              std::size_t columns);
  // The same rows `stride` floats apart.
  void assign(WorkerPool& pool,
              const ActivationForm* form,
              const float* x,
              std::size_t stride,
              std::size_t rows,
              std::size_t columns);

  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  [[nodiscard]] std::size_t columns() const { return columns_; }
  [[nodiscard]] const float* row(std::size_t i) const { return rows_[i]; }
  // Rows [first, first + count); `first` is a multiple of 16.
  [[nodiscard]] Activations view(std::size_t first, std::size_t count) const;

 private:
  void fill(WorkerPool& pool, ActivationForm form);
  void fill_block(ActivationForm form, std::size_t block);
  [[nodiscard]] std::byte* block_of(std::size_t term, std::size_t block) const;

  std::vector<const float*> rows_;
  std::size_t columns_ = 0;
  std::size_t block_bytes_ = 0;
  std::size_t blocks_ = 0;
  AlignedBytes terms_[kTermsMax];
  std::vector<std::uint8_t> block_terms_;  // that are not all zero
  std::size_t used_terms_ = 0;
};

}  // namespace galley::kernels
