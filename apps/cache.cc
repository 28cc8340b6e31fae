#include <algorithm>
#include <cstdint>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/progress_bar.h"
#include "base/entropy.h"
#include "base/quote.h"
#include "base/real_clock.h"
#include "cache/posix_disk.h"
#include "cache/segments/segment_store.h"

// `galley cache`: what an operator does with the folder of a block store.
namespace galley::apps {
namespace {

using cache::SegmentInfo;
using cache::SegmentStore;
using cache::StoredBlock;
using cache::StoreStats;
using Json = nlohmann::ordered_json;

constexpr std::size_t kNameShown = 64;
constexpr std::size_t kTroublesShown = 100;

struct Flags {
  std::string folder;
  std::string other;  // of export and import
  std::string space;
  std::string retention;
  std::string bytes_max;
  const CLI::Option* bytes_max_option = nullptr;  // an empty text is not none
  bool json = false;
};

// A store with its disk and clock.
struct OpenStore {
  RealClock clock;
  std::unique_ptr<cache::PosixDisk> disk;
  std::unique_ptr<SegmentStore> store;
};

Result<std::unique_ptr<OpenStore>> open_store(const std::string& folder,
                                              bool create,
                                              cache::StoreOptions options) {
  auto out = std::make_unique<OpenStore>();
  GALLEY_TRY(out->disk, cache::PosixDisk::open_folder(folder, create));
  options.seed = entropy_seed();
  GALLEY_TRY(out->store, SegmentStore::open(*out->disk, out->clock, std::move(options)));
  return out;
}

Result<std::unique_ptr<OpenStore>> look_at(const std::string& folder) {
  return open_store(folder, false, {.read_only = true, .must_exist = true});
}

// Names on standard error what is not what its name says. A loss is a failure, whatever else was
// done.
void tell_troubles(const SegmentStore& store, int& exit_code) {
  const auto troubles = store.troubles();
  for (std::size_t i = 0; i < std::min(troubles.size(), kTroublesShown); ++i) {
    fmt::print(stderr, "galley: {} {}{}\n", harmless(troubles[i].file), harmless(troubles[i].what),
               troubles[i].foreign ? "; left alone" : "");
  }
  if (troubles.size() > kTroublesShown) {
    fmt::print(stderr, "galley: and {} more such files\n", troubles.size() - kTroublesShown);
  }
  if (std::ranges::any_of(troubles, [](const auto& one) { return !one.foreign; })) {
    exit_code = kExitFailure;
  }
}

// "1.50 GB": for people.
std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.3g} {}", value, kUnits.at(unit));
}

std::string date_text(std::int64_t unix_s) {
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

std::string name_text(const std::string& space) {
  return space.empty() ? "(none)" : harmless(space);
}

// Rows under a head, every column as wide as its widest cell; the first `left` columns to the left.
void print_table(std::vector<std::vector<std::string>> rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i < left ? fmt::format("{:<{}}  ", row[i], widths[i])
                       : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

std::vector<SegmentInfo> sorted_segments(const SegmentStore& store) {
  auto out = store.segments();
  std::ranges::sort(out, std::less{}, &SegmentInfo::name);
  return out;
}

Result<void> list(const Flags& flags, int& exit_code) {
  GALLEY_TRY(const auto open, look_at(flags.folder));
  tell_troubles(*open->store, exit_code);
  const auto segments = sorted_segments(*open->store);
  if (flags.json) {
    Json out = Json::array();
    for (const SegmentInfo& one : segments) {
      out.push_back({{"class", one.name.retention},
                     {"bucket", one.name.bucket_s},
                     {"expires", one.name.expires_s},
                     {"writer", fmt::format("{:016x}", one.name.writer)},
                     {"number", one.name.number},
                     {"blocks", one.blocks},
                     {"bytes", one.bytes}});
    }
    print_json(out);
    return {};
  }
  std::vector<std::vector<std::string>> rows{
      {"CLASS", "FROM (UTC)", "EXPIRES (UTC)", "WRITER", "NO", "BLOCKS", "SIZE"}};
  for (const SegmentInfo& one : segments) {
    rows.push_back({one.name.retention, date_text(one.name.bucket_s), date_text(one.name.expires_s),
                    fmt::format("{:016x}", one.name.writer), fmt::format("{}", one.name.number),
                    fmt::format("{}", one.blocks), size_text(one.bytes)});
  }
  print_table(std::move(rows), 4);
  return {};
}

Result<void> stat(const Flags& flags, int& exit_code) {
  GALLEY_TRY(const auto open, look_at(flags.folder));
  tell_troubles(*open->store, exit_code);
  const StoreStats stats = open->store->stats();
  struct Sum {
    std::uint64_t segments{};
    std::uint64_t blocks{};
    std::uint64_t bytes{};
    std::int64_t first_s{};
    std::int64_t last_s{};
  };
  std::map<std::string, Sum> classes;
  for (const SegmentInfo& one : open->store->segments()) {
    Sum& sum = classes[one.name.retention];
    sum.first_s =
        sum.segments == 0 ? one.name.expires_s : std::min(sum.first_s, one.name.expires_s);
    sum.last_s = std::max(sum.last_s, one.name.expires_s);
    ++sum.segments;
    sum.blocks += one.blocks;
    sum.bytes += one.bytes;
  }
  const auto spaces = open->store->spaces();
  if (flags.json) {
    Json by_class = Json::object();
    for (const auto& [name, sum] : classes) {
      by_class[name] = {{"segments", sum.segments},
                        {"blocks", sum.blocks},
                        {"bytes", sum.bytes},
                        {"first_expiry", sum.first_s},
                        {"last_expiry", sum.last_s}};
    }
    Json by_space = Json::object();
    for (const auto& one : spaces) {
      by_space[one.space] = {{"blocks", one.blocks}, {"bytes", one.bytes}};
    }
    print_json({{"keys", stats.keys},
                {"segments", stats.segments},
                {"bytes", stats.bytes},
                {"index_bytes", stats.index_bytes},
                {"damaged_segments", stats.damaged_segments},
                {"damaged_tables", stats.damaged_tables},
                {"blocks_found_by_header", stats.scanned_blocks},
                {"foreign_files", stats.foreign_files},
                {"classes", by_class},
                {"namespaces", by_space}});
    return {};
  }
  fmt::print("{} keys in {} segments, {}; the index takes {}\n", stats.keys, stats.segments,
             size_text(stats.bytes), size_text(stats.index_bytes));
  if (stats.damaged_tables + stats.scanned_blocks + stats.foreign_files > 0) {
    fmt::print("{} damaged tables, {} blocks found by their headers, {} files of others\n",
               stats.damaged_tables, stats.scanned_blocks, stats.foreign_files);
  }
  std::vector<std::vector<std::string>> rows{
      {"\nCLASS", "FIRST EXPIRES", "LAST EXPIRES", "SEGMENTS", "BLOCKS", "SIZE"}};
  for (const auto& [name, sum] : classes) {
    rows.push_back({name, date_text(sum.first_s), date_text(sum.last_s),
                    fmt::format("{}", sum.segments), fmt::format("{}", sum.blocks),
                    size_text(sum.bytes)});
  }
  rows.front().front() = "CLASS";
  fmt::print("\n");
  print_table(std::move(rows), 3);
  rows = {{"NAMESPACE", "BLOCKS", "SIZE"}};
  for (const auto& one : spaces) {
    rows.push_back({name_text(one.space), fmt::format("{}", one.blocks), size_text(one.bytes)});
  }
  fmt::print("\n");
  print_table(std::move(rows), 1);
  return {};
}

// Reads every block of a store, `wanted` ones only, under a bar. What cannot be read goes to `bad`;
// a segment that cannot, and that is none of troubles(), to `lost`.
Result<void> read_blocks(
    SegmentStore& store,
    const std::function<bool(const StoredBlock&)>& wanted,
    const std::function<Result<void>(const StoredBlock&, const cache::BlockView&)>& good,
    const std::function<void(const StoredBlock&, const Error&)>& bad,
    const std::function<void(const Error&)>& lost) {
  std::set<std::string> known;
  for (const auto& trouble : store.troubles()) {
    known.insert(trouble.file);
  }
  ProgressBar bar;
  const auto segments = sorted_segments(store);
  std::uint64_t total = 0;
  for (const SegmentInfo& segment : segments) {
    total += segment.bytes;
  }
  std::uint64_t done = 0;
  PageBuffer buffer;
  for (const SegmentInfo& segment : segments) {
    const auto blocks = store.blocks(segment.name);
    if (!blocks) {
      if (!known.contains(cache::file_stem(segment.name) + std::string(cache::kSegmentSuffix))) {
        lost(blocks.error());
      }
      done += segment.bytes;
      continue;
    }
    std::uint64_t within = 0;
    for (const StoredBlock& block : *blocks) {
      within += std::uint64_t{block.place.pages} * kDiskPage;
      if (!wanted(block)) {
        continue;
      }
      if (const auto view = store.read(block, buffer)) {
        GALLEY_CHECK_OK(good(block, *view));
      } else {
        bad(block, view.error());
      }
      bar.show(std::min(done + within, total), total);
    }
    done += segment.bytes;
    if (total > 0) {
      bar.show(done, total);
    }
  }
  return {};
}

Result<void> verify(const Flags& flags, int& exit_code) {
  GALLEY_TRY(const auto open, look_at(flags.folder));
  std::uint64_t whole = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> damaged;
  std::uint64_t damaged_count = 0;
  std::uint64_t lost = open->store->stats().damaged_segments;
  GALLEY_CHECK_OK(read_blocks(
      *open->store, [](const StoredBlock&) { return true; },
      [&](const StoredBlock& block, const cache::BlockView&) -> Result<void> {
        ++whole;
        bytes += std::uint64_t{block.place.pages} * kDiskPage;
        return {};
      },
      [&](const StoredBlock& block, const Error& error) {
        if (++damaged_count <= kTroublesShown) {
          damaged.push_back(
              fmt::format("namespace {}, {}", name_text(block.space), to_string(error)));
        }
      },
      [&](const Error& error) {
        ++lost;
        report(error);
      }));
  tell_troubles(*open->store, exit_code);
  const StoreStats stats = open->store->stats();
  const bool good = damaged_count == 0 && lost == 0 && stats.damaged_tables == 0;
  exit_code = good ? 0 : kExitFailure;
  if (flags.json) {
    print_json({{"blocks", whole},
                {"bytes", bytes},
                {"damaged_blocks", damaged_count},
                {"damaged_segments", lost},
                {"damaged_tables", stats.damaged_tables},
                {"blocks_found_by_header", stats.scanned_blocks},
                {"damaged", damaged}});
    return {};
  }
  for (const std::string& one : damaged) {
    fmt::print("{}\n", one);
  }
  if (damaged_count > damaged.size()) {
    fmt::print("and {} more\n", damaged_count - damaged.size());
  }
  fmt::print(
      "{} blocks verify ({}), {} do not; {} damaged segments, {} damaged tables, {} blocks found "
      "by "
      "their headers\n",
      whole, size_text(bytes), damaged_count, lost, stats.damaged_tables, stats.scanned_blocks);
  return {};
}

Result<void> collect(const Flags& flags, int& exit_code) {
  cache::StoreOptions options{.must_exist = true};
  if (flags.bytes_max_option->count() > 0) {
    GALLEY_TRY(const Bytes limit, parse_bytes(flags.bytes_max));
    if (limit.value() == 0) {
      return fail(Code::kInvalidArgument, "a limit is at least 1 byte; without one, leave it out",
                  "--bytes-max");
    }
    options.bytes_max = limit.value();
  }
  GALLEY_TRY(const auto open, open_store(flags.folder, false, std::move(options)));
  tell_troubles(*open->store, exit_code);
  GALLEY_CHECK_OK(open->store->maintain());
  const StoreStats stats = open->store->stats();
  GALLEY_CHECK_OK(open->store->close());
  if (flags.json) {
    print_json({{"expired_segments", stats.expired_segments},
                {"evicted_segments", stats.evicted_segments},
                {"recovered_segments", stats.recovered_segments},
                {"segments", stats.segments},
                {"bytes", stats.bytes}});
    return {};
  }
  fmt::print(
      "{} segments were over, {} made room, {} that a crash left open were closed; {} "
      "stay, {}\n",
      stats.expired_segments, stats.evicted_segments, stats.recovered_segments, stats.segments,
      size_text(stats.bytes));
  return {};
}

Result<void> purge(const Flags& flags, int& exit_code) {
  GALLEY_TRY(const auto open, open_store(flags.folder, false, {.must_exist = true}));
  int losses = 0;  // they are told; the status is whether the namespace is gone
  tell_troubles(*open->store, losses);
  GALLEY_TRY(const std::uint64_t count, open->store->purge(flags.space));
  GALLEY_CHECK_OK(open->store->close());
  const std::uint64_t unowned = open->store->stats().unowned_pages_erased;
  // What was not looked into may hold its bytes: a copy of a segment under another name, say.
  const auto doubtful = std::ranges::count_if(open->store->troubles(),
                                              [](const auto& one) { return !one.looked_into; });
  if (doubtful > 0) {
    exit_code = kExitFailure;
  }
  if (flags.json) {
    print_json({{"namespace", flags.space},
                {"blocks", count},
                {"unowned_pages_erased", unowned},
                {"files_in_doubt", doubtful}});
    return {};
  }
  fmt::print("{} blocks of namespace {} are gone and their bytes erased", count,
             quoted(flags.space, kNameShown));
  if (unowned > 0) {
    fmt::print("; so are {} pages that no block known owned", unowned);
  }
  if (doubtful > 0) {
    fmt::print("; {} of the files named above were not looked into and may hold more", doubtful);
  }
  fmt::print("\n");
  return {};
}

// Copies blocks of the store `from` into the store `to`.
Result<void> copy(const Flags& flags,
                  const std::string& from,
                  const std::string& to,
                  int& exit_code) {
  GALLEY_TRY(const auto source, look_at(from));
  tell_troubles(*source->store, exit_code);
  // Their classes as they are: a segment's expiry says the life.
  cache::StoreOptions options;
  std::map<std::string, std::int64_t> lives;
  const std::int64_t bucket_s =
      std::chrono::duration_cast<std::chrono::seconds>(options.bucket).count();
  for (const SegmentInfo& one : source->store->segments()) {
    std::int64_t& life = lives[one.name.retention];
    life = std::max({life, bucket_s, one.name.expires_s - one.name.bucket_s - bucket_s});
  }
  options.classes.clear();
  for (const auto& [name, life_s] : lives) {
    options.classes.push_back({.name = name, .life = std::chrono::seconds(life_s)});
  }
  if (options.classes.empty()) {
    return fail(Code::kNotFound, "no blocks there", from);
  }
  if (!flags.retention.empty() && !lives.contains(flags.retention)) {
    return fail(Code::kNotFound,
                fmt::format("no blocks of class {} there", quoted(flags.retention, kNameShown)),
                from);
  }
  GALLEY_TRY(const auto target, open_store(to, true, options));
  std::uint64_t copied = 0;
  std::uint64_t known = 0;
  std::uint64_t damaged = 0;
  GALLEY_CHECK_OK(read_blocks(
      *source->store,
      [&](const StoredBlock& block) {
        return (flags.space.empty() || block.space == flags.space) &&
               (flags.retention.empty() || block.retention == flags.retention);
      },
      [&](const StoredBlock& block, const cache::BlockView& view) -> Result<void> {
        const auto retention = static_cast<std::size_t>(
            std::ranges::find(options.classes, block.retention, &cache::RetentionClass::name) -
            options.classes.begin());
        GALLEY_TRY(const cache::PutOutcome outcome,
                   target->store->put({.facts = {.space = block.space,
                                                 .key = block.key,
                                                 .parent = view.parent,
                                                 .layout = block.layout,
                                                 .numerics = block.numerics,
                                                 .exact = block.exact},
                                       .retention = retention,
                                       .parts = view.parts}));
        ++(outcome == cache::PutOutcome::kStaged ? copied : known);
        return {};
      },
      [&](const StoredBlock&, const Error&) { ++damaged; },
      [&](const Error& error) {
        exit_code = kExitFailure;
        report(error);
      }));
  if (damaged > 0) {
    exit_code = kExitFailure;
  }
  GALLEY_CHECK_OK(target->store->close());
  if (flags.json) {
    print_json({{"copied", copied}, {"known", known}, {"damaged", damaged}});
  } else {
    fmt::print("{} blocks copied, {} were there, {} did not verify and stay behind\n", copied,
               known, damaged);
  }
  return {};
}

}  // namespace

void add_cache(CLI::App& galley, int& exit_code) {
  CLI::App* const cache = galley.add_subcommand(
      "cache",
      "The folder of a block store: look, verify, clean up, move. ls, stat and verify may "
      "be used beside a running server. Status 1 when blocks or segments are damaged or lost.");
  need_subcommand(*cache);
  const auto flags = std::make_shared<Flags>();
  const auto add = [&](const char* name, const char* what,
                       std::function<Result<void>()> run) -> CLI::App& {
    CLI::App* const command = cache->add_subcommand(name, what);
    command->add_option("folder", flags->folder, "Of the store.")->required();
    command->add_flag("--json", flags->json, "For programs.");
    command->callback([run = std::move(run), &exit_code] {
      if (const auto done = run(); !done) {
        exit_code = report(done.error());
      }
    });
    return *command;
  };
  add("ls", "Lists segments.", [flags, &exit_code] { return list(*flags, exit_code); });
  add("stat", "Sums by class and by namespace.",
      [flags, &exit_code] { return stat(*flags, exit_code); });
  add("verify", "Reads every block and checks every checksum.",
      [flags, &exit_code] { return verify(*flags, exit_code); });
  flags->bytes_max_option =
      add("gc", "Removes what is over, closes what a crash left open.",
          [flags, &exit_code] { return collect(*flags, exit_code); })
          .add_option("--bytes-max", flags->bytes_max,
                      "Drops the coldest segments until the store is no larger, such as 500GB.");
  add("purge", "Forgets and erases every block of a namespace, for good.",
      [flags, &exit_code] { return purge(*flags, exit_code); })
      .add_option("--namespace", flags->space, "Whose.")
      ->required();
  for (const bool out : {true, false}) {
    CLI::App& command =
        out ? add("export", "Copies blocks into another folder, a store of its own.",
                  [flags, &exit_code] {
                    return copy(*flags, flags->folder, flags->other, exit_code);
                  })
            : add("import", "Adds the blocks of another store.", [flags, &exit_code] {
                return copy(*flags, flags->other, flags->folder, exit_code);
              });
    command.add_option(out ? "to" : "from", flags->other, "The other folder.")->required();
    command.add_option("--namespace", flags->space, "Only blocks of this namespace.");
    command.add_option("--class", flags->retention, "Only blocks of this class.");
  }
  add_cache_explain(*cache, exit_code);
}

}  // namespace galley::apps
