#pragma once

#include "base/clock.h"

namespace galley {

// The machine's clocks. Stateless: any thread may call it, all instances agree.
class RealClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now() const override;
  [[nodiscard]] UnixTime unix_time() const override;
};

}  // namespace galley
