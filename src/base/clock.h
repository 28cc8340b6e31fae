#pragma once

#include "base/units.h"

namespace galley {

// What time it is. Everything that asks takes a Clock, so that tests and simulations decide the
// answer. RealClock (base/real_clock.h) and every Loop are clocks.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic: for deadlines, latencies and timers.
  [[nodiscard]] virtual TimeNs now() const = 0;
  // The date: for logs and protocol fields such as `created`. Never for measuring.
  [[nodiscard]] virtual UnixTime unix_time() const = 0;

  [[nodiscard]] std::int64_t unix_seconds() const {
    return std::chrono::floor<std::chrono::seconds>(unix_time()).time_since_epoch().count();
  }
};

}  // namespace galley
