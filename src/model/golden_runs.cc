#include "model/golden_runs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/reference/pack.h"
#include "kernels/weight.h"
#include "model/arithmetic.h"

namespace galley::model {
namespace {

Result<std::vector<float>> feed_chunks(Network& network,
                                       Sequence& sequence,
                                       std::span<const std::int32_t> tokens,
                                       std::span<const std::int64_t> chunks) {
  std::vector<float> logits;
  std::size_t begin = 0;
  for (const std::int64_t chunk : chunks) {
    GALLEY_TRY(const ForwardResult step,
               feed(network, sequence, tokens.subspan(begin, static_cast<std::size_t>(chunk))));
    logits.insert(logits.end(), step.logits.begin(), step.logits.end());
    begin += static_cast<std::size_t>(chunk);
  }
  return logits;
}

void check_routing(const LayerCheck& check) {
  check.lists("router_idx");
  check.compare("router_w", check.value("router_w"), check.limits.inner);
  if (check.role().engram) {
    check.ids("engram_ids");
  }
}

// Values of the rows the golden kept.
void check_rows(const LayerCheck& check, std::span<const std::int64_t> rows) {
  const std::size_t hidden = size(check.config().hidden);
  const std::size_t streams = size(check.config().streams);
  const auto kept = [&](const char* what, std::size_t width, const Tolerance& tolerance) {
    check.compare(what, select_rows(check.value(what), width, rows), tolerance);
  };
  kept("attn_out", hidden, check.limits.inner);
  kept("ffn_out", hidden, check.limits.layers);
  kept("pre", streams, check.limits.inner);
  kept("streams", streams * hidden, check.limits.layers);
  if (check.role().engram) {
    kept("engram_gate", streams, check.limits.inner);
  }
}

// `compare(name, values)` for what a layer stores: window rows, compressed rows, index keys.
template <class F>
void for_stored(const LayerCheck& check, const Sequence& sequence, F compare) {
  const auto last = static_cast<std::int64_t>(check.tokens) - 1;
  const std::int64_t four[] = {0, 1, last - 1, last};
  compare("win_row", select_rows(check.value("win_row"), size(check.config().head_dim), four));
  if (check.role().kv_source != check.layer) {
    return;
  }
  const auto count = static_cast<std::int64_t>(check.tokens) / check.role().ratio;
  constexpr std::int64_t kEdge = 6;
  compare("comp", stored_rows(sequence.rows(check.layer), count, kEdge, kEdge));
  if (check.network.plan().cache.source(check.layer).key.width > 0) {
    compare("ik", stored_rows(sequence.keys(check.layer), count, kEdge, kEdge));
  }
}

// Rows whose last chosen and first unchosen score nearly tie may choose either.
void check_topk(const LayerCheck& check) {
  if (!check.limits.layer_by_layer) {
    check.golden.pass_over(check.prefix + "topk");
    check.golden.pass_over(check.prefix + "topk_margin");
    return;
  }
  constexpr float kNearTie = 1e-4F;
  const std::vector<float> margin = check.golden.floats(check.prefix + "topk_margin", check.tokens);
  const auto near_tie = [&](std::size_t r) { return margin[r] < kNearTie; };
  const auto left_out = static_cast<std::size_t>(
      std::ranges::count_if(margin, [](float value) { return value < kNearTie; }));
  check.report.count(check.prefix + "topk",
                     differing_rows(check.golden.integers(check.prefix + "topk"),
                                    check.list("topk"), check.tokens, near_tie),
                     check.tokens - left_out, 0,
                     fmt::format(", {} left out: margin below {}", left_out, kNearTie));
  check.compare("topk_margin", check.value("topk_margin"), check.limits.inner);
}

// The golden has a bit a position, we keep a bit a block.
void check_candidates(const LayerCheck& check) {
  if (!check.limits.layer_by_layer) {
    check.golden.pass_over(check.prefix + "cand");
    return;
  }
  const std::size_t width = (check.tokens + 7) / 8;
  const std::vector<std::int64_t> bits =
      check.golden.integers(check.prefix + "cand", {0, 255}, check.tokens * width);
  const std::vector<std::int64_t> ours = check.list("cand");
  const std::size_t stride = ours.size() / check.tokens;
  const auto block_size = size(check.config().candidate_block_size);
  const std::size_t total = check.tokens * (check.tokens + 1) / 2;  // what a row may see
  if (stride * 8 * block_size < check.tokens) {
    check.report.count(check.prefix + "cand", total, total, 0);
    return;
  }
  std::size_t different = 0;
  for (std::size_t t = 0; t < check.tokens; ++t) {
    for (std::size_t j = 0; j <= t; ++j) {
      const std::size_t block = j / block_size;
      different += ((bits[t * width + j / 8] >> (j % 8)) & 1) !=
                   ((ours[t * stride + block / 8] >> (block % 8)) & 1);
    }
  }
  check.report.count(check.prefix + "cand", different, total, 0);
}

void check_lists(const LayerCheck& check) {
  if (check.role().list_source == check.layer) {
    check_topk(check);
  }
  if (check.role().candidate_source) {
    check_candidates(check);
  }
}

// In front of FP4 and FP8 a difference of 1e-7 may move a code: only a share of the values is asked
// to be near, and only in layers whose inputs have not drifted yet (README of the goldens, step 8).
constexpr int kStoredLayers = 3;
void check_codes(const LayerCheck& check, const char* what, std::span<const float> got) {
  constexpr double kNear = 1e-4;
  constexpr std::size_t kSharePercent = 1;
  const std::vector<float> want = check.golden.floats(check.prefix + what);
  std::size_t different = want.size() == got.size() ? 0 : std::max(want.size(), got.size());
  for (std::size_t i = 0; i < std::min(want.size(), got.size()); ++i) {
    different += std::fabs(static_cast<double>(want[i]) - got[i]) <= kNear ? 0U : 1U;
  }
  check.report.count(check.prefix + what, different, want.size(),
                     want.size() * kSharePercent / 100);
}

void check_embedding(const Network& network,
                     Golden& golden,
                     std::span<const std::int32_t> ids,
                     std::span<const std::int64_t> rows,
                     Report& report) {
  const kernels::Weight table = network.checkpoint().matrix("embed.weight");
  std::vector<float> got(rows.size() * table.columns);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    kernels::dequantise_row(table, static_cast<std::size_t>(ids[static_cast<std::size_t>(rows[r])]),
                            std::span(got).subspan(r * table.columns, table.columns));
  }
  report.compare("prefill.embed", golden.floats("prefill.embed"), got, {.max_abs = 0});
}

// What a file holds of the draft block.
std::vector<std::string> draft_tensors(const ModelPlan& plan) {
  std::vector<std::string> out = {"dspark.x0", "dspark.feature", "dspark.tokens",
                                  "dspark.conf_logit", "dspark.draft.hidden"};
  for (int i = 0; i < plan.config.draft->block; ++i) {
    out.push_back(fmt::format("dspark.draft.logits{}", i));
  }
  for (int stage = 0; stage < plan.draft_stages; ++stage) {
    out.push_back(fmt::format("dspark.m{}.streams", stage));
    out.push_back(fmt::format("dspark.m{}.router_idx", stage));
  }
  return out;
}

// A draft block behind the prefill, which leaves the sequence as it is but for the drafter's rings.
void check_draft(Network& network,
                 Sequence& sequence,
                 const ForwardResult& prefill,
                 std::span<const std::int64_t> rows,
                 Golden& golden,
                 const RunLimits& limits,
                 Report& report) {
  const ModelPlan& plan = network.plan();
  const auto near = [&](const std::string& name, std::span<const float> got,
                        const Tolerance& tolerance) {
    report.compare(name, golden.floats(name), got, tolerance);
  };
  near("dspark.feature", select_rows(prefill.features, plan.feature_width(), rows), limits.inner);
  network.draft_context(sequence, prefill.features, 0);
  Recorder recorder;
  const DraftResult draft = network.draft(
      sequence,
      static_cast<std::int32_t>(golden.scalar("dspark.x0", {0, plan.config.vocabulary - 1})),
      &recorder);
  report.count("dspark.tokens",
               mismatches(golden.integers("dspark.tokens"),
                          std::vector<std::int64_t>(draft.tokens.begin(), draft.tokens.end())),
               draft.tokens.size(), 0);
  near("dspark.conf_logit", draft.confidences, limits.inner);
  near("dspark.draft.hidden", draft.hidden, limits.inner);
  const std::size_t vocabulary = draft.logits.size() / draft.tokens.size();
  for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
    near(fmt::format("dspark.draft.logits{}", i),
         std::span(draft.logits).subspan(i * vocabulary, vocabulary), limits.logits);
  }
  for (int stage = 0; stage < plan.draft_stages; ++stage) {
    const std::string block = fmt::format("m{}.", stage);
    near("dspark." + block + "streams", recorder.value(block + "streams"), limits.layers);
    report.count("dspark." + block + "router_idx",
                 differing_rows(golden.integers("dspark." + block + "router_idx"),
                                recorder.list(block + "router_idx"), draft.tokens.size()),
                 draft.tokens.size(), 0);
  }
}

void check_layers(const Network& network,
                  const Sequence& sequence,
                  const Recorder& recorder,
                  std::size_t tokens,
                  std::span<const std::int64_t> rows,
                  Golden& golden,
                  const RunLimits& limits,
                  Report& report) {
  for (int layer = 0; layer < network.plan().config.layers; ++layer) {
    const LayerCheck check{golden, recorder, network, layer, fmt::format("prefill.L{}.", layer),
                           tokens, limits,   report};
    check_routing(check);
    check_rows(check, rows);
    check_lists(check);
    const bool as_codes = limits.stored_rows && layer < kStoredLayers;
    for_stored(check, sequence, [&](const char* what, const std::vector<float>& got) {
      as_codes ? check_codes(check, what, got) : check.compare(what, got, limits.inner);
    });
  }
}

// Chunks, one prefill, token by token: the same numbers.
Result<void> check_same_numbers(Network& network,
                                std::span<const std::int32_t> ids,
                                std::span<const std::int64_t> chunks,
                                std::span<const std::int32_t> input,
                                std::span<const float> prefill,
                                std::span<const float> decoded,
                                Report& report) {
  const auto chunked = network.new_sequence();
  GALLEY_TRY(const std::vector<float> in_chunks, feed_chunks(network, *chunked, ids, chunks));
  report.require("chunks = whole, bit for bit", same_bits(in_chunks, prefill), "bits differ");
  GALLEY_TRY(const std::vector<float> behind_chunks, feed_one_by_one(network, *chunked, input));
  report.require("decode after chunks = decode after whole, bit for bit",
                 same_bits(behind_chunks, decoded), "bits differ");
  std::vector<std::int32_t> all(ids.begin(), ids.end());
  all.insert(all.end(), input.begin(), input.end());
  const auto once = network.new_sequence();
  GALLEY_TRY(const ForwardResult together, feed(network, *once, all));
  report.require("decode = one prefill, bit for bit",
                 same_bits(std::span(together.logits).subspan(prefill.size()), decoded),
                 "bits differ");
  return {};
}

}  // namespace

Result<ForwardResult> feed(Network& network,
                           Sequence& sequence,
                           std::span<const std::int32_t> tokens,
                           Probe* probe) {
  const SequenceRows part{.sequence = &sequence, .tokens = tokens};
  return network.forward({&part, 1}, {.probe = probe});
}

Result<std::vector<float>> feed_one_by_one(Network& network,
                                           Sequence& sequence,
                                           std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    GALLEY_TRY(const ForwardResult step, feed(network, sequence, tokens.subspan(i, 1)));
    logits.insert(logits.end(), step.logits.begin(), step.logits.end());
  }
  return logits;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::vector<float> stored_rows(const kernels::PagedView& pages,
                               std::int64_t count,
                               std::int64_t first,
                               std::int64_t last) {
  std::vector<float> out;
  for (std::int64_t j = 0; j < count; ++j) {
    if (j < first || j >= count - last) {
      std::vector<float> row(pages.format.width);
      kernels::reference::unpack_row(pages.format, pages.row(j), row);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

std::vector<float> LayerCheck::value(const char* what) const {
  return recorder.value(fmt::format("{}.{}", layer, what));
}

std::vector<std::int64_t> LayerCheck::list(const char* what) const {
  return recorder.list(fmt::format("{}.{}", layer, what));
}

void LayerCheck::compare(const char* what,
                         std::span<const float> got,
                         const Tolerance& tolerance) const {
  if (!limits.layer_by_layer) {
    golden.pass_over(prefix + what);
    return;
  }
  report.compare(prefix + what, golden.floats(prefix + what), got, tolerance);
}

void LayerCheck::lists(const char* what) const {
  if (!limits.layer_by_layer) {
    golden.pass_over(prefix + what);
    return;
  }
  report.count(prefix + what, differing_rows(golden.integers(prefix + what), list(what), tokens),
               tokens, 0);
}

void LayerCheck::ids(const char* what) const {
  if (!limits.layer_by_layer) {
    golden.pass_over(prefix + what);
    return;
  }
  const std::vector<std::int64_t> got = list(what);
  report.count(prefix + what, mismatches(golden.integers(prefix + what), got), got.size(), 0);
}

void check_choices(const LayerCheck& check) {
  check.lists("router_idx");
  if (check.role().list_source == check.layer) {
    check.lists("topk");
  }
  if (check.role().engram) {
    check.ids("engram_ids");
    check.compare("engram_gate", check.value("engram_gate"), check.limits.inner);
  }
}

Result<void> check_run(Network& network, Golden& golden, const RunLimits& limits, Report& report) {
  const auto vocabulary = size(network.plan().config.vocabulary);
  const ModelConfig& config = network.plan().config;
  const std::vector<std::int32_t> ids = golden.tokens("ids", config.vocabulary);
  constexpr std::size_t kTokensMin = 2;  // `win_row` holds the first two and the last two
  golden.reject_unless(ids.size() >= kTokensMin, "ids", "has one token, want two at least");
  const std::vector<std::int64_t> rows = golden.integers("rows", {0, std::ssize(ids) - 1});
  const std::vector<std::int64_t> chunks = golden.integers("chunks", {1, std::ssize(ids)});
  golden.reject_unless(
      std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0}) == std::ssize(ids), "chunks",
      fmt::format("want a sum of {} tokens", ids.size()));
  const std::vector<std::int32_t> input = golden.tokens("decode.input", config.vocabulary);
  if (!golden.problems().empty()) {
    return {};
  }
  Recorder recorder;
  const auto sequence = network.new_sequence();
  GALLEY_TRY(const ForwardResult prefill, feed(network, *sequence, ids, &recorder));
  check_layers(network, *sequence, recorder, ids.size(), rows, golden, limits, report);
  if (limits.layer_by_layer || limits.stored_rows) {
    check_embedding(network, golden, ids, rows, report);
  }
  report.compare("prefill.logits", golden.floats("prefill.logits"),
                 select_rows(prefill.logits, vocabulary, rows), limits.logits);
  const std::vector<std::int64_t> best = argmax_rows(prefill.logits, vocabulary);
  report.count("prefill.argmax",
               mismatches(golden.integers("prefill.argmax", {0, config.vocabulary - 1}), best),
               best.size(), other_winners(best.size(), limits.layer_by_layer, limits.argmax_share));

  if (network.plan().drafts_by(DraftKind::kDspark)) {
    if (limits.layer_by_layer) {
      check_draft(network, *sequence, prefill, rows, golden, limits, report);
    } else {
      std::ranges::for_each(draft_tensors(network.plan()),
                            [&](const std::string& tensor) { golden.pass_over(tensor); });
    }
  }
  GALLEY_TRY(const std::vector<float> decoded, feed_one_by_one(network, *sequence, input));
  report.compare("decode.logits", golden.floats("decode.logits"), decoded, limits.logits);
  return check_same_numbers(network, ids, chunks, input, prefill.logits, decoded, report);
}

Result<void> check_short(
    Network& network, Golden& golden, const Tolerance& tolerance, bool everything, Report& report) {
  const ModelConfig& config = network.plan().config;
  const std::vector<std::int32_t> ids = golden.tokens("ids", config.vocabulary);
  const std::size_t streams = ids.size() * size(config.streams);
  Recorder recorder;
  for (int layer = 0; layer < config.layers; ++layer) {
    recorder.force[layer] = {
        golden.floats(fmt::format("L{}.streams", layer), streams * size(config.hidden)),
        golden.floats(fmt::format("L{}.pre", layer), streams)};
  }
  if (!golden.problems().empty()) {
    return {};
  }
  const auto sequence = network.new_sequence();
  GALLEY_TRY(const ForwardResult result, feed(network, *sequence, ids, &recorder));
  const RunLimits limits{.inner = tolerance, .layer_by_layer = true};
  // The README bounds the streams. What is added to them is about ten times smaller, so one code
  // that falls the other way weighs ten times as much in it.
  const Tolerance sub_layer{.max_abs = tolerance.max_abs,
                            .relative_rms = 10 * tolerance.relative_rms};
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerCheck check{golden,     recorder, network, layer, fmt::format("L{}.", layer),
                           ids.size(), limits,   report};
    check.compare("streams", check.value("streams"), tolerance);
    check.compare("pre", check.value("pre"), tolerance);
    if (!everything) {
      check.lists("router_idx");
      continue;
    }
    check.compare("attn_out", check.value("attn_out"), sub_layer);
    check.compare("router_w", check.value("router_w"), sub_layer);
    check_choices(check);
  }
  report.compare("logits", golden.floats("logits"), result.logits,
                 {.relative_rms = tolerance.relative_rms});
  return {};
}

}  // namespace galley::model
