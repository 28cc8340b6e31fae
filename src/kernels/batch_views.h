#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"

// Where the rows of a batch and the rows beside it are.
namespace galley::kernels {

[[nodiscard]] inline std::size_t batch_rows(std::span<const SequenceView> sequences) {
  return sequences.empty() ? 0 : sequences.back().batch_begin + sequences.back().batch_rows;
}

// Which sequence a row of the batch belongs to.
[[nodiscard]] inline std::size_t sequence_of(std::span<const SequenceView> sequences,
                                             std::size_t row) {
  std::size_t i = 0;
  while (row >= sequences[i].batch_begin + sequences[i].batch_rows) {
    ++i;
  }
  return i;
}

// The row of position p: in the batch when it is there, else in the ring. Null below position 0.
[[nodiscard]] inline const float* row_at(const SequenceView& sequence,
                                         const RingView& ring,
                                         const float* batch,
                                         std::int64_t p) {
  if (p < 0) {
    return nullptr;
  }
  if (p >= sequence.first_position) {
    const auto t = sequence.batch_begin + static_cast<std::size_t>(p - sequence.first_position);
    return batch + t * ring.width;
  }
  return ring.data + static_cast<std::size_t>(p) % ring.rows * ring.width;
}

}  // namespace galley::kernels
