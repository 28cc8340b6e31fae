#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/disk.h"

struct io_uring;

namespace galley::cache {

// Reads that are under way together, through the kernel's io_uring. One thread at a time.
class ReadRing {
 public:
  // At once; further ones follow as these end.
  static constexpr unsigned kDepth = 64;

  // Nothing where the kernel has no io_uring or forbids it.
  static std::unique_ptr<ReadRing> open();
  ~ReadRing();
  ReadRing(const ReadRing&) = delete;
  ReadRing& operator=(const ReadRing&) = delete;

  // `descriptor` of reads[i].file. As Disk::read_all; a read that the kernel cut short is gone on
  // with by a plain one.
  void read_all(std::span<DiskRead> reads,
                const std::function<int(std::size_t)>& descriptor,
                const std::function<void(std::size_t)>& done);

 private:
  ReadRing();

  std::unique_ptr<io_uring> ring_;
};

}  // namespace galley::cache
