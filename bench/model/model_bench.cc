// Tokens a second of a whole model, and how much of the memory's rate its decoding uses. See
// README.md.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/pack_folder.h"
#include "base/cpu_count.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "base/result.h"
#include "base/worker_pool.h"
#include "kernels/device.h"
#include "kernels/isa.h"
#include "kernels/probe.h"
#include "model/network.h"
#include "model/packing.h"
#include "model/weights.h"

namespace galley::bench {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30U;

struct Options {
  std::filesystem::path directory;
  std::filesystem::path packed;  // empty: where galley model pack writes
  int threads = cpu_count();
  int prompt = 512;
  int steps = 32;
  int rounds = 5;
  std::vector<std::int64_t> contexts;
  std::string only;  // empty: both
  bool scaling = false;
  bool json = false;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Bytes of a matrix as a product reads it.
std::size_t read_bytes(const kernels::Weight& matrix) {
  const std::size_t packed = model::packed_bytes(matrix);
  if (packed > 0) {
    return packed;
  }
  const std::size_t value = matrix.format == kernels::WeightFormat::kF32    ? 4
                            : matrix.format == kernels::WeightFormat::kBf16 ? 2
                                                                            : 1;
  return matrix.rows * matrix.columns * value;
}

// Bytes of weights that a step of one row reads:
//
//   sum over layers of   attention (wq_a, wq_b, wkv, wo_a, wo_b), compressor and indexer where the
//                        layer has its own, router, shared expert, the projection of engram rows,
//                        experts_per_token * one routed expert (w1, w2, w3),
//                        and the two mixes of streams in float32
//   + head               [vocabulary, H]
//
// Matrices count as they are packed, with their scales. Not counted, because they are small or
// their size depends on the context: one row of the embedding, rows of engram tables, norms,
// cached rows. Drafting is not part of a step.
std::size_t step_bytes(model::ModelWeights weights, const model::ModelConfig& config) {
  weights.draft.reset();
  std::size_t bytes = 0;
  for (model::BlockWeights& layer : weights.layers) {
    layer.experts.resize(static_cast<std::size_t>(config.experts_per_token));
    bytes += (layer.attention_mix.fn.size() + layer.ffn_mix.fn.size()) * sizeof(float);
  }
  for (const kernels::Weight* const matrix : model::product_matrices(weights)) {
    bytes += read_bytes(*matrix);
  }
  return bytes;
}

class Bench {
 public:
  Bench(const Options& options, model::Network& network)
      : options_(options),
        network_(network),
        pool_(options.threads),
        memory_(pool_, kGiB),
        vocabulary_(static_cast<std::uint64_t>(network.plan().config.vocabulary)) {}

  [[nodiscard]] Result<double> prefill(model::CutMode cut) {
    std::vector<double> rates;
    for (int round = -1; round < options_.rounds; ++round) {  // the first touches the memory
      const auto sequence = network_.new_sequence();
      const TimeNs start = clock_.now();
      GALLEY_CHECK_OK(feed(*sequence, options_.prompt, cut));
      if (round >= 0) {
        rates.push_back(options_.prompt / seconds_since(start));
      }
    }
    return median(std::move(rates));
  }

  struct Decode {
    double tokens_per_second;
    double read_rate;  // of the same minute, bytes a second
    double share;      // of it, with the weights of a step
  };
  // Rounds of steps, each between two probes of the memory.
  [[nodiscard]] Result<Decode> decode(model::Sequence& sequence, std::size_t bytes) {
    std::vector<double> rates;
    std::vector<double> reads;
    std::vector<double> shares;
    GALLEY_CHECK_OK(feed(sequence, 1, model::CutMode::kOff));
    for (int round = 0; round < options_.rounds; ++round) {
      const double before = probe();
      const TimeNs start = clock_.now();
      for (int step = 0; step < options_.steps; ++step) {
        GALLEY_CHECK_OK(feed(sequence, 1, model::CutMode::kOff));
      }
      const double rate = options_.steps / seconds_since(start);
      const double read = (before + probe()) / 2;
      rates.push_back(rate);
      reads.push_back(read);
      shares.push_back(rate * static_cast<double>(bytes) / read);
    }
    return Decode{median(std::move(rates)), median(std::move(reads)), median(std::move(shares))};
  }

  // Index selection alone, which is what grows with the context: every layer that selects scores
  // all keys that its source has, one a `ratio` of tokens. Random queries, the sequence's own keys.
  struct Selection {
    std::size_t keys = 0;
    std::size_t bytes = 0;  // of them, as they are kept
    double seconds = 0;     // of a step; medians of the layers
  };
  [[nodiscard]] Selection select_alone(model::Sequence& sequence, kernels::Device& device) {
    const model::ModelConfig& config = network_.plan().config;
    const auto heads = static_cast<std::size_t>(config.index_heads);
    const auto width = static_cast<std::size_t>(config.index_head_dim);
    const std::vector<float> q = random_values(heads * width);
    const std::vector<float> weights = random_values(heads);
    const std::int64_t position = sequence.length() - 1;
    const kernels::SequenceView view = {0, 1, position};
    std::vector<std::int32_t> list(static_cast<std::size_t>(config.index_topk));
    const auto block = static_cast<std::size_t>(config.candidate_block_size);
    const std::size_t stride =
        static_cast<std::size_t>(sequence.length()) / (8 * std::max<std::size_t>(block, 1)) + 1;
    std::vector<std::uint8_t> candidates(stride);
    const auto stream = device.create_stream();
    Selection out;
    for (std::size_t layer = 0; layer < network_.plan().layers.size(); ++layer) {
      const model::LayerPlan& role = network_.plan().layers[layer];
      if (role.list_source != static_cast<int>(layer)) {
        continue;
      }
      const kernels::PagedView keys = sequence.keys(role.kv_source);
      const auto visible = static_cast<std::size_t>(sequence.length() / role.ratio);
      const bool second_level = role.candidate_source || role.masked_by_candidates;
      std::vector<double> seconds;
      for (int round = -1; round < options_.rounds; ++round) {  // the first touches the memory
        const TimeNs start = clock_.now();
        stream->select({.sequences = {&view, 1},
                        .keys = {&keys, 1},
                        .positions = &position,
                        .ratio = role.ratio,
                        .heads = heads,
                        .width = width,
                        .q = q.data(),
                        .weights = weights.data(),
                        .weight_scale = 1,
                        .round = kernels::Round::kBf16,
                        .top_k = list.size(),
                        .list = list.data(),
                        .candidates = second_level ? candidates.data() : nullptr,
                        .candidate_stride = stride,
                        .candidate_block = block,
                        .candidate_blocks_kept = static_cast<std::size_t>(config.candidate_blocks),
                        .publish_candidates = role.candidate_source});
        stream->synchronise();
        if (round >= 0) {
          seconds.push_back(seconds_since(start));
        }
      }
      out.keys += visible;
      out.bytes += visible * keys.format.bytes();
      out.seconds += median(std::move(seconds));
    }
    return out;
  }

  // A sequence as if `length` tokens had been fed: those of a prompt, whose cached rows are copied
  // again and again. Windows are the prompt's.
  [[nodiscard]] Result<std::unique_ptr<model::Sequence>> sequence_of(std::int64_t length) {
    auto sequence = network_.new_sequence();
    const std::int64_t prompt = std::min<std::int64_t>(length, options_.prompt);
    GALLEY_CHECK_OK(feed(*sequence, static_cast<int>(prompt), model::CutMode::kOff));
    if (length == prompt) {
      return sequence;
    }
    sequence->reserve(length);
    const auto whole = static_cast<std::size_t>(prompt / kBlockTokens);
    const auto& blocks = sequence->blocks();
    for (std::size_t i = whole; i < blocks.size(); ++i) {
      std::memcpy(blocks[i]->data(), blocks[i % whole]->data(), blocks[i]->size());
    }
    if (!sequence->history().empty()) {
      const std::vector<std::int32_t> fed(sequence->history().begin(), sequence->history().end());
      std::vector<std::int32_t> more(static_cast<std::size_t>(length - prompt));
      for (std::size_t i = 0; i < more.size(); ++i) {
        more[i] = fed[i % fed.size()];
      }
      sequence->append_history(more);
    }
    sequence->advance(length - prompt);
    return sequence;
  }

 private:
  [[nodiscard]] double seconds_since(TimeNs start) const {
    return std::chrono::duration<double>(clock_.now() - start).count();
  }
  // bfloat16 numbers.
  [[nodiscard]] std::vector<float> random_values(std::size_t count) {
    std::vector<float> out(count);
    std::ranges::generate(out, [&] {
      return static_cast<float>(static_cast<int>(random_.next_below(255)) - 127) / 128;
    });
    return out;
  }
  [[nodiscard]] double probe() { return kernels::read_rate(pool_, clock_, memory_.bytes()); }

  // `count` random tokens behind what the sequence holds.
  [[nodiscard]] Result<void> feed(model::Sequence& sequence, int count, model::CutMode cut) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    std::ranges::generate(
        tokens, [&] { return static_cast<std::int32_t>(random_.next_below(vocabulary_)); });
    const model::SequenceRows rows = {
        .sequence = &sequence,
        .tokens = tokens,
        .prompt_tokens = cut == model::CutMode::kOff ? 0 : sequence.length() + count};
    GALLEY_TRY(const model::ForwardResult result,
               network_.forward({&rows, 1}, {.cut = cut, .logits_tail = 1}));
    if (result.logits.size() != vocabulary_ || !std::isfinite(result.logits.front())) {
      return fail(Code::kInternal, "the logits are no numbers");
    }
    return {};
  }

  const Options& options_;
  model::Network& network_;
  RealClock clock_;
  WorkerPool pool_;
  kernels::ProbeMemory memory_;
  std::uint64_t vocabulary_;
  Random random_{Seed(5), 0};
};

void print(const nlohmann::json& result) {
  fmt::print("{} threads, {}, {:.1f} MB of weights a token\n", result["threads"].get<int>(),
             result["isa"].get<std::string>(), result["step_bytes"].get<double>() / 1e6);
  for (const auto& line : result["prefill"]) {
    fmt::print("prefill {:>7} {:<12} {:>8.1f} tokens/s\n", result["prompt"].get<int>(),
               line["cut"].get<bool>() ? "with the cut" : "", line["rate"].get<double>());
  }
  for (const auto& line : result["decode"]) {
    fmt::print("decode  {:>7} {:<12} {:>8.1f} tokens/s {:>6.1f} GB/s of {:.1f} GB/s, {:.0f} %\n",
               line["context"].get<std::int64_t>(), "", line["rate"].get<double>(),
               line["rate"].get<double>() * result["step_bytes"].get<double>() / 1e9,
               line["read_rate"].get<double>() / 1e9, 100 * line["share"].get<double>());
  }
  const auto& first = result["decode"].empty() ? result : result["decode"].front();
  for (std::size_t i = 1; i < result["decode"].size(); ++i) {
    const auto& line = result["decode"][i];
    const auto more = [&](const char* key) {
      return line[key].get<double>() - first[key].get<double>();
    };
    const double growth = 1 / line["rate"].get<double>() - 1 / first["rate"].get<double>();
    fmt::print(
        "a step behind {} tokens takes {:.2f} ms more: {:.0f} index keys more ({:.1f} MB), which "
        "alone "
        "take {:.2f} ms, {:.0f} %\n",
        line["context"].get<std::int64_t>(), growth * 1e3, more("index_keys"),
        more("index_bytes") / 1e6, more("index_seconds") * 1e3,
        100 * more("index_seconds") / growth);
  }
}

Result<nlohmann::json> measure(const Options& options) {
  GALLEY_TRY(const kernels::Isa isa, kernels::choose_isa(kernels::wanted_isa()));
  const auto device = kernels::create_cpu_device(options.threads, isa);
  GALLEY_TRY(const auto network,
             model::Network::load(options.directory, *device, {}, options.packed));
  if (network->packed().form == model::PackedForm::kNone) {
    return fail(Code::kInvalidArgument,
                fmt::format("every step would pack its weights anew; first: galley model pack {}",
                            options.directory.string()));
  }
  GALLEY_TRY(model::ModelWeights weights, model::bind_weights(network->checkpoint()));
  const std::size_t bytes = step_bytes(std::move(weights), network->plan().config);
  Bench bench(options, *network);
  nlohmann::json result = {{"threads", options.threads},
                           {"isa", isa_name(isa)},
                           {"step_bytes", bytes},
                           {"prompt", options.prompt},
                           {"prefill", nlohmann::json::array()},
                           {"decode", nlohmann::json::array()}};
  for (const model::CutMode cut : {model::CutMode::kOff, model::CutMode::kCompact}) {
    if (options.only != "decode" && (cut == model::CutMode::kOff || network->plan().cut >= 0)) {
      GALLEY_TRY(const double rate, bench.prefill(cut));
      result["prefill"].push_back({{"cut", cut != model::CutMode::kOff}, {"rate", rate}});
    }
  }
  std::vector<std::int64_t> contexts = {options.prompt};
  contexts.insert(contexts.end(), options.contexts.begin(), options.contexts.end());
  if (options.only == "prefill") {
    contexts.clear();
  }
  for (const std::int64_t context : contexts) {
    GALLEY_TRY(const auto sequence, bench.sequence_of(context));
    GALLEY_TRY(const Bench::Decode decode, bench.decode(*sequence, bytes));
    const Bench::Selection selection = bench.select_alone(*sequence, *device);
    result["decode"].push_back({{"context", context},
                                {"rate", decode.tokens_per_second},
                                {"read_rate", decode.read_rate},
                                {"share", decode.share},
                                {"index_keys", selection.keys},
                                {"index_bytes", selection.bytes},
                                {"index_seconds", selection.seconds}});
  }
  return result;
}

// How often the first rate of `many` goes into that of `one`; 0 where there is none.
double growth(const nlohmann::json& one, const nlohmann::json& many, const char* rate) {
  return one.empty() ? 0 : many.front()[rate].get<double>() / one.front()[rate].get<double>();
}

// All workers against one. Each decode rate is a share of its own memory rate, measured around it,
// so their quotient says how well decoding follows the memory.
void print_scaling(const nlohmann::json& one, const nlohmann::json& many) {
  const auto& decode = one["decode"];
  fmt::print(
      "1 -> {} threads: prefill {:.2f}x, decode {:.2f}x, reading {:.2f}x; decode / reading {:.0f} "
      "%\n",
      many["threads"].get<int>(), growth(one["prefill"], many["prefill"], "rate"),
      growth(decode, many["decode"], "rate"), growth(decode, many["decode"], "read_rate"),
      100 * growth(decode, many["decode"], "share"));
}

Result<void> report(Options options) {
  if (options.packed.empty()) {
    GALLEY_TRY(options.packed, apps::pack_folder());
  }
  GALLEY_TRY(const nlohmann::json result, measure(options));
  if (options.json) {
    fmt::print("{}\n", result.dump(2));
  } else {
    print(result);
  }
  if (options.scaling) {
    Options alone = options;
    alone.threads = 1;
    GALLEY_TRY(const nlohmann::json one, measure(alone));
    print(one);
    print_scaling(one, result);
  }
  return {};
}

int run(int argc, char** argv) {
  CLI::App app("Tokens a second of a checkpoint, and the share of the memory's rate.");
  Options options;
  app.add_option("DIR", options.directory, "Checkpoint, for example of galley model synth.")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--threads", options.threads, "Workers. Default: all processors.")
      ->check(CLI::Range(1, 1024));
  app.add_option("--prompt", options.prompt, "Tokens of the prompt.")
      ->check(CLI::Range(int{kBlockTokens}, 1 << 20))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Decode steps of a round.")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Figures are medians of as many.")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--contexts", options.contexts, "Also decode behind so many tokens, 4096,131072.")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24U));
  app.add_option("--only", options.only, "prefill or decode. Default: both.")
      ->check(CLI::IsMember({"prefill", "decode"}));
  app.add_option("--packed", options.packed, "Folder of pack files.")
      ->default_str(std::string(apps::kPackFolderHelp));
  auto* const json = app.add_flag("--json", options.json, "Prints a JSON object instead of text.");
  app.add_flag("--scaling", options.scaling, "Also with one thread, and what the others add.")
      ->excludes(json);
  CLI11_PARSE(app, argc, argv);
  if (const auto done = report(std::move(options)); !done) {
    fmt::print(stderr, "model_bench: {}\n", to_string(done.error()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::run(argc, argv);
}
