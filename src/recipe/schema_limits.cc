#include "recipe/schema_limits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace galley::recipe {
namespace {

constexpr int kDecimals = 6;  // of a multipleOf
constexpr std::int64_t kUnit = 1'000'000;

const Json* find(const JsonObject& object, std::string_view key) {
  const auto found = std::ranges::find(object, key, &JsonMember::key);
  return found == object.end() ? nullptr : &found->value;
}

std::optional<double> number(const JsonObject& object, std::string_view key) {
  const Json* const value = find(object, key);
  return value != nullptr ? value->number() : std::nullopt;
}

std::size_t members(const Json* value) {
  return value != nullptr && value->object() != nullptr ? value->object()->size() : 0;
}

bool too_large(const Json& value) {
  const std::optional<double> number = value.number();
  return number && std::abs(*number) >= kSchemaNumberMax;
}

bool has_too_large(const Json& value) {
  if (const JsonArray* const list = value.array()) {
    return std::ranges::any_of(*list, has_too_large);
  }
  if (const JsonObject* const object = value.object()) {
    return std::ranges::any_of(*object,
                               [](const JsonMember& one) { return has_too_large(one.value); });
  }
  return too_large(value);
}

}  // namespace

std::optional<SchemaLimits::Refusal> SchemaLimits::check(const JsonObject& schema, bool in_all_of) {
  if (auto refused = check_numbers(schema)) {
    return refused;
  }
  if (auto refused = check_counts(schema, in_all_of)) {
    return refused;
  }
  return check_combinations(schema);
}

std::optional<SchemaLimits::Refusal> SchemaLimits::check_numbers(const JsonObject& schema) {
  for (const std::string_view key :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (const Json* const bound = find(schema, key); bound != nullptr && too_large(*bound)) {
      return Refusal{key, "bounds of 2^53 and more cannot be enforced"};
    }
  }
  for (const std::string_view key : {"const", "enum"}) {
    if (const Json* const value = find(schema, key); value != nullptr && has_too_large(*value)) {
      return Refusal{key, "numbers of 2^53 and more cannot be enforced"};
    }
  }
  if (const auto divisor = number(schema, "multipleOf"); divisor && !add_multiple(*divisor)) {
    return Refusal{"multipleOf",
                   "with all others of the schema it has a common multiple of more than " +
                       std::to_string(kSchemaMultipleMax) + ", or more than " +
                       std::to_string(kDecimals) + " decimals, and cannot be enforced"};
  }
  return std::nullopt;
}

// False when it is too much.
bool SchemaLimits::add_multiple(double divisor) {
  const double units = std::round(divisor * static_cast<double>(kUnit));
  constexpr double kUnitsMax = static_cast<double>(kSchemaMultipleMax) * static_cast<double>(kUnit);
  if (!(units >= 1.0 && units <= kUnitsMax) ||
      std::abs(units - divisor * static_cast<double>(kUnit)) > units * 1e-9) {
    return false;
  }
  const auto one = static_cast<std::int64_t>(units);
  const std::int64_t rest = one / std::gcd(one, multiple_);  // of 0 and one: one
  const std::int64_t before = std::max<std::int64_t>(1, multiple_ == 0 ? one : multiple_);
  if (rest > static_cast<std::int64_t>(kUnitsMax) / before) {
    return false;
  }
  multiple_ = before * rest;
  std::int64_t digits = multiple_;
  for (int i = 0; i < kDecimals && digits % 10 == 0; ++i) {
    digits /= 10;
  }
  return digits <= kSchemaMultipleMax;
}

std::optional<SchemaLimits::Refusal> SchemaLimits::check_counts(const JsonObject& schema,
                                                                bool in_all_of) {
  for (const std::string_view key : {"anyOf", "oneOf", "enum"}) {
    const Json* const value = find(schema, key);
    const JsonArray* const list = value != nullptr ? value->array() : nullptr;
    if (list == nullptr) {
      continue;
    }
    const auto wide = [](const Json& one) {
      return one.array() != nullptr || one.object() != nullptr;
    };
    const std::size_t most = key == "enum" ? kSchemaValuesMax : kSchemaAlternativesMax;
    const auto count =
        key == "enum" ? static_cast<std::size_t>(std::ranges::count_if(*list, wide)) : list->size();
    if (count > most) {
      return Refusal{key, "has more than " + std::to_string(most) +
                              (key == "enum" ? " objects and arrays" : " alternatives")};
    }
  }
  pattern_keys_ += members(find(schema, "patternProperties"));
  if (pattern_keys_ > kSchemaPatternKeysMax) {
    return Refusal{
        "patternProperties",
        "the schema has more than " + std::to_string(kSchemaPatternKeysMax) + " patterns of names"};
  }
  for (const std::string_view key : {"pattern", "$ref"}) {
    patterns_together_ += in_all_of && find(schema, key) != nullptr ? 1 : 0;
    if (patterns_together_ > kSchemaPatternsTogetherMax) {
      return Refusal{key, "the schema has more than " + std::to_string(kSchemaPatternsTogetherMax) +
                              " patterns and references inside `allOf`"};
    }
  }
  return std::nullopt;
}

std::optional<SchemaLimits::Refusal> SchemaLimits::check_combinations(const JsonObject& schema) {
  if (find(schema, "prefixItems") != nullptr && find(schema, "additionalItems") != nullptr) {
    return Refusal{"additionalItems", "beside `prefixItems` it means nothing, and is not enforced"};
  }
  // A bound of 0 that is not to be reached: the library's answer is 0 all the same when it looks
  // for numbers that begin with 0.
  for (const std::string_view key : {"exclusiveMinimum", "exclusiveMaximum"}) {
    const auto bound = number(schema, key);
    if (bound != 0.0) {
      continue;
    }
    for (const std::string_view other :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      const auto end = number(schema, other);
      if (other != key && end && std::abs(*end) < 1.0) {
        return Refusal{key, "an exclusive bound of 0 beside `" + std::string(other) +
                                "` below 1 cannot be enforced"};
      }
    }
  }
  // Names that no property declares may come twice, and would count twice.
  if (const auto least = number(schema, "minProperties")) {
    const Json* const required = find(schema, "required");
    const std::size_t sure =
        required != nullptr && required->array() != nullptr ? required->array()->size() : 0;
    const Json* const others = find(schema, "additionalProperties");
    const bool closed = others != nullptr && others->boolean() != nullptr && !*others->boolean() &&
                        members(find(schema, "patternProperties")) == 0;
    if (!closed && *least > std::max(1.0, static_cast<double>(sure))) {
      return Refusal{"minProperties",
                     "above 1 and the number of `required` it is enforced for declared properties "
                     "only (`additionalProperties: false`)"};
    }
  }
  return std::nullopt;
}

}  // namespace galley::recipe
