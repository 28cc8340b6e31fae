#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace galley {

// The text between double quotes with the escapes of JSON, safe on a terminal and in a log whatever
// it holds: controls are escaped, invalid UTF-8 becomes U+FFFD. At most `bytes_max` bytes of it are
// read; "…" marks a cut.
[[nodiscard]] std::string quoted(std::string_view text, std::size_t bytes_max);

// The text as it is, for a terminal that must not obey it: controls other than line ends and tabs
// (U+0080 to U+009F too) and invalid UTF-8 become U+FFFD.
[[nodiscard]] std::string harmless(std::string_view text);

}  // namespace galley
