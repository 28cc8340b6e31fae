// The only file that reads the machine's clocks (tools/tidy.py checks it).
#include "base/real_clock.h"

#include <ctime>

#include "base/check.h"

namespace galley {

TimeNs RealClock::now() const {
  return TimeNs(std::chrono::steady_clock::now().time_since_epoch());
}

UnixTime RealClock::unix_time() const {
  return std::chrono::system_clock::now();
}

TimeNs ThreadClock::now() const {
  timespec time{};
  GALLEY_ASSERT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return TimeNs(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

UnixTime ThreadClock::unix_time() const {
  return RealClock().unix_time();
}

}  // namespace galley
