#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/golden_compare.h"
#include "model/network.h"

namespace galley::model {

// Feeding a sequence, for the checks of runs and replays. `feed_*` return the logits of every row.
[[nodiscard]] Result<ForwardResult> feed(Network& network,
                                         Sequence& sequence,
                                         std::span<const std::int32_t> tokens,
                                         Probe* probe = nullptr);
[[nodiscard]] Result<std::vector<float>> feed_one_by_one(Network& network,
                                                         Sequence& sequence,
                                                         std::span<const std::int32_t> tokens);
[[nodiscard]] bool same_bits(std::span<const float> a, std::span<const float> b);

// The `first` and the `last` of `count` stored rows, as the goldens keep them.
[[nodiscard]] std::vector<float> stored_rows(const kernels::PagedView& pages,
                                             std::int64_t count,
                                             std::int64_t first,
                                             std::int64_t last);

// What a run accepts (README of the goldens, steps 3 and 8).
struct RunLimits {
  Tolerance logits;
  Tolerance layers;  // streams, ffn_out
  Tolerance inner;   // everything else inside
  double argmax_share = 0;
  bool layer_by_layer = false;  // compare tensors inside the network, else pass them over
  bool stored_rows = false;     // compare caches of the first layers, as shares of values
};

// One layer of a prefill: where its goldens are and what we made of it.
struct LayerCheck {
  Golden& golden;
  const Recorder& recorder;
  const Network& network;
  int layer;
  std::string prefix;  // of the golden's tensors: "prefill.L3."
  std::size_t tokens;
  const RunLimits& limits;
  Report& report;

  [[nodiscard]] const ModelConfig& config() const { return network.plan().config; }
  [[nodiscard]] const LayerPlan& role() const {
    return network.plan().layers[static_cast<std::size_t>(layer)];
  }
  // What the probe saw.
  [[nodiscard]] std::vector<float> value(const char* what) const;
  [[nodiscard]] std::vector<std::int64_t> list(const char* what) const;

  // Each compares one tensor, or passes it over where `limits` has no look inside.
  void compare(const char* what, std::span<const float> got, const Tolerance& tolerance) const;
  void lists(const char* what) const;  // rows of expert or row ids, in any order
  void ids(const char* what) const;    // in this order
};

// What a layer chose (experts, rows, rows of the engram's tables) and its gate for every row, as
// the files `short` and `vision` keep them.
void check_choices(const LayerCheck& check);

// A file `f32_nq`, `f32`, `bf16` or `bf16_act`: a whole prefill, its chunkings, decoding and a
// draft block.
[[nodiscard]] Result<void> check_run(Network& network,
                                     Golden& golden,
                                     const RunLimits& limits,
                                     Report& report);

// A file `short` or `short_act`: every layer starts from the golden streams of the layer before.
// `everything`: attention, lists and engram too.
[[nodiscard]] Result<void> check_short(
    Network& network, Golden& golden, const Tolerance& tolerance, bool everything, Report& report);

// A file `replay`, its cases with fake quantisation or, with the prefix `nq.`, without.
[[nodiscard]] Result<void> check_replay(Network& network, Golden& golden, Report& report);

}  // namespace galley::model
