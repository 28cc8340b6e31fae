// What the gateway costs and bears: memory of idle streams, time a chunk takes through it, leaks
// under clients that leave or are slow, goodput beyond what the source can do. The server is a
// process of its own, its source makes tokens at a known pace and notes when. Prints tables; wrong
// counts give status 1, and so do missed figures with --gates.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fmt/core.h>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/random.h"
#include "base/real_clock.h"
#include "gateway/http_client.h"
#include "tests/load/served.h"
#include "tests/load/slow_reader.h"

namespace galley::load {
namespace {

using namespace std::chrono_literals;

// The figures of the issue.
constexpr double kIdleKilobytesMax = 25;
constexpr double kChunkMicrosecondsMax = 300;
constexpr double kGoodputShareMin = 0.9;
constexpr double kRefusalMillisecondsMax = 50;
constexpr std::size_t kWrongShown = 20;
// What counts as flat: allocators keep a little more now and then.
constexpr double kGrowthMax = 0.05;

struct Options {
  std::size_t streams = 1000;
  std::size_t clients = 200;
  Duration duration = 10min;
  Duration overload = 10s;
  bool gates = false;
};

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) {
    return 0;
  }
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(at));
  return values[at];
}

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

class Load {
 public:
  Load(Served& served, Board& board, Options options)
      : served_(served), board_(board), options_(options) {}

  bool run() {
    idle();
    crowd();
    overload();
    return good_;
  }

 private:
  // One request for a stream of `tokens`.
  struct Asked {
    std::uint64_t id{};
    std::size_t place{};
    std::size_t seen = 0;       // tokens
    std::size_t leaves_at = 0;  // 0: stays to the end
    TimeNs begun{};
    gateway::SseReader events;
  };
  using OnEnd = std::function<void(Asked&, const Result<void>&)>;

  void expect(bool right, std::string_view what) {
    if (!right) {
      if (++wrong_ <= kWrongShown) {
        fmt::print("WRONG: {}\n", what);
      }
      good_ = false;
    }
  }
  void gate(bool kept, std::string_view what) {
    if (!kept) {
      fmt::print("{}: {}\n", options_.gates ? "MISSED" : "missed", what);
      good_ = good_ && !options_.gates;
    }
  }

  static std::string body(std::size_t tokens) {
    return fmt::format(
        R"({{"model":"DeepSeek-V4.1-Flash","prompt":"Go on","max_tokens":{},"stream":true}})",
        tokens);
  }
  std::shared_ptr<Asked> ask(std::size_t tokens, OnEnd on_end) {
    auto asked = std::make_shared<Asked>();
    const std::size_t number = sent_++;
    asked->place = number % Board::kRequests;
    asked->begun = clock_.now();
    asked->id = client_.start(
        {.url = served_.url() + "/v1/completions",
         .body = body(tokens),
         .streams = true,
         .direct = true,
         .headers = {fmt::format("x-request-id: {}", number)}},
        {.on_bytes = [this, asked](std::string_view bytes) { return take(*asked, bytes); },
         .on_end = [asked,
                    on_end = std::move(on_end)](Result<void> ended) { on_end(*asked, ended); }});
    return asked;
  }
  Result<void> take(Asked& asked, std::string_view bytes) {
    const std::int64_t now = clock_.now().time_since_epoch().count();
    return asked.events.feed(bytes, [&](std::string_view data) {
      if (data.find(R"("text":" the")") == std::string_view::npos) {
        return;
      }
      if (asked.seen < Board::kTokens) {
        overheads_us_.push_back(static_cast<double>(now - board_.made_ns[asked.place][asked.seen]) /
                                1e3);
      }
      ++asked.seen;
    });
  }

  // The sum of all series of a metric.
  double metric(const std::string& name) {
    const auto text =
        gateway::HttpClient().fetch({.url = served_.url() + "/metrics", .direct = true});
    double sum = 0;
    std::size_t at = 0;
    while (text && (at = text->find("\n" + name, at)) != std::string::npos) {
      const std::size_t end = text->find('\n', ++at);
      const std::string line = text->substr(at, end - at);
      const char behind = line[name.size()];
      if ((behind == '{' || behind == ' ') && !line.contains("/metrics")) {
        sum += std::strtod(line.c_str() + line.rfind(' '), nullptr);
      }
    }
    return sum;
  }
  // Nothing is left of the requests, and the server has seen each end once.
  void check_quiet() {
    for (int i = 0; i < 100 && metric("galley_active_generations") > 0; ++i) {
      client_.run(50ms);
    }
    expect(metric("galley_active_generations") == 0, "generations are left");
    expect(board_.under_way == 0, "the source still works");
    const double ended = metric("galley_http_requests_total");
    expect(ended == static_cast<double>(sent_),
           fmt::format("{} requests ended of {}", ended, sent_));
  }

  void idle() {
    board_.holds = true;
    board_.slots = options_.streams;
    board_.waiting_max = 0;
    // The first ones pay for pages of code, pools and tables.
    hold(std::min<std::size_t>(options_.streams, 50));
    const std::size_t before = served_.memory_bytes();
    const std::size_t with = hold(options_.streams);
    const double each = (static_cast<double>(with) - static_cast<double>(before)) / 1024 /
                        static_cast<double>(options_.streams);
    fmt::print(
        "idle      streams     MB before       MB with    KB a stream\n"
        "       {:10} {:13.1f} {:13.1f} {:14.1f}\n\n",
        options_.streams, static_cast<double>(before) / 1e6, static_cast<double>(with) / 1e6, each);
    gate(each <= kIdleKilobytesMax,
         fmt::format("{:.1f} KB an idle stream, {} at most", each, kIdleKilobytesMax));
    board_.holds = false;
  }
  // The server's memory while so many streams wait for their second token.
  std::size_t hold(std::size_t count) {
    std::vector<std::shared_ptr<Asked>> streams;
    for (std::size_t i = 0; i < count; ++i) {
      streams.push_back(ask(100, [this](Asked&, const Result<void>& ended) {
        expect(false,
               "an idle stream ended: " + (ended ? std::string() : to_string(ended.error())));
      }));
    }
    const auto arrived = [&] {
      return static_cast<std::size_t>(
          std::ranges::count_if(streams, [](const auto& stream) { return stream->seen > 0; }));
    };
    const TimeNs patience = clock_.now() + 60s;
    while (arrived() < count && clock_.now() < patience) {
      client_.run(10ms);
    }
    expect(arrived() == count, fmt::format("{} of {} streams began", arrived(), count));
    const std::size_t bytes = served_.memory_bytes();
    for (const auto& stream : streams) {
      client_.cancel(stream->id);
    }
    check_quiet();
    return bytes;
  }

  void crowd() {
    constexpr std::size_t kTokens = 100;
    board_.slots = 1'000'000;
    board_.pace_ns = std::chrono::nanoseconds(20ms).count();
    overheads_us_.clear();
    std::size_t finished = 0;
    std::size_t left = 0;
    std::size_t failed = 0;
    std::map<std::uint64_t, std::shared_ptr<Asked>> open;
    const TimeNs start = clock_.now();
    const double cpu = served_.cpu_seconds();
    const TimeNs end = start + options_.duration;
    const std::size_t slow_count = (options_.clients + 49) / 50;  // 2 %
    std::vector<std::unique_ptr<SlowReader>> slow;
    const auto begin = [&] {
      auto asked = ask(kTokens, [&](Asked& one, const Result<void>& ended) {
        ++(ended && one.seen == kTokens ? finished : failed);
        open.erase(one.id);
      });
      asked->leaves_at = random_.next_below(20) == 0 ? 1 + random_.next_below(kTokens - 1) : 0;
      open.emplace(asked->id, std::move(asked));
    };
    std::vector<std::size_t> memory;
    TimeNs sampled = start;
    TimeNs next = start;
    while (clock_.now() < end) {
      // They come one after the other, so that their tokens do not come at once.
      while (open.size() < options_.clients - slow_count && clock_.now() >= next) {
        begin();
        next = std::max(next, clock_.now() - 100ms) + 1ms;
      }
      while (slow.size() < slow_count) {
        slow.push_back(std::make_unique<SlowReader>(served_.port(), sent_++, body(10'000)));
      }
      std::erase_if(slow, [&](const auto& reader) { return !reader->read_a_little(clock_.now()); });
      client_.run(1ms);
      for (auto each = open.begin(); each != open.end();) {
        const Asked& asked = *each->second;
        if (asked.leaves_at != 0 && asked.seen >= asked.leaves_at) {
          client_.cancel(asked.id);
          ++left;
          each = open.erase(each);
        } else {
          ++each;
        }
      }
      if (clock_.now() - sampled >= 1s) {
        sampled = clock_.now();
        memory.push_back(served_.memory_bytes());
      }
    }
    const double took = seconds(clock_.now() - start);
    const double used = served_.cpu_seconds() - cpu;
    for (const auto& [id, asked] : open) {
      client_.cancel(id);
    }
    left += open.size();
    slow.clear();
    check_quiet();
    report_crowd(took, used, finished, left, failed, slow_count, memory);
  }
  void report_crowd(double took,
                    double used,
                    std::size_t finished,
                    std::size_t left,
                    std::size_t failed,
                    std::size_t slow_count,
                    std::vector<std::size_t> memory) {
    // Of a part of the run, so that a moment does not decide.
    const auto middle = [&](std::size_t from, std::size_t to) {
      std::vector<double> part(memory.begin() + static_cast<std::ptrdiff_t>(from),
                               memory.begin() + static_cast<std::ptrdiff_t>(to));
      return percentile(part, 0.5) / 1e6;
    };
    const std::size_t quarter = memory.size() / 4;
    const double early = middle(quarter, 2 * quarter);
    const double late = middle(memory.size() - quarter, memory.size());
    const auto tokens = static_cast<double>(overheads_us_.size());
    const double p50 = percentile(overheads_us_, 0.5);
    const double p99 = percentile(overheads_us_, 0.99);
    const double p999 = percentile(overheads_us_, 0.999);
    fmt::print(
        "crowd   clients  slow  seconds  finished    left  failed  tokens/s  CPU us/token   us p50 "
        "  us p99 us p99.9  MB early   MB late\n"
        "        {:7} {:5} {:8.1f} {:9} {:7} {:7} {:9.0f} {:13.1f} {:8.0f} {:8.0f} {:8.0f} {:9.1f} "
        "{:9.1f}\n\n",
        options_.clients, slow_count, took, finished, left, failed, tokens / took,
        used / tokens * 1e6, p50, p99, p999, early, late);
    expect(failed == 0, "requests failed");
    expect(finished > 0, "no request finished");
    gate(p99 <= kChunkMicrosecondsMax,
         fmt::format("a chunk takes {:.0f} us at the 99th percentile, {} at most", p99,
                     kChunkMicrosecondsMax));
    gate(late <= early * (1 + kGrowthMax),
         fmt::format("memory grows from {:.1f} to {:.1f} MB", early, late));
  }

  void overload() {
    constexpr std::size_t kSlots = 8;
    constexpr std::size_t kTokens = 50;
    board_.slots = kSlots;
    board_.waiting_max = 2 * kSlots;
    board_.pace_ns = std::chrono::nanoseconds(2ms).count();
    std::size_t done = 0;
    std::size_t failed = 0;
    std::vector<double> refusals_ms;
    const auto on_end = [&](Asked& asked, const Result<void>& ended) {
      if (ended && asked.seen == kTokens) {
        ++done;
      } else if (!ended && ended.error().code == Code::kOverloaded) {
        refusals_ms.push_back(seconds(clock_.now() - asked.begun) * 1e3);
      } else {
        ++failed;
      }
    };
    // As many clients as keep every slot busy.
    TimeNs start = clock_.now();
    while (clock_.now() - start < options_.overload / 2) {
      while (client_.under_way() < 2 * kSlots) {
        ask(kTokens, on_end);
      }
      client_.run(1ms);
    }
    const double saturated = static_cast<double>(done) / seconds(clock_.now() - start);
    drain();
    expect(refusals_ms.empty() && failed == 0, "requests failed while the server had room");
    const std::size_t before = done;
    const Duration every =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(0.1 / saturated));
    std::size_t offered = 0;
    start = clock_.now();
    while (clock_.now() - start < options_.overload) {
      for (; start + every * offered < clock_.now(); ++offered) {
        ask(kTokens, on_end);
      }
      client_.run(1ms);
    }
    const double took = seconds(clock_.now() - start);
    const double goodput = static_cast<double>(done - before) / took;
    drain();
    check_quiet();
    const std::size_t refused = refusals_ms.size();
    const double p99 = percentile(refusals_ms, 0.99);
    const double p50 = percentile(refusals_ms, 0.5);
    fmt::print(
        "overload   full/s  offered/s   done/s   share  refused  failed  refusal ms p50    p99\n"
        "        {:9.1f} {:10.1f} {:8.1f} {:7.2f} {:8} {:7} {:15.1f} {:6.1f}\n\n",
        saturated, static_cast<double>(offered) / took, goodput, goodput / saturated, refused,
        failed, p50, p99);
    expect(failed == 0, "requests failed other than by being refused");
    expect(refused > 0, "nothing was refused");
    gate(goodput >= kGoodputShareMin * saturated,
         fmt::format("goodput is {:.2f} of the saturated value, {} at least", goodput / saturated,
                     kGoodputShareMin));
    gate(p99 <= kRefusalMillisecondsMax,
         fmt::format("a refusal takes {:.1f} ms at the 99th percentile, {} at most", p99,
                     kRefusalMillisecondsMax));
  }
  void drain() {
    const TimeNs patience = clock_.now() + 30s;
    while (client_.under_way() > 0 && clock_.now() < patience) {
      client_.run(10ms);
    }
    expect(client_.under_way() == 0, "requests do not end");
  }

  Served& served_;
  Board& board_;
  const Options options_;
  const RealClock clock_;
  Random random_{Seed{1}, 0};
  gateway::HttpClient client_;
  std::size_t sent_ = 0;
  std::vector<double> overheads_us_;
  std::size_t wrong_ = 0;
  bool good_ = true;
};

}  // namespace
}  // namespace galley::load

int main(int argc, char** argv) {
  using namespace galley;
  load::Options options;
  std::string duration = "10m";
  std::string overload = "10s";
  CLI::App app("What the gateway costs and bears.");
  app.add_option("--streams", options.streams, "Idle ones.")->check(CLI::Range(1, 4000));
  app.add_option("--clients", options.clients,
                 "Of the crowd; 5 % of their requests are left, 2 % of them read slowly.")
      ->check(CLI::Range(2, 2000));
  app.add_option("--duration", duration, "Of the crowd.");
  app.add_option("--overload", overload, "Of the overload.");
  app.add_flag("--gates", options.gates, "Missed figures give status 1.");
  CLI11_PARSE(app, argc, argv);
  const auto crowd = parse_duration(duration);
  const auto over = parse_duration(overload);
  if (!crowd || !over) {
    fmt::print(stderr, "server_load: durations are such as 30s or 10m\n");
    return 2;
  }
  options.duration = *crowd;
  options.overload = *over;
  const rlimit files{.rlim_cur = 16'384, .rlim_max = 16'384};
  setrlimit(RLIMIT_NOFILE, &files);
  void* const shared =
      mmap(nullptr, sizeof(load::Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    fmt::print(stderr, "server_load: no memory to share\n");
    return 1;
  }
  auto* const board = new (shared) load::Board{};
  auto served = load::Served::start(*board);
  if (!served) {
    fmt::print(stderr, "server_load: {}\n", to_string(served.error()));
    return 1;
  }
  return load::Load(*served, *board, options).run() ? 0 : 1;
}
