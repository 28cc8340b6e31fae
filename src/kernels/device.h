#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/disk_table.h"
#include "kernels/isa.h"
#include "kernels/operands.h"
#include "kernels/row_format.h"
#include "kernels/weight.h"

// What computes: memory, in-order streams, events, and the operations of the network. The forward
// pass is written against this alone; a CPU is one implementation, an accelerator another.
// Operations are enqueued and return at once; their pointers must stay valid until the stream has
// passed them. The host never reads what a stream may still write: it records an event, and reads
// after the event. A NoSync scope makes any waiting abort, which is how tests show that nothing
// between planning and launching waits on the device.
namespace galley::kernels {

class Stream;

// A point in a stream's order. Reusable; done() until first recorded.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual bool done() const = 0;
  virtual void wait() = 0;  // blocks the host; not allowed inside NoSync
};

// Memory of a device. On the CPU: page-aligned, zeroed, on huge pages where the system grants them.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual std::byte* data() = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
};

// ---- arguments. `rows` counts tokens of the batch; matrices are row-major float32 unless said
// otherwise ----------

// How a value is stored between operations: rounded to bfloat16 where the reference stores
// bfloat16, or not at all.
enum class Round : std::uint8_t { kNone, kBf16 };

struct EmbedArgs {
  std::size_t rows{};
  std::size_t streams{};
  const std::int32_t* tokens{};
  const float* const*
      overrides{};  // null, or one pointer a row; not null there: used instead of the table's row
  Weight table;
  float* out{};  // [rows, streams, H], all streams equal
};

struct LinearArgs {
  std::size_t rows{};
  const float* x{};  // [rows, x_stride], the first parts * weight.columns used
  std::size_t x_stride{};
  Weight weight;  // [outputs, columns]
  // Outputs in that many equal parts, part i of which reads columns [i, i + 1) * weight.columns of
  // x (grouped projection, spec model 4.1).
  std::size_t parts = 1;
  std::size_t outputs{};
  std::span<const float> bias;  // [outputs], added before rounding; empty: none
  float* y{};                   // [rows, y_stride]
  std::size_t y_stride{};
  // > 0: quantise x to FP8 in blocks of that many first (spec model 2.3); one part only.
  std::size_t activation_block{};
  Round round = Round::kNone;
};

struct NormArgs {
  std::size_t rows{};
  std::size_t width{};
  const float* x{};
  std::size_t x_stride{};
  std::span<const float> weight;  // empty: none
  float eps{};
  float* y{};
  std::size_t y_stride{};
  Round round = Round::kNone;
};

struct RopeArgs {
  std::size_t rows{};
  std::size_t heads{};
  std::size_t width{};  // of a head
  float* x{};           // [rows, heads, width], in place
  const std::int64_t* positions{};
  std::int64_t multiple =
      1;  // position p / multiple * multiple is used: the first token of p's group
  std::span<const float> frequencies;
  bool inverse = false;
  Round round = Round::kNone;
};

enum class Quantiser : std::uint8_t { kNone, kFp8, kFp4, kFp4E4m3 };
struct QuantiseArgs {
  std::size_t rows{};
  std::size_t width{};     // row stride
  std::size_t channels{};  // the first that are quantised
  float* x{};
  Quantiser quantiser{};
  std::size_t block{};
  bool hadamard = false;  // first
};

struct MixArgs {
  std::size_t rows{};
  std::size_t streams{};
  std::size_t hidden{};
  const float* x{};  // [rows, streams, H]
  MixWeights weights;
  MixOptions options;
  float* pre{};   // [rows, streams]
  float* post{};  // [rows, streams]; null: head form, pre only
  float* comb{};  // [rows, streams, streams]
};

struct CollapseArgs {
  std::size_t rows{};
  std::size_t streams{};
  std::size_t hidden{};
  const float* x{};
  const float* pre{};  // [rows, streams]; null: every stream weighs 1 / streams
  float* y{};
  std::size_t y_stride{};
  Round round = Round::kNone;
};

struct ExpandArgs {
  std::size_t rows{};
  std::size_t streams{};
  std::size_t hidden{};
  const float* y{};
  const float* post{};
  const float* comb{};
  float* x{};  // [rows, streams, H], in place
  Round round = Round::kNone;
};

// Rows of one sequence that live outside the batch, and where its rows are inside it.
struct SequenceView {
  std::size_t batch_begin{};  // rows [batch_begin, batch_begin + batch_rows) of the batch are this
                              // sequence's,
  std::size_t batch_rows{};   // at consecutive positions
  std::int64_t first_position{};
};

// Position-indexed ring of rows: position p lives in row p mod `rows`.
struct RingView {
  float* data{};
  std::size_t rows{};
  std::size_t width{};
};

// Rows that are kept for ever, packed, in blocks: row j lives in block j / rows_per_block.
struct PagedView {
  std::byte* const* blocks{};
  std::size_t rows_per_block{};
  std::size_t offset{};  // of this kind of row in a block, in bytes
  RowFormat format;

  [[nodiscard]] std::byte* row(std::int64_t j) const {
    const auto index = static_cast<std::size_t>(j);
    return blocks[index / rows_per_block] + offset + index % rows_per_block * format.bytes();
  }
};

struct RingWriteArgs {
  std::span<const SequenceView> sequences;
  std::span<const RingView> rings;  // one a sequence
  const float* x{};                 // [rows, width]
};

// Compressor: pools the raw rows of every group that ends in the batch. The result stands in the
// place of the row that closes the group; `closes` says which rows did and are to be stored.
struct PoolArgs {
  std::span<const SequenceView> sequences;
  std::span<const RingView> value_rings;  // raw a and g of earlier positions
  std::span<const RingView> gate_rings;
  const float* values{};  // [rows, width * (overlap ? 2 : 1)] of this batch
  const float* gates{};
  std::size_t width{};
  std::int64_t ratio{};
  bool overlap =
      false;  // V4 CSA: the first half of the channels of the window before, the second of this one
  float* out{};  // [rows, width]
  Round round = Round::kNone;
};

struct PagedWriteArgs {
  std::span<const SequenceView> sequences;
  std::span<const PagedView> pages;
  std::span<const std::int64_t>
      write_floors;  // groups that end at or below are not written (replay)
  std::int64_t ratio{};
  const float* x{};  // [rows, width], packed on the way; only rows that close a group are read
};

// Index selection of one layer. Row t at position p sees keys j < (p + 1) / ratio.
struct SelectArgs {
  std::span<const SequenceView> sequences;
  std::span<const PagedView> keys;
  const std::int64_t* positions{};
  std::int64_t ratio{};
  std::size_t heads{};
  std::size_t width{};
  const float* q{};        // [rows, heads, width]
  const float* weights{};  // [rows, heads]
  float weight_scale{};
  Round round = Round::kNone;  // how `q` and the keys are stored
  std::size_t top_k{};
  std::int32_t* list{};  // [rows, top_k], ascending, padded with -1
  // Candidates (V4.1): blocks of `candidate_block` keys; `candidates` [rows, candidate_stride]
  // bytes, bit b % 8 of byte b / 8. publish: write them from this layer's scores; else, when not
  // null: score only kept blocks.
  std::uint8_t* candidates{};
  std::size_t candidate_stride{};
  std::size_t candidate_block{};
  std::size_t candidate_blocks_kept{};
  bool publish_candidates = false;
  float* margin{};  // [rows] or null: score gap between the last kept and the first dropped key
                    // (tests)
};

struct AttentionArgs {
  std::span<const SequenceView> sequences;
  const std::int64_t* positions{};
  const std::int64_t* window_begin{};  // [rows]: first position the window may show
  // [rows] or null: the row also sees the window rows of positions [span_begin, span_end), which
  // lie in this batch and include its own: an image that attends in both directions (spec
  // model 4.5).
  const std::int64_t* span_begin{};
  const std::int64_t* span_end{};
  std::size_t heads{};
  std::size_t width{};
  std::size_t window{};
  const float* q{};   // [rows, heads, width]
  const float* kv{};  // [rows, width]: window rows of this batch
  std::span<const RingView> rings;
  std::span<const PagedView> compressed;  // empty: window only
  std::int64_t ratio{};
  const std::int32_t* list{};  // [rows, list_stride] or null: every visible compressed row
  std::size_t list_stride{};
  bool block_rows_see_all = false;  // draft block: every row of the batch is visible to every other
  float scale{};
  std::span<const float> sinks;
  float* out{};                // [rows, heads, width]
  Round round = Round::kNone;  // how all of these rows are stored
};

struct RouteArgs {
  std::size_t rows{};
  std::size_t experts{};
  std::size_t chosen{};
  const float* logits{};  // [rows, experts]
  float temperature = 1.0F;
  float scale{};
  std::span<const float> bias;        // empty with `table`
  std::span<const float> image_bias;  // empty: as `bias`
  const std::uint8_t* is_image{};     // [rows]
  const std::int64_t* table{};        // hash layers: [vocabulary, chosen]
  const std::int32_t* tokens{};       // [rows]
  std::int32_t* expert_ids{};         // [rows, chosen], ascending
  float* weights{};                   // [rows, chosen]
};

struct ExpertWeights {
  Weight w1;
  Weight w2;
  Weight w3;
};
struct ExpertsArgs {
  std::size_t rows{};
  std::size_t hidden{};
  std::size_t intermediate{};
  std::size_t chosen{};
  const float* x{};
  std::span<const ExpertWeights> experts;
  ExpertWeights shared;
  const std::int32_t* expert_ids{};
  const float* weights{};
  float limit{};
  std::size_t activation_block{};
  float* y{};  // [rows, H]
  Round round = Round::kNone;
};

struct EngramHashArgs {
  std::span<const SequenceView> sequences;
  std::span<const std::int32_t* const>
      histories;  // one a sequence: compressed id by position, -1 is dead
  const EngramLayout* layout{};
  int ngram{};
  int heads{};
  std::int64_t pad{};
  std::int64_t* row_ids{};  // [rows, (ngram - 1) * heads]
};

// Rows of a table on disk, as stored: row i of the result is row row_ids[i] of the table.
struct ReadRowsArgs {
  std::size_t rows{};
  const DiskTable* table{};
  const std::int64_t* row_ids{};
  std::byte* data{};            // [rows, table->row_bytes()]
  std::byte* scales{};          // [rows, table->scale_bytes()]
  std::atomic<bool>* failed{};  // set when a row cannot be read; the rest is then undefined
};

// out[t] = row t of `weight` in float32, t < weight.rows.
struct WidenArgs {
  Weight weight;
  float* out{};  // [weight.rows, weight.columns]
};

struct EngramAddArgs {
  std::size_t rows{};
  std::size_t streams{};
  std::size_t hidden{};
  const float* kv{};  // [rows, (streams + 1) * H]: keys, then the value
  EngramGate gate;
  const std::uint8_t* is_image{};
  float* x{};      // [rows, streams, H], in place
  float* gates{};  // [rows, streams]
  Round round = Round::kNone;
};

// x[t] += bias[position mod period].
struct PositionBiasArgs {
  std::size_t rows{};
  std::size_t width{};
  float* x{};
  const std::int64_t* positions{};
  std::span<const float> bias;  // [period, width]
  std::size_t period{};
};

// The draft of a sequence of the batch for a position of its block. Called in the order of the
// positions; for several sequences from several threads at once.
using DraftChoice = std::function<std::int32_t(
    std::size_t sequence, std::size_t position, std::span<const float> logits)>;

// The sequential end of the draft blocks of some sequences (spec model 9.4): for i = 0 ... :
// logits[i] += markov_head . e(prev), tokens[i] = choose(logits[i]), confidence[i] =
// confidence_weight . concat(hidden[i], e(prev)), prev = tokens[i].
struct DraftChainArgs {
  std::size_t sequences{};
  std::size_t block{};
  std::size_t hidden{};
  const float* h{};  // [sequences, block, H], before the final norm
  float* logits{};   // [sequences, block, vocabulary], in place
  Weight markov_embed;
  Weight markov_head;
  Weight confidence;
  const std::int32_t* first_tokens{};   // [sequences]
  const DraftChoice* choose = nullptr;  // null: the largest; lives until the stream has passed
  std::int32_t* tokens{};               // [sequences, block]
  float* confidences{};                 // [sequences, block]
};

// ---- vision tower (spec model 10.2, 10.3): rows are patches of one image, row-major

struct GridRopeArgs {
  std::size_t rows{};
  std::size_t columns{};  // of the patch grid
  std::size_t heads{};
  std::size_t width{};  // of a head
  float* x{};           // [rows, stride], the first heads * width used, in place
  std::size_t stride{};
  std::span<const float> frequencies;  // [width / 4]
  Round round = Round::kNone;
};

// Every patch sees every patch.
struct GridAttentionArgs {
  std::size_t rows{};
  std::size_t heads{};
  std::size_t width{};
  const float* qkv{};  // [rows, 3, heads, width]
  float scale{};
  float* out{};  // [rows, heads, width]
  Round round = Round::kNone;
};

struct SiluGateArgs {
  std::size_t rows{};
  std::size_t width{};
  const float* x{};  // [rows, 2 * width]
  float* y{};        // [rows, width]
  Round round = Round::kNone;
};

struct GeluArgs {
  std::size_t rows{};
  std::size_t width{};
  float* x{};  // in place
  Round round = Round::kNone;
};

// x += y.
struct AddArgs {
  std::size_t rows{};
  std::size_t width{};
  float* x{};
  const float* y{};
  Round round = Round::kNone;
};

struct GatherCellsArgs {
  PatchGrid grid;
  std::size_t side{};
  float* y{};  // [ceil(rows / side) * ceil(columns / side), width * side^2], row-major
};

struct GatherArgs {
  std::size_t rows{};
  std::size_t width{};
  const float* x{};
  const std::int32_t* indices{};
  float* y{};
};

// In-order queue of operations.
class Stream {
 public:
  virtual ~Stream() = default;

  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;  // this stream continues after `event`; the host goes on
  virtual void synchronise() = 0;       // blocks the host; not allowed inside NoSync

  virtual void embed(const EmbedArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void norm(const NormArgs& args) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void quantise(const QuantiseArgs& args) = 0;
  virtual void mix(const MixArgs& args) = 0;
  virtual void collapse(const CollapseArgs& args) = 0;
  virtual void expand(const ExpandArgs& args) = 0;
  virtual void ring_write(const RingWriteArgs& args) = 0;
  virtual void pool(const PoolArgs& args) = 0;
  virtual void paged_write(const PagedWriteArgs& args) = 0;
  virtual void select(const SelectArgs& args) = 0;
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void route(const RouteArgs& args) = 0;
  virtual void experts(const ExpertsArgs& args) = 0;
  virtual void engram_hash(const EngramHashArgs& args) = 0;
  virtual void read_rows(const ReadRowsArgs& args) = 0;
  virtual void widen(const WidenArgs& args) = 0;
  virtual void engram_add(const EngramAddArgs& args) = 0;
  virtual void gather(const GatherArgs& args) = 0;
  virtual void position_bias(const PositionBiasArgs& args) = 0;
  virtual void draft_chain(const DraftChainArgs& args) = 0;

  virtual void grid_rope(const GridRopeArgs& args) = 0;
  virtual void grid_attention(const GridAttentionArgs& args) = 0;
  virtual void silu_gate(const SiluGateArgs& args) = 0;
  virtual void gelu(const GeluArgs& args) = 0;
  virtual void add(const AddArgs& args) = 0;
  virtual void gather_cells(const GatherCellsArgs& args) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // Null when the device has no memory for it.
  [[nodiscard]] virtual std::unique_ptr<Buffer> try_allocate(std::size_t bytes) = 0;
  // For what a step cannot do without: never null, aborts instead.
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes);
  [[nodiscard]] virtual std::unique_ptr<Stream> create_stream() = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> create_event() = 0;
};

// While one lives on this thread, waiting for a device aborts.
class NoSync {
 public:
  NoSync();
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  [[nodiscard]] static bool active();
};

// The CPU: `threads` workers, the stream's own thread being the first. Without an instruction set:
// the one $GALLEY_ISA names, which the caller has checked (choose_isa), or the machine's best.
[[nodiscard]] std::unique_ptr<Device> create_cpu_device(int threads, Isa isa);
[[nodiscard]] std::unique_ptr<Device> create_cpu_device(int threads);

}  // namespace galley::kernels
