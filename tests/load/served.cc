#include "tests/load/served.h"

#include <fmt/core.h>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/entropy.h"
#include "base/log.h"
#include "base/loop_thread.h"
#include "base/metrics.h"
#include "base/real_clock.h"
#include "gateway/codec.h"
#include "gateway/http_server.h"
#include "gateway/routes.h"
#include "recipe/random_ids.h"

namespace galley::load {
namespace {

constexpr std::size_t kConnectionsMax = 4096;
constexpr std::int64_t kContextTokens = 100'000;

// What the child does. Returns once `keep_open` is closed at the other end.
void serve(Board& board, int tell_port, int keep_open) {
  const RealClock clock;
  Log log(clock, {.write = [](std::string_view) {}});
  Metrics metrics;
  LoopThread loop;
  const auto tokenizer =
      recipe::Tokenizer::from_file(GALLEY_TESTS_DIR "/data/small_tokenizer.json").value();
  std::vector<TokenId> word;
  tokenizer->encode(" the", word);
  PacedSource source(loop.loop(), board, word.front());
  const auto codec = gateway::Codec::create(tokenizer, {}, kContextTokens).value();
  recipe::RandomIds ids(entropy_seed());
  gateway::Routes routes({.codec = *codec,
                          .source = source,
                          .clock = clock,
                          .ids = ids,
                          .metrics = gateway::ReplyMetrics(metrics)},
                         metrics, log);
  const auto server = gateway::HttpServer::start({.port = 0, .connections_max = kConnectionsMax},
                                                 routes, clock, ids);
  const std::uint16_t port = (*server)->port();
  if (::write(tell_port, &port, sizeof port) == sizeof port) {
    char byte{};
    while (::read(keep_open, &byte, 1) > 0) {
    }
  }
  (*server)->drain(Duration(0));
}

}  // namespace

Result<Served> Served::start(Board& board) {
  int told[2];
  int kept[2];
  if (::pipe(told) != 0 || ::pipe(kept) != 0) {
    return fail(Code::kUnavailable, "no pipe");
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(kept[1]);
    serve(board, told[1], kept[0]);
    ::_exit(0);
  }
  ::close(told[1]);
  ::close(kept[0]);
  std::uint16_t port = 0;
  const bool listens = child > 0 && ::read(told[0], &port, sizeof port) == sizeof port;
  ::close(told[0]);
  if (!listens) {
    return fail(Code::kUnavailable, "the server does not start");
  }
  return Served(child, kept[1], port);
}

Served::Served(pid_t process, int keep_open, std::uint16_t port)
    : process_(process),
      keep_open_(keep_open),
      port_(port),
      url_(fmt::format("http://127.0.0.1:{}", port)) {}

Served::Served(Served&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      keep_open_(std::exchange(other.keep_open_, -1)),
      port_(other.port_),
      url_(std::move(other.url_)) {}

Served::~Served() {
  if (process_ > 0) {
    ::close(keep_open_);
    ::waitpid(process_, nullptr, 0);
  }
}

std::size_t Served::memory_bytes() const {
  std::ifstream file(fmt::format("/proc/{}/statm", process_));
  std::size_t whole = 0;
  std::size_t resident = 0;
  file >> whole >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

double Served::cpu_seconds() const {
  std::ifstream file(fmt::format("/proc/{}/stat", process_));
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 15 && file >> word; ++i) {
    ticks += i >= 14 ? std::stod(word) : 0;  // user and system
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace galley::load
