#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "gateway/file_store.h"
#include "gateway/generation_reply.h"

namespace galley::gateway {

// Lines of one batch that are answered before another tenant's has its turn.
inline constexpr std::size_t kBatchTurnLines = 256;

struct BatchWorkerOptions {
  std::size_t window = 4;  // generations of batches under way at once; a line has `n` of them
  // Whether one more line may begin while so many generations of batches are under way: what
  // interactive requests leave free. Empty: always.
  std::function<bool(std::size_t under_way)> may_start;
};

// Answers the batches of a FileStore, one turn of one batch after the other, on a thread of its
// own. A batch's state is in the store: a process that is killed goes on where it was, with the
// lines that have no answer yet.
class BatchWorker {
 public:
  // Begins at once. What is given must outlive the worker; `context.ids` is the worker's alone.
  BatchWorker(FileStore& store,
              const ReplyContext& context,
              BatchWorkerOptions options,
              Metrics& metrics,
              Log& log);
  ~BatchWorker() { stop(); }

  // There may be new work, or one that runs was cancelled. Any thread.
  void wake() GALLEY_EXCLUDES(mutex_);
  // Ends soon; what is under way is asked again by the next worker. Once, or again to no effect.
  void stop() GALLEY_EXCLUDES(mutex_);

  // One turn, for tests: false when there was nothing to do.
  bool turn();

  struct Idle {};  // does not begin by itself, for tests
  BatchWorker(FileStore& store,
              const ReplyContext& context,
              BatchWorkerOptions options,
              Metrics& metrics,
              Log& log,
              Idle);

 private:
  void run();
  Result<void> work_on(const StoredBatch& batch);
  Result<void> answer(const StoredBatch& batch, class OpenBatch& open);
  Result<void> finish(const StoredBatch& batch, std::string_view status, const Error* why = {});
  Result<void> give_up(const StoredBatch& batch, const Error& error);
  void put_off(const StoredBatch& batch, const Error& error);
  [[nodiscard]] bool is_cancelled(const StoredBatch& batch);

  FileStore& store_;
  const ReplyContext context_;
  const BatchWorkerOptions options_;
  Log& log_;
  Counter lines_;
  std::string tenant_;  // whose turn was the last
  // Batches that cannot go on now; tried again after a while, or when nothing else is there.
  std::vector<std::string> waiting_;
  TimeNs waiting_since_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> looks_ = false;  // whether the batch at hand was cancelled
  Mutex mutex_;
  CondVar changed_;
  bool awake_ GALLEY_GUARDED_BY(mutex_) = true;
  std::unique_ptr<TaskPool> thread_;
};

}  // namespace galley::gateway
