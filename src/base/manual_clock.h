#pragma once

#include "base/clock.h"

namespace galley {

// A clock that a test or simulation moves, and whose date can be set like a machine's. One thread
// moves it.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(UnixTime date = {}) : date_(date) {}

  void advance(Duration by) {
    now_ += by;
    date_ += by;
  }
  // The date jumps, time does not.
  void set_date(UnixTime date) { date_ = date; }
  [[nodiscard]] TimeNs now() const override { return now_; }
  [[nodiscard]] UnixTime unix_time() const override { return date_; }

 private:
  TimeNs now_{};
  UnixTime date_;
};

}  // namespace galley
