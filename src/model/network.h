#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/device.h"
#include "model/arena.h"
#include "model/checkpoint.h"
#include "model/packing.h"
#include "model/plan.h"
#include "model/sequence.h"
#include "model/vision.h"
#include "model/weights.h"

namespace galley::model {

// Which of the reference's roundings are made (spec model 2.3; goldens). The default is what
// serving uses.
struct Numerics {
  bool kv_quantise =
      true;          // of window rows, compressed rows, index keys and queries: part of the model
  bool bf16 = true;  // where the reference stores bfloat16
  bool activation_quantise = false;  // FP8 in front of quantised linears
};

// How the prefill cut is used (spec model 8.6). kMask computes every row and is the oracle of
// kCompact.
enum class CutMode : std::uint8_t { kOff, kCompact, kMask };

// Positions [begin, end) of an image's span in a sequence, START to END.
struct ImageRange {
  std::int64_t begin{};
  std::int64_t end{};
};

// Consecutive tokens of one sequence, to be fed at its length. A row with an embedding belongs to
// an image, as does V4.1's image token: it is routed with bias_vl and dead to the engram (spec
// model 6.1, 7.2). Its token id is not looked up; V4-Vision has no id for it, so any of the
// vocabulary will do.
struct SequenceRows {
  Sequence* sequence{};
  std::span<const std::int32_t> tokens;
  std::span<const float* const>
      embeddings;  // empty, or one a token; not null there: used instead of the table (images)
  // Spans that these rows hold whole, padding in front left out. V4-Vision attends inside a span in
  // both directions and needs them (spec model 4.5); V4.1 is causal and does not look at them.
  std::span<const ImageRange> images;
  std::int64_t window_begin = 0;  // replay after a hit: no window looks below (spec model 8.5)
  std::int64_t write_floor = 0;   // compressed rows of groups that end at or below stay as stored
  std::int64_t prompt_tokens =
      0;         // the rectangle of the cut holds while positions are below; 0: no rectangle
  int keep = 0;  // its height; 0: the plan's
};

// Sees intermediate values, for golden checks. Waits for the device at every call.
class Probe {
 public:
  virtual ~Probe() = default;
  // Floats of `rows` rows after `what` of `block` ("3", or "m0" for a draft stage).
  virtual void floats(std::string_view block,
                      std::string_view what,
                      std::span<const float> values,
                      std::size_t rows) = 0;
  virtual void integers(std::string_view block,
                        std::string_view what,
                        std::span<const std::int64_t> values,
                        std::size_t rows) = 0;
  // May replace the streams and `pre` that leave a layer.
  virtual void after_layer(int layer, std::span<float> streams, std::span<float> pre) = 0;
};

struct ForwardOptions {
  CutMode cut = CutMode::kOff;
  std::size_t logits_tail =
      std::numeric_limits<std::size_t>::max();  // of the last rows of each sequence only
  Probe* probe = nullptr;
};

struct ForwardResult {
  struct Part {
    std::size_t begin{};  // first row of this sequence in `logits` and `features`
    std::size_t rows{};
    std::int64_t first_position{};
  };
  std::vector<Part>
      parts;  // one a sequence, in the order given; rows that were dropped at the cut are in none
  std::vector<float> logits;    // [rows, vocabulary]
  std::vector<float> features;  // [rows, plan.feature_width()]; empty without a drafter
};

// Positions of a sequence that are final, for its drafter.
struct DraftContextRows {
  Sequence* sequence{};
  std::span<const float> features;  // [positions, plan.feature_width()]
  std::int64_t first_position{};
};

// A sequence to draft behind; `token` sits at position sequence.length().
struct DraftRow {
  Sequence* sequence{};
  std::int32_t token{};
};

struct DraftOptions {
  kernels::DraftChoice choose;  // by the row's place in the batch; none: the largest logit
  bool values = false;          // logits and hidden values of the result, for checks
  Probe* probe = nullptr;
};

struct DraftResult {
  std::vector<std::int32_t> tokens;  // [gamma]
  std::vector<float> confidences;    // [gamma], before the sigmoid; empty: MTP gives none
  std::vector<float> logits;         // [gamma, vocabulary], with the Markov bias
  std::vector<float> hidden;         // [gamma, H]
};

struct StepContext;

// The network on one device. Not thread-safe: one forward at a time.
class Network {
 public:
  // Uses the checkpoint's pack file when there is one in `pack_directory`; empty: looks for none.
  static Result<std::unique_ptr<Network>> load(const std::filesystem::path& directory,
                                               kernels::Device& device,
                                               const Numerics& numerics,
                                               const std::filesystem::path& pack_directory = {});

  [[nodiscard]] const ModelPlan& plan() const { return checkpoint_.plan(); }
  [[nodiscard]] const Checkpoint& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const Numerics& numerics() const { return numerics_; }
  [[nodiscard]] const PackedWeights& packed() const { return packed_; }
  [[nodiscard]] std::unique_ptr<Sequence> new_sequence();
  // A block for sequences to adopt or add. Null when the device has no memory for it.
  [[nodiscard]] std::shared_ptr<kernels::Buffer> new_block() { return pool_.allocate(); }
  // Bytes of each part of a block, one a source layer, in order, from its beginning on.
  [[nodiscard]] std::span<const std::size_t> block_parts() const { return pool_.parts(); }
  // What a sequence remembers of `tokens`, none of them with an embedding, beside its blocks: what
  // adopt() wants to know.
  [[nodiscard]] std::vector<std::int32_t> history(std::span<const std::int32_t> tokens) const;
  // Null when the checkpoint has no vision tower.
  [[nodiscard]] VisionTower* vision() { return vision_ ? &*vision_ : nullptr; }
  // The most that the values of the last step took at one time. Arena says what is held for them.
  [[nodiscard]] std::size_t step_bytes() const {
    return arena_.peak_bytes() + scratch_.peak_bytes();
  }

  // Feeds every part's tokens; a row's numbers do not depend on what else is in the batch. Error
  // kUnavailable: a row of an engram table could not be read; layers below have written their rings
  // by then, so the batch's sequences are of no use any more.
  [[nodiscard]] Result<ForwardResult> forward(std::span<const SequenceRows> batch,
                                              const ForwardOptions& options);
  // Tells the drafter which positions are final: their features become its context. Positions of a
  // sequence come in order, without gaps; its length is their end. A sequence stands once in a
  // batch, and a row's numbers do not depend on what else does; likewise below.
  void draft_context(std::span<const DraftContextRows> batch);
  void draft_context(Sequence& sequence,
                     std::span<const float> features,
                     std::int64_t first_position);
  // A block behind the last verified position of each sequence.
  [[nodiscard]] std::vector<DraftResult> draft(std::span<const DraftRow> batch,
                                               const DraftOptions& options);
  // Of one, greedy and with all values.
  [[nodiscard]] DraftResult draft(Sequence& sequence, std::int32_t token, Probe* probe = nullptr);

 private:
  Network(Checkpoint checkpoint,
          ModelWeights weights,
          PackedWeights packed,
          kernels::Device& device,
          const Numerics& numerics);

  // Takes back the memory of the step before.
  [[nodiscard]] StepContext new_step(Probe* probe);

  Checkpoint checkpoint_;
  ModelWeights weights_;
  PackedWeights packed_;  // what weights_ points into
  kernels::Device& device_;
  Numerics numerics_;
  BlockPool pool_;
  Arena arena_;
  Arena scratch_;
  std::vector<float> rope_window_;    // layers without compression
  std::vector<float> rope_compress_;  // layers with
  std::optional<VisionTower> vision_;
  std::unique_ptr<kernels::Stream> stream_;
  // Reads engram rows while the layers below compute; the event of each engram layer says when.
  std::unique_ptr<kernels::Stream> disk_stream_;
  std::vector<std::unique_ptr<kernels::Event>> rows_read_;
};

}  // namespace galley::model
