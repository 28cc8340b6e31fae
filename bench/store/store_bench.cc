// What the block store does in a second: its index alone, its start, its reads and writes. The last
// two are to be seen beside fio on the same disk in the same minute: run.sh does both.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fmt/core.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/entropy.h"
#include "base/random.h"
#include "base/real_clock.h"
#include "cache/posix_disk.h"
#include "cache/segments/block_index.h"
#include "cache/segments/segment_store.h"
#include "cache/segments/segment_writer.h"

namespace {

using namespace galley;
using namespace galley::cache;

const RealClock kClock;
// What one core does: time for which this thread computed, whatever else the machine does.
const ThreadClock kCore;

double seconds_since(TimeNs begin, const Clock& clock = kClock) {
  return std::chrono::duration<double>(clock.now() - begin).count();
}

// Of a hash function's kind: the place of one says nothing of the next.
BlockKey key_of(std::uint64_t n) {
  std::array<std::uint64_t, 2> words{};
  std::uint64_t state = n * 0x9e3779b97f4a7c15U + 1;
  for (std::uint64_t& word : words) {
    state ^= state >> 30U;
    state *= 0xbf58476d1ce4e5b9U;
    state ^= state >> 27U;
    state *= 0x94d049bb133111ebU;
    state ^= state >> 31U;
    word = state;
  }
  BlockKey out;
  std::memcpy(out.bytes.data(), words.data(), sizeof(words));
  return out;
}

void fatal(const Error& error) {
  fmt::print(stderr, "store_bench: {}\n", to_string(error));
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) {
    fatal(result.error());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

IndexEntry entry_of(std::uint64_t n, std::uint16_t scope) {
  return {.place = {.segment = static_cast<std::uint32_t>(n / 9000),
                    .page = static_cast<std::uint32_t>(n % 9000 * 28 + 1),
                    .pages = 28},
          .scope = scope,
          .exact = true};
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void index_bench(std::uint64_t keys) {
  constexpr std::size_t kChain = 600;
  ScopeTable scopes;
  const std::uint16_t scope = *scopes.number({.space = "tenant"});
  BlockIndex index(scopes, Seed(1));
  const auto never = [](const IndexEntry&) { return false; };
  TimeNs begin = kCore.now();
  for (std::uint64_t n = 0; n < keys; ++n) {
    index.insert(0, key_of(n), entry_of(n, scope), never);
  }
  const double inserting = seconds_since(begin, kCore);
  fmt::print("index       {:>9} keys: {:.1f} bytes a key, {:.2f} M inserts a second and core\n",
             keys, static_cast<double>(index.memory_bytes()) / static_cast<double>(keys),
             static_cast<double>(keys) / inserting / 1e6);
  Random random(Seed(2), 1);
  constexpr std::size_t kLookups = 6'000'000;
  std::vector<BlockKey> asked(kLookups);
  for (BlockKey& key : asked) {
    key = key_of(random.next_below(keys));
  }
  std::vector<IndexEntry> out;
  out.reserve(kChain);
  std::size_t hits = 0;
  begin = kCore.now();
  for (std::size_t at = 0; at + kChain <= kLookups; at += kChain) {
    out.clear();
    index.match(0, std::span(asked).subspan(at, kChain), 0, out);
    hits += out.size();
  }
  fmt::print("lookups     {:.2f} M a second and core, all hits, {} together\n",
             static_cast<double>(hits) / seconds_since(begin, kCore) / 1e6, kChain);
  begin = kCore.now();
  std::size_t found = 0;
  for (std::size_t i = 0; i < 1'000'000; ++i) {
    found += index.find(0, key_of(keys + i)) ? 1 : 0;
  }
  fmt::print("            {:.2f} M a second and core, all misses, one by one ({} found)\n",
             1.0 / seconds_since(begin, kCore), found);

  // A chain of 600 while another thread inserts 500,000 keys a second, as evenly as it can.
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> inserted = 0;
  std::thread writer([&] {
    constexpr double kRate = 500'000;
    const TimeNs start = kClock.now();
    for (std::uint64_t n = keys; !stop; ++n) {
      index.insert(0, key_of(n + (std::uint64_t{1} << 40U)), entry_of(n, scope), never);
      ++inserted;
      while (!stop && static_cast<double>(inserted) > kRate * seconds_since(start)) {
        std::this_thread::yield();
      }
    }
  });
  std::vector<double> times;
  std::vector<double> own;
  begin = kClock.now();
  while (seconds_since(begin) < 5) {
    const std::size_t at = random.next_below(kLookups - kChain);
    out.clear();
    const TimeNs from = kClock.now();
    const TimeNs own_from = kCore.now();
    index.match(0, std::span(asked).subspan(at, kChain), 0, out);
    own.push_back(seconds_since(own_from, kCore) * 1e6);
    times.push_back(seconds_since(from) * 1e6);
  }
  const double took = seconds_since(begin);
  stop = true;
  writer.join();
  fmt::print(
      "match       {} blocks in the index alone: p50 {:.1f} us, p99 {:.1f} us, beside {:.0f} "
      "inserts/s\n",
      kChain, quantile(times, 0.5), quantile(times, 0.99), static_cast<double>(inserted) / took);
}

// A store of closed segments whose records are holes: what a start reads is all there.
void make_footers(PosixDisk& disk, std::uint64_t keys) {
  constexpr std::uint64_t kRows = 9000;
  const std::int64_t now = kClock.unix_seconds() / 3600 * 3600;
  for (std::uint64_t first = 0; first < keys; first += kRows) {
    const auto number = static_cast<std::uint32_t>(first / kRows);
    const SegmentName name{.writer = 1,
                           .number = number,
                           .retention = "chat",
                           .bucket_s = now - 3600 * static_cast<std::int64_t>(number % 100),
                           .expires_s = now + 7 * 24 * 3600};
    Table table{.kind = TableKind::kFooter,
                .data_begin = kDiskPage,
                .segment = name,
                .scopes = {{.space = "tenant", .layout = 1, .numerics = 1}}};
    for (std::uint64_t n = first; n < std::min(first + kRows, keys); ++n) {
      table.rows.push_back({.key = key_of(n),
                            .sequence = n + 1,
                            .page = static_cast<std::uint32_t>((n - first) * 28 + 1),
                            .pages = 28,
                            .exact = true});
    }
    table.data_end = (table.rows.back().page + 28) * kDiskPage;
    const auto file = must(disk.create(file_stem(name) + std::string(kSegmentSuffix)));
    PageBuffer head(kDiskPage);
    std::ranges::copy(encode_segment_head(name), head.data());
    must(file->write(0, head.bytes()));
    must(write_footer(disk, *file, table.data_end, table));
  }
}

void start_bench(const std::string& folder, std::uint64_t keys) {
  const auto disk = must(PosixDisk::open_folder(folder, true));
  make_footers(*disk, keys);
  const TimeNs begin = kClock.now();
  auto store =
      must(SegmentStore::open(*disk, kClock, {.read_only = true, .load = false, .seed = Seed(1)}));
  store->load_some();
  const BlockKey newest = key_of(0);
  const auto lease = store->match({.space = "tenant", .layout = 1, .keys = {&newest, 1}});
  const double first = seconds_since(begin);
  while (store->load_some()) {
  }
  const double all = seconds_since(begin);
  fmt::print(
      "start       {} keys from footers in {:.2f} s; the first segment hits after {:.3f} s; "
      "{:.1f} bytes a key\n",
      store->stats().keys, all, first,
      static_cast<double>(store->stats().index_bytes) / static_cast<double>(store->stats().keys));
  if (lease->size() > 1 || store->stats().keys != keys) {
    fmt::print(stderr, "store_bench: {} keys, {} expected\n", store->stats().keys, keys);
    std::exit(1);
  }
}

// Blocks of V4.1-Flash: four source layers, 113,920 bytes.
constexpr std::array<std::size_t, 4> kParts{22'784, 22'784, 22'784, 45'568};

void write_bench(SegmentStore& store, std::uint64_t blocks) {
  std::vector<std::byte> bytes(45'568 + 4096);
  Random random(entropy_seed(), 3);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.next_u32());
  }
  std::uint64_t payload = 0;
  const TimeNs begin = kClock.now();
  for (std::uint64_t n = 0; n < blocks; ++n) {
    std::array<std::span<const std::byte>, 4> parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = std::span(bytes).subspan((n * 64 + i) % 4096, kParts[i]);
      payload += kParts[i];
    }
    must(store.put({.facts = {.space = "tenant", .key = key_of(n), .layout = 1, .numerics = 1},
                    .retention = 1,
                    .parts = parts}));
  }
  must(store.commit());
  const double took = seconds_since(begin);
  const StoreStats stats = store.stats();
  fmt::print(
      "write       {:.0f} MB/s of blocks, durable, {} groups; {:.4f} bytes to the disk a byte "
      "of block\n",
      static_cast<double>(payload) / took / 1e6, stats.groups,
      static_cast<double>(stats.written_bytes) / static_cast<double>(stats.put_bytes));
}

void read_bench(SegmentStore& store, std::uint64_t blocks, double limit_s, std::size_t depth) {
  Random random(entropy_seed(), 4);
  std::vector<PageBuffer> buffers;
  std::vector<std::span<std::byte>> memory;
  for (std::size_t i = 0; i < depth; ++i) {
    buffers.emplace_back(128 * 1024);
    memory.push_back(buffers.back().bytes());
  }
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  const TimeNs begin = kClock.now();
  while (seconds_since(begin) < limit_s) {
    // Keys are a chain to the store; where the records lie is chance all the same.
    std::vector<BlockKey> keys;
    for (std::size_t i = 0; i < depth; ++i) {
      keys.push_back(key_of(random.next_below(blocks)));
    }
    const auto lease = store.match({.space = "tenant", .layout = 1, .keys = keys});
    if (lease->size() != depth) {
      fatal({.code = Code::kInternal, .what = "a block is missing"});
    }
    store.read_all(*lease, 0, memory, [&](std::size_t, Result<BlockView> view) {
      for (const auto& part : must(std::move(view)).parts) {
        bytes += part.size();
      }
      ++count;
    });
  }
  const double took = seconds_since(begin);
  fmt::print("read        {:.0f} MB/s of blocks, verified, {:.0f} blocks/s, {} under way\n",
             static_cast<double>(bytes) / took / 1e6, static_cast<double>(count) / took, depth);
}

// Through the store: scopes, segments, lease.
void match_bench(SegmentStore& store, std::uint64_t blocks) {
  constexpr std::size_t kChain = 600;
  Random random(entropy_seed(), 5);
  std::vector<double> times;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<BlockKey> keys;
    const std::uint64_t first = random.next_below(blocks - kChain);
    for (std::size_t i = 0; i < kChain; ++i) {
      keys.push_back(key_of(first + i));
    }
    const TimeNs from = kCore.now();
    const auto lease = store.match({.space = "tenant", .layout = 1, .keys = keys});
    times.push_back(seconds_since(from, kCore) * 1e6);
    if (lease->size() != kChain) {
      fatal({.code = Code::kInternal, .what = "a block is missing"});
    }
  }
  fmt::print(
      "match       {} blocks through the store, with a lease: p50 {:.1f} us, p99 "
      "{:.1f} us of its thread's own time\n",
      kChain, quantile(times, 0.5), quantile(times, 0.99));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures the block store.", "store_bench");
  app.require_subcommand(1);
  std::uint64_t keys = 10'000'000;
  std::string folder;
  std::uint64_t blocks = 20'000;
  double limit_s = 15;
  std::size_t depth = 32;
  CLI::App* const index = app.add_subcommand("index", "The index alone, in memory.");
  index->add_option("--keys", keys)->capture_default_str();
  CLI::App* const start = app.add_subcommand("start", "From footers made up for it.");
  start->add_option("folder", folder, "A new one.")->required();
  start->add_option("--keys", keys)->capture_default_str();
  CLI::App* const disk = app.add_subcommand("disk", "Writes, then reads at random.");
  disk->add_option("folder", folder, "A new one.")->required();
  disk->add_option("--blocks", blocks, "Of 113,920 bytes.")->capture_default_str();
  disk->add_option("--seconds", limit_s, "Of reading.")->capture_default_str();
  disk->add_option("--depth", depth, "Reads under way.")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (*index) {
    index_bench(keys);
  } else if (*start) {
    start_bench(folder, keys);
  } else {
    const auto files = must(PosixDisk::open_folder(folder, true));
    fmt::print("disk        direct I/O {}, io_uring {}\n", files->direct() ? "yes" : "no",
               files->ring() ? "yes" : "no");
    auto store = must(SegmentStore::open(*files, kClock, {.seed = entropy_seed()}));
    write_bench(*store, blocks);
    match_bench(*store, blocks);
    read_bench(*store, blocks, limit_s, depth);
    must(store->close());
  }
  return 0;
}
