#include "kernels/attention.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "base/check.h"
#include "kernels/batch_views.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/pack.h"
#include "kernels/rounding.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kHeadsPerTask = 8;
constexpr std::size_t kUnpackedPerTask = 16;

}  // namespace

void Attention::run(const AttentionArgs& args) {
  const std::size_t rows = batch_rows(args.sequences);
  for (std::size_t begin = 0; begin < rows; begin += kRows) {
    run_rows(args, begin, std::min(rows, begin + kRows));
  }
}

void Attention::run_rows(const AttentionArgs& args, std::size_t begin, std::size_t end) {
  sources_.clear();
  compressed_.resize(kRows);
  keys_.resize(kRows);
  if (!args.compressed.empty()) {
    find_compressed(args, begin, end);
  }
  unpacked_.resize(sources_.size() * args.width);
  pool_.run(ceil_div(sources_.size(), kUnpackedPerTask), [&](std::size_t task) {
    const std::size_t stop = std::min(sources_.size(), (task + 1) * kUnpackedPerTask);
    for (std::size_t i = task * kUnpackedPerTask; i < stop; ++i) {
      const Source& source = sources_[i];
      reference::unpack_row(source.pages->format, source.pages->row(source.row),
                            {unpacked_.data() + i * args.width, args.width});
    }
  });
  for (std::size_t row = begin; row < end; ++row) {
    std::vector<const float*>& keys = keys_[row - begin];
    keys.clear();
    list_window(args, row, keys);
    for (const std::int32_t place : compressed_[row - begin]) {
      keys.push_back(unpacked_.data() + static_cast<std::size_t>(place) * args.width);
    }
    compressed_[row - begin].clear();
  }
  const std::size_t blocks = ceil_div(args.heads, kHeadsPerTask);
  pool_.run((end - begin) * blocks, [&](std::size_t task) {
    const std::size_t row = begin + task / blocks;
    const std::size_t head = task % blocks * kHeadsPerTask;
    attend(args, row, head, std::min(kHeadsPerTask, args.heads - head), keys_[row - begin]);
  });
}

// Window rows ascending; for a draft block its own rows behind them.
void Attention::list_window(const AttentionArgs& args,
                            std::size_t row,
                            std::vector<const float*>& keys) const {
  const std::size_t i = sequence_of(args.sequences, row);
  const SequenceView& sequence = args.sequences[i];
  const std::int64_t p = args.positions[row];
  // A draft block hangs behind the last verified position: all its rows share that position's
  // window.
  std::int64_t end = args.block_rows_see_all ? sequence.first_position - 1 : p;
  std::int64_t begin = end - static_cast<std::int64_t>(args.window) + 1;
  if (args.span_begin != nullptr) {
    begin = std::min(begin, args.span_begin[row]);
    end = std::max(end, args.span_end[row] - 1);
  }
  for (std::int64_t k = std::max({std::int64_t{0}, begin, args.window_begin[row]}); k <= end; ++k) {
    keys.push_back(row_at(sequence, args.rings[i], args.kv, k));
  }
  for (std::size_t r = 0; args.block_rows_see_all && r < sequence.batch_rows; ++r) {
    keys.push_back(args.kv + (sequence.batch_begin + r) * args.width);
  }
}

// Which compressed rows the batch rows [begin, end) see, each noted once.
void Attention::find_compressed(const AttentionArgs& args, std::size_t begin, std::size_t end) {
  std::size_t last = args.sequences.size();
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t i = sequence_of(args.sequences, row);
    if (i != last) {
      place_.clear();
      last = i;
    }
    const auto visible = static_cast<std::size_t>((args.positions[row] + 1) / args.ratio);
    if (place_.size() < visible) {
      place_.resize(visible, -1);
    }
    const auto add = [&](std::int64_t index) {
      GALLEY_ASSERT(static_cast<std::size_t>(index) < visible);
      std::int32_t& place = place_[static_cast<std::size_t>(index)];
      if (place < 0) {
        place = static_cast<std::int32_t>(sources_.size());
        sources_.push_back({&args.compressed[i], index});
      }
      compressed_[row - begin].push_back(place);
    };
    if (args.list == nullptr) {
      for (std::size_t index = 0; index < visible; ++index) {
        add(static_cast<std::int64_t>(index));
      }
      continue;
    }
    const std::int32_t* const list = args.list + row * args.list_stride;
    for (std::size_t n = 0; n < args.list_stride && list[n] >= 0; ++n) {
      add(list[n]);
    }
  }
}

void Attention::attend(const AttentionArgs& args,
                       std::size_t row,
                       std::size_t first_head,
                       std::size_t heads,
                       const std::vector<const float*>& keys) const {
  const std::size_t at = (row * args.heads + first_head) * args.width;
  if (kernels_ != nullptr && args.width % kRowLanes == 0) {
    thread_local std::vector<float> scores;
    scores.resize(heads * ceil_div(keys.size(), kRowLanes) * kRowLanes);
    kernels_->attend({.q = args.q + at,
                      .heads = heads,
                      .width = args.width,
                      .keys = keys.data(),
                      .count = keys.size(),
                      .scale = args.scale,
                      .sinks = args.sinks.data() + first_head,
                      .out = args.out + at,
                      .scores = scores.data()});
  } else {
    for (std::size_t h = 0; h < heads; ++h) {
      reference::attend({args.q + at + h * args.width, args.width}, keys, args.scale,
                        args.sinks[first_head + h], {args.out + at + h * args.width, args.width});
    }
  }
  round_all({args.out + at, heads * args.width}, args.round);
}

}  // namespace galley::kernels
