#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "model/golden_runs.h"

namespace galley::model {
namespace {

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
  std::set<std::string> without_first_row;  // windows of `state` that hold the last row only
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
        run.without_first_row.insert(fmt::format("L{}.win", layer));
      }
    }
  }
  constexpr std::int64_t kLast = 2;
  for (const CacheSource& source : plan.cache.sources) {
    const std::int64_t count = prompt / plan.layers[static_cast<std::size_t>(source.layer)].ratio;
    run.state[fmt::format("L{}.comp", source.layer)] =
        stored_rows(sequence->rows(source.layer), count, 0, kLast);
    if (source.key.width > 0) {
      run.state[fmt::format("L{}.ik", source.layer)] =
          stored_rows(sequence->keys(source.layer), count, 0, kLast);
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

void compare_state(Golden& golden,
                   const std::string& prefix,
                   const ReplayRun& run,
                   Report& report) {
  for (const auto& [name, rows] : run.state) {
    std::vector<float> want = golden.floats(prefix + name);
    if (run.without_first_row.contains(name) && want.size() == 2 * rows.size()) {
      want.erase(want.begin(), want.begin() + std::ssize(rows));
    }
    report.compare(prefix + name, want, rows, {.max_abs = 2e-4});
  }
}

// The parameters of a file, checked: every case can be run.
std::vector<ReplayCase> read_cases(const Network& network, Golden& golden) {
  const ModelPlan& plan = network.plan();
  const std::vector<std::int32_t> ids = golden.tokens("ids", plan.config.vocabulary);
  const auto prompt = std::ssize(ids);
  constexpr std::int64_t kEdge = 8;  // tokens of the edge case behind the hit
  const std::int64_t hit = golden.scalar("hit", {0, prompt - kEdge});
  const std::int64_t start = golden.scalar("replay_start", {0, prompt});
  const auto keep = static_cast<int>(golden.scalar("keep", {1, prompt}));
  golden.reject_unless(hit % kBlockTokens == 0 && hit >= plan.config.window, "hit",
                       fmt::format("is {}, want whole blocks and a window at least", hit));
  golden.reject_unless(start == hit - plan.config.window, "replay_start",
                       fmt::format("is {}, want a window below the hit", start));
  golden.reject_unless(golden.scalar("cut", {0, plan.config.layers - 1}) == plan.cut, "cut",
                       fmt::format("want {}, the plan's", plan.cut));
  golden.reject_unless(plan.drafts_by(DraftKind::kDspark), "both.dspark.tokens",
                       "is there, the checkpoint has no drafter");
  if (!golden.problems().empty()) {
    return {};
  }
  const std::vector<std::int32_t> edge(ids.begin(), ids.begin() + hit + kEdge);
  return {{"cold", ids, 0, 0, keep},
          {"encoder", ids, hit, start, 0},
          {"both", ids, hit, start, keep},
          {"edge", edge, hit, start, keep}};
}

}  // namespace

Result<void> check_replay(Network& network, Golden& golden, Report& report) {
  const bool without_quantisation = !network.numerics().kv_quantise;
  const std::vector<ReplayCase> cases = read_cases(network, golden);
  const std::string tag = without_quantisation ? "nq." : "";
  // End to end with quantisers only rounding noise can be asked for (README, step 8).
  const Tolerance tolerance =
      without_quantisation ? Tolerance{.max_abs = 2e-4} : Tolerance{.relative_rms = 0.1};
  for (const ReplayCase& c : cases) {
    const std::string prefix = tag + c.name + ".";
    const std::vector<std::int32_t> input =
        golden.tokens(prefix + "decode.input", network.plan().config.vocabulary);
    std::optional<ReplayRun> first;
    const std::int64_t fed = std::ssize(c.ids) - c.start;
    // Two at least: what is shown is that they agree.
    for (int i = 0; i < 2 || golden.has(fmt::format("{}.chunks{}", c.name, i)); ++i) {
      const std::string list = fmt::format("{}.chunks{}", c.name, i);
      const std::vector<std::int64_t> chunks = golden.integers(list, {1, fed});
      golden.reject_unless(std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0}) == fed,
                           list, fmt::format("want a sum of {} tokens", fed));
      if (!golden.problems().empty()) {
        return {};
      }
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
      compare_state(golden, prefix, *first, report);
    } else {
      for (const char* const behind_rounding : {"logits", "conf_logit", "tokens"}) {
        golden.pass_over(prefix + "dspark." + behind_rounding);
      }
    }
  }
  return {};
}

}  // namespace galley::model
