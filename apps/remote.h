#pragma once

#include <functional>
#include <string>

#include "apps/local_answer.h"
#include "base/clock.h"
#include "gateway/http_client.h"
#include "recipe/event.h"
#include "recipe/json.h"

namespace galley::apps {

// A server that speaks Chat Completions: ours or another.
struct Server {
  std::string url;  // without the path: "http://127.0.0.1:8080", with or without /v1
  Secret key;

  [[nodiscard]] gateway::HttpAsk ask(std::string_view path, std::string body = "") const;
};

// Of the first model it lists. Errors: it cannot be reached, lists none.
[[nodiscard]] Result<std::string> first_model(const Server& server);

// As answer_here(), over HTTP: `body` is a Chat Completions body, which is streamed.
[[nodiscard]] Result<AnswerFigures> answer_there(const Server& server,
                                                 recipe::JsonObject body,
                                                 const Clock& clock,
                                                 recipe::EventSink& events,
                                                 const std::function<bool()>& stop);

}  // namespace galley::apps
