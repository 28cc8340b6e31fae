#pragma once

#include <cstdint>
#include <span>
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

// What a run accepts (README of the goldens, steps 3 and 8).
struct RunLimits {
  Tolerance logits;
  Tolerance layers;  // streams, ffn_out
  Tolerance inner;   // everything else inside
  double argmax_share = 0;
  bool layer_by_layer = false;  // compare tensors inside the network
  bool stored_rows = false;     // compare caches of the first layers, as shares of values
};

// A file `f32_nq`, `f32`, `bf16` or `bf16_act`: a whole prefill, its chunkings, decoding and a
// draft block.
[[nodiscard]] Result<void> check_run(Network& network,
                                     const Golden& golden,
                                     const RunLimits& limits,
                                     Report& report);

// A file `short` or `short_act`: every layer starts from the golden streams of the layer before.
// `everything`: attention, lists and engram too.
[[nodiscard]] Result<void> check_short(Network& network,
                                       const Golden& golden,
                                       const Tolerance& tolerance,
                                       bool everything,
                                       Report& report);

// A file `replay`, its cases with fake quantisation or, with the prefix `nq.`, without.
[[nodiscard]] Result<void> check_replay(Network& network, const Golden& golden, Report& report);

}  // namespace galley::model
