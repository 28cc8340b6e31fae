#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fmt/core.h>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/model_source.h"
#include "base/entropy.h"
#include "base/real_clock.h"
#include "base/units.h"
#include "cache/posix_disk.h"
#include "cache/segments/segment_store.h"
#include "engine/block_names.h"
#include "gateway/codec.h"
#include "model/plan.h"
#include "recipe/names.h"
#include "recipe/request.h"

// `galley cache explain`: which blocks of a request are on a disk, and why the others are not used.
namespace galley::apps {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string folder;
  std::string model;
  std::string request = "-";
  std::string protocol = "chat";
  std::string tokens;
  std::string tenant;
  std::string user;
  bool json = false;
};

// One id a line, as `galley recipe tokenize` prints them.
Result<std::vector<TokenId>> read_ids(const std::string& path) {
  GALLEY_TRY(const std::string text, read_input(path));
  std::vector<TokenId> out;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find_first_of(" \r\n\t,[]", at), text.size());
    if (end > at) {
      TokenId id{};
      const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, id);
      if (error != std::errc() || rest != text.data() + end) {
        return fail(Code::kInvalidArgument,
                    fmt::format("'{}' is no token id",
                                text.substr(at, std::min<std::size_t>(end - at, 20))),
                    path);
      }
      out.push_back(id);
    }
    at = end + 1;
  }
  return out;
}

struct Asked {
  std::vector<TokenId> prompt;
  std::string user;
};

Result<Asked> read_request(const Flags& flags, const LoadedModel& model) {
  if (!flags.tokens.empty()) {
    GALLEY_TRY(std::vector<TokenId> ids, read_ids(flags.tokens));
    return Asked{.prompt = std::move(ids), .user = flags.user};
  }
  recipe::CodecOptions options;
  options.models = {{model.name, model.version}};
  GALLEY_TRY(const auto codec, gateway::Codec::create(model.tokenizer, std::move(options),
                                                      model.network->plan().config.positions_max));
  GALLEY_TRY(const std::string body, read_input(flags.request));
  const auto protocol = *recipe::named<recipe::Protocol>(flags.protocol);
  GALLEY_TRY(std::vector<TokenId> prompt, codec->prompt(protocol, body));
  GALLEY_TRY(const recipe::Request request,
             recipe::parse_request(protocol, body, codec->options()));
  return Asked{.prompt = std::move(prompt), .user = flags.user.empty() ? request.user : flags.user};
}

std::string_view text_of(cache::MissReason reason) {
  switch (reason) {
    case cache::MissReason::kNone:
      return "on disk";
    case cache::MissReason::kUnknown:
      return "never stored, or gone";
    case cache::MissReason::kLayout:
      return "of another layout";
    case cache::MissReason::kNumerics:
      return "approximate, or of another machine's arithmetic";
    case cache::MissReason::kExpired:
      return "expired";
  }
  return "";
}

// Consecutive blocks of which the same is true.
struct Run {
  std::size_t first{};
  std::size_t count{};
  cache::MissReason reason{};
  bool damaged{};
  [[nodiscard]] std::string_view text() const {
    return damaged ? "on disk, but does not verify" : text_of(reason);
  }
};

Result<void> explain(const Flags& flags) {
  GALLEY_TRY(const LoadedModel model, load_model(flags.model, ""));
  GALLEY_TRY(const Asked asked, read_request(flags, model));
  const std::vector<TokenId>& prompt = asked.prompt;
  const RealClock clock;
  GALLEY_TRY(const auto disk, cache::PosixDisk::open_folder(flags.folder, false));
  GALLEY_TRY(const auto store,
             cache::SegmentStore::open(
                 *disk, clock, {.read_only = true, .must_exist = true, .seed = entropy_seed()}));

  recipe::Generation whose;
  whose.tenant = flags.tenant;
  whose.user = asked.user;
  const model::ModelPlan& plan = model.network->plan();
  const std::string space = engine::block_space(whose);
  cache::BlockKey key =
      engine::block_root(plan.fingerprint, model.network->checkpoint().fingerprint(), "", whose);
  const std::size_t blocks = prompt.size() / kBlockTokens;
  std::vector<Run> runs;
  std::size_t hit = 0;
  PageBuffer buffer;
  for (std::size_t i = 0; i < blocks; ++i) {
    key = cache::next_key(key, std::span(prompt).subspan(i * kBlockTokens, kBlockTokens));
    const auto lease = store->match(
        {.space = space,
         .layout = engine::block_number(plan.fingerprint),
         .keys = {&key, 1},
         .exact_only = true,
         .numerics = engine::block_number(arithmetic_of(model.network->numerics(), model.isa))});
    const bool damaged = lease->size() > 0 && !store->read(*lease, 0, buffer);
    const cache::MissReason reason = lease->miss();
    if (runs.empty() || runs.back().reason != reason || runs.back().damaged != damaged) {
      runs.push_back({.first = i, .reason = reason, .damaged = damaged});
    }
    ++runs.back().count;
    hit += hit == i && lease->size() > 0 && !damaged ? 1U : 0U;
  }
  const model::HitRule rule = model::hit_rule(plan, model::WindowRebuild::kExact);
  const std::int64_t used = std::min(static_cast<std::int64_t>(hit) * kBlockTokens,
                                     rule.longest_hit(static_cast<std::int64_t>(prompt.size())));
  const std::int64_t cached = rule.replay_begin(used);
  if (flags.json) {
    Json out = {{"tokens", prompt.size()}, {"namespace", space}, {"cached_tokens", cached}};
    for (const Run& run : runs) {
      out["blocks"].push_back({{"first", run.first}, {"count", run.count}, {"what", run.text()}});
    }
    fmt::print("{}\n", out.dump());
    return {};
  }
  for (const Run& run : runs) {
    fmt::print(
        "{:<16} tokens {:<18} {}\n",
        run.count == 1 ? fmt::format("block {}", run.first)
                       : fmt::format("blocks {}-{}", run.first, run.first + run.count - 1),
        fmt::format("{}-{}", run.first * kBlockTokens, (run.first + run.count) * kBlockTokens - 1),
        run.text());
  }
  if (prompt.size() % kBlockTokens != 0) {
    fmt::print("{:<16} tokens {:<18} {}\n", "no whole block",
               fmt::format("{}-{}", blocks * kBlockTokens, prompt.size() - 1), "always computed");
  }
  fmt::print(
      "From disk alone, {} of {} tokens need not be computed: a hit ends {} tokens or more before "
      "the prompt's end, and the {} in front of its end are computed again for their windows\n",
      cached, prompt.size(), rule.keep_tokens, rule.replay_tokens);
  return {};
}

}  // namespace

void add_cache_explain(CLI::App& cache, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = cache.add_subcommand(
      "explain",
      "Says for each block of a request whether it is on disk, and if not, why. May be used beside "
      "a running server; what that has in memory does not show.");
  command->add_option("folder", flags->folder, "Of the store.")->required();
  command->add_option("--model", flags->model, "Folder of the checkpoint that answers.")
      ->required();
  CLI::Option* const request = command->add_option(
      "--request", flags->request, "Body of the request; - for standard input (the default).");
  command->add_option("--protocol", flags->protocol, "Of the body.")
      ->check(CLI::IsMember(std::vector<std::string>(recipe::kNames<recipe::Protocol>.begin(),
                                                     recipe::kNames<recipe::Protocol>.end())))
      ->capture_default_str();
  command->add_option("--tokens", flags->tokens, "Instead: a file of token ids.")
      ->excludes(request);
  command->add_option("--tenant", flags->tenant, "Name of the API key that asks.");
  command->add_option("--user", flags->user,
                      "End user, in place of the one that the request names.");
  command->add_flag("--json", flags->json, "For programs.");
  command->callback([flags, &exit_code] {
    if (const auto done = explain(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
