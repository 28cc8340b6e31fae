#pragma once

#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace galley::recipe {

// A clock that stands where a test puts it.
class FixedClock final : public Clock {
 public:
  explicit FixedClock(std::int64_t unix_s) : time_(std::chrono::seconds(unix_s)) {}
  void set(std::int64_t unix_s) { time_ = UnixTime(std::chrono::seconds(unix_s)); }
  [[nodiscard]] TimeNs now() const override { return {}; }
  [[nodiscard]] UnixTime unix_time() const override { return time_; }

 private:
  UnixTime time_;
};

}  // namespace galley::recipe
