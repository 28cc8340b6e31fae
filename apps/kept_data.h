#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/task_pool.h"
#include "gateway/batch_worker.h"
#include "gateway/codec.h"
#include "gateway/file_routes.h"
#include "gateway/file_store.h"
#include "gateway/response_desk.h"
#include "gateway/response_store.h"
#include "recipe/random_ids.h"

namespace galley::apps {

// Makes a folder, for its owner only, unless it is there. `setting` named it.
[[nodiscard]] Result<void> make_private_folder(const std::string& path, const char* setting);

// What clients leave with `galley serve`, in the folder server.data names: Responses, files and
// batches, the threads that read and write them, and the one that answers batches.
class KeptData {
 public:
  // Error: the folder cannot be made or used, also while another server uses it. What is given must
  // outlive it.
  [[nodiscard]] static Result<std::unique_ptr<KeptData>> open(const Config& config,
                                                              const Clock& clock,
                                                              Metrics& metrics,
                                                              Log& log);
  ~KeptData() { close(); }

  // Begins to answer batches, where there is a folder. `codec` and `source` must outlive this; so
  // must `interactive`, the generations of everybody else, which come first. Error: as
  // Codec::create.
  [[nodiscard]] Result<void> begin_batches(const gateway::Codec& codec,
                                           recipe::TokenSource& source,
                                           recipe::IdSource& ids,
                                           const std::atomic<std::size_t>& interactive);

  // Null where the operator wants none kept.
  [[nodiscard]] gateway::ResponseDesk* responses() { return responses_desk_.get(); }
  // Null where there is no folder, or before begin_batches().
  [[nodiscard]] gateway::FileDesk* files() { return files_desk_.get(); }

  // Ends batches; what they have no answer for is asked after the next start.
  void stop_batches();
  // Does what waits and takes no more. Before what the tasks answer to is gone.
  void close();

 private:
  static constexpr std::size_t kWaitingMax = 256;  // for a disk, each

  KeptData(const Config& config, const Clock& clock, Metrics& metrics, Log& log)
      : config_(config), clock_(clock), metrics_(metrics), log_(log) {}

  const Config& config_;
  const Clock& clock_;
  Metrics& metrics_;
  Log& log_;
  std::unique_ptr<gateway::ResponseStore> responses_;
  std::unique_ptr<gateway::ResponseDesk> responses_desk_;
  std::unique_ptr<gateway::FileStore> files_;
  std::unique_ptr<recipe::RandomIds> batch_ids_;
  std::unique_ptr<gateway::Codec> batch_codec_;
  std::unique_ptr<gateway::BatchWorker> worker_;
  std::unique_ptr<gateway::FileDesk> files_desk_;
  // Last: their tasks use the others. Two, so that a large file does not hold up a small answer.
  TaskPool responses_disk_{1, kWaitingMax};
  TaskPool files_disk_{1, kWaitingMax};
};

}  // namespace galley::apps
