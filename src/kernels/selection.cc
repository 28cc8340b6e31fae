#include "kernels/selection.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/ceil_div.h"
#include "kernels/batch_views.h"
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
  const std::vector<std::int32_t> best = reference::top_k(scores, args.top_k);
  std::int32_t* const list = args.list + row * args.top_k;
  std::fill(std::ranges::copy(best, list).out, list + args.top_k, -1);
  if (args.margin != nullptr) {
    args.margin[row] = std::numeric_limits<float>::infinity();
    if (scores.size() > args.top_k) {
      std::ranges::sort(scores, std::ranges::greater{});
      args.margin[row] = scores[args.top_k - 1] - scores[args.top_k];
    }
  }
}

}  // namespace

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
  pool_.run(tasks_.size(), [&](std::size_t i) { score(args, tasks_[i]); });
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

}  // namespace galley::kernels
