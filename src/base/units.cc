#include "base/units.h"

#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

namespace galley {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

// Largest first, as formatting takes the first that divides.
constexpr std::array kDurationUnits{Unit{"d", 86'400'000'000'000},
                                    Unit{"h", 3'600'000'000'000},
                                    Unit{"m", 60'000'000'000},
                                    Unit{"s", 1'000'000'000},
                                    Unit{"ms", 1'000'000},
                                    Unit{"us", 1'000},
                                    Unit{"ns", 1}};
constexpr std::array kByteUnits{Unit{"TiB", std::int64_t{1} << 40},
                                Unit{"GiB", std::int64_t{1} << 30},
                                Unit{"MiB", std::int64_t{1} << 20},
                                Unit{"KiB", std::int64_t{1} << 10},
                                Unit{"TB", 1'000'000'000'000},
                                Unit{"GB", 1'000'000'000},
                                Unit{"MB", 1'000'000},
                                Unit{"kB", 1'000},
                                Unit{"B", 1}};

// Digits, then exactly the name of a unit; nothing when malformed or above 2^63 - 1.
std::optional<std::int64_t> parse_quantity(std::string_view text, std::span<const Unit> units) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0 || text.front() == '-') {
    return std::nullopt;
  }
  const std::string_view name(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units) {
    if (unit.name == name) {
      if (number > std::numeric_limits<std::int64_t>::max() / unit.factor) {
        return std::nullopt;
      }
      return number * unit.factor;
    }
  }
  return std::nullopt;
}

std::string format_quantity(std::int64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value % unit.factor == 0 && (value != 0 || unit.factor == 1)) {
      return std::to_string(value / unit.factor).append(unit.name);
    }
  }
  return std::to_string(value);
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  if (const auto ns = parse_quantity(text, kDurationUnits)) {
    return Duration(*ns);
  }
  return fail(Code::kInvalidArgument, "expected a duration such as 30s");
}

Result<Bytes> parse_bytes(std::string_view text) {
  std::string with_unit(text);
  if (!text.empty() && text.back() >= '0' && text.back() <= '9') {
    with_unit += 'B';
  }
  if (const auto bytes = parse_quantity(with_unit, kByteUnits)) {
    return Bytes(static_cast<std::uint64_t>(*bytes));
  }
  return fail(Code::kInvalidArgument, "expected a size such as 64MiB");
}

std::string to_string(Duration duration) {
  return format_quantity(duration.count(), kDurationUnits);
}

std::string to_string(Bytes bytes) {
  return format_quantity(static_cast<std::int64_t>(bytes.value()), kByteUnits);
}

}  // namespace galley
