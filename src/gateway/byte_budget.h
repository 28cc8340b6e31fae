#pragma once

#include <atomic>
#include <cstddef>

namespace galley::gateway {

// A number of bytes that all request bodies share. Taken on the connections' thread only, returned
// when the lease dies, on any.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t bytes_max) : left_(bytes_max) {}

  class Lease {
   public:
    explicit Lease(ByteBudget& budget) : budget_(budget) {}
    ~Lease() { budget_.left_ += held_; }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    // False, and nothing changes, when the budget does not allow it.
    bool grow_to(std::size_t bytes) {
      if (bytes > held_) {
        if (bytes - held_ > budget_.left_) {
          return false;
        }
        budget_.left_ -= bytes - held_;
        held_ = bytes;
      }
      return true;
    }

   private:
    ByteBudget& budget_;
    std::size_t held_ = 0;
  };

 private:
  std::atomic<std::size_t> left_;
};

}  // namespace galley::gateway
