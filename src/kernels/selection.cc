#include "kernels/selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>

#include "base/ceil_div.h"
#include "kernels/batch_views.h"
#include "kernels/fp4_row.h"
#include "kernels/matmul_input.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/pack.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kKeysPerTask = 256;

bool kept(const SelectArgs& args, std::size_t row, std::size_t block) {
  return args.candidates == nullptr ||
         ((args.candidates[row * args.candidate_stride + block / 8] >> (block % 8)) & 1U) != 0;
}

// Candidates and list of a row from its scores.
void choose(const SelectArgs& args, std::size_t row, std::vector<float>& scores) {
  std::uint8_t* const candidates =
      args.candidates == nullptr ? nullptr : args.candidates + row * args.candidate_stride;
  if (args.publish_candidates && candidates != nullptr) {
    std::vector<std::uint8_t> positions(scores.size());
    reference::keep_candidates(scores, args.candidate_block, args.candidate_blocks_kept, positions);
    std::fill_n(candidates, args.candidate_stride, std::uint8_t{0});
    for (std::size_t j = 0; j < positions.size(); j += args.candidate_block) {
      const std::size_t block = j / args.candidate_block;
      candidates[block / 8] =
          static_cast<std::uint8_t>(candidates[block / 8] | (positions[j] << (block % 8)));
    }
  }
  std::int32_t* const list = args.list + row * args.top_k;
  const std::size_t found = best_scores(scores, {list, args.top_k});
  std::fill(list + found, list + args.top_k, -1);
  if (args.margin != nullptr) {
    args.margin[row] = std::numeric_limits<float>::infinity();
    if (scores.size() > args.top_k) {
      std::ranges::sort(scores, std::ranges::greater{});
      args.margin[row] = scores[args.top_k - 1] - scores[args.top_k];
    }
  }
}

}  // namespace

// Counting by leading bits tells which scores are surely among the best and which may be; only the
// latter are put in order, so that long contexts cost two passes.
std::size_t best_scores(std::span<const float> scores, std::span<std::int32_t> list) {
  constexpr unsigned kBinBits = 12;
  constexpr std::uint32_t kSign = 0x80000000U;
  // Greater scores have greater keys.
  const auto key_of = [](float score) {
    const auto bits = std::bit_cast<std::uint32_t>(score == 0.0F ? 0.0F : score);
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  };
  const auto chosen = [](float score) { return score > -std::numeric_limits<float>::infinity(); };
  thread_local std::vector<std::uint32_t> bins;
  bins.assign(std::size_t{1} << kBinBits, 0);
  std::size_t finite = 0;
  for (const float score : scores) {
    if (chosen(score)) {
      ++bins[key_of(score) >> (32 - kBinBits)];
      ++finite;
    }
  }
  // The bin that the last of the list lies in, and how many of it belong there.
  std::size_t left = std::min(finite, list.size());
  std::size_t edge = bins.size();
  std::size_t of_edge = 0;
  while (left > 0) {
    --edge;
    of_edge = std::min<std::size_t>(left, bins[edge]);
    left -= of_edge;
  }
  thread_local std::vector<std::int32_t> tied;
  tied.clear();
  for (std::size_t j = 0; of_edge > 0 && j < scores.size(); ++j) {
    if (chosen(scores[j]) && key_of(scores[j]) >> (32 - kBinBits) == edge) {
      tied.push_back(static_cast<std::int32_t>(j));
    }
  }
  std::ranges::nth_element(tied, tied.begin() + static_cast<std::ptrdiff_t>(of_edge),
                           [&](std::int32_t a, std::int32_t b) {
                             const float x = scores[static_cast<std::size_t>(a)];
                             const float y = scores[static_cast<std::size_t>(b)];
                             return x != y ? x > y : a < b;
                           });
  tied.resize(of_edge);
  std::ranges::sort(tied);
  auto next = tied.begin();
  std::size_t found = 0;
  for (std::size_t j = 0; j < scores.size() && found < list.size(); ++j) {
    const bool at_edge = next != tied.end() && *next == static_cast<std::int32_t>(j);
    if (at_edge) {
      ++next;
    }
    if (at_edge || (chosen(scores[j]) && key_of(scores[j]) >> (32 - kBinBits) > edge)) {
      list[found++] = static_cast<std::int32_t>(j);
    }
  }
  return found;
}

void Selection::run(const SelectArgs& args) {
  const std::size_t rows = batch_rows(args.sequences);
  for (std::size_t begin = 0; begin < rows; begin += kRows) {
    run_rows(args, begin, std::min(rows, begin + kRows));
  }
}

void Selection::run_rows(const SelectArgs& args, std::size_t begin, std::size_t end) {
  first_ = begin;
  tasks_.clear();
  scores_.resize(kRows);
  weights_.resize(kRows * args.heads);
  for (std::size_t row = begin; row < end; ++row) {
    const auto visible = static_cast<std::size_t>((args.positions[row] + 1) / args.ratio);
    scores_[row - begin].assign(visible, -std::numeric_limits<float>::infinity());
    for (std::size_t h = 0; h < args.heads; ++h) {
      weights_[(row - begin) * args.heads + h] =
          args.weights[row * args.heads + h] * args.weight_scale;
    }
  }
  for (std::size_t row = begin; row < end;) {
    const std::size_t i = sequence_of(args.sequences, row);
    const SequenceView& sequence = args.sequences[i];
    const std::size_t stop = std::min(end, sequence.batch_begin + sequence.batch_rows);
    const std::size_t keys = scores_[stop - 1 - begin].size();  // the last row sees most
    for (std::size_t key = 0; key < keys; key += kKeysPerTask) {
      tasks_.push_back({i, row, stop, key, std::min(keys, key + kKeysPerTask)});
    }
    row = stop;
  }
  const bool tiles = uses_tiles(args);
  pool_.run(tasks_.size(),
            [&](std::size_t i) { tiles ? score_tiles(args, tasks_[i]) : score(args, tasks_[i]); });
  pool_.run(end - begin, [&](std::size_t i) { choose(args, begin + i, scores_[i]); });
}

// Scores a task's keys for those of its rows that see them, block of candidates by block.
void Selection::score(const SelectArgs& args, const Task& task) {
  const PagedView& keys = args.keys[task.sequence];
  const bool all = args.publish_candidates || args.candidates == nullptr;
  const std::size_t block = all ? kKeysPerTask : std::max<std::size_t>(args.candidate_block, 1);
  thread_local std::vector<float> unpacked;
  unpacked.resize(block * args.width);
  for (std::size_t first = task.first_key; first < task.last_key;) {
    // To the end of the block, for tasks do not begin at blocks of every size.
    const std::size_t last = std::min(task.last_key, (first / block + 1) * block);
    std::size_t known = 0;  // keys of the block that are unpacked
    for (std::size_t row = task.begin; row < task.end; ++row) {
      std::vector<float>& scores = scores_[row - first_];
      const std::size_t stop = std::min(last, scores.size());
      if (stop <= first || (!all && !kept(args, row, first / block))) {
        continue;
      }
      for (; known < stop - first; ++known) {
        reference::unpack_row(keys.format, keys.row(static_cast<std::int64_t>(first + known)),
                              {unpacked.data() + known * args.width, args.width});
      }
      const float* const q = args.q + row * args.heads * args.width;
      const float* const weights = weights_.data() + (row - first_) * args.heads;
      if (kernels_ != nullptr && args.width % kRowLanes == 0) {
        kernels_->index_scores({.q = q,
                                .weights = weights,
                                .heads = args.heads,
                                .width = args.width,
                                .keys = unpacked.data(),
                                .count = stop - first,
                                .scores = scores.data() + first});
        continue;
      }
      for (std::size_t j = first; j < stop; ++j) {
        scores[j] =
            reference::index_score({q, args.heads * args.width}, {weights, args.heads},
                                   {unpacked.data() + (j - first) * args.width, args.width});
      }
    }
    first = last;
  }
}

bool Selection::uses_tiles(const SelectArgs& args) const {
  return tiles_ != nullptr && args.round == Round::kBf16 && args.heads <= kTileHeadsMax &&
         args.width <= kTileWidthMax && unpacks_by_tiles(args.keys.front().format);
}

// Keys are unpacked and arranged by tiles of 16 when the first row wants one of them.
void Selection::score_tiles(const SelectArgs& args, const Task& task) {
  const PagedView& keys = args.keys[task.sequence];
  const std::size_t tile_bytes = kTileKeys * args.width * sizeof(std::uint16_t);
  thread_local AlignedBytes arranged;
  thread_local AlignedBytes unpacked;
  thread_local AlignedBytes scratch;
  std::byte* const tiles = arranged.reserve(kKeysPerTask / kTileKeys * tile_bytes);
  auto* const rows = reinterpret_cast<std::uint16_t*>(unpacked.reserve(tile_bytes));
  std::array<bool, kKeysPerTask / kTileKeys> known{};
  const auto arrange = [&](std::size_t tile) {
    const std::size_t first = task.first_key + tile * kTileKeys;
    const std::size_t count = std::min(kTileKeys, task.last_key - first);
    for (std::size_t j = 0; j < count; ++j) {
      const std::byte* const row = keys.row(static_cast<std::int64_t>(first + j));
      tiles_->unpack_fp4(fp4_row(keys.format, row), rows + j * args.width);
    }
    tiles_->arrange_keys(rows, count, args.width, tiles + tile * tile_bytes);
    known[tile] = true;
  };
  const bool all = args.publish_candidates || args.candidates == nullptr;
  const std::size_t block = all ? kKeysPerTask : std::max<std::size_t>(args.candidate_block, 1);
  for (std::size_t row = task.begin; row < task.end; ++row) {
    std::vector<float>& scores = scores_[row - first_];
    const std::size_t stop = std::min(task.last_key, scores.size());
    for (std::size_t first = task.first_key; first < stop;) {
      // To the end of the block, for tasks do not begin at blocks of every size; kept ones that
      // follow each other are taken together.
      const bool taken = all || kept(args, row, first / block);
      std::size_t last = all ? stop : std::min(stop, (first / block + 1) * block);
      while (taken && last < stop && kept(args, row, last / block)) {
        last = std::min(stop, last + block);
      }
      if (taken) {
        const std::size_t begin = (first - task.first_key) / kTileKeys;
        const std::size_t end = ceil_div(last - task.first_key, kTileKeys);
        for (std::size_t tile = begin; tile < end; ++tile) {
          if (!known[tile]) {
            arrange(tile);
          }
        }
        std::array<float, kKeysPerTask> found;
        tiles_->index_scores({.q = args.q + row * args.heads * args.width,
                              .weights = weights_.data() + (row - first_) * args.heads,
                              .heads = args.heads,
                              .width = args.width,
                              .keys = tiles + begin * tile_bytes,
                              .count = (end - begin) * kTileKeys,
                              .scores = found.data(),
                              .scratch = scratch.reserve(kTileScoresScratch)});
        std::copy_n(found.data() + (first - task.first_key - begin * kTileKeys), last - first,
                    scores.data() + first);
      }
      first = last;
    }
  }
}

}  // namespace galley::kernels
