// A trace of prompts through the real store: what hits, beside an infinite cache and LRU, and what
// is written for it. Time is the trace's; blocks are one page each, so hours fit into seconds.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/entropy.h"
#include "base/manual_clock.h"
#include "cache/posix_disk.h"
#include "cache/segments/segment_store.h"

namespace {

using namespace galley;
using namespace galley::cache;

struct Prompt {
  double at_s{};
  std::vector<BlockKey> blocks;
};

BlockKey key_of(std::uint64_t n) {
  BlockKey out;
  const std::array<std::uint64_t, 2> words{n * 0x9e3779b97f4a7c15U, n ^ 0xd1b54a32d192ed03U};
  std::memcpy(out.bytes.data(), words.data(), sizeof(words));
  return out;
}

// The public traces' fields: `timestamp` in ms or, with sessions, in s; or `ts` in ms; chains of
// block hashes in `hash_ids` or `bh`.
std::vector<Prompt> read_trace(const std::string& path) {
  std::vector<Prompt> out;
  std::ifstream file(path);
  double session_at = 0;
  std::string session;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    Prompt one;
    if (json.contains("session")) {  // times are within it; the next one begins 5 s later
      if (json["session"] != session) {
        session = json["session"];
        session_at += 5;
      }
      one.at_s = session_at + json["timestamp"].get<double>();
    } else {
      one.at_s = json[json.contains("ts") ? "ts" : "timestamp"].get<double>() / 1000;
    }
    for (const auto& hash : json[json.contains("bh") ? "bh" : "hash_ids"]) {
      one.blocks.push_back(key_of(hash.is_string() ? std::stoull(hash.get<std::string>())
                                                   : hash.get<std::uint64_t>()));
    }
    out.push_back(std::move(one));
  }
  std::ranges::stable_sort(out, std::less{}, &Prompt::at_s);
  return out;
}

// Blocks that hit, prefix by prefix.
class Lru {
 public:
  explicit Lru(std::size_t capacity) : capacity_(capacity) {}

  std::size_t ask(const std::vector<BlockKey>& blocks) {
    std::size_t hit = 0;
    while (hit < blocks.size() && places_.contains(blocks[hit])) {
      ++hit;
    }
    // The end of a chain goes first, so it is touched first.
    for (std::size_t i = blocks.size(); i-- > 0;) {
      if (const auto it = places_.find(blocks[i]); it != places_.end()) {
        order_.splice(order_.begin(), order_, it->second);
      } else {
        order_.push_front(blocks[i]);
        places_[blocks[i]] = order_.begin();
      }
    }
    while (order_.size() > capacity_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    return hit;
  }

 private:
  std::size_t capacity_;
  std::list<BlockKey> order_;
  std::unordered_map<BlockKey, std::list<BlockKey>::iterator> places_;
};

struct Outcome {
  std::size_t hits{};
  double written{};  // pages of records, of those that were put
};

struct Sizes {
  std::size_t pages = 1;  // of a record
  double copy_forward = 0.24;
};

Outcome replay(const std::vector<Prompt>& prompts,
               const std::string& folder,
               std::size_t capacity,
               const Sizes& sizes) {
  std::filesystem::remove_all(folder);
  auto disk = *PosixDisk::open_folder(folder, true, {.direct = false, .ring = false});
  ManualClock clock(UnixTime(std::chrono::hours(500'000)));
  const std::uint64_t record = sizes.pages * kDiskPage;
  const std::uint64_t bytes = capacity * record;
  StoreOptions options{.classes = {{.name = "agent", .life = std::chrono::hours(72)}},
                       .bytes_max = bytes,
                       .segment_bytes = bytes == 0
                                            ? std::uint64_t{64} << 20U
                                            : std::max<std::uint64_t>(bytes / 50, 16 * kDiskPage),
                       .group_bytes = std::uint64_t{1} << 20U,
                       .copy_forward_max = sizes.copy_forward,
                       .seed = Seed(1)};
  auto store = std::move(*SegmentStore::open(*disk, clock, options));
  Outcome out;
  double now = prompts.front().at_s;
  const std::vector<std::byte> payload(record - 300);
  const std::array parts{std::span<const std::byte>(payload)};
  double upkeep_at = now;
  std::uint64_t put = 0;
  for (const Prompt& prompt : prompts) {
    clock.advance(std::chrono::nanoseconds(static_cast<std::int64_t>((prompt.at_s - now) * 1e9)));
    now = prompt.at_s;
    out.hits += store->match({.space = "t", .keys = prompt.blocks})->size();
    for (std::size_t i = 0; i < prompt.blocks.size(); ++i) {
      const auto done = store->put({.facts = {.space = "t",
                                              .key = prompt.blocks[i],
                                              .parent = i == 0 ? BlockKey{} : prompt.blocks[i - 1]},
                                    .parts = parts});
      put += done && *done == PutOutcome::kStaged ? 1 : 0;
    }
    (void)store->commit();
    if (now >= upkeep_at) {
      (void)store->maintain();
      upkeep_at = now + 5;
    }
  }
  const StoreStats stats = store->stats();
  // Heads, journals and footers are a page here as a block is; of 112 KiB they are nothing. So what
  // counts is records: those put and those written again.
  out.written = static_cast<double>(put * record + stats.copied_bytes + stats.refreshed_bytes) /
                static_cast<double>(put * record);
  store.reset();
  std::filesystem::remove_all(folder);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Replays a trace through the block store.", "store_replay");
  std::string trace;
  std::string folder;
  app.add_option("trace", trace)->required()->check(CLI::ExistingFile);
  app.add_option("scratch", folder, "A folder for the store.")->required();
  Sizes sizes;
  app.add_option("--pages", sizes.pages, "Of 4 KiB, a block.")->capture_default_str();
  app.add_option("--copy", sizes.copy_forward, "Bytes copied forward a byte put, at most.")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const std::vector<Prompt> prompts = read_trace(trace);
  std::unordered_set<BlockKey> unique;
  std::size_t asked = 0;
  for (const Prompt& prompt : prompts) {
    asked += prompt.blocks.size();
    unique.insert(prompt.blocks.begin(), prompt.blocks.end());
  }
  Lru infinite(unique.size());
  std::size_t ideal = 0;
  for (const Prompt& prompt : prompts) {
    ideal += infinite.ask(prompt.blocks);
  }
  const auto percent = [&](std::size_t hits) {
    return 100.0 * static_cast<double>(hits) / static_cast<double>(asked);
  };
  fmt::print("{} prompts, {} blocks, {} of them different; an infinite cache hits {:.2f} %\n",
             prompts.size(), asked, unique.size(), percent(ideal));
  const std::string scratch = folder + "/store_replay";
  const Outcome enough = replay(prompts, scratch, 0, sizes);
  fmt::print("room for all: {:.2f} %, {:.2f} % of the ideal; {:.3f} bytes written a byte put\n",
             percent(enough.hits),
             100.0 * static_cast<double>(enough.hits) / static_cast<double>(ideal), enough.written);
  for (const double share : {0.5, 0.2, 0.1}) {
    const auto capacity = static_cast<std::size_t>(share * static_cast<double>(unique.size()));
    Lru lru(capacity);
    std::size_t lru_hits = 0;
    for (const Prompt& prompt : prompts) {
      lru_hits += lru.ask(prompt.blocks);
    }
    const Outcome pressed = replay(prompts, scratch, capacity, sizes);
    fmt::print(
        "room for {:3.0f} %: {:.2f} %, LRU {:.2f} % ({:+.2f} points); {:.3f} bytes written a "
        "byte put\n",
        100 * share, percent(pressed.hits), percent(lru_hits),
        percent(pressed.hits) - percent(lru_hits), pressed.written);
  }
  return 0;
}
