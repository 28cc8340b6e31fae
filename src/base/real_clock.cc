// The only file that reads the machine's clocks (tools/tidy.py checks it).
#include "base/real_clock.h"

namespace galley {

TimeNs RealClock::now() const {
  return TimeNs(std::chrono::steady_clock::now().time_since_epoch());
}

UnixTime RealClock::unix_time() const {
  return std::chrono::system_clock::now();
}

}  // namespace galley
