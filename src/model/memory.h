#pragma once

#include <cstddef>

#include "model/checkpoint.h"

namespace galley::model {

// What running a checkpoint takes, in bytes.
struct MemoryNeeds {
  std::size_t weights{};          // mapped; in memory once touched, shared with other processes
  std::size_t copied{};           // weights stored transposed: in the memory of each process
  std::size_t tables_on_disk{};   // engram tables: read by row, never resident
  std::size_t block{};            // 128 tokens of cache
  std::size_t thousand_tokens{};  // of one sequence, in whole blocks
  std::size_t request{};    // rings and unfinished groups of one sequence, whatever its length
  std::size_t step_rows{};  // of the step that `step` is for
  std::size_t step{};       // scratch of a step that asks for every row's logits
};

[[nodiscard]] MemoryNeeds memory_needs(const Checkpoint& checkpoint, std::size_t step_rows);

}  // namespace galley::model
