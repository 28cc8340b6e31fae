#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

// What a flag that takes a number accepts. CLI11's own Range lets NaN pass.
namespace galley::apps {

// min <= number <= max
[[nodiscard]] CLI::Validator number_in(double min, double max);
// min < number <= max
[[nodiscard]] CLI::Validator number_above(double min, double max);
[[nodiscard]] CLI::Validator integer_in(std::int64_t min, std::int64_t max);

}  // namespace galley::apps
