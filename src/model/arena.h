#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace galley::model {

// Device memory of one step, handed out in order and taken back all at once. Memory is kept between
// steps, so a step of a size seen before allocates nothing.
class Arena {
 public:
  explicit Arena(kernels::Device& device) : device_(device) {}

  template <class T>
  [[nodiscard]] T* array(std::size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  [[nodiscard]] float* floats(std::size_t count) { return array<float>(count); }

  // Everything handed out before becomes invalid.
  void reset() {
    chunk_ = 0;
    used_ = 0;
    bytes_ = 0;
  }
  // Handed out since.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::byte* take(std::size_t bytes) {
    constexpr std::size_t kAlignment = 64;
    constexpr std::size_t kChunkBytes = std::size_t{16} << 20U;
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_]->size()) {
      ++chunk_;
      used_ = 0;
    }
    if (chunk_ == chunks_.size()) {
      chunks_.push_back(device_.allocate(bytes > kChunkBytes ? bytes : kChunkBytes));
    }
    std::byte* const out = chunks_[chunk_]->data() + used_;
    used_ += bytes;
    bytes_ += bytes;
    return out;
  }

  kernels::Device& device_;
  std::vector<std::unique_ptr<kernels::Buffer>> chunks_;
  std::size_t chunk_ = 0;
  std::size_t used_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace galley::model
