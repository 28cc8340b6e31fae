#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "recipe/json.h"

// What of the keywords that a grammar enforces it enforces wrongly, or only at a price that a
// server cannot let a client ask for. Found by trying; each has a test.
namespace galley::recipe {

// Each is an item, or some, of every mask: of one anyOf or oneOf, and of the objects and arrays of
// one enum.
inline constexpr std::size_t kSchemaAlternativesMax = 60;
inline constexpr std::size_t kSchemaValuesMax = 240;
// Of a whole schema: the price of patternProperties is quadratic; patterns and references inside
// allOf are intersected; the least common multiple of all multipleOf, without its decimal point, is
// a number of states.
inline constexpr std::size_t kSchemaPatternKeysMax = 64;
inline constexpr std::size_t kSchemaPatternsTogetherMax = 4;
inline constexpr std::int64_t kSchemaMultipleMax = 20'000;
// Integers are exact up to here.
inline constexpr double kSchemaNumberMax = 9007199254740992.0;

// Adds up over the objects of one schema.
class SchemaLimits {
 public:
  struct Refusal {
    std::string_view keyword;
    std::string what;
  };
  // Of one schema object, `in_all_of` if it is a part of an allOf.
  [[nodiscard]] std::optional<Refusal> check(const JsonObject& schema, bool in_all_of);

 private:
  [[nodiscard]] std::optional<Refusal> check_numbers(const JsonObject& schema);
  [[nodiscard]] std::optional<Refusal> check_counts(const JsonObject& schema, bool in_all_of);
  [[nodiscard]] static std::optional<Refusal> check_combinations(const JsonObject& schema);
  [[nodiscard]] bool add_multiple(double divisor);

  std::size_t pattern_keys_ = 0;
  std::size_t patterns_together_ = 0;
  std::int64_t multiple_ = 0;  // of all so far, in units of 10^-kDecimals
};

}  // namespace galley::recipe
