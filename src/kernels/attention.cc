#include "kernels/attention.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "base/check.h"
#include "kernels/batch_views.h"
#include "kernels/fp4_row.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/pack.h"
#include "kernels/rounding.h"

namespace galley::kernels {
namespace {

constexpr std::size_t kHeadsPerTask = 8;
constexpr std::size_t kUnpackedPerTask = 16;

// The values of a compressed row, which are bfloat16 numbers.
void unpack_narrow(const TileKernels& tiles,
                   const RowFormat& format,
                   const std::byte* row,
                   std::uint16_t* out) {
  if (unpacks_by_tiles(format)) {
    return tiles.unpack_fp4(fp4_row(format, row), out);
  }
  thread_local std::vector<float> values;
  values.resize(format.width);
  reference::unpack_row(format, row, values);
  tiles.narrow(values.data(), values.size(), out);
}

}  // namespace

void Attention::run(const AttentionArgs& args) {
  const std::size_t rows = batch_rows(args.sequences);
  for (std::size_t begin = 0; begin < rows; begin += kRows) {
    run_rows(args, begin, std::min(rows, begin + kRows));
  }
}

// Rows that are stored as bfloat16 hold nothing else: rounding came last where they were made.
bool Attention::uses_tiles(const AttentionArgs& args) const {
  return tiles_ != nullptr && args.round == Round::kBf16 && args.width % kTileWidthUnit == 0 &&
         args.width <= kTileWidthMax;
}

void Attention::run_rows(const AttentionArgs& args, std::size_t begin, std::size_t end) {
  sources_.clear();
  compressed_.resize(kRows);
  for (std::vector<std::int32_t>& places : compressed_) {
    places.clear();
  }
  if (!args.compressed.empty()) {
    find_compressed(args, begin, end);
  }
  if (uses_tiles(args)) {
    find_windows(args, begin, end);
    unpack_sources(args, true);
    attend_tiles(args, begin, end);
  } else {
    unpack_sources(args, false);
    attend_rows(args, begin, end);
  }
}

void Attention::unpack_sources(const AttentionArgs& args, bool narrow) {
  const std::size_t row_bytes = args.width * (narrow ? sizeof(std::uint16_t) : sizeof(float));
  std::byte* const unpacked = unpacked_.reserve(sources_.size() * row_bytes);
  pool_.run(ceil_div(sources_.size(), kUnpackedPerTask), [&](std::size_t task) {
    const std::size_t stop = std::min(sources_.size(), (task + 1) * kUnpackedPerTask);
    for (std::size_t i = task * kUnpackedPerTask; i < stop; ++i) {
      const Source& source = sources_[i];
      std::byte* const out = unpacked + i * row_bytes;
      if (source.pages == nullptr) {
        tiles_->narrow(source.values, args.width, reinterpret_cast<std::uint16_t*>(out));
      } else if (narrow) {
        unpack_narrow(*tiles_, source.pages->format, source.pages->row(source.row),
                      reinterpret_cast<std::uint16_t*>(out));
      } else {
        reference::unpack_row(source.pages->format, source.pages->row(source.row),
                              {reinterpret_cast<float*>(out), args.width});
      }
    }
  });
}

// The rows of a draft block hang behind the last verified position: all of them see its window, and
// each other.
Attention::Window Attention::window_of(const AttentionArgs& args, std::size_t row) {
  const SequenceView& sequence = args.sequences[sequence_of(args.sequences, row)];
  const std::int64_t last =
      args.block_rows_see_all ? sequence.first_position - 1 : args.positions[row];
  std::int64_t first = last - static_cast<std::int64_t>(args.window) + 1;
  std::int64_t end = last + 1;
  if (args.span_begin != nullptr) {
    first = std::min(first, args.span_begin[row]);
    end = std::max(end, args.span_end[row]);
  }
  if (args.block_rows_see_all) {
    end += static_cast<std::int64_t>(sequence.batch_rows);
  }
  first = std::max({std::int64_t{0}, first, args.window_begin[row]});
  return {first, std::max(first, end)};
}

// Every window row that the batch rows [begin, end) see, each noted once.
void Attention::find_windows(const AttentionArgs& args, std::size_t begin, std::size_t end) {
  windows_.resize(kRows);
  for (std::size_t row = begin; row < end;) {
    const std::size_t i = sequence_of(args.sequences, row);
    const SequenceView& sequence = args.sequences[i];
    const std::size_t stop = std::min(end, sequence.batch_begin + sequence.batch_rows);
    Window all = window_of(args, row);
    for (std::size_t other = row + 1; other < stop; ++other) {
      const Window window = window_of(args, other);
      all = {std::min(all.first, window.first), std::max(all.end, window.end)};
    }
    const std::size_t place = sources_.size();
    for (std::int64_t p = all.first; p < all.end; ++p) {
      sources_.push_back({nullptr, 0, row_at(sequence, args.rings[i], args.kv, p)});
    }
    for (; row < stop; ++row) {
      windows_[row - begin] =
          place + static_cast<std::size_t>(window_of(args, row).first - all.first);
    }
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

void Attention::attend_rows(const AttentionArgs& args, std::size_t begin, std::size_t end) {
  keys_.resize(kRows);
  const auto* const unpacked = reinterpret_cast<const float*>(unpacked_.data());
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t i = sequence_of(args.sequences, row);
    std::vector<const float*>& keys = keys_[row - begin];
    keys.clear();
    const Window window = window_of(args, row);
    for (std::int64_t p = window.first; p < window.end; ++p) {
      keys.push_back(row_at(args.sequences[i], args.rings[i], args.kv, p));
    }
    for (const std::int32_t place : compressed_[row - begin]) {
      keys.push_back(unpacked + static_cast<std::size_t>(place) * args.width);
    }
  }
  const std::size_t blocks = ceil_div(args.heads, kHeadsPerTask);
  pool_.run((end - begin) * blocks, [&](std::size_t task) {
    const std::size_t row = begin + task / blocks;
    const std::size_t head = task % blocks * kHeadsPerTask;
    attend(args, row, head, std::min(kHeadsPerTask, args.heads - head), keys_[row - begin]);
  });
}

void Attention::attend_tiles(const AttentionArgs& args, std::size_t begin, std::size_t end) {
  narrow_keys_.resize(kRows);
  const auto* const unpacked = reinterpret_cast<const std::uint16_t*>(unpacked_.data());
  for (std::size_t row = begin; row < end; ++row) {
    std::vector<const std::uint16_t*>& keys = narrow_keys_[row - begin];
    keys.clear();
    const Window window = window_of(args, row);
    for (std::int64_t p = window.first; p < window.end; ++p) {
      keys.push_back(unpacked +
                     (windows_[row - begin] + static_cast<std::size_t>(p - window.first)) *
                         args.width);
    }
    for (const std::int32_t place : compressed_[row - begin]) {
      keys.push_back(unpacked + static_cast<std::size_t>(place) * args.width);
    }
  }
  // Heads of one task share the work on its keys; few rows are cut finer, to occupy all workers.
  const std::size_t rows = end - begin;
  const std::size_t whole_tasks = rows * ceil_div(args.heads, kTileHeadsMax);
  const std::size_t width =
      whole_tasks >= 2 * static_cast<std::size_t>(pool_.threads()) ? kTileHeadsMax : kTileHeads;
  const std::size_t blocks = ceil_div(args.heads, width);
  pool_.run(rows * blocks, [&](std::size_t task) {
    const std::size_t row = begin + task / blocks;
    const std::size_t head = task % blocks * width;
    const std::size_t heads = std::min(width, args.heads - head);
    const std::size_t at = (row * args.heads + head) * args.width;
    const std::vector<const std::uint16_t*>& keys = narrow_keys_[row - begin];
    thread_local AlignedBytes scratch;
    tiles_->attend(
        {.q = args.q + at,
         .heads = heads,
         .width = args.width,
         .keys = keys.data(),
         .count = keys.size(),
         .scale = args.scale,
         .sinks = args.sinks.data() + head,
         .out = args.out + at,
         .scratch = scratch.reserve(tile_attend_scratch(heads, args.width, keys.size()))});
    round_all({args.out + at, heads * args.width}, args.round);
  });
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
