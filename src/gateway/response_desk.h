#pragma once

#include <functional>
#include <string>

#include "base/log.h"
#include "base/metrics.h"
#include "base/result.h"
#include "gateway/response_store.h"

namespace galley::gateway {

// Where the rest of the server hands in what it wants of a ResponseStore. The store has a thread of
// its own: a slow disk holds up nobody but those who asked for it. Any thread may call.
class ResponseDesk {
 public:
  using Task = std::move_only_function<void()>;
  // Runs a task later, one at a time; false when too many wait.
  using Run = std::function<bool(Task&&)>;

  // `store`, `log` and what `run` needs must outlive the last task.
  ResponseDesk(ResponseStore& store, Run run, Metrics& metrics, Log& log);

  // False: too much waits, `work` will not be called.
  [[nodiscard]] bool post(std::move_only_function<void(ResponseStore&)> work);

  // Keeps `response` and tells `done` how that went, on the store's thread or, when too much waits,
  // at once. A failure is counted and logged.
  void put(StoredResponse response, std::move_only_function<void(Result<void>)> done);

 private:
  void report(const Error& error);

  ResponseStore& store_;
  Run run_;
  Log& log_;
  Counter kept_;
  Counter not_kept_;
};

}  // namespace galley::gateway
