#include "tests/load/paced_source.h"

#include <cstdlib>
#include <utility>

namespace galley::load {

class PacedSource::Run {
 public:
  Run(const recipe::Generation& generation, recipe::TokenSink& sink)
      : place(std::strtoull(generation.request_id.c_str(), nullptr, 10) % Board::kRequests),
        prompt_tokens(std::ssize(generation.prompt)),
        tokens(generation.max_tokens),
        sink_(&sink) {}

  // Calls `call` with the sink unless the run is over; over for good where it returns true.
  template <class Call>
  bool with_sink(Call call) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (sink_ != nullptr && call(*sink_)) {
      sink_ = nullptr;
    }
    return sink_ != nullptr;
  }
  // True for who ended it.
  bool end() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    sink_ = nullptr;
    return !std::exchange(ended_, true);
  }

  const std::size_t place;
  const std::int64_t prompt_tokens;
  const std::int64_t tokens;
  std::int64_t made = 0;  // of the loop
  bool has_slot = false;  // of the source's mutex

 private:
  Mutex mutex_;
  recipe::TokenSink* sink_ GALLEY_GUARDED_BY(mutex_);
  bool ended_ GALLEY_GUARDED_BY(mutex_) = false;
};

class PacedSource::Handle final : public recipe::ActiveGeneration {
 public:
  Handle(PacedSource& source, std::shared_ptr<Run> run) : source_(source), run_(std::move(run)) {}
  ~Handle() override {
    if (run_->end()) {
      bool had_slot = false;
      {
        const MutexLock lock(source_.mutex_);
        had_slot = run_->has_slot;
        std::erase(source_.waiting_, run_);
      }
      if (had_slot) {
        source_.leave();
      }
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

 private:
  PacedSource& source_;
  std::shared_ptr<Run> run_;  // owners: this, the waiting list, its task on the loop
};

Result<std::unique_ptr<recipe::ActiveGeneration>> PacedSource::start(recipe::Generation generation,
                                                                     recipe::TokenSink& sink) {
  auto run = std::make_shared<Run>(generation, sink);
  bool begins = false;
  {
    const MutexLock lock(mutex_);
    begins = running_ < board_.slots;
    if (begins) {
      ++running_;
      board_.under_way = running_;
      run->has_slot = true;
    } else if (waiting_.size() < board_.waiting_max) {
      waiting_.push_back(run);
    } else {
      return fail(Code::kOverloaded, "as many requests wait as may");
    }
  }
  if (begins) {
    begin(run);
  }
  return std::make_unique<Handle>(*this, std::move(run));
}

void PacedSource::begin(std::shared_ptr<Run> run) {
  loop_.post([this, run = std::move(run)] {
    run->with_sink([&](recipe::TokenSink& sink) {
      sink.on_start({.prompt_tokens = run->prompt_tokens});
      return false;
    });
    tick(run);
  });
}

void PacedSource::tick(const std::shared_ptr<Run>& run) {
  const bool goes_on = run->with_sink([&](recipe::TokenSink& sink) {
    const auto number = static_cast<std::size_t>(run->made++);
    if (number < Board::kTokens) {
      board_.made_ns[run->place][number] = loop_.now().time_since_epoch().count();
    }
    sink.on_tokens({&token_, 1}, {});
    if (run->made < run->tokens) {
      return false;
    }
    sink.on_finish(recipe::SourceFinish::kLength);
    return true;
  });
  if (goes_on && !board_.holds) {
    loop_.after(Duration(board_.pace_ns), [this, run] { tick(run); });
  } else if (!goes_on && run->end()) {
    leave();
  }
}

void PacedSource::leave() {
  std::shared_ptr<Run> next;
  {
    const MutexLock lock(mutex_);
    if (waiting_.empty()) {
      --running_;
      board_.under_way = running_;
    } else {
      next = std::move(waiting_.front());
      waiting_.pop_front();
      next->has_slot = true;
    }
  }
  if (next) {
    begin(std::move(next));
  }
}

}  // namespace galley::load
