#include "kernels/matmul_input.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/ceil_div.h"
#include "base/check.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kBlockRows = kGroupRows;  // of a tile of activations

// Of a block. A group of weights may hold zero tiles behind its last (kFp4: units of four). An odd
// number of units keeps blocks from beginning at the same sets of the caches.
constexpr std::size_t kUnitTiles = 4;
std::size_t tiles_of(std::size_t columns) {
  return (ceil_div(columns, kTileColumns * kUnitTiles) | 1U) * kUnitTiles;
}

// The leading 16 bits of `value`; `value` becomes what is left, exactly. Cut, not rounded: the
// largest float32 would round to infinity.
std::uint16_t take_bf16(float& value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto leading = bits & 0xffff0000U;
  // Infinity and nan leave nothing.
  value = std::isfinite(value) ? value - std::bit_cast<float>(leading) : 0.0F;
  const bool is_nan = (leading & 0x7f800000U) == 0x7f800000U && (bits & 0x7fffffU) != 0;
  return static_cast<std::uint16_t>((leading >> 16U) | (is_nan ? 0x40U : 0U));
}

}  // namespace

void AlignedBytes::Free::operator()(std::byte* bytes) const {
  std::free(bytes);
}

std::byte* AlignedBytes::reserve(std::size_t bytes) {
  if (bytes > size_) {
    data_.reset();
    size_ = ceil_div(bytes, kAlign) * kAlign;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, size_)));
    GALLEY_ASSERT(data_ != nullptr);
  }
  return data_.get();
}

void MatmulInput::assign(WorkerPool& pool,
                         const ActivationForm* form,
                         std::span<const float* const> rows,
                         std::size_t columns) {
  rows_.assign(rows.begin(), rows.end());
  columns_ = columns;
  if (form != nullptr) {
    fill(pool, *form);
  }
}

void MatmulInput::assign(WorkerPool& pool,
                         const ActivationForm* form,
                         const float* x,
                         std::size_t stride,
                         std::size_t rows,
                         std::size_t columns) {
  rows_.resize(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    rows_[i] = x + i * stride;
  }
  columns_ = columns;
  if (form != nullptr) {
    fill(pool, *form);
  }
}

std::byte* MatmulInput::block_of(std::size_t term, std::size_t block) const {
  return terms_[term].data() + block * block_bytes_;
}

void MatmulInput::fill(WorkerPool& pool, ActivationForm form) {
  const std::size_t tiles = tiles_of(columns_);
  const std::size_t value_bytes = form == ActivationForm::kF32 ? 4 : 2;
  block_bytes_ = tiles * kTileColumns * kBlockRows * value_bytes;
  blocks_ = ceil_div(rows_.size(), kBlockRows);
  const std::size_t terms = form == ActivationForm::kF32 ? 1 : kTermsMax;
  for (std::size_t term = 0; term < terms; ++term) {
    terms_[term].reserve(blocks_ * block_bytes_);
  }
  block_terms_.assign(blocks_, 1);
  pool.run(blocks_, [&](std::size_t block) { fill_block(form, block); });
  used_terms_ = blocks_ == 0 ? 1 : *std::ranges::max_element(block_terms_);
  for (std::size_t block = 0; block < blocks_ && used_terms_ > 1; ++block) {
    for (std::size_t term = block_terms_[block]; term < used_terms_; ++term) {
      std::fill_n(block_of(term, block), block_bytes_, std::byte{0});
    }
  }
}

void MatmulInput::fill_block(ActivationForm form, std::size_t block) {
  const std::size_t first = block * kBlockRows;
  const std::size_t count = std::min(kBlockRows, rows_.size() - first);
  const std::span<const float* const> rows(rows_.data() + first, count);
  if (columns_ % (kTileColumns * kUnitTiles) != 0) {
    std::fill_n(block_of(0, block), block_bytes_, std::byte{0});
  }
  std::uint32_t low_bits = 0;
  for (std::size_t r = 0; r < count; ++r) {
    const float* const x = rows[r];
    if (x == nullptr) {
      continue;
    }
    for (std::size_t begin = 0; begin < columns_; begin += kTileColumns) {
      const std::size_t width = std::min(kTileColumns, columns_ - begin);
      const std::size_t to = (begin / kTileColumns * kBlockRows + r) * kTileColumns;
      if (form == ActivationForm::kF32) {
        std::memcpy(block_of(0, block) + to * sizeof(float), x + begin, width * sizeof(float));
        continue;
      }
      auto* const out = reinterpret_cast<std::uint16_t*>(block_of(0, block)) + to;
      for (std::size_t k = 0; k < width; ++k) {
        const auto bits = std::bit_cast<std::uint32_t>(x[begin + k]);
        low_bits |= bits & 0xffffU;
        out[k] = static_cast<std::uint16_t>(bits >> 16U);
      }
    }
  }
  if (low_bits == 0) {
    return;
  }
  // Not all are bfloat16: every value as the sum of three.
  block_terms_[block] = kTermsMax;
  for (std::size_t term = 0; term < kTermsMax; ++term) {
    std::fill_n(block_of(term, block), block_bytes_, std::byte{0});
  }
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t k = 0; rows[r] != nullptr && k < columns_; ++k) {
      const std::size_t to = (k / kTileColumns * kBlockRows + r) * kTileColumns + k % kTileColumns;
      float left = rows[r][k];
      for (std::size_t term = 0; term < kTermsMax; ++term) {
        const std::uint16_t bits = take_bf16(left);
        std::memcpy(block_of(term, block) + to * sizeof(bits), &bits, sizeof(bits));
      }
    }
  }
}

Activations MatmulInput::view(std::size_t first, std::size_t count) const {
  GALLEY_ASSERT(first % kBlockRows == 0);
  GALLEY_ASSERT(first + count <= rows_.size());
  Activations out{count, tiles_of(columns_), {}};
  for (std::size_t term = 0; term < used_terms_; ++term) {
    out.terms[term] = block_of(term, first / kBlockRows);
  }
  return out;
}

}  // namespace galley::kernels
