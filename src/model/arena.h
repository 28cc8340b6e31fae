#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace galley::model {

// Device memory handed out in order and taken back all at once or, by a Scope, from the end. Memory
// is kept, so a step no larger than one seen before allocates nothing; what is held stays below
// twice the largest step's and kChunkBytes.
class Arena {
  struct Mark {
    std::size_t chunk = 0;
    std::size_t used = 0;   // of that chunk
    std::size_t bytes = 0;  // in all
  };

 public:
  static constexpr std::size_t kChunkBytes = std::size_t{16} << 20U;  // the least that is allocated

  explicit Arena(kernels::Device& device) : device_(device) {}

  // Takes back at its end what was handed out since its begin. Operations already enqueued may
  // still use that memory, so what is handed out next is for operations behind them on the same
  // stream alone, not for the host.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), begin_(arena.end_) {}
    ~Scope() { arena_.end_ = begin_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    const Mark begin_;
  };

  template <class T>
  [[nodiscard]] T* array(std::size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  [[nodiscard]] float* floats(std::size_t count) { return array<float>(count); }

  // Everything handed out before becomes invalid; no operation may be under way that uses it.
  void reset() {
    end_ = {};
    if (chunks_.size() > 1) {
      // One chunk that holds it all: pieces too small for a later step would add up.
      chunks_.clear();
      chunks_.push_back(device_.allocate((peak_ + kChunkBytes - 1) / kChunkBytes * kChunkBytes));
    }
    peak_ = 0;
  }
  // The most that was handed out at one time since the last reset.
  [[nodiscard]] std::size_t peak_bytes() const { return peak_; }
  // Allocated, whether handed out or not.
  [[nodiscard]] std::size_t held_bytes() const {
    std::size_t bytes = 0;
    for (const auto& chunk : chunks_) {
      bytes += chunk->size();
    }
    return bytes;
  }

 private:
  [[nodiscard]] std::byte* take(std::size_t bytes) {
    constexpr std::size_t kAlignment = 64;
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    while (end_.chunk < chunks_.size() && end_.used + bytes > chunks_[end_.chunk]->size()) {
      ++end_.chunk;
      end_.used = 0;
    }
    if (end_.chunk == chunks_.size()) {
      chunks_.push_back(device_.allocate(std::max(bytes, kChunkBytes)));
    }
    std::byte* const out = chunks_[end_.chunk]->data() + end_.used;
    end_.used += bytes;
    end_.bytes += bytes;
    peak_ = std::max(peak_, end_.bytes);
    return out;
  }

  kernels::Device& device_;
  std::vector<std::unique_ptr<kernels::Buffer>> chunks_;
  Mark end_;
  std::size_t peak_ = 0;
};

}  // namespace galley::model
