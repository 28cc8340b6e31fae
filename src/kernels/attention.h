#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/row_kernels.h"

namespace galley::kernels {

// Stream::attention on a CPU. Rows are taken a few at a time: first every compressed row that one
// of them sees is unpacked once, then heads and rows are shared among the workers. Keeps its memory
// from call to call.
class Attention {
 public:
  // `kernels` null: the reference.
  Attention(WorkerPool& pool, const RowKernels* kernels) : pool_(pool), kernels_(kernels) {}
  void run(const AttentionArgs& args);

 private:
  static constexpr std::size_t kRows = 16;  // taken at a time

  void run_rows(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void list_window(const AttentionArgs& args,
                   std::size_t row,
                   std::vector<const float*>& keys) const;
  void find_compressed(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void attend(const AttentionArgs& args,
              std::size_t row,
              std::size_t first_head,
              std::size_t heads,
              const std::vector<const float*>& keys) const;

  struct Source {
    const PagedView* pages;
    std::int64_t row;
  };

  WorkerPool& pool_;
  const RowKernels* kernels_;
  std::vector<Source> sources_;      // of the unpacked rows
  std::vector<float> unpacked_;      // [sources, width]
  std::vector<std::int32_t> place_;  // of a sequence's compressed rows among them, or -1
  std::vector<std::vector<std::int32_t>> compressed_;  // of each row taken: places in order
  std::vector<std::vector<const float*>> keys_;
};

}  // namespace galley::kernels
