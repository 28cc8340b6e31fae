#pragma once

#include "base/check.h"
#include "base/real_loop.h"
#include "base/task_pool.h"

namespace galley {

// A loop on the machine's clock and the thread that runs it until destruction.
class LoopThread {
 public:
  LoopThread() {
    const bool posted = thread_.try_post([this] { loop_.run(); });
    GALLEY_ASSERT(posted);
  }
  ~LoopThread() { loop_.stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  [[nodiscard]] Loop& loop() { return loop_; }

 private:
  RealLoop loop_;
  TaskPool thread_{1, 1};  // last: joined before the loop is destroyed
};

}  // namespace galley
