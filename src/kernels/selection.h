#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/row_kernels.h"
#include "kernels/tile_kernels.h"

namespace galley::kernels {

// The indices of the best scores above -infinity, ascending, of equal ones the lower: what
// reference::top_k(scores, list.size()) returns. How many there are.
std::size_t best_scores(std::span<const float> scores, std::span<std::int32_t> list);

// Stream::select on a CPU. Rows are taken a few at a time; the workers share the keys, each of
// which is unpacked once for all of the rows. Keeps its memory from call to call.
class Selection {
 public:
  // `kernels` null: the reference. `tiles` null, or for queries and keys that hold bfloat16.
  Selection(WorkerPool& pool, const RowKernels* kernels, const TileKernels* tiles)
      : pool_(pool), kernels_(kernels), tiles_(tiles) {}
  void run(const SelectArgs& args);

 private:
  static constexpr std::size_t kRows = 16;  // taken at a time

  // Some keys for some rows of one sequence.
  struct Task {
    std::size_t sequence;
    std::size_t begin;  // rows [begin, end)
    std::size_t end;
    std::size_t first_key;  // keys [first_key, last_key)
    std::size_t last_key;
  };

  void run_rows(const SelectArgs& args, std::size_t begin, std::size_t end);
  [[nodiscard]] bool uses_tiles(const SelectArgs& args) const;
  void score(const SelectArgs& args, const Task& task);
  void score_tiles(const SelectArgs& args, const Task& task);

  WorkerPool& pool_;
  const RowKernels* kernels_;
  const TileKernels* tiles_;
  std::size_t first_ = 0;  // of the rows taken
  std::vector<Task> tasks_;
  std::vector<std::vector<float>> scores_;  // of each row taken, a key it sees each
  std::vector<float> weights_;              // [rows, heads]
};

}  // namespace galley::kernels
