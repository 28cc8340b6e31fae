#include "apps/bench_remote.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fmt/core.h>
#include <memory>
#include <optional>
#include <utility>

#include "apps/progress_bar.h"
#include "apps/stream_events.h"
#include "base/random.h"
#include "gateway/batch_lines.h"
#include "recipe/json.h"

namespace galley::apps {
namespace {

using recipe::Json;
using recipe::JsonArray;
using recipe::JsonObject;

constexpr Duration kProgressInterval = std::chrono::milliseconds(200);
constexpr std::size_t kPoolWords = 4096;

// Short words of every shape, which no vocabulary makes one token of in every order.
std::string random_words(Random& random) {
  constexpr std::array<std::string_view, 16> kParts = {"ka", "to",  "mi",  "shel", "run", "dra",
                                                       "ve", "po",  "lin", "gar",  "ou",  "best",
                                                       "fi", "cro", "nam", "sa"};
  std::string out;
  for (std::size_t i = 0; i < kPoolWords; ++i) {
    for (std::uint64_t part = random.next_below(3) + 1; part > 0; --part) {
      out += kParts[random.next_below(kParts.size())];
    }
    out += ' ';
  }
  return out;
}

Result<std::vector<Json>> token_pool(const Server& server, Random& random) {
  gateway::HttpClient client;
  GALLEY_TRY(const std::string text,
             client.fetch(server.ask("/v1/tokenize",
                                     to_json(JsonObject{{"prompt", random_words(random)}}))));
  auto json = recipe::parse_json(text);
  Json* const tokens = json ? json->find("tokens") : nullptr;
  JsonArray* const ids = tokens == nullptr ? nullptr : tokens->array();
  if (ids == nullptr || ids->empty()) {
    return fail(Code::kUnavailable, "the server's /v1/tokenize gives no tokens", server.url);
  }
  return std::move(*ids);
}

JsonObject streamed(JsonObject body, bool usage) {
  recipe::set_member(body, "stream", true);
  if (usage) {
    recipe::set_member(body, "stream_options", JsonObject{{"include_usage", true}});
  }
  return body;
}

// One request under way, and what is seen of it.
class Watched {
 public:
  Watched(const Clock& clock, TimeNs arrival) : clock_(clock), arrival_(arrival) {}

  Result<void> feed(std::string_view bytes) {
    return sse_.feed(bytes, [this](std::string_view data) {
      const auto part = stream_part(data);
      if (!part) {
        times_.error = times_.error ? times_.error : part.error().what;
        return;
      }
      note(*part);
    });
  }
  void end(const Result<void>& result) {
    times_.whole = clock_.now() - arrival_;
    if (!result) {
      times_.error = result.error().what;
    } else if (!ended_ && !times_.error) {
      times_.error = broken_off().error().what;
    } else if (!delivered_ && !times_.error) {
      times_.error = "the answer is empty";
    }
  }
  [[nodiscard]] RequestTimes& times() { return times_; }

 private:
  void note(const StreamPart& part) {
    ended_ = ended_ || part.ends();
    if (part.delivers()) {
      const TimeNs now = clock_.now();
      if (!delivered_) {
        times_.first = now - arrival_;
      } else {
        times_.gaps.push_back(now - last_);
      }
      delivered_ = true;
      last_ = now;
    }
    times_.prompt_tokens = part.prompt_tokens.value_or(times_.prompt_tokens);
    times_.cached_tokens = part.cached_tokens.value_or(times_.cached_tokens);
    times_.answer_tokens = part.answer_tokens.value_or(times_.answer_tokens);
  }

  const Clock& clock_;
  const TimeNs arrival_;
  TimeNs last_;
  bool delivered_ = false;
  bool ended_ = false;
  gateway::SseReader sse_;
  RequestTimes times_;
};

}  // namespace

Result<std::vector<gateway::HttpAsk>> synthetic_asks(const Server& server, const RemoteLoad& load) {
  Random random(load.load.seed, 2);
  GALLEY_TRY(const std::vector<Json> pool, token_pool(server, random));
  const auto draw = [&](std::size_t count, JsonArray& out) {
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(pool[random.next_below(pool.size())]);
    }
  };
  JsonArray shared;
  draw(load.load.shared_tokens, shared);
  std::vector<gateway::HttpAsk> out;
  for (std::size_t i = 0; i < load.load.requests; ++i) {
    JsonArray prompt = shared;
    draw(load.load.prompt_tokens - shared.size(), prompt);
    JsonObject body{{"model", load.model},
                    {"prompt", std::move(prompt)},
                    {"max_tokens", load.answer_tokens},
                    {"temperature", load.temperature}};
    out.push_back(server.ask("/v1/completions", to_json(Json(streamed(std::move(body), true)))));
  }
  return out;
}

Result<std::vector<gateway::HttpAsk>> asks_of_trace(const Server& server,
                                                    std::span<const TraceEntry> entries,
                                                    const RemoteLoad& load) {
  Random random(load.load.seed, 2);
  GALLEY_TRY(const std::vector<Json> pool, token_pool(server, random));
  std::vector<gateway::HttpAsk> out;
  for (const TraceEntry& entry : entries) {
    JsonArray prompt;
    for (const std::size_t place : trace_prompt(entry, out.size(), pool.size(), load.load.seed)) {
      prompt.push_back(pool[place]);
    }
    JsonObject body{{"model", load.model},
                    {"prompt", std::move(prompt)},
                    {"max_tokens", static_cast<std::int64_t>(entry.answer_tokens)},
                    {"temperature", load.temperature}};
    out.push_back(server.ask("/v1/completions", to_json(Json(streamed(std::move(body), true)))));
  }
  return out;
}

Result<std::vector<gateway::HttpAsk>> asks_of_batch(const Server& server, std::string_view jsonl) {
  GALLEY_TRY(const auto entries, gateway::index_batch(jsonl));
  std::vector<gateway::HttpAsk> out;
  for (const gateway::BatchEntry& entry : entries) {
    const gateway::BatchRequest request = gateway::parse_batch_line(entry.text);
    if (!request.body) {
      return in_step(fmt::format("line {}", entry.number), request.body.error());
    }
    auto line = recipe::parse_json(entry.text);
    auto body = recipe::parse_json(*request.body);
    const bool usage = request.protocol == recipe::Protocol::kChat ||
                       request.protocol == recipe::Protocol::kCompletions;
    out.push_back(server.ask(*line->find("url")->string(),
                             to_json(Json(streamed(std::move(*body->object()), usage)))));
  }
  if (out.empty()) {
    return fail(Code::kInvalidArgument, "has no requests", "--jsonl");
  }
  return out;
}

std::vector<RequestTimes> ask_all(const std::vector<gateway::HttpAsk>& asks,
                                  std::size_t at_once,
                                  const std::vector<Duration>& arrivals,
                                  const Clock& clock) {
  gateway::HttpClient client;
  std::vector<std::unique_ptr<Watched>> all;
  ProgressBar bar;
  const TimeNs begin = clock.now();
  const auto due = [&] {
    const std::size_t next = all.size();
    return next < asks.size() && (arrivals.empty() ? client.under_way() < at_once
                                                   : begin + arrivals[next] <= clock.now());
  };
  std::size_t ended = 0;
  while (ended < asks.size()) {
    while (due()) {
      const std::size_t next = all.size();
      // One that could not be begun in time has waited since it was to come.
      const TimeNs arrival = arrivals.empty() ? clock.now() : begin + arrivals[next];
      Watched& one = *all.emplace_back(std::make_unique<Watched>(clock, arrival));
      one.times().begun = arrival - begin;
      gateway::HttpAsk ask = asks[next];
      ask.streams = true;
      client.start(ask, {.on_bytes = [&one](std::string_view bytes) { return one.feed(bytes); },
                         .on_end =
                             [&one, &ended](Result<void> result) {
                               one.end(result);
                               ++ended;
                             }});
    }
    Duration wait = kProgressInterval;
    if (!arrivals.empty() && all.size() < asks.size()) {
      wait = std::clamp(begin + arrivals[all.size()] - clock.now(), Duration(1), wait);
    }
    client.run(wait);
    bar.show(ended, asks.size());
  }
  std::vector<RequestTimes> out;
  for (const auto& one : all) {
    out.push_back(std::move(one->times()));
  }
  return out;
}

}  // namespace galley::apps
