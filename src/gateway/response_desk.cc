#include "gateway/response_desk.h"

#include <memory>
#include <utility>

namespace galley::gateway {

ResponseDesk::ResponseDesk(ResponseStore& store, Run run, Metrics& metrics, Log& log)
    : store_(store),
      run_(std::move(run)),
      log_(log),
      kept_(metrics.counter("galley_responses_kept_total", "Responses that were stored.")),
      not_kept_(metrics.counter("galley_responses_not_kept_total",
                                "Responses that should have been stored and could not be.")) {}

bool ResponseDesk::post(std::move_only_function<void(ResponseStore&)> work) {
  return run_([this, work = std::move(work)]() mutable { work(store_); });
}

void ResponseDesk::put(StoredResponse response, std::move_only_function<void(Result<void>)> done) {
  // Shared by the task and by what follows when there is no room for it; one of them calls.
  const auto tell = std::make_shared<std::move_only_function<void(Result<void>)>>(std::move(done));
  const bool posted = post([this, response = std::move(response), tell](ResponseStore& store) {
    const Result<void> kept = store.put(response);
    if (kept) {
      kept_.add();
    } else {
      report(kept.error());
    }
    (*tell)(kept);
  });
  if (!posted) {
    const Error error{.code = Code::kOverloaded, .what = "Too many responses wait to be stored."};
    report(error);
    (*tell)(std::unexpected(error));
  }
}

void ResponseDesk::report(const Error& error) {
  not_kept_.add();
  log_.warn("response not kept", {{"reason", error.what}});
}

}  // namespace galley::gateway
