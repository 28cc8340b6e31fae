#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/ceil_div.h"
#include "base/disk.h"

namespace galley {

[[nodiscard]] constexpr std::uint64_t page_ceil(std::uint64_t bytes) {
  return ceil_div(bytes, kDiskPage) * kDiskPage;
}

// Memory that direct I/O can use: begins at a page. Grows like a vector, and new bytes are zero
// only where asked for.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(std::size_t bytes) { resize(bytes); }

  [[nodiscard]] std::byte* data() { return data_.get(); }
  [[nodiscard]] const std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

  // Keeps what it holds; what is new is undefined.
  void resize(std::size_t bytes) {
    if (bytes > capacity_) {
      const std::size_t capacity =
          static_cast<std::size_t>(page_ceil(std::max(bytes, 2 * capacity_)));
      Memory grown(static_cast<std::byte*>(::operator new(capacity, kAlign)));
      if (size_ > 0) {
        std::memcpy(grown.get(), data_.get(), size_);
      }
      data_ = std::move(grown);
      capacity_ = capacity;
    }
    size_ = bytes;
  }
  // `bytes` more, zero.
  std::span<std::byte> extend(std::size_t bytes) {
    const std::size_t begin = size_;
    resize(size_ + bytes);
    const std::span<std::byte> more = this->bytes().subspan(begin);
    std::ranges::fill(more, std::byte{0});
    return more;
  }
  void clear() { size_ = 0; }

 private:
  static constexpr std::align_val_t kAlign{kDiskPage};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlign); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  Memory data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace galley
