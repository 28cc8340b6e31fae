#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/matmul_input.h"
#include "kernels/row_kernels.h"
#include "kernels/tile_kernels.h"

namespace galley::kernels {

// Bytes that TileKernels::attend works in.
[[nodiscard]] inline std::size_t tile_attend_scratch(std::size_t heads,
                                                     std::size_t width,
                                                     std::size_t keys) {
  constexpr std::size_t kNarrow = sizeof(std::uint16_t);
  const std::size_t all_heads = (heads + kTileHeads - 1) / kTileHeads * kTileHeads;
  const std::size_t all_keys = (keys + kTileValueKeys - 1) / kTileValueKeys * kTileValueKeys;
  return all_heads * width * (kNarrow + sizeof(float))                           // queries, sums
         + kTilePieceKeys * width * kNarrow                                      // keys, values
         + all_heads * all_keys * (sizeof(float) + kTileWeightTerms * kNarrow);  // scores, weights
}

// Stream::attention on a CPU. Rows are taken a few at a time: first every compressed row that one
// of them sees is unpacked once, then heads and rows are shared among the workers. Keeps its memory
// from call to call.
class Attention {
 public:
  // `kernels` null: the reference. `tiles` null, or for rows that hold bfloat16.
  Attention(WorkerPool& pool, const RowKernels* kernels, const TileKernels* tiles)
      : pool_(pool), kernels_(kernels), tiles_(tiles) {}
  void run(const AttentionArgs& args);

 private:
  static constexpr std::size_t kRows = 64;  // taken at a time

  // What is unpacked or, for tiles, narrowed: a compressed row, or one of a window.
  struct Source {
    const PagedView* pages;  // null: `values`
    std::int64_t row;
    const float* values;
  };
  // Window rows that a row sees: of positions [first, end), in ascending order.
  struct Window {
    std::int64_t first;
    std::int64_t end;
  };

  [[nodiscard]] bool uses_tiles(const AttentionArgs& args) const;
  [[nodiscard]] static Window window_of(const AttentionArgs& args, std::size_t row);
  void run_rows(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void find_compressed(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void find_windows(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void unpack_sources(const AttentionArgs& args, bool narrow);
  void attend_rows(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void attend_tiles(const AttentionArgs& args, std::size_t begin, std::size_t end);
  void attend(const AttentionArgs& args,
              std::size_t row,
              std::size_t first_head,
              std::size_t heads,
              const std::vector<const float*>& keys) const;

  WorkerPool& pool_;
  const RowKernels* kernels_;
  const TileKernels* tiles_;
  std::vector<Source> sources_;      // of the unpacked rows
  AlignedBytes unpacked_;            // [sources, width] float32, for tiles bfloat16
  std::vector<std::int32_t> place_;  // of a sequence's compressed rows among them, or -1
  // Of each row taken, places among the sources: its compressed rows' in order, its window's first.
  std::vector<std::vector<std::int32_t>> compressed_;
  std::vector<std::size_t> windows_;
  std::vector<std::vector<const float*>> keys_;
  std::vector<std::vector<const std::uint16_t*>> narrow_keys_;
};

}  // namespace galley::kernels
