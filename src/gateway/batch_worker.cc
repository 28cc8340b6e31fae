#include "gateway/batch_worker.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/batch_lines.h"
#include "gateway/batch_object.h"
#include "gateway/batch_output.h"
#include "gateway/batch_run.h"

namespace galley::gateway {
namespace {

// After a disk or a source that failed.
constexpr Duration kPause = std::chrono::seconds(5);
// How often a client sees how far a batch is.
constexpr Duration kCountsInterval = std::chrono::seconds(1);

}  // namespace

// The files of the batch at hand.
class OpenBatch {
 public:
  // Errors: kNotFound and kInvalidArgument are the batch's fault.
  static Result<OpenBatch> open(FileStore& store, const StoredBatch& batch) {
    OpenBatch open;
    auto text = store.read_file(batch.tenant, member_text(batch, "input_file_id"), 0,
                                std::numeric_limits<std::size_t>::max());
    if (!text) {
      Error& error = text.error();
      error.code = error.reason == kUnreadable ? Code::kInvalidArgument : error.code;
      error.where = "input_file_id";
      return std::unexpected(std::move(error));
    }
    open.text_ = std::make_unique<const std::string>(std::move(*text));
    GALLEY_TRY(std::vector<BatchEntry> entries, index_batch(*open.text_));
    if (entries.empty()) {
      return fail(Code::kInvalidArgument, "the input file has no lines", "input_file_id");
    }
    open.total_ = entries.size();
    GALLEY_TRY(open.output_, BatchOutput::open(store.answers_path(batch.id)));
    GALLEY_TRY(open.left_, entries_left(std::move(entries), open.output_->done()));
    return open;
  }

  [[nodiscard]] std::size_t total() const { return total_; }
  [[nodiscard]] std::span<const BatchEntry> left() const { return left_; }
  [[nodiscard]] BatchOutput& output() { return *output_; }
  [[nodiscard]] const BatchDone& before() const { return output_->done(); }

 private:
  OpenBatch() = default;
  std::unique_ptr<const std::string> text_;  // the entries view it, so it stays where it is
  std::vector<BatchEntry> left_;
  std::optional<BatchOutput> output_;
  std::size_t total_ = 0;
};

BatchWorker::BatchWorker(FileStore& store,
                         const ReplyContext& context,
                         BatchWorkerOptions options,
                         Metrics& metrics,
                         Log& log,
                         Idle)
    : store_(store),
      context_(context),
      options_(std::move(options)),
      log_(log),
      lines_(metrics.counter("galley_batch_lines_total", "Lines of batches that were answered.")) {}

BatchWorker::BatchWorker(FileStore& store,
                         const ReplyContext& context,
                         BatchWorkerOptions options,
                         Metrics& metrics,
                         Log& log)
    : BatchWorker(store, context, std::move(options), metrics, log, Idle()) {
  thread_ = std::make_unique<TaskPool>(1, 1);
  [[maybe_unused]] const bool posted = thread_->try_post([this] { run(); });
}

void BatchWorker::wake() {
  {
    const MutexLock lock(mutex_);
    awake_ = true;
  }
  looks_ = true;
  changed_.notify_one();
}

void BatchWorker::stop() {
  stopping_ = true;
  wake();
  if (thread_ != nullptr) {
    thread_->join();
  }
}

void BatchWorker::run() {
  while (!stopping_) {
    if (!turn()) {
      const MutexLock lock(mutex_);
      // Also without being woken, now and then: a disk may work again.
      if (!awake_) {
        changed_.wait_for(mutex_, kPause);
      }
      awake_ = false;
    }
  }
}

bool BatchWorker::turn() {
  if (context_.clock.now() - waiting_since_ >= kPause) {
    waiting_.clear();
  }
  auto next = store_.next_batch(tenant_, waiting_);
  if (!next) {
    log_.warn("batches wait", {{"reason", next.error().what}});
    return false;
  }
  if (!*next) {
    waiting_.clear();
    return false;
  }
  const StoredBatch& batch = **next;
  tenant_ = batch.tenant;
  const auto done = work_on(batch);
  if (done) {
    return true;
  }
  switch (done.error().code) {
    case Code::kCancelled:  // what that means shows in its status
      return true;
    case Code::kUnavailable:  // not the batch's fault: the same again, later
      put_off(batch, done.error());
      return true;
    default:
      if (const auto ended = give_up(batch, done.error()); !ended) {
        put_off(batch, ended.error());
      }
      return true;
  }
}

void BatchWorker::put_off(const StoredBatch& batch, const Error& error) {
  log_.warn("batch waits", {{"batch", batch.id}, {"reason", error.what}});
  waiting_since_ = waiting_.empty() ? context_.clock.now() : waiting_since_;
  waiting_.push_back(batch.id);
}

bool BatchWorker::is_cancelled(const StoredBatch& batch) {
  const auto now = store_.batch(batch.tenant, batch.id);
  return now && now->status == "cancelling";
}

Result<void> BatchWorker::work_on(const StoredBatch& batch) {
  const std::int64_t now = context_.clock.unix_seconds();
  if (batch.status == "cancelling") {
    return finish(batch, "cancelled");
  }
  if (batch.status == "finalizing") {  // and then something broke in
    return finish(batch, "completed");
  }
  if (now >= member_number(batch, "expires_at")) {
    return finish(batch, "expired");
  }
  GALLEY_TRY(OpenBatch open, OpenBatch::open(store_, batch));
  if (batch.status == "validating") {
    GALLEY_CHECK_OK(store_.change_batch(batch.tenant, batch.id, [&](StoredBatch& changed) {
      if (changed.status == "validating") {
        set_status(changed, "in_progress", now);
      }
      set_counts(changed, open.total(), 0, 0);
    }));
    log_.info("batch begun", {{"batch", batch.id}, {"lines", open.total()}});
  }
  if (!open.left().empty()) {
    GALLEY_CHECK_OK(answer(batch, open));
    if (open.left().size() > kBatchTurnLines) {
      return {};  // the others have their turn
    }
  }
  // A cancel that came behind the last line finds everything answered.
  GALLEY_CHECK_OK(store_.change_batch(batch.tenant, batch.id, [&](StoredBatch& changed) {
    set_status(changed, "finalizing", context_.clock.unix_seconds());
  }));
  return finish(batch, "completed");
}

Result<void> BatchWorker::answer(const StoredBatch& batch, OpenBatch& open) {
  const std::size_t room = store_.bytes_left();
  std::uint64_t bytes = open.before().bytes;
  const auto tell = [&](const BatchFigures& figures) {
    return store_.change_batch(batch.tenant, batch.id, [&](StoredBatch& changed) {
      const std::size_t failed = open.before().failed + figures.failed;
      set_counts(changed, open.total(), open.before().size() + figures.answered - failed, failed);
    });
  };
  const auto write = [&](std::string_view line) -> Result<void> {
    bytes += line.size();
    if (bytes > room) {
      return fail(Code::kTooLarge, fmt::format("The answers have no room: {} bytes are left for "
                                               "them. Delete files that are not needed.",
                                               room));
    }
    lines_.add();
    return open.output().append(line);
  };
  TimeNs told = context_.clock.now();
  const auto progress = [&](const BatchFigures& figures) {
    if (context_.clock.now() - told >= kCountsInterval) {
      told = context_.clock.now();
      // One that is not seen is told again.
      [[maybe_unused]] const auto seen = tell(figures);
    }
  };
  const auto stops = [&] { return stopping_ || (looks_.exchange(false) && is_cancelled(batch)); };
  GALLEY_TRY(const BatchFigures figures,
             answer_batch(open.left().first(std::min(open.left().size(), kBatchTurnLines)),
                          context_, options_.window, {.write = write, .progress = progress},
                          {.tenant = batch.tenant,
                           .protocol = batch_protocol(member_text(batch, "endpoint")),
                           .may_start = options_.may_start,
                           .stops = stops}));
  GALLEY_CHECK_OK(tell(figures));
  return {};
}

// Makes the files of what is answered. The answers stay where they are until the status says that
// all is done: whatever breaks in, this can be done again.
Result<void> BatchWorker::finish(const StoredBatch& batch,
                                 std::string_view status,
                                 const Error* why) {
  namespace fs = std::filesystem;
  struct Part {
    std::string path;
    std::string id;
    std::ofstream file;
    std::size_t lines = 0;
  };
  const std::string answers = store_.answers_path(batch.id);
  Part good{answers + ".good", fmt::format("file-{}-output", batch.id), {}, 0};
  Part bad{answers + ".bad", fmt::format("file-{}-error", batch.id), {}, 0};
  std::string line;
  std::ifstream input(answers);
  for (Part* const part : {&good, &bad}) {
    part->file.open(part->path, std::ios::trunc | std::ios::binary);
  }
  while (std::getline(input, line) && !input.eof()) {  // a last line without its end is torn
    const auto mark = parse_batch_answer(line);
    Part& part = mark && !mark->failed ? good : bad;
    part.file << line << '\n';
    ++part.lines;
  }
  for (Part* const part : {&good, &bad}) {
    part->file.close();
    if (!part->file) {
      return fail(Code::kUnavailable, fmt::format("'{}' cannot be written", part->path));
    }
    if (part->lines > 0) {
      GALLEY_CHECK_OK(store_.take_file({.id = part->id,
                                        .tenant = batch.tenant,
                                        .filename = fmt::format("{}.jsonl", part->id),
                                        .purpose = std::string(kBatchOutputPurpose),
                                        .created_s = context_.clock.unix_seconds()},
                                       part->path));
    }
  }
  GALLEY_CHECK_OK(store_.change_batch(batch.tenant, batch.id, [&](StoredBatch& changed) {
    if (why != nullptr) {
      set_error(changed, *why);
    }
    set_status(changed, status, context_.clock.unix_seconds());
    set_counts(changed, std::max(total_of(changed), good.lines + bad.lines), good.lines, bad.lines);
    recipe::JsonObject& object = *changed.object.object();
    recipe::set_member(object, "output_file_id",
                       good.lines > 0 ? recipe::Json(good.id) : recipe::Json{});
    recipe::set_member(object, "error_file_id",
                       bad.lines > 0 ? recipe::Json(bad.id) : recipe::Json{});
  }));
  std::error_code error;
  for (const std::string& path : {answers, good.path, bad.path}) {
    fs::remove(path, error);
  }
  log_.info(
      "batch ended",
      {{"batch", batch.id}, {"status", status}, {"succeeded", good.lines}, {"failed", bad.lines}});
  return {};
}

// With what there is: answers that were made are not thrown away for what came later.
Result<void> BatchWorker::give_up(const StoredBatch& batch, const Error& error) {
  log_.warn("batch failed", {{"batch", batch.id}, {"reason", error.what}});
  return finish(batch, "failed", &error);
}

}  // namespace galley::gateway
