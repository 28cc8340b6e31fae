#pragma once

#include "base/clock.h"

namespace galley {

// The machine's clocks. Stateless: any thread may call it, all instances agree.
class RealClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const override;
  [[nodiscard]] UnixTime unix_time() const override;
};

// Time for which the calling thread has computed, whatever else the machine does meanwhile: for
// what a piece of code costs. Values of different threads say nothing about each other.
class ThreadClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const override;
  [[nodiscard]] UnixTime unix_time() const override;
};

}  // namespace galley
