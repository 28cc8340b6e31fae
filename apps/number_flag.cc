#include "apps/number_flag.h"

#include <charconv>
#include <fmt/core.h>
#include <string>
#include <string_view>

#include "base/quote.h"

namespace galley::apps {
namespace {

constexpr std::size_t kShownBytesMax = 40;

// `fits` is false for NaN.
template <class T>
CLI::Validator accepts(bool (*fits)(T value, T min, T max),
                       T min,
                       T max,
                       const std::string& expected) {
  return {[=](const std::string& text) {
            T value{};
            const char* const end = text.data() + text.size();
            const auto read = std::from_chars(text.data(), end, value);
            const bool good = read.ec == std::errc{} && read.ptr == end && fits(value, min, max);
            return good ? std::string()
                        : fmt::format("{} is not {}", quoted(text, kShownBytesMax), expected);
          },
          {}};
}

template <class T>
bool is_within(T value, T min, T max) {
  return value >= min && value <= max;
}

}  // namespace

CLI::Validator number_in(double min, double max) {
  return accepts(is_within, min, max, fmt::format("a number from {} to {}", min, max));
}

CLI::Validator number_above(double min, double max) {
  const auto fits = [](double value, double low, double high) {
    return value > low && value <= high;
  };
  return accepts<double>(fits, min, max, fmt::format("a number above {}, up to {}", min, max));
}

CLI::Validator integer_in(std::int64_t min, std::int64_t max) {
  return accepts(is_within, min, max, fmt::format("an integer from {} to {}", min, max));
}

}  // namespace galley::apps
