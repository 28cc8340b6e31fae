#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"

// Time and size as types that cannot be mixed up, and their textual form in configuration.
namespace galley {

// Tag of Galley's monotonic time axis. Only a Clock (base/clock.h) knows what time it is.
struct MonotonicTime {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicTime>;
  static constexpr bool is_steady = true;
};

using Duration = std::chrono::nanoseconds;
// Nanoseconds since an arbitrary start; never goes back, does not jump when the date is set.
using TimeNs = MonotonicTime::time_point;
// Nanoseconds since 1970-01-01 00:00 UTC; may jump. Only for dates people or protocols read.
using UnixTime = std::chrono::sys_time<std::chrono::nanoseconds>;

using Bytes = Id<struct BytesTag>;

// "250ms", "30s", "15m": a whole number and one unit of ns, us, ms, s, m, h, d. At most 292 years.
[[nodiscard]] Result<Duration> parse_duration(std::string_view text);
// "4096", "64KiB", "2GB": a whole number and B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB,
// TB (powers of 1000); without a unit, bytes. At most 2^63 - 1.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);

// The largest unit that divides the value, so that parsing the text gives the same value back.
[[nodiscard]] std::string to_string(Duration duration);
[[nodiscard]] std::string to_string(Bytes bytes);

}  // namespace galley
