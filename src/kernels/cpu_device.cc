#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fmt/core.h>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/serial_executor.h"
#include "base/worker_pool.h"
#include "kernels/attention.h"
#include "kernels/batch_views.h"
#include "kernels/device.h"
#include "kernels/experts.h"
#include "kernels/formats.h"
#include "kernels/isa.h"
#include "kernels/matmul_input.h"
#include "kernels/product.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/pack.h"
#include "kernels/reference/quantise.h"
#include "kernels/reference/vision.h"
#include "kernels/rounding.h"
#include "kernels/row_kernels.h"
#include "kernels/selection.h"

// The CPU device: products, attention and selection by the kernels of an instruction set, what is
// left by the reference. Work is split so that each output value is computed by one task, in an
// order that the instruction set and the shapes fix; the number of workers changes only who
// computes it.
namespace galley::kernels {
namespace {

namespace ref = reference;

thread_local int no_sync_depth = 0;

constexpr std::size_t kRowsPerTask = 8;
constexpr std::size_t kDiskRowsPerTask = 256;  // reads under way together

class CpuEvent final : public Event {
 public:
  [[nodiscard]] bool done() const override {
    const MutexLock lock(mutex_);
    return pending_ == 0;
  }
  void wait() override {
    GALLEY_ASSERT(!NoSync::active());
    wait_on_device();
  }
  void wait_on_device() {
    const MutexLock lock(mutex_);
    while (pending_ != 0) {
      changed_.wait(mutex_);
    }
  }
  void arm() {
    const MutexLock lock(mutex_);
    ++pending_;
  }
  // Tells while it holds the lock: who waits may destroy the event as soon as it has it.
  void fire() {
    const MutexLock lock(mutex_);
    --pending_;
    changed_.notify_all();
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int pending_ GALLEY_GUARDED_BY(mutex_) = 0;
};

class CpuBuffer final : public Buffer {
 public:
  // Null when there is no memory.
  static std::unique_ptr<CpuBuffer> create(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    constexpr std::size_t kHugePage = std::size_t{2} << 20U;
    const std::size_t page = bytes >= kHugePage ? kHugePage : kPage;
    const std::size_t whole = ceil_div(std::max<std::size_t>(bytes, 1), page) * page;
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(page, whole));
    if (data == nullptr) {
      return nullptr;
    }
    if (page == kHugePage) {
      madvise(data, whole, MADV_HUGEPAGE);  // a wish: without it all is slower and right
    }
    std::fill_n(data, whole, std::byte{0});
    return std::unique_ptr<CpuBuffer>(new CpuBuffer(data, bytes));
  }
  ~CpuBuffer() override { std::free(data_); }
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;
  [[nodiscard]] std::byte* data() override { return data_; }
  [[nodiscard]] std::size_t size() const override { return size_; }

 private:
  CpuBuffer(std::byte* data, std::size_t bytes) : data_(data), size_(bytes) {}

  std::byte* data_;
  std::size_t size_;
};

// Null: the reference.
const RowKernels* row_kernels(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return nullptr;
    case Isa::kAvx2:
      return &kAvx2Rows;
    case Isa::kAvx512:
    case Isa::kAmx:
      return &kAvx512Rows;
  }
  std::unreachable();
}

// Null: products of tiles are not among the instructions.
const TileKernels* tile_kernels(Isa isa) {
  return isa == Isa::kAmx ? &kAmxTiles : nullptr;
}

class CpuStream final : public Stream {
 public:
  CpuStream(int threads, Isa isa)
      : pool_(threads),
        product_(isa),
        rows_(row_kernels(isa)),
        attention_(pool_, rows_, tile_kernels(isa)),
        selection_(pool_, rows_, tile_kernels(isa)),
        experts_(pool_, product_, rows_) {}

  void record(Event& event) override {
    auto& cpu_event = static_cast<CpuEvent&>(event);
    cpu_event.arm();
    executor_.post([&cpu_event] { cpu_event.fire(); });
  }
  void wait(Event& event) override {
    executor_.post([&cpu_event = static_cast<CpuEvent&>(event)] { cpu_event.wait_on_device(); });
  }
  void synchronise() override {
    GALLEY_ASSERT(!NoSync::active());
    CpuEvent event;
    record(event);
    event.wait();
  }

  void embed(const EmbedArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::size_t hidden = a.table.columns;
      const std::span<float> first(a.out + t * a.streams * hidden, hidden);
      if (a.overrides != nullptr && a.overrides[t] != nullptr) {
        std::copy_n(a.overrides[t], hidden, first.begin());
      } else {
        dequantise_row(a.table, static_cast<std::size_t>(a.tokens[t]), first);
      }
      for (std::size_t i = 1; i < a.streams; ++i) {
        std::ranges::copy(first, first.data() + i * hidden);
      }
    });
  }

  void linear(const LinearArgs& a) override {
    executor_.post([this, a] { run_linear(a); });
  }

  void norm(const NormArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::span<float> y(a.y + t * a.y_stride, a.width);
      ref::rms_norm({a.x + t * a.x_stride, a.width}, a.weight, a.eps, y);
      round_all(y, a.round);
    });
  }

  void rope(const RopeArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::int64_t position = a.positions[t] / a.multiple * a.multiple;
      thread_local std::vector<float> angles;
      angles.resize(2 * a.frequencies.size());
      ref::rope_angles(position, a.frequencies, a.inverse, angles);
      for (std::size_t h = 0; h < a.heads; ++h) {
        const std::span<float> head(a.x + (t * a.heads + h) * a.width, a.width);
        ref::rotate(head, angles);
        round_all(head, a.round);
      }
    });
  }

  void quantise(const QuantiseArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      if (a.hadamard) {
        ref::hadamard({a.x + t * a.width, a.width});
      }
      const std::span<float> row(a.x + t * a.width, a.channels);
      switch (a.quantiser) {
        case Quantiser::kNone:
          return;
        case Quantiser::kFp8:
          return ref::fake_quantise_fp8(row, a.block);
        case Quantiser::kFp4:
          return ref::fake_quantise_fp4(row, a.block);
        case Quantiser::kFp4E4m3:
          return ref::fake_quantise_fp4_e4m3(row, a.block);
      }
    });
  }

  void mix(const MixArgs& a) override {
    executor_.post([this, a] { run_mix(a); });
  }

  void collapse(const CollapseArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::size_t n = a.streams;
      const std::vector<float> mean(n, 1.0F / static_cast<float>(n));
      const std::span<const float> pre = a.pre == nullptr
                                             ? std::span<const float>(mean)
                                             : std::span<const float>(a.pre + t * n, n);
      const std::span<float> y(a.y + t * a.y_stride, a.hidden);
      ref::collapse({a.x + t * n * a.hidden, n * a.hidden}, pre, y);
      round_all(y, a.round);
    });
  }

  void expand(const ExpandArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::size_t n = a.streams;
      const std::span<float> x(a.x + t * n * a.hidden, n * a.hidden);
      ref::expand({a.y + t * a.hidden, a.hidden}, {a.post + t * n, n}, {a.comb + t * n * n, n * n},
                  x);
      round_all(x, a.round);
    });
  }

  void ring_write(const RingWriteArgs& a) override {
    executor_.post([this, a] {
      pool_.run(a.sequences.size(), [&](std::size_t i) {
        const SequenceView& sequence = a.sequences[i];
        const RingView& ring = a.rings[i];
        // Of more rows than the ring holds only the last survive.
        const std::size_t skip =
            sequence.batch_rows > ring.rows ? sequence.batch_rows - ring.rows : 0;
        for (std::size_t r = skip; r < sequence.batch_rows; ++r) {
          const auto slot = static_cast<std::size_t>(sequence.first_position) + r;
          std::copy_n(a.x + (sequence.batch_begin + r) * ring.width, ring.width,
                      ring.data + slot % ring.rows * ring.width);
        }
      });
    });
  }

  void pool(const PoolArgs& a) override {
    executor_.post([this, a] {
      const std::size_t rows = batch_rows(a.sequences);
      pool_.run(rows, [&](std::size_t t) {
        const std::size_t i = sequence_of(a.sequences, t);
        const SequenceView& sequence = a.sequences[i];
        const std::int64_t p =
            sequence.first_position + static_cast<std::int64_t>(t - sequence.batch_begin);
        if ((p + 1) % a.ratio != 0) {
          return;
        }
        std::vector<const float*> values;
        std::vector<const float*> gates;
        const auto add = [&](std::int64_t position, std::size_t channel) {
          const float* const value = row_at(sequence, a.value_rings[i], a.values, position);
          const float* const gate = row_at(sequence, a.gate_rings[i], a.gates, position);
          values.push_back(value == nullptr ? nullptr : value + channel);
          gates.push_back(gate == nullptr ? nullptr : gate + channel);
        };
        const std::int64_t begin = p + 1 - a.ratio;
        for (std::int64_t s = 0; a.overlap && s < a.ratio; ++s) {
          add(begin - a.ratio + s, 0);
        }
        for (std::int64_t s = 0; s < a.ratio; ++s) {
          add(begin + s, a.overlap ? a.width : 0);
        }
        const std::span<float> out(a.out + t * a.width, a.width);
        ref::pool(values, gates, out);
        round_all(out, a.round);
      });
    });
  }

  void paged_write(const PagedWriteArgs& a) override {
    executor_.post([this, a] {
      pool_.run(batch_rows(a.sequences), [&](std::size_t t) {
        const std::size_t i = sequence_of(a.sequences, t);
        const SequenceView& sequence = a.sequences[i];
        const std::int64_t end =
            sequence.first_position + static_cast<std::int64_t>(t - sequence.batch_begin) + 1;
        if (end % a.ratio == 0 && end > a.write_floors[i]) {
          const PagedView& pages = a.pages[i];
          const std::size_t width = pages.format.width;
          ref::pack_row(pages.format, {a.x + t * width, width}, pages.row(end / a.ratio - 1));
        }
      });
    });
  }

  void select(const SelectArgs& a) override {
    executor_.post([this, a] { selection_.run(a); });
  }

  void attention(const AttentionArgs& a) override {
    executor_.post([this, a] { attention_.run(a); });
  }

  void route(const RouteArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      std::vector<float> scores(a.experts);
      ref::router_scores({a.logits + t * a.experts, a.experts}, a.temperature, scores);
      const ref::Routing routing = {{a.expert_ids + t * a.chosen, a.chosen},
                                    {a.weights + t * a.chosen, a.chosen}};
      const bool image = a.is_image[t] != 0 && !a.image_bias.empty();
      if (a.table != nullptr && !image) {
        const auto token = static_cast<std::size_t>(a.tokens[t]);
        return ref::route_fixed(scores, {a.table + token * a.chosen, a.chosen}, a.scale, routing);
      }
      ref::route(scores, image ? a.image_bias : a.bias, a.scale, routing);
    });
  }

  void experts(const ExpertsArgs& a) override {
    executor_.post([this, a] { experts_.run(a); });
  }

  void engram_hash(const EngramHashArgs& a) override {
    executor_.post([this, a] {
      const std::size_t columns =
          (static_cast<std::size_t>(a.ngram) - 1) * static_cast<std::size_t>(a.heads);
      pool_.run(batch_rows(a.sequences), [&](std::size_t t) {
        const std::size_t i = sequence_of(a.sequences, t);
        const std::int64_t p = a.sequences[i].first_position +
                               static_cast<std::int64_t>(t - a.sequences[i].batch_begin);
        std::vector<std::int64_t> tokens(static_cast<std::size_t>(a.ngram), a.pad);
        // A dead token (image, or before the start) hides everything further back.
        for (std::int64_t back = 0; back < a.ngram && back <= p && a.histories[i][p - back] >= 0;
             ++back) {
          tokens[static_cast<std::size_t>(back)] = a.histories[i][p - back];
        }
        ref::engram_hash(*a.layout, a.heads, tokens, {a.row_ids + t * columns, columns});
      });
    });
  }

  void read_rows(const ReadRowsArgs& a) override {
    executor_.post([this, a] {
      pool_.run((a.rows + kDiskRowsPerTask - 1) / kDiskRowsPerTask, [&](std::size_t task) {
        const std::size_t begin = task * kDiskRowsPerTask;
        const std::size_t end = std::min(a.rows, begin + kDiskRowsPerTask);
        const std::size_t row = a.table->row_bytes();
        const std::size_t scale = a.table->scale_bytes();
        const auto at = [](std::uint64_t offset, std::int64_t id, std::size_t bytes) {
          return offset + static_cast<std::uint64_t>(id) * bytes;
        };
        // All are asked for before the first is waited for.
        for (std::size_t i = begin; i < end; ++i) {
          a.table->data.expect(at(a.table->data_offset, a.row_ids[i], row), row);
          if (scale > 0) {
            a.table->scales.expect(at(a.table->scales_offset, a.row_ids[i], scale), scale);
          }
        }
        for (std::size_t i = begin; i < end; ++i) {
          const bool done =
              a.table->data.read(at(a.table->data_offset, a.row_ids[i], row),
                                 {a.data + i * row, row}) &&
              (scale == 0 || a.table->scales.read(at(a.table->scales_offset, a.row_ids[i], scale),
                                                  {a.scales + i * scale, scale}));
          if (!done) {
            a.failed->store(true);
            return;
          }
        }
      });
    });
  }

  void widen(const WidenArgs& a) override {
    by_rows(a.weight.rows, [a](std::size_t t) {
      dequantise_row(a.weight, t, {a.out + t * a.weight.columns, a.weight.columns});
    });
  }

  void engram_add(const EngramAddArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::size_t keys = a.streams * a.hidden;
      const float* const kv = a.kv + t * (keys + a.hidden);
      const std::span<float> x(a.x + t * keys, keys);
      ref::engram_add(a.gate, {kv, keys}, {kv + keys, a.hidden}, a.is_image[t] != 0, x,
                      {a.gates + t * a.streams, a.streams});
      round_all(x, a.round);
    });
  }

  void gather(const GatherArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      std::copy_n(a.x + static_cast<std::size_t>(a.indices[t]) * a.width, a.width,
                  a.y + t * a.width);
    });
  }

  void position_bias(const PositionBiasArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const float* const bias =
          a.bias.data() + static_cast<std::size_t>(a.positions[t]) % a.period * a.width;
      for (std::size_t c = 0; c < a.width; ++c) {
        a.x[t * a.width + c] += bias[c];
      }
    });
  }

  void draft_chain(const DraftChainArgs& a) override {
    executor_.post([this, a] { run_draft_chain(a); });
  }

  void grid_rope(const GridRopeArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      for (std::size_t h = 0; h < a.heads; ++h) {
        const std::span<float> head(a.x + t * a.stride + h * a.width, a.width);
        ref::rope_grid(head, static_cast<std::int64_t>(t / a.columns),
                       static_cast<std::int64_t>(t % a.columns), a.frequencies);
        round_all(head, a.round);
      }
    });
  }

  void grid_attention(const GridAttentionArgs& a) override {
    executor_.post([this, a] {
      const std::size_t channels = a.heads * a.width;
      pool_.run(a.heads * a.rows, [&](std::size_t task) {
        const std::size_t h = task / a.rows;
        const std::size_t t = task % a.rows;
        thread_local std::vector<const float*> keys;
        thread_local std::vector<const float*> values;
        keys.resize(a.rows);
        values.resize(a.rows);
        for (std::size_t j = 0; j < a.rows; ++j) {
          keys[j] = a.qkv + (3 * j + 1) * channels + h * a.width;
          values[j] = keys[j] + channels;
        }
        const std::span<float> out(a.out + t * channels + h * a.width, a.width);
        ref::attend_values({a.qkv + 3 * t * channels + h * a.width, a.width}, keys, values, a.scale,
                           out);
        round_all(out, a.round);
      });
    });
  }

  void silu_gate(const SiluGateArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::span<float> y(a.y + t * a.width, a.width);
      ref::silu_gate({a.x + 2 * t * a.width, 2 * a.width}, y);
      round_all(y, a.round);
    });
  }

  void gelu(const GeluArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      const std::span<float> x(a.x + t * a.width, a.width);
      ref::gelu(x);
      round_all(x, a.round);
    });
  }

  void add(const AddArgs& a) override {
    by_rows(a.rows, [a](std::size_t t) {
      for (std::size_t c = t * a.width; c < (t + 1) * a.width; ++c) {
        a.x[c] = rounded(a.x[c] + a.y[c], a.round);
      }
    });
  }

  void gather_cells(const GatherCellsArgs& a) override {
    const std::size_t columns = (a.grid.columns + a.side - 1) / a.side;
    const std::size_t rows = (a.grid.rows + a.side - 1) / a.side;
    const std::size_t width = a.grid.width * a.side * a.side;
    by_rows(rows * columns, [a, columns, width](std::size_t t) {
      ref::gather_cell(a.grid, a.side, t / columns, t % columns, {a.y + t * width, width});
    });
  }

 private:
  template <class F>
  void by_rows(std::size_t rows, F row) {
    executor_.post([this, rows, row] {
      pool_.run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
        const std::size_t end = std::min(rows, (task + 1) * kRowsPerTask);
        for (std::size_t t = task * kRowsPerTask; t < end; ++t) {
          row(t);
        }
      });
    });
  }

  // Dot products of all rows first, so that one row alone keeps all workers busy: `fn` is as large
  // as a small matrix.
  void run_mix(const MixArgs& a) {
    const std::size_t width = a.streams * a.hidden;
    const std::size_t outputs = a.weights.base.size();
    mixed_.resize(a.rows * (outputs + 1));
    constexpr std::size_t kOutputsPerTask = 6;  // 24 outputs of a row: four tasks
    const std::size_t across = ceil_div(outputs, kOutputsPerTask);
    pool_.run(ceil_div(a.rows, kRowsPerTask) * across, [&](std::size_t task) {
      const std::size_t row = task / across * kRowsPerTask;
      const std::size_t first = task % across * kOutputsPerTask;
      project({.a = a.weights.fn.data() + first * width,
               .a_rows = std::min(kOutputsPerTask, outputs - first),
               .b = a.x + row * width,
               .b_rows = std::min(kRowsPerTask, a.rows - row),
               .width = width,
               .products = mixed_.data() + row * (outputs + 1) + first,
               .stride = outputs + 1});
    });
    pool_.run(ceil_div(a.rows, kRowsPerTask), [&](std::size_t task) {
      const std::size_t end = std::min(a.rows, (task + 1) * kRowsPerTask);
      for (std::size_t t = task * kRowsPerTask; t < end; ++t) {
        const std::size_t n = a.streams;
        const float* const x = a.x + t * width;
        project({.a = x,  // the sum of squares
                 .a_rows = 1,
                 .b = x,
                 .b_rows = 1,
                 .width = width,
                 .products = mixed_.data() + t * (outputs + 1) + outputs,
                 .stride = 1});
        const std::span<const float> values(mixed_.data() + t * (outputs + 1), outputs + 1);
        const bool head = a.post == nullptr;
        ref::mix_coefficients(
            values.first(outputs), values.back() / static_cast<float>(width), a.weights, a.options,
            {a.pre + t * n, n}, head ? std::span<float>() : std::span<float>(a.post + t * n, n),
            head ? std::span<float>() : std::span<float>(a.comb + t * n * n, n * n));
      }
    });
  }

  void project(const DotRows& rows) const {
    if (rows_ != nullptr) {
      return rows_->dots(rows);
    }
    for (std::size_t j = 0; j < rows.b_rows; ++j) {
      for (std::size_t i = 0; i < rows.a_rows; ++i) {
        rows.products[j * rows.stride + i] =
            ref::dot({rows.a + i * rows.width, rows.width}, {rows.b + j * rows.width, rows.width});
      }
    }
  }

  void run_linear(const LinearArgs& a) {
    GALLEY_ASSERT(a.outputs == a.weight.rows);
    GALLEY_ASSERT(a.outputs % a.parts == 0);
    const bool quantises = a.activation_block > 0 && a.weight.quantised();
    GALLEY_ASSERT(!quantises || a.parts == 1);  // activations_ holds one part's
    const std::size_t columns = a.weight.columns;
    if (inputs_.size() < a.parts) {
      inputs_.resize(a.parts);
    }
    for (std::size_t part = 0; part < a.parts; ++part) {
      const float* const x = quantises
                                 ? quantised(a.x, a.x_stride, a.rows, columns, a.activation_block)
                                 : a.x + part * columns;
      inputs_[part].assign(pool_, product_.form(), x, quantises ? columns : a.x_stride, a.rows,
                           columns);
    }
    list_pieces(a.outputs / a.parts, a.parts, a.rows);
    pool_.run(pieces_.size(), [&](std::size_t i) {
      const Piece& piece = pieces_[i];
      product_.for_outputs(
          a.weight, piece.first, piece.outputs, inputs_[piece.part], piece.row, piece.rows,
          [&](std::size_t t, std::size_t at, std::span<const float> values) {
            const std::size_t first = piece.first + at;
            const std::span<float> y(a.y + (piece.row + t) * a.y_stride + first, values.size());
            for (std::size_t r = 0; r < y.size(); ++r) {
              y[r] = a.bias.empty() ? values[r] : values[r] + a.bias[first + r];
            }
            round_all(y, a.round);
          });
    });
  }

  // Rows of x, quantised to FP8 and back as the reference does in front of such a weight.
  const float* quantised(const float* x,
                         std::size_t stride,
                         std::size_t rows,
                         std::size_t columns,
                         std::size_t block) {
    activations_.resize(rows * columns);
    pool_.run(rows, [&](std::size_t t) {
      const std::span<float> row(activations_.data() + t * columns, columns);
      std::copy_n(x + t * stride, columns, row.begin());
      ref::fake_quantise_fp8(row, std::min(block, columns));
    });
    return activations_.data();
  }

  // What one product computes: outputs of one part, for some rows.
  struct Piece {
    std::size_t part;
    std::size_t first;
    std::size_t outputs;
    std::size_t row;
    std::size_t rows;
  };

  // All `outputs` of every part and all rows; outputs of one stretch of rows follow each other.
  void list_pieces(std::size_t outputs, std::size_t parts, std::size_t rows) {
    pieces_.clear();
    const std::size_t width = Product::outputs_per_task(outputs * parts, rows, pool_.threads());
    for (std::size_t row = 0; row < rows; row += kRowsMax) {
      for (std::size_t part = 0; part < parts; ++part) {
        const std::size_t end = (part + 1) * outputs;
        for (std::size_t first = part * outputs; first < end;) {
          const std::size_t stop = std::min(end, (first / width + 1) * width);
          pieces_.push_back({part, first, stop - first, row, std::min(kRowsMax, rows - row)});
          first = stop;
        }
      }
    }
  }

  void run_draft_chain(const DraftChainArgs& a) {
    const std::size_t rank = a.markov_embed.columns;
    const std::size_t vocabulary = a.markov_head.rows;
    std::vector<float> e(a.sequences * rank);
    std::vector<float> confidence(a.confidence.columns);
    dequantise_row(a.confidence, 0, confidence);
    for (std::size_t i = 0; i < a.block; ++i) {
      for (std::size_t s = 0; s < a.sequences; ++s) {
        const std::int32_t previous = i == 0 ? a.first_tokens[s] : a.tokens[s * a.block + i - 1];
        dequantise_row(a.markov_embed, static_cast<std::size_t>(previous),
                       std::span(e).subspan(s * rank, rank));
      }
      inputs_.front().assign(pool_, product_.form(), e.data(), rank, a.sequences, rank);
      list_pieces(vocabulary, 1, a.sequences);
      pool_.run(pieces_.size(), [&](std::size_t k) {
        const Piece& piece = pieces_[k];
        product_.for_outputs(
            a.markov_head, piece.first, piece.outputs, inputs_.front(), piece.row, piece.rows,
            [&](std::size_t t, std::size_t at, std::span<const float> values) {
              float* const logits =
                  a.logits + ((piece.row + t) * a.block + i) * vocabulary + piece.first + at;
              for (std::size_t r = 0; r < values.size(); ++r) {
                logits[r] += values[r];
              }
            });
      });
      pool_.run(a.sequences, [&](std::size_t s) {
        const std::size_t row = s * a.block + i;
        std::vector<float> joined(a.h + row * a.hidden, a.h + (row + 1) * a.hidden);
        joined.insert(joined.end(), e.begin() + static_cast<std::ptrdiff_t>(s * rank),
                      e.begin() + static_cast<std::ptrdiff_t>((s + 1) * rank));
        a.confidences[row] = ref::dot(confidence, joined);
        const std::span<const float> logits(a.logits + row * vocabulary, vocabulary);
        a.tokens[row] = a.choose != nullptr
                            ? (*a.choose)(s, i, logits)
                            : static_cast<std::int32_t>(std::ranges::max_element(logits) -
                                                        logits.begin());  // the tie rule of ops.h
      });
    }
  }

  WorkerPool pool_;
  Product product_;
  const RowKernels* rows_;  // null: the reference
  Attention attention_;
  Selection selection_;
  Experts experts_;
  // Scratch of the operation that runs.
  std::deque<MatmulInput> inputs_ = std::deque<MatmulInput>(1);  // one a group of a linear
  std::vector<float> activations_;
  std::vector<float> mixed_;  // what hyper-connections project
  std::vector<Piece> pieces_;
  SerialExecutor executor_;  // last: it stops before what its jobs use
};

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, Isa isa) : threads_(threads), isa_(isa) {}
  [[nodiscard]] std::unique_ptr<Buffer> try_allocate(std::size_t bytes) override {
    return CpuBuffer::create(bytes);
  }
  [[nodiscard]] std::unique_ptr<Stream> create_stream() override {
    return std::make_unique<CpuStream>(threads_, isa_);
  }
  [[nodiscard]] std::unique_ptr<Event> create_event() override {
    return std::make_unique<CpuEvent>();
  }

 private:
  int threads_;
  Isa isa_;
};

}  // namespace

std::unique_ptr<Buffer> Device::allocate(std::size_t bytes) {
  std::unique_ptr<Buffer> buffer = try_allocate(bytes);
  if (buffer == nullptr) {
    fmt::print(stderr, "galley: no memory for {} bytes\n", bytes);
    std::abort();
  }
  return buffer;
}

NoSync::NoSync() {
  ++no_sync_depth;
}
NoSync::~NoSync() {
  --no_sync_depth;
}
bool NoSync::active() {
  return no_sync_depth > 0;
}

std::unique_ptr<Device> create_cpu_device(int threads, Isa isa) {
  return std::make_unique<CpuDevice>(threads, isa);
}

std::unique_ptr<Device> create_cpu_device(int threads) {
  const Result<Isa> isa = choose_isa(wanted_isa());
  if (!isa) {
    fmt::print(stderr, "galley: {}\n", isa.error().what);
    std::abort();
  }
  return create_cpu_device(threads, *isa);
}

}  // namespace galley::kernels
