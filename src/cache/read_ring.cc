#include "cache/read_ring.h"

#include <cerrno>
#include <cstdint>
#include <liburing.h>
#include <system_error>

#include "base/check.h"

namespace galley::cache {

ReadRing::ReadRing() : ring_(std::make_unique<io_uring>()) {}

ReadRing::~ReadRing() {
  if (ring_) {
    ::io_uring_queue_exit(ring_.get());
  }
}

std::unique_ptr<ReadRing> ReadRing::open() {
  std::unique_ptr<ReadRing> out(new ReadRing());
  if (::io_uring_queue_init(kDepth, out->ring_.get(), 0) != 0) {
    out->ring_.reset();
    return nullptr;
  }
  return out;
}

void ReadRing::read_all(std::span<DiskRead> reads,
                        const std::function<int(std::size_t)>& descriptor,
                        const std::function<void(std::size_t)>& done) {
  std::size_t begun = 0;
  std::size_t ended = 0;
  const auto end = [&](std::size_t index, int result) {
    DiskRead& read = reads[index];
    if (result == static_cast<int>(read.out.size())) {
      read.result = {};
    } else {
      // An error or an early end: the plain read says which, in its own words.
      read.result = read.file->read(read.offset, read.out);
    }
    ++ended;
    done(index);
  };
  while (ended < reads.size()) {
    while (begun < reads.size() && begun - ended < kDepth) {
      io_uring_sqe* const entry = ::io_uring_get_sqe(ring_.get());
      if (entry == nullptr) {
        break;
      }
      const DiskRead& read = reads[begun];
      ::io_uring_prep_read(entry, descriptor(begun), read.out.data(),
                           static_cast<unsigned>(read.out.size()), read.offset);
      entry->user_data = begun;
      ++begun;
    }
    // Submitted entries write into the caller's memory: what is under way must end before we leave.
    const int submitted = ::io_uring_submit_and_wait(ring_.get(), 1);
    GALLEY_ASSERT(submitted >= 0 || submitted == -EINTR || submitted == -EAGAIN ||
                  submitted == -EBUSY);
    io_uring_cqe* completed = nullptr;
    while (::io_uring_peek_cqe(ring_.get(), &completed) == 0) {
      const auto index = static_cast<std::size_t>(completed->user_data);
      const int result = completed->res;
      ::io_uring_cqe_seen(ring_.get(), completed);
      end(index, result);
    }
  }
}

}  // namespace galley::cache
