#pragma once

#include <algorithm>
#include <string>
#include <string_view>

// ASCII rules and a sentence that several parts of the request parsers use. Internal to them.
namespace galley::recipe {

[[nodiscard]] constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

[[nodiscard]] constexpr bool equals_ignoring_case(std::string_view a, std::string_view lower_case) {
  return std::ranges::equal(a, lower_case, {}, lower);
}

// What names of tools and users are made of.
[[nodiscard]] constexpr bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

[[nodiscard]] inline std::string empty_string_text(std::string_view place) {
  return std::string("Invalid '")
      .append(place)
      .append(
          "': empty string. Expected a string with minimum length 1, but got an empty string "
          "instead.");
}

}  // namespace galley::recipe
