#include "gateway/sources/delivery.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"

namespace galley::gateway {
namespace {

// Owned by the generation and by the task that continues it.
class Delivery : public std::enable_shared_from_this<Delivery> {
 public:
  Delivery(Loop& loop, KnownAnswer answer, recipe::TokenSink& sink)
      : loop_(loop), answer_(std::move(answer)), sink_(&sink) {}

  void post() {
    loop_.post([self = shared_from_this()] { self->deliver_some(); });
  }
  // Once it has returned, the sink is not called any more.
  void cancel() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    sink_ = nullptr;
  }

 private:
  void deliver_some() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (sink_ == nullptr) {
      return;
    }
    if (next_ == 0) {
      sink_->on_start(answer_.started);
    }
    const std::size_t end = std::min(next_ + kStepsPerTask, answer_.ids.size());
    for (; next_ < end; ++next_) {
      sink_->on_tokens({&answer_.ids[next_], 1}, {});
    }
    if (next_ < answer_.ids.size()) {
      post();
    } else if (const auto* reason = std::get_if<recipe::SourceFinish>(&answer_.end)) {
      sink_->on_finish(*reason);
    } else {
      sink_->on_error(std::get<Error>(answer_.end));
    }
  }

  Loop& loop_;
  const KnownAnswer answer_;
  Mutex mutex_;
  recipe::TokenSink* sink_ GALLEY_GUARDED_BY(mutex_);  // null: cancelled
  std::size_t next_ GALLEY_GUARDED_BY(mutex_) = 0;     // first id not yet delivered
};

class Active final : public recipe::ActiveGeneration {
 public:
  explicit Active(std::shared_ptr<Delivery> delivery) : delivery_(std::move(delivery)) {}
  ~Active() override { delivery_->cancel(); }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  std::shared_ptr<Delivery> delivery_;  // owners: this, the task that continues it
};

}  // namespace

KnownAnswer limited(KnownAnswer answer, const recipe::Generation& generation) {
  if (std::holds_alternative<Error>(answer.end)) {
    return answer;
  }
  const auto stop = std::ranges::find_first_of(answer.ids, generation.stop_ids);
  if (stop != answer.ids.end()) {
    answer.ids.erase(stop, answer.ids.end());
    answer.end = recipe::SourceFinish::kStop;
  }
  if (std::cmp_greater(answer.ids.size(), generation.max_tokens)) {
    answer.ids.resize(static_cast<std::size_t>(generation.max_tokens));
    answer.end = recipe::SourceFinish::kLength;
  }
  return answer;
}

std::unique_ptr<recipe::ActiveGeneration> deliver(Loop& loop,
                                                  KnownAnswer answer,
                                                  recipe::TokenSink& sink) {
  auto delivery = std::make_shared<Delivery>(loop, std::move(answer), sink);
  delivery->post();
  return std::make_unique<Active>(std::move(delivery));
}

}  // namespace galley::gateway
