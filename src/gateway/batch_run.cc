#include "gateway/batch_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <fmt/core.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/quote.h"
#include "gateway/exchange.h"
#include "recipe/reply.h"

namespace galley::gateway {
namespace {

// How often progress is told at least.
constexpr Duration kProgressInterval = std::chrono::milliseconds(200);
constexpr std::size_t kShownBytesMax = 512;  // of an error object, in the error that ends a run

// What any thread wants done on the run's.
class Tasks {
 public:
  void post(std::move_only_function<void()> task) GALLEY_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  // Runs what waits; waits for something first, at most for `limit`.
  void run(Duration limit) GALLEY_EXCLUDES(mutex_) {
    std::deque<std::move_only_function<void()>> tasks;
    {
      const MutexLock lock(mutex_);
      if (tasks_.empty()) {
        changed_.wait_for(mutex_, limit);
      }
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) {
      task();
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  // Bounded: a reply has at most one task here.
  std::deque<std::move_only_function<void()>> tasks_ GALLEY_GUARDED_BY(mutex_);
};

// A line of a batch as the replies see it: a client that takes everything and wants it whole.
class BatchExchange final : public Exchange {
 public:
  BatchExchange(Tasks& tasks, recipe::Protocol protocol, recipe::Compat compat)
      : tasks_(tasks), protocol_(protocol), compat_(compat) {}

  HttpRequest& request() override { return request_; }
  void respond(HttpResponse response) override { response_ = std::move(response); }
  // Only a whole reply is ever asked for: it writes nothing before it ends.
  void start_stream(HttpResponse) override { GALLEY_ASSERT(false); }
  void write(std::string_view bytes) override { GALLEY_ASSERT(bytes.empty()); }
  [[nodiscard]] std::size_t unsent_bytes() const override { return 0; }
  void end_stream() override { GALLEY_ASSERT(false); }
  void abort() override {
    respond(error_response(
        protocol_, compat_,
        {.code = Code::kInternal, .what = "The answer came faster than it could be encoded."}));
  }
  [[nodiscard]] bool gone() const override { return gone_; }
  void listen(std::shared_ptr<ExchangeListener> listener) override {
    listener_ = std::move(listener);
  }
  void post(std::move_only_function<void()> task) override { tasks_.post(std::move(task)); }
  bool offload(std::move_only_function<void()>) override { return false; }

  // There once the answer is.
  [[nodiscard]] std::optional<HttpResponse>& response() { return response_; }
  // Ends what is under way, and the ring between an exchange and the listener that owns it.
  void close() {
    gone_ = true;
    if (const auto listener = std::exchange(listener_, nullptr)) {
      listener->on_gone();
    }
  }

 private:
  Tasks& tasks_;
  const recipe::Protocol protocol_;
  const recipe::Compat compat_;
  HttpRequest request_;
  std::optional<HttpResponse> response_;
  std::shared_ptr<ExchangeListener> listener_;  // owners: this exchange, tasks it posted
  std::atomic<bool> gone_ = false;
};

class Run {
 public:
  Run(const ReplyContext& context, const BatchCalls& calls, const BatchTerms& terms)
      : context_(context), calls_(calls), terms_(terms) {}
  ~Run() {
    for (const Open& open : open_) {
      open.exchange->close();
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Generations: as many of a line as it asks for choices.
  [[nodiscard]] std::size_t under_way() const { return under_way_; }
  [[nodiscard]] const BatchFigures& figures() const { return figures_; }

  // One that is read, and has not begun.
  struct Line {
    const BatchEntry* entry = nullptr;
    recipe::Protocol protocol{};
    Result<Prepared> prepared;

    [[nodiscard]] std::size_t generations() const {
      return prepared ? static_cast<std::size_t>(prepared->request.sampling.n) : 1;
    }
  };
  [[nodiscard]] Line read(const BatchEntry& entry) const {
    BatchRequest request = parse_batch_line(entry.text);
    if (request.body && terms_.protocol.value_or(request.protocol) != request.protocol) {
      request.body = fail(Code::kInvalidArgument, "is not the endpoint of the batch", "url");
    }
    auto prepared = request.body
                        ? context_.codec.prepare(request.protocol, *request.body)
                        : Result<Prepared>(std::unexpected(std::move(request.body).error()));
    if (prepared) {
      if (auto fits = fit(*prepared, context_.source); !fits) {
        prepared = std::unexpected(std::move(fits).error());
      }
    }
    return {.entry = &entry, .protocol = request.protocol, .prepared = std::move(prepared)};
  }

  void start(Line line) {
    const recipe::Compat compat = context_.codec.options().compat;
    const auto exchange = std::make_shared<BatchExchange>(tasks_, line.protocol, compat);
    open_.push_back({line.entry, line.protocol, line.generations(), exchange});
    under_way_ += line.generations();
    if (!line.prepared) {
      exchange->respond(error_response(line.protocol, compat, line.prepared.error()));
      return;
    }
    line.prepared->generation.tenant = terms_.tenant;
    line.prepared->generation.keeps_blocks = false;
    GenerationReply::begin(exchange, std::move(*line.prepared), context_);
  }

  // Waits for something to happen and writes the answers that are there.
  Result<void> work() {
    const bool waits = std::ranges::none_of(
        open_, [](const Open& open) { return open.exchange->response().has_value(); });
    tasks_.run(waits ? kProgressInterval : Duration(0));
    for (std::size_t i = 0; i < open_.size();) {
      if (!open_[i].exchange->response()) {
        ++i;
        continue;
      }
      std::swap(open_[i], open_.back());
      const Open ended = std::move(open_.back());
      open_.pop_back();
      under_way_ -= ended.generations;
      GALLEY_CHECK_OK(finish(ended));
    }
    calls_.progress(figures_);
    return {};
  }

 private:
  struct Open {
    const BatchEntry* entry = nullptr;
    recipe::Protocol protocol{};
    std::size_t generations{};
    std::shared_ptr<BatchExchange> exchange;  // owners: this, the reply until it ends
  };

  Result<void> finish(const Open& open) {
    HttpResponse response = std::move(*open.exchange->response());
    open.exchange->close();
    if (response.status >= 500 && !context_.source.ready()) {
      return fail(Code::kUnavailable, fmt::format("what answers has failed: {}",
                                                  quoted(response.body, kShownBytesMax)));
    }
    std::string line = line_of(*open.entry, response);
    // A line that could not be read again is not written: what it asked for shows in it, and may be
    // nested too deeply or be too long.
    const std::string_view text = std::string_view(line).substr(0, line.size() - 1);
    if (const auto mark = parse_batch_answer(text); !mark) {
      response = error_response(
          open.protocol, context_.codec.options().compat,
          {.code = Code::kTooLarge, .what = "The answer is too long or nested too deeply."});
      line = line_of(*open.entry, response);
    }
    GALLEY_CHECK_OK(calls_.write(line));
    ++figures_.answered;
    ++(response.status == 200 ? figures_.succeeded : figures_.failed);
    return {};
  }

  std::string line_of(const BatchEntry& entry, const HttpResponse& response) {
    BatchAnswer answer{.id = context_.ids.next_id(),
                       .custom_id = entry.custom_id,
                       .number = entry.number,
                       .status = response.status,
                       .request_id = "req_" + context_.ids.next_id(),
                       .body = response.body,
                       .note = {}};
    for (const HttpHeader& header : response.headers) {
      if (header.name == kNoteHeader) {
        answer.note = header.value;
      }
    }
    return batch_answer_line(answer);
  }

  const ReplyContext context_;
  const BatchCalls& calls_;
  const BatchTerms& terms_;
  BatchFigures figures_;
  Tasks tasks_;  // outlives the exchanges
  std::vector<Open> open_;
  std::size_t under_way_ = 0;
};

}  // namespace

Result<BatchFigures> answer_batch(std::span<const BatchEntry> entries,
                                  const ReplyContext& context,
                                  std::size_t window,
                                  const BatchCalls& calls,
                                  const BatchTerms& terms) {
  GALLEY_ASSERT(window > 0);
  Run run(context, calls, terms);
  std::optional<Run::Line> next;
  while (next || !entries.empty() || run.under_way() > 0) {
    if (terms.stops && terms.stops()) {
      return fail(Code::kCancelled, "the batch is to stop");
    }
    while ((next || !entries.empty()) && run.under_way() < window &&
           (!terms.may_start || terms.may_start(run.under_way()))) {
      if (!next) {
        next = run.read(entries.front());
        entries = entries.subspan(1);
      }
      // One that asks for more than the window begins alone.
      if (run.under_way() > 0 && run.under_way() + next->generations() > window) {
        break;
      }
      run.start(*std::exchange(next, std::nullopt));
    }
    GALLEY_CHECK_OK(run.work());
  }
  return run.figures();
}

}  // namespace galley::gateway
