#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/row_kernels.h"

namespace galley::kernels {

// Stream::select on a CPU. Rows are taken a few at a time; the workers share the keys, each of
// which is unpacked once for all of the rows. Keeps its memory from call to call.
class Selection {
 public:
  // `kernels` null: the reference.
  Selection(WorkerPool& pool, const RowKernels* kernels) : pool_(pool), kernels_(kernels) {}
  void run(const SelectArgs& args);

 private:
  static constexpr std::size_t kRows = 16;  // taken at a time, of one sequence

  // Rows [begin, end) of the batch, whose keys are `keys`.
  void run_rows(const SelectArgs& args, const PagedView& keys, std::size_t begin, std::size_t end);
  void score(const SelectArgs& args,
             const PagedView& keys,
             std::size_t begin,
             std::size_t end,
             std::size_t first_key,
             std::size_t last_key);

  WorkerPool& pool_;
  const RowKernels* kernels_;
  std::vector<std::vector<float>> scores_;  // of each row taken, a key it sees each
  std::vector<float> weights_;              // [rows, heads]
};

}  // namespace galley::kernels
