#include "apps/kept_data.h"

#include <filesystem>
#include <fmt/core.h>
#include <string>
#include <utility>

#include "apps/options.h"
#include "base/entropy.h"
#include "gateway/batch_run.h"
#include "gateway/sqlite_response_store.h"

namespace galley::apps {

// For its owner only: it holds what people said.
Result<void> make_private_folder(const std::string& path, const char* setting) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::create_directories(path, error)) {
    fs::permissions(path, fs::perms::owner_all, error);
  }
  if (error) {
    return fail(Code::kUnavailable, fmt::format("cannot make '{}': {}", path, error.message()),
                setting);
  }
  return {};
}

Result<std::unique_ptr<KeptData>> KeptData::open(const Config& config,
                                                 const Clock& clock,
                                                 Metrics& metrics,
                                                 Log& log) {
  std::unique_ptr<KeptData> kept(new KeptData(config, clock, metrics, log));
  const std::string& folder = config.string("server.data");
  if (!folder.empty()) {
    GALLEY_CHECK_OK(make_private_folder(folder, "server.data"));
  }
  if (config.boolean("server.responses")) {
    auto store = gateway::SqliteResponseStore::open(
        folder.empty() ? ":memory:" : folder + "/responses.db", response_limits(config), clock);
    if (!store) {
      return in_step("kept responses", std::move(store).error());
    }
    kept->responses_ = std::move(*store);
    kept->responses_desk_ = std::make_unique<gateway::ResponseDesk>(
        *kept->responses_,
        [&disk = kept->responses_disk_](gateway::ResponseDesk::Task&& task) {
          return disk.try_post(std::move(task));
        },
        metrics, log);
  }
  if (!folder.empty()) {
    auto files = gateway::FileStore::open(folder, file_limits(config), clock);
    if (!files) {
      return in_step("kept files", std::move(files).error());
    }
    kept->files_ = std::move(*files);
  }
  return kept;
}

Result<void> KeptData::begin_batches(const gateway::Codec& codec,
                                     recipe::TokenSource& source,
                                     recipe::IdSource& ids,
                                     const std::atomic<std::size_t>& interactive) {
  if (files_ == nullptr) {
    return {};
  }
  // A line stands for itself: it goes on from nothing, and nothing goes on from it.
  recipe::CodecOptions options = codec.options();
  options.keeps_responses = false;
  GALLEY_TRY(batch_codec_,
             gateway::Codec::create(codec.tokenizer(), std::move(options), codec.context_tokens()));
  batch_ids_ = std::make_unique<recipe::RandomIds>(entropy_seed());
  const auto slots = static_cast<std::size_t>(config_.integer("engine.slots"));
  worker_ = std::make_unique<gateway::BatchWorker>(
      *files_,
      gateway::ReplyContext{.codec = *batch_codec_,
                            .source = source,
                            .clock = clock_,
                            .ids = *batch_ids_,
                            .metrics = gateway::ReplyMetrics(metrics_),
                            .limits = gateway::kBatchReplyLimits},
      gateway::BatchWorkerOptions{
          .window = static_cast<std::size_t>(config_.integer("server.batch_concurrency")),
          .may_start = [slots, &interactive](
                           std::size_t under_way) { return interactive + under_way < slots; }},
      metrics_, log_);
  files_desk_ = std::make_unique<gateway::FileDesk>(
      gateway::FileDesk{.store = *files_,
                        .worker = *worker_,
                        .clock = clock_,
                        .ids = ids,
                        .compat = codec.options().compat,
                        .run = [&disk = files_disk_](std::move_only_function<void()>&& task) {
                          return disk.try_post(std::move(task));
                        }});
  return {};
}

void KeptData::stop_batches() {
  if (worker_ != nullptr) {
    worker_->stop();
  }
}

void KeptData::close() {
  stop_batches();
  responses_disk_.join();
  files_disk_.join();
}

}  // namespace galley::apps
