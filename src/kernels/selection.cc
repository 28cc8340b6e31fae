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
constexpr std::size_t kLanes = 16;  // row_kernels.h: width is a multiple of it

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
  for (std::size_t i = 0; i < args.sequences.size(); ++i) {
    const std::size_t first = args.sequences[i].batch_begin;
    const std::size_t last = first + args.sequences[i].batch_rows;
    for (std::size_t begin = first; begin < last; begin += kRows) {
      run_rows(args, args.keys[i], begin, std::min(last, begin + kRows));
    }
  }
}

void Selection::run_rows(const SelectArgs& args,
                         const PagedView& keys,
                         std::size_t begin,
                         std::size_t end) {
  scores_.resize(kRows);
  weights_.resize(kRows * args.heads);
  std::size_t longest = 0;
  for (std::size_t row = begin; row < end; ++row) {
    const auto visible = static_cast<std::size_t>((args.positions[row] + 1) / args.ratio);
    longest = std::max(longest, visible);
    scores_[row - begin].assign(visible, -std::numeric_limits<float>::infinity());
    for (std::size_t h = 0; h < args.heads; ++h) {
      weights_[(row - begin) * args.heads + h] =
          args.weights[row * args.heads + h] * args.weight_scale;
    }
  }
  pool_.run(ceil_div(longest, kKeysPerTask), [&](std::size_t task) {
    const std::size_t first = task * kKeysPerTask;
    score(args, keys, begin, end, first, std::min(longest, first + kKeysPerTask));
  });
  pool_.run(end - begin, [&](std::size_t i) { choose(args, begin + i, scores_[i]); });
}

// Scores of the keys [first_key, last_key) for the rows that see them, block of candidates by
// block.
void Selection::score(const SelectArgs& args,
                      const PagedView& keys,
                      std::size_t begin,
                      std::size_t end,
                      std::size_t first_key,
                      std::size_t last_key) {
  const bool all = args.publish_candidates || args.candidates == nullptr;
  const std::size_t block = all ? kKeysPerTask : std::max<std::size_t>(args.candidate_block, 1);
  thread_local std::vector<float> unpacked;
  unpacked.resize(block * args.width);
  for (std::size_t first = first_key; first < last_key;) {
    // To the end of the block, for tasks do not begin at blocks of every size.
    const std::size_t last = std::min(last_key, (first / block + 1) * block);
    std::size_t known = 0;  // keys of the block that are unpacked
    for (std::size_t row = begin; row < end; ++row) {
      std::vector<float>& scores = scores_[row - begin];
      const std::size_t stop = std::min(last, scores.size());
      if (stop <= first || (!all && !kept(args, row, first / block))) {
        continue;
      }
      for (; known < stop - first; ++known) {
        reference::unpack_row(keys.format, keys.row(static_cast<std::int64_t>(first + known)),
                              {unpacked.data() + known * args.width, args.width});
      }
      const float* const q = args.q + row * args.heads * args.width;
      const float* const weights = weights_.data() + (row - begin) * args.heads;
      if (kernels_ != nullptr && args.width % kLanes == 0) {
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
