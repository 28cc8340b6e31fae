#include "plan/store_world.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/manual_clock.h"
#include "cache/segments/segment_store.h"

namespace galley::plan {
namespace {

using cache::BlockKey;
using cache::BlockLease;
using cache::BlockView;
using cache::PutOutcome;
using cache::SegmentStore;
using cache::StoreDefect;

constexpr std::size_t kViolationsKept = 5;
constexpr std::uint64_t kLayout = 3;
constexpr std::array<std::string_view, 3> kSpaces{"tenant-a", "tenant-b", ""};
constexpr UnixTime kStart{std::chrono::sys_days{std::chrono::year{2026} / 1 / 1}};

BlockKey key_of(std::uint64_t n) {
  BlockKey out;
  const std::uint64_t words[2] = {n * 0x9e3779b97f4a7c15U, n};
  std::memcpy(out.bytes.data(), words, sizeof(words));
  return out;
}

struct BlockName {
  std::size_t space{};
  std::uint64_t n{};
  friend auto operator<=>(const BlockName&, const BlockName&) = default;
};

// The bytes follow from who made what: anything else is wrong.
std::vector<std::vector<std::byte>> parts_of(const BlockName& name,
                                             bool exact,
                                             std::uint64_t numerics) {
  Random random(Seed(name.n * 64 + name.space * 8 + numerics * 2 + (exact ? 1 : 0)), 9);
  std::vector<std::vector<std::byte>> out(1 + random.next_below(4));
  for (auto& part : out) {
    part.resize(random.next_below(random.next_below(8) == 0 ? 20'000 : 2'000));
    for (std::byte& byte : part) {
      byte = static_cast<std::byte>(random.next_u32());
    }
  }
  return out;
}

// What is known of a block from outside.
struct Known {
  bool acknowledged = false;  // has to hit before `until_s`
  bool possible = false;      // may hit
  bool damaged = false;       // its own bytes were, so it need not hit
  bool tainted = false;  // a damaged copy may lie on the disk, and be seen when newer ones are over
  std::int64_t until_s = 0;
  std::int64_t over_s = 0;  // must not hit from here on
  bool hit_since_upkeep = false;
};

class World {
 public:
  explicit World(const StoreWorldOptions& options)
      : options_(options), random_(options.seed, 11), disk_(options.seed), clock_(kStart) {
    store_options_.classes = {
        {.name = "agent", .life = std::chrono::seconds(600 + random_.next_below(1200))},
        {.name = "chat", .life = std::chrono::seconds(3000 + random_.next_below(3000))}};
    store_options_.bucket = std::chrono::seconds(60 + random_.next_below(240));
    store_options_.segment_bytes = 40'000 + random_.next_below(200'000);
    store_options_.group_bytes = random_.next_below(2) == 0 ? 0 : 60'000;
    store_options_.retry_writing = std::chrono::seconds(5);
    store_options_.defect = options.defect;
    pressure_ = random_.next_below(4) == 0 || options.defect == StoreDefect::kCountFromZero;
    if (pressure_) {
      store_options_.bytes_max = 500'000 + random_.next_below(500'000);
      store_options_.segment_bytes = 60'000;
      store_options_.group_bytes = 0;
    }
    faults_ = random_.next_below(3) == 0 || options.defect == StoreDefect::kRetrySync;
    keys_ = 30 + random_.next_below(200);
  }

  StoreReport run() {
    for (life_ = 0; life_ < options_.lives; ++life_) {
      if (!reopen()) {
        break;
      }
      check_everything();
      live();
      end_life();
    }
    store_.reset();
    report_.sectors_lost = static_cast<std::int64_t>(disk_.sectors_lost());
    for (std::size_t i = 0; i < kDiskOps; ++i) {
      report_.failures.at(i) = static_cast<std::int64_t>(disk_.failed(static_cast<DiskOp>(i)));
    }
    return std::move(report_);
  }

 private:
  bool one_in(std::uint64_t n) { return random_.next_below(n) == 0; }
  bool off() const { return disk_.crashed_in().has_value(); }
  Known& known(const BlockName& name) { return model_[name]; }
  std::int64_t bucket_s() const {
    return std::chrono::duration_cast<std::chrono::seconds>(store_options_.bucket).count();
  }
  std::int64_t life_s(std::size_t retention) const {
    return std::chrono::duration_cast<std::chrono::seconds>(
               store_options_.classes.at(retention).life)
        .count();
  }
  std::int64_t longest_s() const { return std::max(life_s(0), life_s(1)); }

  void violate(std::int64_t& count, const std::string& what) {
    ++count;
    if (report_.violations.size() < kViolationsKept) {
      report_.violations.push_back(fmt::format("life {}: {}", life_, what));
    }
  }
  static std::string words(const BlockName& name) {
    return fmt::format("block {} of namespace \"{}\"", name.n, kSpaces.at(name.space));
  }

  // ---- A life ----

  bool reopen() {
    leases_.clear();
    pending_.clear();
    for (int attempt = 0;; ++attempt) {
      // The power may go while it recovers, too.
      if (attempt < 2 && one_in(4)) {
        disk_.crash_after(1 + random_.next_below(6));
      }
      store_options_.seed = Seed(random_.next_u64());
      auto opened = SegmentStore::open(disk_, clock_, store_options_);
      if (opened && !off()) {
        store_ = std::move(*opened);
        disk_.crash_after(std::uint64_t{1} << 40U);
        return true;
      }
      opened = fail(Code::kUnavailable, "");
      store_.reset();
      if (!off()) {
        violate(report_.other, "cannot be opened");
        return false;
      }
      power_cut();
    }
  }

  void live() {
    if (faults_) {
      disk_.set_faults(
          {.read = one_in(2) ? 0U : 300U,
           .write = one_in(2) ? 0U : 1500U,
           .sync = one_in(2) && options_.defect != StoreDefect::kRetrySync ? 0U : 2500U,
           .names = one_in(2) ? 0U : 1500U});
    }
    const bool crashes = !one_in(3);
    if (crashes) {
      disk_.crash_after(1 + random_.next_below(static_cast<std::uint64_t>(options_.operations)));
    }
    for (int i = 0; i < options_.operations && !off(); ++i) {
      operate();
    }
  }

  void end_life() {
    newest_s_ = std::max(newest_s_, store_->now_s());
    disk_.set_faults({});
    disk_.set_room(std::numeric_limits<std::uint64_t>::max());
    if (off()) {
      store_.reset();
      power_cut();
    } else if (one_in(3)) {
      const bool closed = store_->close().has_value();
      settle_pending(closed);
      store_.reset();
    } else if (one_in(2)) {
      ++report_.kills;
      settle_pending(false);
      store_.reset();
    } else {
      ++report_.crashes.at(static_cast<std::size_t>(DiskOp::kRead));  // between two writes
      settle_pending(false);
      store_.reset();
      disk_.restart();
    }
    damage_files();
    if (one_in(4)) {
      clock_.set_date(clock_.unix_time() - std::chrono::seconds(random_.next_below(3'000)));
      ++report_.jumps;
    }
  }

  void power_cut() {
    ++report_.crashes.at(static_cast<std::size_t>(*disk_.crashed_in()));
    settle_pending(false);
    disk_.restart();
  }

  void operate() {
    const std::uint64_t dice = random_.next_below(100);
    if (dice < 34) {
      put();
    } else if (dice < 50) {
      commit();
    } else if (dice < 80) {
      match();
    } else if (dice < 88) {
      upkeep();
    } else if (dice < 90) {
      purge();
    } else if (dice < 93) {
      flip_live();
    } else if (dice < 97) {
      use_lease();
    } else if (dice < 98 && faults_) {
      disk_.set_room(one_in(2) ? disk_.used() + 10'000 : std::numeric_limits<std::uint64_t>::max());
    } else if (one_in(3)) {
      clock_.set_date(clock_.unix_time() + std::chrono::seconds(random_.next_below(200'000)) -
                      std::chrono::seconds(100'000));
      ++report_.jumps;
    }
    clock_.advance(std::chrono::milliseconds(random_.next_below(one_in(20) ? 200'000 : 3'000)));
  }

  BlockName any_name() { return {random_.next_below(kSpaces.size()), random_.next_below(keys_)}; }

  void put() {
    const BlockName name = any_name();
    const bool exact = !one_in(4);
    const std::uint64_t numerics = exact ? random_.next_below(2) : 0;
    const std::size_t retention = random_.next_below(2);
    const auto parts = parts_of(name, exact, numerics);
    const std::vector<std::span<const std::byte>> views(parts.begin(), parts.end());
    const std::int64_t now = store_->now_s();
    const auto done = store_->put({.facts = {.space = kSpaces.at(name.space),
                                             .key = key_of(name.n),
                                             .parent = key_of(name.n - 1),
                                             .layout = kLayout,
                                             .numerics = numerics,
                                             .exact = exact},
                                   .retention = retention,
                                   .parts = views});
    ++report_.puts;
    if (done && *done == PutOutcome::kKnown) {
      return;
    }
    Known& block = known(name);
    if (done || done.error().reason != SegmentStore::kReadOnly) {
      block.possible = true;
      block.over_s = std::max(block.over_s, now + longest_s() + bucket_s());
    }
    if (done) {
      pending_.push_back({name, now + life_s(retention)});
      if (store_options_.group_bytes == 0) {
        return;
      }
    } else {
      settle_pending(false);  // of a group that it was to fill
    }
  }

  void commit() { settle_pending(store_->commit().has_value()); }

  // What waited is acknowledged, or nobody knows.
  void settle_pending(bool durable) {
    for (const auto& [name, until_s] : pending_) {
      Known& block = known(name);
      if (durable && block.possible) {
        ++report_.acknowledged;
        // Put again although it is damaged: there is a whole one now.
        block.damaged = false;
        block.until_s = until_s;
        block.acknowledged = true;
      }
    }
    pending_.clear();
    if (durable && pressure_ && !faults_ && store_) {
      const std::uint64_t bound = store_options_.bytes_max + store_options_.segment_bytes + 100'000;
      std::uint64_t used = 0;
      const auto entries = disk_.list();
      for (const DiskEntry& entry : entries ? *entries : std::vector<DiskEntry>{}) {
        used += foreign_.contains(entry.name) ? 0 : entry.bytes;
      }
      if (used > bound) {
        violate(report_.other, fmt::format("{} bytes used of {}", used, store_options_.bytes_max));
      }
    }
  }

  void upkeep() {
    const bool done = store_->maintain().has_value();
    const std::int64_t now = store_->now_s();
    for (auto& [name, block] : model_) {
      if (block.hit_since_upkeep) {
        block.over_s = std::max(block.over_s, now + longest_s() + bucket_s());
        block.hit_since_upkeep = !done;
      }
    }
  }

  void purge() {
    const std::size_t space = random_.next_below(kSpaces.size());
    const bool done = store_->purge(kSpaces.at(space)).has_value();
    ++report_.purges;
    // It commits what waits, and whether that went well it does not say.
    settle_pending(false);
    for (auto& [name, block] : model_) {
      if (name.space == space) {
        block.acknowledged = false;
        block.possible = !done && block.possible;
      }
    }
  }

  // ---- What is looked at ----

  // Verdict on one block of a hit.
  void check_read(const BlockName& name,
                  const Result<BlockView>& view,
                  bool exact_only,
                  std::uint64_t numerics) {
    ++report_.reads;
    Known& block = known(name);
    if (!view) {
      if (view.error().code == Code::kCorruption) {
        ++report_.damaged;
        if (!block.tainted) {
          violate(report_.ghosts,
                  words(name) + " hit and cannot be read: " + to_string(view.error()));
        }
        block.acknowledged = false;
      }
      return;  // else the disk failed
    }
    if (exact_only && (!view->exact || view->numerics != numerics)) {
      violate(report_.wrong_bytes, words(name) + " is not exact");
      return;
    }
    const auto parts = parts_of(name, view->exact, view->numerics);
    const bool same = std::ranges::equal(
        view->parts, parts, [](const auto& a, const auto& b) { return std::ranges::equal(a, b); });
    if (!same) {
      violate(report_.wrong_bytes, words(name) + " has wrong bytes");
    }
  }

  void check_ghost(const BlockName& name) {
    Known& block = known(name);
    if (!block.possible) {
      violate(report_.ghosts, words(name) + " hit and is not there");
    } else if (!pressure_ && store_->now_s() >= block.over_s) {
      violate(report_.ghosts, words(name) + " hit after its time");
    }
    block.hit_since_upkeep = true;
  }

  void match() {
    const std::size_t space = random_.next_below(kSpaces.size());
    const std::uint64_t first = random_.next_below(keys_);
    const std::size_t count = 1 + random_.next_below(6);
    std::vector<BlockKey> keys;
    for (std::size_t i = 0; i < count; ++i) {
      keys.push_back(key_of(first + i));
    }
    const bool exact = one_in(3);
    const std::uint64_t numerics = random_.next_below(2);
    const std::uint64_t layout = one_in(20) ? kLayout + 1 : kLayout;
    std::unique_ptr<BlockLease> lease = store_->match({.space = kSpaces.at(space),
                                                       .layout = layout,
                                                       .keys = keys,
                                                       .exact_only = exact,
                                                       .numerics = numerics});
    ++report_.matches;
    if (layout != kLayout && lease->size() > 0) {
      violate(report_.wrong_bytes, "another layout hits");
    }
    PageBuffer buffer;
    for (std::size_t i = 0; i < lease->size(); ++i) {
      const BlockName name{space, first + i};
      check_ghost(name);
      check_read(name, store_->read(*lease, i, buffer), exact, numerics);
    }
    if (lease->size() > 0 && one_in(3)) {
      leases_.push_back({std::move(lease), {space, first}, report_.purges});
      if (leases_.size() > 4) {
        leases_.erase(leases_.begin());
      }
    }
  }

  // A block that was matched a while ago is still there, whatever has happened since.
  void use_lease() {
    if (leases_.empty()) {
      return;
    }
    const std::size_t which = random_.next_below(leases_.size());
    const Held& held = leases_[which];
    const std::size_t index = random_.next_below(held.lease->size());
    const BlockName name{held.first.space, held.first.n + index};
    PageBuffer buffer;
    const auto view = store_->read(*held.lease, index, buffer);
    if (clock_.now() > held.lease->until()) {
      if (view || view.error().code != Code::kDeadlineExceeded) {
        violate(report_.broken_leases, "a lease that is over can be read");
      }
    } else if (!view && view.error().code == Code::kCorruption) {
      const bool excused = known(name).tainted || held.purges != report_.purges;
      if (!excused) {
        violate(report_.broken_leases, words(name) + " was promised: " + view.error().what);
      }
    } else if (view) {
      const auto parts = parts_of(name, view->exact, view->numerics);
      if (!std::ranges::equal(view->parts, parts, [](const auto& a, const auto& b) {
            return std::ranges::equal(a, b);
          })) {
        violate(report_.wrong_bytes, words(name) + " has wrong bytes, through a lease");
      }
    } else if (!faults_ && !off()) {
      violate(report_.broken_leases, words(name) + " was promised: " + view.error().what);
    }
  }

  // At the beginning of a life: every block there may be, and every one there has to be.
  void check_everything() {
    const std::int64_t now = store_->now_s();
    PageBuffer buffer;
    for (std::size_t space = 0; space < kSpaces.size(); ++space) {
      for (std::uint64_t n = 0; n < keys_; ++n) {
        const BlockName name{space, n};
        const BlockKey key = key_of(n);
        const auto lease =
            store_->match({.space = kSpaces.at(space), .layout = kLayout, .keys = {&key, 1}});
        ++report_.matches;
        bool there = lease->size() == 1;
        const Known before = known(name);
        if (there) {
          check_ghost(name);
          const auto view = store_->read(*lease, 0, buffer);
          there = view.has_value();
          check_read(name, view, false, 0);
        }
        if (before.acknowledged && !before.damaged && !pressure_ &&
            std::max(now, newest_s_) < before.until_s) {
          ++(there ? report_.recoveries : report_.lost);
          if (!there) {
            --report_.lost;
            violate(report_.lost, words(name) + " was acknowledged and is gone");
          }
        }
        if (!there) {
          known(name).acknowledged = false;
        }
      }
    }
    const cache::StoreStats stats = store_->stats();
    report_.expired += static_cast<std::int64_t>(stats.expired_segments);
  }

  // ---- Damage ----

  // Blocks whose records reach into these bytes of a file.
  void excuse(const std::string& file, std::uint64_t begin, std::uint64_t end) {
    for (const auto& [stem, rows] : places_) {
      if (file != stem + std::string(cache::kSegmentSuffix)) {
        continue;
      }
      for (const auto& [name, range] : rows) {
        if (range.first < end && begin < range.second) {
          known(name).damaged = true;
          known(name).tainted = true;
          // What waits may be written already, by a put that filled its group.
          std::erase_if(pending_, [&](const auto& it) { return it.first == name; });
        }
      }
    }
  }

  // Where every record is, those that others have replaced too.
  void note_places() {
    places_.clear();
    const auto entries = disk_.list();
    for (const DiskEntry& entry : entries ? *entries : std::vector<DiskEntry>{}) {
      const std::string stem = entry.name.substr(
          0, entry.name.size() - std::min(entry.name.size(), cache::kSegmentSuffix.size()));
      const auto name = cache::parse_file_stem(stem);
      const auto file = disk_.open(entry.name, false);
      if (!name || !file || !entry.name.ends_with(cache::kSegmentSuffix)) {
        continue;
      }
      const auto contents = cache::read_contents(disk_, **file, *name, StoreDefect::kNone);
      if (!contents) {
        continue;
      }
      auto& out = places_[stem];
      for (const cache::TableRow& row : contents->table.rows) {
        std::uint64_t n = 0;
        std::memcpy(&n, row.key.bytes.data() + sizeof(n), sizeof(n));
        const std::string& its_space = contents->table.scopes[row.scope].space;
        const auto space =
            static_cast<std::size_t>(std::ranges::find(kSpaces, its_space) - kSpaces.begin());
        const std::uint64_t begin = std::uint64_t{row.page} * kDiskPage;
        out.push_back({{space, n}, {begin, begin + std::uint64_t{row.pages} * kDiskPage}});
      }
    }
  }

  // A journal, where there is one and `journal`.
  std::optional<DiskEntry> any_file(bool journal = false) {
    auto entries = disk_.list();
    if (!entries) {
      return std::nullopt;
    }
    std::erase_if(*entries, [](const DiskEntry& entry) {
      return entry.bytes == 0 || entry.name == "purges.b" || entry.name.ends_with(".foreign");
    });
    const auto is_journal = [](const DiskEntry& entry) { return entry.name.ends_with(".journal"); };
    if (journal && std::ranges::any_of(*entries, is_journal)) {
      std::erase_if(*entries, std::not_fn(is_journal));
    }
    std::ranges::sort(*entries, std::less{}, &DiskEntry::name);
    return entries->empty() ? std::nullopt
                            : std::optional((*entries)[random_.next_below(entries->size())]);
  }

  void flip(const std::string& file, std::uint64_t bytes) {
    const std::uint64_t offset = random_.next_below(bytes);
    excuse(file, offset, offset + 1);
    report_.flips += disk_.flip(file, offset, static_cast<unsigned>(random_.next_below(8))) ? 1 : 0;
  }

  void flip_live() {
    if (faults_ || off()) {
      return;  // what cannot be looked up cannot be excused
    }
    note_places();
    if (const auto file = any_file(); file && !off()) {
      flip(file->name, file->bytes);
    }
  }

  // Between two lives.
  void damage_files() {
    if (one_in(3)) {
      return;
    }
    note_places();
    for (std::uint64_t i = random_.next_below(4); i > 0; --i) {
      // Journals are few and short-lived, and what trusts them is to be seen.
      const auto file = any_file(one_in(2));
      if (!file) {
        break;
      }
      if (one_in(4) && file->name.find("purges") == std::string::npos) {
        const std::uint64_t left = random_.next_below(file->bytes);
        excuse(file->name, left, file->bytes);
        auto bytes = *disk_.contents(file->name);
        bytes.resize(left);
        disk_.put(file->name, std::move(bytes));
        ++report_.cuts;
      } else {
        flip(file->name, file->bytes);
      }
    }
    if (one_in(3)) {
      if (const auto file = any_file()) {
        auto bytes = *disk_.contents(file->name);
        const std::string name =
            one_in(2) ? fmt::format("{}.foreign", random_.next_u32())
                      : fmt::format("chat-6a000000-6f000000-{:016x}-00000001.segment",
                                    random_.next_u64());
        disk_.put(name, std::move(bytes));
        foreign_.insert(name);
        ++report_.foreign;
      }
    }
  }

  struct Held {
    std::unique_ptr<BlockLease> lease;
    BlockName first;
    std::int64_t purges{};
  };

  StoreWorldOptions options_;
  Random random_;
  VirtualDisk disk_;
  ManualClock clock_;
  cache::StoreOptions store_options_;
  bool pressure_ = false;
  bool faults_ = false;
  std::uint64_t keys_ = 0;
  std::int64_t newest_s_ =
      0;  // store time may go back a little at a restart; what was over stays over
  std::set<std::string> foreign_;
  int life_ = 0;
  std::unique_ptr<SegmentStore> store_;
  std::map<BlockName, Known> model_;
  std::vector<std::pair<BlockName, std::int64_t>> pending_;  // and until when it has to hit
  std::vector<Held> leases_;
  std::map<std::string, std::vector<std::pair<BlockName, std::pair<std::uint64_t, std::uint64_t>>>>
      places_;
  StoreReport report_;
};

}  // namespace

std::int64_t StoreReport::injected() const {
  return std::accumulate(crashes.begin(), crashes.end(), std::int64_t{0}) +
         std::accumulate(failures.begin(), failures.end(), std::int64_t{0}) + kills + flips + cuts +
         foreign + jumps;
}

void StoreReport::add(const StoreReport& from) {
  for (std::size_t i = 0; i < kDiskOps; ++i) {
    crashes.at(i) += from.crashes.at(i);
    failures.at(i) += from.failures.at(i);
  }
  kills += from.kills;
  flips += from.flips;
  cuts += from.cuts;
  foreign += from.foreign;
  jumps += from.jumps;
  sectors_lost += from.sectors_lost;
  puts += from.puts;
  acknowledged += from.acknowledged;
  matches += from.matches;
  reads += from.reads;
  damaged += from.damaged;
  recoveries += from.recoveries;
  expired += from.expired;
  evicted += from.evicted;
  purges += from.purges;
  wrong_bytes += from.wrong_bytes;
  ghosts += from.ghosts;
  lost += from.lost;
  broken_leases += from.broken_leases;
  other += from.other;
  for (const std::string& one : from.violations) {
    if (violations.size() < kViolationsKept) {
      violations.push_back(one);
    }
  }
}

StoreReport run_store_world(const StoreWorldOptions& options) {
  return World(options).run();
}

}  // namespace galley::plan
