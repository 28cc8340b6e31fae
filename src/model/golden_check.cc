#include "model/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "model/golden_compare.h"
#include "model/golden_ops.h"
#include "model/golden_vision.h"
#include "model/network.h"
#include "model/safetensors.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

// ---- runs
// -------------------------------------------------------------------------------------------------------

Result<ForwardResult> feed(Network& network,
                           Sequence& sequence,
                           std::span<const std::int32_t> tokens,
                           Probe* probe = nullptr) {
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

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// First six and last six stored rows of a source layer, as the goldens keep them.
std::vector<float> stored_rows(const kernels::PagedView& pages, std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t j = 0; j < count; ++j) {
    if (j < 6 || j >= std::max<std::int64_t>(6, count - 6)) {
      std::vector<float> row(pages.format.width);
      kernels::reference::unpack_row(pages.format, pages.row(j), row);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

struct RunLimits {
  Tolerance logits;
  Tolerance layers;  // streams, ffn_out
  Tolerance inner;   // everything else inside
  double argmax_share = 0;
  bool layer_by_layer = false;  // compare tensors inside the network
};

void check_layer(const Golden& golden,
                 const Recorder& recorder,
                 const Network& network,
                 Sequence& sequence,
                 int layer,
                 const RunLimits& limits,
                 Report& report) {
  const ModelConfig& config = network.plan().config;
  const LayerPlan& role = network.plan().layers[static_cast<std::size_t>(layer)];
  const std::string prefix = fmt::format("prefill.L{}.", layer);
  const std::string own = fmt::format("{}.", layer);
  const std::vector<std::int64_t> rows = golden.integers("rows");
  const auto tokens = static_cast<std::size_t>(golden.shape("ids")[0]);
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const auto streams = static_cast<std::size_t>(config.streams);
  const std::pair<const char*, std::size_t> by_row[] = {{"attn_out", hidden},
                                                        {"ffn_out", hidden},
                                                        {"pre", streams},
                                                        {"streams", streams * hidden},
                                                        {"engram_gate", streams}};
  for (const auto& [what, width] : by_row) {
    if (golden.has(prefix + what)) {
      const bool outer = std::string_view(what) == "streams" || std::string_view(what) == "ffn_out";
      report.compare(prefix + what, golden.floats(prefix + what),
                     select_rows(recorder.values.at(own + what), width, rows),
                     outer ? limits.layers : limits.inner);
    }
  }
  if (golden.has(prefix + "win_row")) {
    const auto last = static_cast<std::int64_t>(tokens) - 1;
    const std::vector<std::int64_t> four = {0, 1, last - 1, last};
    report.compare(prefix + "win_row", golden.floats(prefix + "win_row"),
                   select_rows(recorder.values.at(own + "win_row"),
                               static_cast<std::size_t>(config.head_dim), four),
                   limits.inner);
  }
  if (golden.has(prefix + "comp")) {
    report.compare(
        prefix + "comp", golden.floats(prefix + "comp"),
        stored_rows(sequence.rows(layer), static_cast<std::int64_t>(tokens) / role.ratio),
        limits.inner);
  }
  if (golden.has(prefix + "ik")) {
    report.compare(
        prefix + "ik", golden.floats(prefix + "ik"),
        stored_rows(sequence.keys(layer), static_cast<std::int64_t>(tokens) / role.ratio),
        limits.inner);
  }
  const auto never = [](std::size_t) { return false; };
  if (golden.has(prefix + "router_idx")) {
    const auto k = static_cast<std::size_t>(golden.shape(prefix + "router_idx")[1]);
    report.count(prefix + "router_idx",
                 differing_rows(golden.integers(prefix + "router_idx"), k,
                                recorder.lists.at(own + "router_idx"), k, never),
                 tokens, 0);
    report.compare(prefix + "router_w", golden.floats(prefix + "router_w"),
                   recorder.values.at(own + "router_w"), limits.inner);
  }
  if (golden.has(prefix + "engram_ids")) {
    report.count(
        prefix + "engram_ids",
        mismatches(golden.integers(prefix + "engram_ids"), recorder.lists.at(own + "engram_ids")),
        tokens, 0);
  }
  if (golden.has(prefix + "topk")) {
    constexpr float kNearTie = 1e-4F;
    const std::vector<float> margin = golden.floats(prefix + "topk_margin");
    report.count(
        prefix + "topk",
        differing_rows(golden.integers(prefix + "topk"),
                       static_cast<std::size_t>(golden.shape(prefix + "topk")[1]),
                       recorder.lists.at(own + "topk"), static_cast<std::size_t>(config.index_topk),
                       [&](std::size_t r) { return margin[r] < kNearTie; }),
        tokens, 0);
  }
  if (golden.has(prefix + "cand")) {
    // The golden has a bit a position, we keep a bit a block.
    const std::vector<std::int64_t> bits = golden.integers(prefix + "cand");
    const std::vector<std::int64_t>& ours = recorder.lists.at(own + "cand");
    const std::size_t width = bits.size() / tokens;
    const std::size_t stride = ours.size() / tokens;
    std::size_t different = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t j = 0; j <= t; ++j) {
        const std::size_t block = j / static_cast<std::size_t>(config.candidate_block_size);
        different += ((bits[t * width + j / 8] >> (j % 8)) & 1) !=
                     ((ours[t * stride + block / 8] >> (block % 8)) & 1);
      }
    }
    report.count(prefix + "cand", different, tokens * tokens, 0);
  }
}

void check_draft(const Golden& golden,
                 const DraftResult& draft,
                 const Recorder& recorder,
                 const RunLimits& limits,
                 Report& report) {
  report.count("dspark.tokens",
               mismatches(golden.integers("dspark.tokens"),
                          std::vector<std::int64_t>(draft.tokens.begin(), draft.tokens.end())),
               draft.tokens.size(), 0);
  report.compare("dspark.conf_logit", golden.floats("dspark.conf_logit"), draft.confidences,
                 limits.inner);
  report.compare("dspark.draft.hidden", golden.floats("dspark.draft.hidden"), draft.hidden,
                 limits.inner);
  const std::size_t vocabulary = draft.logits.size() / draft.tokens.size();
  for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
    const std::string name = fmt::format("dspark.draft.logits{}", i);
    report.compare(name, golden.floats(name),
                   std::span(draft.logits).subspan(i * vocabulary, vocabulary), limits.logits);
  }
  for (int stage = 0; golden.has(fmt::format("dspark.m{}.streams", stage)); ++stage) {
    const std::string name = fmt::format("m{}.streams", stage);
    report.compare("dspark." + name, golden.floats("dspark." + name), recorder.values.at(name),
                   limits.layers);
  }
}

// f32_nq, f32, bf16, bf16_act: a whole prefill, its chunkings, decoding and a draft block.
Result<void> check_run(Network& network,
                       const Golden& golden,
                       const RunLimits& limits,
                       Report& report) {
  const auto vocabulary = static_cast<std::size_t>(network.plan().config.vocabulary);
  const std::vector<std::int32_t> ids = golden.tokens("ids");
  const std::vector<std::int64_t> rows = golden.integers("rows");
  Recorder recorder;
  const auto sequence = network.new_sequence();
  GALLEY_TRY(const ForwardResult prefill, feed(network, *sequence, ids, &recorder));
  for (int layer = 0; layer < network.plan().config.layers && limits.layer_by_layer; ++layer) {
    check_layer(golden, recorder, network, *sequence, layer, limits, report);
  }
  report.compare("prefill.logits", golden.floats("prefill.logits"),
                 select_rows(prefill.logits, vocabulary, rows), limits.logits);
  const std::vector<std::int64_t> best = argmax_rows(prefill.logits, vocabulary);
  const auto allowed =
      limits.layer_by_layer
          ? std::size_t{1}
          : static_cast<std::size_t>((1 - limits.argmax_share) * static_cast<double>(best.size()));
  report.count("prefill.argmax", mismatches(golden.integers("prefill.argmax"), best), best.size(),
               allowed);

  if (golden.has("dspark.x0") && !prefill.features.empty()) {
    network.draft_context(*sequence, prefill.features, 0);
    Recorder draft_recorder;
    const DraftResult draft = network.draft(
        *sequence, static_cast<std::int32_t>(golden.scalar("dspark.x0")), &draft_recorder);
    if (limits.layer_by_layer) {
      check_draft(golden, draft, draft_recorder, limits, report);
    }
  }
  const std::vector<std::int32_t> input = golden.tokens("decode.input");
  GALLEY_TRY(const std::vector<float> decoded, feed_one_by_one(network, *sequence, input));
  report.compare("decode.logits", golden.floats("decode.logits"), decoded, limits.logits);

  const auto chunked = network.new_sequence();
  GALLEY_TRY(const std::vector<float> in_chunks,
             feed_chunks(network, *chunked, ids, golden.integers("chunks")));
  report.require("chunks = whole, bit for bit", same_bits(in_chunks, prefill.logits),
                 "bits differ");
  GALLEY_TRY(const std::vector<float> behind_chunks, feed_one_by_one(network, *chunked, input));
  report.require("decode after chunks = decode after whole, bit for bit",
                 same_bits(behind_chunks, decoded), "bits differ");
  std::vector<std::int32_t> all = ids;
  all.insert(all.end(), input.begin(), input.end());
  const auto once = network.new_sequence();
  GALLEY_TRY(const ForwardResult together, feed(network, *once, all));
  report.require("decode = one prefill, bit for bit",
                 same_bits(std::span(together.logits).subspan(ids.size() * vocabulary), decoded),
                 "bits differ");
  return {};
}

// short, short_act: every layer starts from the golden streams of the layer before.
Result<void> check_short(Network& network,
                         const Golden& golden,
                         const Tolerance& tolerance,
                         Report& report) {
  Recorder recorder;
  const ModelConfig& config = network.plan().config;
  for (int layer = 0; layer < config.layers; ++layer) {
    recorder.force[layer] = {golden.floats(fmt::format("L{}.streams", layer)),
                             golden.floats(fmt::format("L{}.pre", layer))};
  }
  const auto sequence = network.new_sequence();
  GALLEY_TRY(const ForwardResult result, feed(network, *sequence, golden.tokens("ids"), &recorder));
  for (int layer = 0; layer < config.layers; ++layer) {
    report.compare(fmt::format("L{}.streams", layer), recorder.force[layer].first,
                   recorder.values.at(fmt::format("{}.streams", layer)), tolerance);
  }
  report.compare("logits", golden.floats("logits"), result.logits,
                 {.relative_rms = tolerance.relative_rms});
  return {};
}

// ---- replay
// -----------------------------------------------------------------------------------------------------

struct ReplayCase {
  std::string name;
  std::vector<std::int32_t> ids;
  std::int64_t hit = 0;
  std::int64_t start = 0;
  int keep = 0;  // 0: no rectangle
};

struct ReplayRun {
  std::vector<float> logits;  // of the kept rows at or above the hit
  DraftResult draft;
  std::vector<float> decoded;
  bool shared_unchanged = true;
  std::map<std::string, std::vector<float>> state;
};

Result<ReplayRun> run_replay(Network& network,
                             const ReplayCase& c,
                             std::span<const std::int64_t> chunks,
                             CutMode mode,
                             std::span<const std::int32_t> decode_input) {
  const ModelPlan& plan = network.plan();
  const auto vocabulary = static_cast<std::size_t>(plan.config.vocabulary);
  const auto prompt = std::ssize(c.ids);
  const auto sequence = network.new_sequence();
  std::vector<std::vector<std::byte>> before;
  if (c.hit > 0) {
    const auto earlier = network.new_sequence();
    GALLEY_CHECK_OK(
        feed(network, *earlier, std::span(c.ids).first(static_cast<std::size_t>(c.hit))));
    sequence->adopt(earlier->blocks(), earlier->history(), c.start);
    for (const auto& block : earlier->blocks()) {
      before.emplace_back(block->data(), block->data() + block->size());
    }
  }
  ReplayRun run;
  std::vector<float> features;
  std::int64_t begin = c.start;
  std::int64_t first_kept = -1;
  for (const std::int64_t chunk : chunks) {
    const SequenceRows part{.sequence = sequence.get(),
                            .tokens = std::span(c.ids).subspan(static_cast<std::size_t>(begin),
                                                               static_cast<std::size_t>(chunk)),
                            .window_begin = c.start,
                            .write_floor = c.hit,
                            .prompt_tokens = c.keep > 0 ? prompt : 0,
                            .keep = c.keep};
    GALLEY_TRY(const ForwardResult step,
               network.forward({&part, 1}, {.cut = c.keep > 0 ? mode : CutMode::kOff}));
    run.logits.insert(run.logits.end(), step.logits.begin(), step.logits.end());
    features.insert(features.end(), step.features.begin(), step.features.end());
    if (first_kept < 0 && !step.logits.empty()) {
      first_kept = step.parts[0].first_position;
    }
    begin += chunk;
  }
  if (c.hit > 0) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      run.shared_unchanged =
          run.shared_unchanged &&
          std::memcmp(before[i].data(), sequence->blocks()[i]->data(), before[i].size()) == 0;
    }
  }
  const std::int64_t rectangle = c.keep > 0 ? std::max(c.start, prompt - c.keep) : c.start;
  const auto drop = static_cast<std::size_t>(rectangle - first_kept);
  const std::size_t width = features.size() / (run.logits.size() / vocabulary);
  run.logits.erase(run.logits.begin(),
                   run.logits.begin() + static_cast<std::ptrdiff_t>(drop * vocabulary));
  features.erase(features.begin(), features.begin() + static_cast<std::ptrdiff_t>(drop * width));
  for (int layer = 0; layer < plan.config.layers; ++layer) {
    const kernels::RingView ring = sequence->window(layer);
    std::vector<float>& rows = run.state[fmt::format("L{}.win", layer)];
    const bool above = c.keep > 0 && plan.layers[static_cast<std::size_t>(layer)].above_cut;
    // The ring keeps the last rows only; an older first row cannot be compared any more.
    for (const std::int64_t p : {above ? rectangle : c.start, prompt - 1}) {
      if (p >= prompt - static_cast<std::int64_t>(ring.rows)) {
        const float* const row = ring.data + static_cast<std::size_t>(p) % ring.rows * ring.width;
        rows.insert(rows.end(), row, row + ring.width);
      } else {
        rows.insert(rows.end(), ring.width, NAN);
      }
    }
  }
  network.draft_context(*sequence, features, rectangle);
  const std::vector<std::int64_t> best = argmax_rows(run.logits, vocabulary);
  run.draft = network.draft(*sequence, static_cast<std::int32_t>(best.back()));
  const std::int64_t shown = std::max<std::int64_t>(0, c.hit - rectangle);
  run.logits.erase(run.logits.begin(),
                   run.logits.begin() + shown * static_cast<std::ptrdiff_t>(vocabulary));
  GALLEY_TRY(run.decoded, feed_one_by_one(network, *sequence, decode_input));
  return run;
}

void compare_windows(const Golden& golden,
                     const std::string& prefix,
                     const ReplayRun& run,
                     Report& report) {
  for (const auto& [name, rows] : run.state) {
    std::vector<float> want = golden.floats(prefix + name);
    std::vector<float> got = rows;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(got[i])) {
        got[i] = want[i] = 0.0F;
      }
    }
    report.compare(prefix + name, want, got, {.max_abs = 2e-4});
  }
}

Result<void> check_replay(Network& network,
                          const Golden& golden,
                          bool without_quantisation,
                          Report& report) {
  const std::vector<std::int32_t> ids = golden.tokens("ids");
  const std::int64_t hit = golden.scalar("hit");
  const std::int64_t start = golden.scalar("replay_start");
  const int keep = static_cast<int>(golden.scalar("keep"));
  const std::vector<std::int32_t> edge(ids.begin(), ids.begin() + hit + 8);
  const ReplayCase cases[] = {{"cold", ids, 0, 0, keep},
                              {"encoder", ids, hit, start, 0},
                              {"both", ids, hit, start, keep},
                              {"edge", edge, hit, start, keep}};
  const std::string tag = without_quantisation ? "nq." : "";
  // End to end with quantisers only rounding noise can be asked for (README, step 8).
  const Tolerance tolerance =
      without_quantisation ? Tolerance{.max_abs = 2e-4} : Tolerance{.relative_rms = 0.1};
  for (const ReplayCase& c : cases) {
    const std::string prefix = tag + c.name + ".";
    const std::vector<std::int32_t> input = golden.tokens(prefix + "decode.input");
    std::optional<ReplayRun> first;
    for (int i = 0; golden.has(fmt::format("{}.chunks{}", c.name, i)); ++i) {
      const std::vector<std::int64_t> chunks =
          golden.integers(fmt::format("{}.chunks{}", c.name, i));
      for (const CutMode mode : {CutMode::kCompact, CutMode::kMask}) {
        if (c.keep == 0 && mode == CutMode::kMask) {
          continue;
        }
        GALLEY_TRY(ReplayRun run, run_replay(network, c, chunks, mode, input));
        report.require(fmt::format("{}chunks{} {}: stored blocks unchanged", prefix, i,
                                   mode == CutMode::kMask ? "mask" : "compact"),
                       run.shared_unchanged, "a byte below the hit changed");
        if (!first) {
          first = std::move(run);
          continue;
        }
        report.require(fmt::format("{}chunks{} {} = first, bit for bit", prefix, i,
                                   mode == CutMode::kMask ? "mask" : "compact"),
                       same_bits(run.logits, first->logits) &&
                           same_bits(run.decoded, first->decoded) &&
                           same_bits(run.draft.logits, first->draft.logits),
                       "bits differ");
      }
    }
    report.compare(prefix + "logits", golden.floats(prefix + "logits"), first->logits, tolerance);
    report.compare(prefix + "decode.logits", golden.floats(prefix + "decode.logits"),
                   first->decoded, tolerance);
    if (without_quantisation) {
      report.compare(prefix + "dspark.logits", golden.floats(prefix + "dspark.logits"),
                     first->draft.logits, tolerance);
      report.compare(prefix + "dspark.conf_logit", golden.floats(prefix + "dspark.conf_logit"),
                     first->draft.confidences, tolerance);
      report.count(prefix + "dspark.tokens",
                   mismatches(golden.integers(prefix + "dspark.tokens"),
                              std::vector<std::int64_t>(first->draft.tokens.begin(),
                                                        first->draft.tokens.end())),
                   first->draft.tokens.size(), 0);
      compare_windows(golden, prefix, *first, report);
    }
  }
  return {};
}

// ---- a set
// ------------------------------------------------------------------------------------------------------

struct RunFile {
  const char* name;
  Numerics numerics;
};
constexpr Numerics kNoQuantisers = {
    .kv_quantise = false, .bf16 = false, .activation_quantise = false};
constexpr Numerics kFloat = {.kv_quantise = true, .bf16 = false, .activation_quantise = false};
constexpr Numerics kBfloat = {.kv_quantise = true, .bf16 = true, .activation_quantise = false};
constexpr Numerics kBfloatActivations = {
    .kv_quantise = true, .bf16 = true, .activation_quantise = true};

RunLimits limits_of(std::string_view file, bool v41) {
  if (file == "f32_nq") {
    return {.logits = {.max_abs = 2e-4},
            .layers = {.max_abs = 5e-4},
            .inner = {.max_abs = 2e-4},
            .layer_by_layer = true};
  }
  if (file == "f32") {
    return {.logits = {.relative_rms = v41 ? 0.1 : 0.02}, .argmax_share = 0.95};
  }
  if (file == "bf16") {
    return {.logits = {.relative_rms = v41 ? 0.25 : 0.1}, .argmax_share = 0.85};
  }
  return {.logits = {.relative_rms = v41 ? 0.4 : 0.2}, .argmax_share = 0.7};
}

Result<std::vector<GoldenOutcome>> check_file(const fs::path& checkpoint,
                                              const RunFile& file,
                                              kernels::Device& device) {
  const std::string label = checkpoint.filename().string() + "/" + file.name + " ";
  const fs::path path = checkpoint / (std::string(file.name) + ".safetensors");
  if (!fs::exists(path)) {
    return std::vector<GoldenOutcome>{};
  }
  GALLEY_TRY(const Safetensors tensors, Safetensors::open(path));
  const Golden golden(tensors);
  Report report(label);
  GALLEY_TRY(const auto network, Network::load(checkpoint, device, file.numerics));
  const bool v41 = network->plan().config.family == Family::kV41;
  const std::string_view name = file.name;
  if (name == "short") {
    GALLEY_CHECK_OK(check_short(*network, golden, {.max_abs = 2e-2, .relative_rms = 1e-4}, report));
  } else if (name == "short_act") {
    GALLEY_CHECK_OK(check_short(*network, golden, {.relative_rms = 2e-3}, report));
  } else if (name == "vision") {
    GALLEY_CHECK_OK(check_vision(*network, checkpoint, golden, report));
  } else if (name == "replay") {
    GALLEY_CHECK_OK(check_replay(*network, golden, !file.numerics.kv_quantise, report));
  } else {
    GALLEY_CHECK_OK(check_run(*network, golden, limits_of(name, v41), report));
  }
  return report.take();
}

}  // namespace

Result<std::vector<GoldenOutcome>> check_golden_set(const fs::path& set,
                                                    kernels::Device& device,
                                                    std::string_view only) {
  const auto wanted = [only](std::string_view part) { return only.empty() || only == part; };
  std::vector<GoldenOutcome> outcomes;
  const auto add = [&](std::vector<GoldenOutcome> more) {
    outcomes.insert(outcomes.end(), std::make_move_iterator(more.begin()),
                    std::make_move_iterator(more.end()));
  };
  const fs::path ops = set / "ops" / "ops.safetensors";
  if (wanted("ops") && fs::exists(ops)) {
    GALLEY_TRY(const Safetensors file, Safetensors::open(ops));
    add(check_golden_ops(file));
  }
  const RunFile files[] = {
      {"f32_nq", kNoQuantisers}, {"vision", kNoQuantisers},         {"vision", kFloat},
      {"vision", kBfloat},       {"replay", kNoQuantisers},         {"replay", kFloat},
      {"short", kFloat},         {"short_act", kBfloatActivations}, {"f32", kFloat},
      {"bf16", kBfloat},         {"bf16_act", kBfloatActivations}};
  bool any = false;
  for (const char* const family : {"v4", "v41"}) {
    if (!fs::exists(set / family / "config.json")) {
      continue;
    }
    any = true;
    for (const RunFile& file : files) {
      if (!wanted(std::string(family) + "/" + file.name)) {
        continue;
      }
      GALLEY_TRY(std::vector<GoldenOutcome> more, check_file(set / family, file, device));
      add(std::move(more));
    }
  }
  if (fs::exists(set / "v41" / "config.json") && fs::exists(set / "MANIFEST.json")) {
    GALLEY_TRY(const ModelConfig config, load_config(set / "v41"));
    GALLEY_TRY(std::vector<GoldenOutcome> plans, check_image_plans(set / "MANIFEST.json", config));
    add(std::move(plans));
  }
  if (!any && outcomes.empty()) {
    return fail(Code::kNotFound, "want a folder with v4/, v41/ or ops/", set.string());
  }
  return outcomes;
}

}  // namespace galley::model
