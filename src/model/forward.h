#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/network.h"

namespace galley::model {

// What a step needs to know besides weights.
struct StepContext {
  const ModelPlan& plan;
  const ModelWeights& weights;
  const Numerics& numerics;
  std::span<const float> rope_window;
  std::span<const float> rope_compress;
  Arena& arena;  // what lives as long as the step, and all that the host writes
  // Results between operations of `stream`; those of a sub-layer are taken back when the operations
  // behind it are enqueued.
  Arena& scratch;
  kernels::Stream& stream;
  kernels::Stream& disk;  // reads engram rows ahead of `stream`
  std::span<const std::unique_ptr<kernels::Event>> rows_read;  // one an engram layer
  Probe* probe;
};

// One step: rows of a batch on their way through blocks. Enqueues operations on arrays of the
// context's arenas, and owns what it lists for them, so the object must live until the stream has
// passed them.
class Step {
 public:
  // For the drafter: rows come with what is run.
  explicit Step(const StepContext& context);
  Step(const StepContext& context, std::span<const SequenceRows> batch, CutMode cut);

  // The backbone. Returns where each sequence's remaining rows are.
  void run_layers();
  // Final collapse, norm and head of the `tail` last rows of each sequence.
  void run_head(std::size_t tail);

  // A draft block behind each sequence's last position.
  std::vector<DraftResult> run_draft(std::span<const DraftRow> batch, const DraftOptions& options);
  void write_draft_context(std::span<const DraftContextRows> batch);

  [[nodiscard]] std::vector<ForwardResult::Part> parts() const;
  [[nodiscard]] const float* logits() const { return logits_; }
  [[nodiscard]] std::size_t logits_rows() const { return logits_rows_; }
  [[nodiscard]] const float* features() const { return features_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }
  // After the stream has passed the step.
  [[nodiscard]] bool read_failed() const { return read_failed_.load(); }

 private:
  struct Attended {
    const float* x{};   // [rows, H]
    const float* qr{};  // [rows, q_lora]
  };

  [[nodiscard]] kernels::Round round() const;
  [[nodiscard]] std::size_t activation_block() const;
  float* linear(const float* x,
                const kernels::Weight& weight,
                bool quantised = true,
                bool rounded = true);
  float* norm(const float* x, std::span<const float> weight, std::size_t width);
  void rope(float* x,
            std::size_t heads,
            std::size_t width,
            std::span<const float> frequencies,
            std::int64_t multiple = 1,
            bool inverse = false);
  void quantise_row(float* x, std::size_t width);

  void mark_spans();
  void run_block(const BlockWeights& block, int layer, int stage);
  float* attention(const BlockWeights& block, int layer, int stage, const float* x);
  float* window_row(const BlockWeights& block, const float* x, std::span<const float> frequencies);
  float* grouped_output(const BlockWeights& block, float* o, std::span<const float> frequencies);
  float* experts(const BlockWeights& block, int layer, int stage, const float* x);
  void compress(const BlockWeights& block, int layer, const float* x);
  void compress_v4(const BlockWeights& block, int layer, const float* x);
  void compress_v41(const BlockWeights& block, int layer, const float* x);
  float* pool(const CompressorWeights& weights,
              const LayerPlan& layer,
              const float* x,
              std::size_t width,
              std::vector<kernels::RingView> values,
              std::vector<kernels::RingView> gates);
  void store(int layer, float* x, bool keys);
  void select(const BlockWeights& block, int layer, const Attended& attended);
  void fetch_engram_rows();
  void engram(const EngramWeights& weights, int layer);
  void capture(int layer);
  void cross_cut(int layer);
  void mask_above_cut();
  void drop_rows(const std::vector<std::int32_t>& kept);
  // Rows of a drafter: consecutive positions of each sequence.
  struct DrafterRows {
    Sequence* sequence{};
    std::int64_t first_position{};
    std::size_t rows{};
  };
  void start_rows(std::span<const DrafterRows> parts);
  void start_dspark(std::span<const DraftRow> batch);
  void start_mtp(std::span<const float> streams, std::span<const std::int32_t> next_tokens);
  void write_mtp_context(std::span<const DraftContextRows> batch);
  void write_draft_ring(int stage, const float* x);
  void head_mix(const MixWeights& mix);

  template <class T>
  std::span<const T> keep_alive(std::vector<T> values);
  std::vector<kernels::RingView> rings(int layer, Sequence::Raw kind) const;
  void probe(int layer, int stage, const char* what, const float* values, std::size_t width);
  void probe_integers(int layer, int stage, const char* what, std::vector<std::int64_t> values);

  StepContext context_;
  const ModelConfig& config_;
  std::vector<SequenceRows> batch_;
  CutMode cut_ = CutMode::kOff;
  std::size_t rows_ = 0;
  std::vector<kernels::SequenceView> sequences_;
  std::int32_t* tokens_ = nullptr;
  std::int64_t* positions_ = nullptr;
  std::int64_t* window_begin_ = nullptr;
  std::uint8_t* is_image_ = nullptr;
  std::int64_t* span_begin_ = nullptr;  // [rows]; null: every row attends causally
  std::int64_t* span_end_ = nullptr;
  float* streams_ = nullptr;   // [rows, n, H]
  float* pre_ = nullptr;       // [rows, n]
  float* next_pre_ = nullptr;  // likewise: what the next mix writes
  std::int32_t* list_ = nullptr;
  std::uint8_t* candidates_ = nullptr;
  std::size_t candidate_stride_ = 0;
  bool compressed_before_cut_ = false;  // the cut layer's rows are already stored
  float* features_ = nullptr;
  struct FetchedRows {
    const std::int64_t* ids{};
    kernels::Weight rows;
  };
  std::vector<FetchedRows> fetched_;  // one an engram layer
  std::atomic<bool> read_failed_ = false;
  float* logits_ = nullptr;
  std::size_t logits_rows_ = 0;
};

}  // namespace galley::model
