#include "apps/remote.h"

#include <chrono>
#include <optional>
#include <utility>

#include "apps/stream_events.h"

namespace galley::apps {
namespace {

constexpr Duration kStopInterval = std::chrono::milliseconds(50);  // between two looks at `stop`

// One answer as events, with the times at which it came.
class Arrival {
 public:
  Arrival(const Clock& clock, recipe::EventSink& events)
      : clock_(clock), events_(events), begun_(clock.now()) {}

  Result<void> feed(std::string_view bytes) {
    return sse_.feed(bytes, [this](std::string_view data) {
      auto part = stream_part(data);
      if (!part) {
        error_ = error_ ? error_ : std::optional(std::move(part).error());
        return;
      }
      take(*part);
    });
  }
  // `whole`: nobody broke it off here.
  Result<AnswerFigures> end(bool whole) {
    if (error_) {
      return std::unexpected(*error_);
    }
    if (whole && !ended_) {
      return broken_off();
    }
    figures_.all = clock_.now() - begun_;
    return figures_;
  }

 private:
  void take(const StreamPart& part) {
    if (part.delivers() && !seen_) {
      seen_ = true;
      figures_.first_token = clock_.now() - begun_;
    }
    if (!part.reasoning.empty()) {
      events_.on_event(recipe::ReasoningText{.text = part.reasoning, .logprobs = {}});
    }
    if (!part.text.empty()) {
      events_.on_event(recipe::ContentText{.text = part.text, .logprobs = {}});
    }
    figures_.prompt_tokens = part.prompt_tokens.value_or(figures_.prompt_tokens);
    figures_.cached_tokens = part.cached_tokens.value_or(figures_.cached_tokens);
    figures_.tokens = part.answer_tokens.value_or(figures_.tokens);
    ended_ = ended_ || part.ends();
    if (part.finish) {
      events_.on_event(recipe::Finished{.reason = *part.finish, .stop_sequence = {}, .usage = {}});
    }
  }

  const Clock& clock_;
  recipe::EventSink& events_;
  const TimeNs begun_;
  gateway::SseReader sse_;
  bool seen_ = false;
  bool ended_ = false;
  AnswerFigures figures_;
  std::optional<Error> error_;
};

}  // namespace

gateway::HttpAsk Server::ask(std::string_view path, std::string body) const {
  std::string base = url;
  while (base.ends_with('/')) {
    base.pop_back();
  }
  if (base.ends_with("/v1")) {
    base.resize(base.size() - 3);
  }
  return {.url = base.append(path), .body = std::move(body), .key = key};
}

Result<std::string> first_model(const Server& server) {
  gateway::HttpClient client;
  GALLEY_TRY(const std::string text, client.fetch(server.ask("/v1/models")));
  const auto json = recipe::parse_json(text);
  const recipe::Json* const data = json ? json->find("data") : nullptr;
  const recipe::JsonArray* const models = data == nullptr ? nullptr : data->array();
  const recipe::Json* const id =
      models == nullptr || models->empty() ? nullptr : models->front().find("id");
  if (id == nullptr || id->string() == nullptr) {
    return fail(Code::kNotFound, "the server lists no models", "--name");
  }
  return *id->string();
}

Result<AnswerFigures> answer_there(const Server& server,
                                   recipe::JsonObject body,
                                   const Clock& clock,
                                   recipe::EventSink& events,
                                   const std::function<bool()>& stop) {
  recipe::set_member(body, "stream", true);
  recipe::set_member(body, "stream_options", recipe::JsonObject{{"include_usage", true}});
  gateway::HttpClient client;
  Arrival arrival(clock, events);
  std::optional<Result<void>> ended;
  gateway::HttpAsk ask = server.ask("/v1/chat/completions", to_json(recipe::Json(std::move(body))));
  ask.streams = true;
  client.start(ask, {.on_bytes = [&](std::string_view bytes) { return arrival.feed(bytes); },
                     .on_end = [&](Result<void> result) { ended = std::move(result); }});
  while (!ended) {
    client.run(kStopInterval);
    if (!ended && stop()) {
      client.stop();  // the server sees its client leave
      break;
    }
  }
  if (ended && !*ended) {
    return std::unexpected(ended->error());
  }
  return arrival.end(ended.has_value());
}

}  // namespace galley::apps
