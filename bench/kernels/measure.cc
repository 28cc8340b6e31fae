#include "bench/kernels/measure.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace galley::bench {
namespace {

constexpr std::chrono::milliseconds kTimed{100};
constexpr int kAttempts = 4;
constexpr double kQuiet = 0.1;

}  // namespace

double call_rate(const Clock& clock, const std::function<void()>& step) {
  const TimeNs start = clock.now();
  for (std::size_t calls = 1;; ++calls) {
    step();
    const Duration took = clock.now() - start;
    if (took >= kTimed) {
      return static_cast<double>(calls) / std::chrono::duration<double>(took).count();
    }
  }
}

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Rounds::take() {
  for (int attempt = 1;; ++attempt) {
    const Ceiling before = steps_.ceiling();
    const double rate = call_rate(clock_, steps_.step);
    const Ceiling after = steps_.ceiling();
    const auto [low, high] = std::minmax(before.steps_per_second, after.steps_per_second);
    GALLEY_ASSERT(low > 0);
    if (high - low > kQuiet * high && attempt < kAttempts) {
      continue;
    }
    const double ceiling = (low + high) / 2;
    rates_.push_back(rate);
    ceilings_.push_back(ceiling);
    shares_.push_back(rate / ceiling);
    if (steps_.bare) {
      bares_.push_back(call_rate(clock_, steps_.bare));
    }
    if (steps_.peer) {
      peers_.push_back(call_rate(clock_, steps_.peer));
    }
    why_ = after.why;
    return 1 / rate;
  }
}

Measured Rounds::medians() const {
  GALLEY_ASSERT(!rates_.empty());
  const auto [low, high] = std::ranges::minmax(ceilings_);
  return {.rate = median(rates_),
          .ceiling = median(ceilings_),
          .why = why_,
          .share = median(shares_),
          .bare = median(bares_),
          .peer = median(peers_),
          .spread = high / low - 1};
}

}  // namespace galley::bench
