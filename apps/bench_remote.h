#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench_load.h"
#include "apps/bench_trace.h"
#include "apps/remote.h"
#include "base/clock.h"

// `galley bench --url`: the same load and the same figures over HTTP.
namespace galley::apps {

// Prompts of random tokens, which the server's /tokenize makes of random words, for
// /v1/completions. Errors: those of the server.
struct RemoteLoad {
  SyntheticLoad load;
  std::string model;
  std::int64_t answer_tokens{};  // at most; a model may end earlier
  double temperature{};
};
[[nodiscard]] Result<std::vector<gateway::HttpAsk>> synthetic_asks(const Server& server,
                                                                   const RemoteLoad& load);

// Prompts of such tokens for the entries of a trace.
[[nodiscard]] Result<std::vector<gateway::HttpAsk>> asks_of_trace(
    const Server& server, std::span<const TraceEntry> entries, const RemoteLoad& load);

// The requests of a batch file, streamed. Error: a line that is none, by number.
[[nodiscard]] Result<std::vector<gateway::HttpAsk>> asks_of_batch(const Server& server,
                                                                  std::string_view jsonl);

// Asks all: `at_once` at a time, or when `arrivals` says, and then times count from there.
[[nodiscard]] std::vector<RequestTimes> ask_all(const std::vector<gateway::HttpAsk>& asks,
                                                std::size_t at_once,
                                                const std::vector<Duration>& arrivals,
                                                const Clock& clock);

}  // namespace galley::apps
