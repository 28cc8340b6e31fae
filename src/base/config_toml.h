#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

// TOML as a flat list of keys, for base/config.cc only. Keeps the TOML library in one file.
namespace galley {

// std::monostate: a TOML type no option has (a float, a date, an array of numbers).
using TomlValue = std::variant<std::monostate,
                               std::string,
                               std::int64_t,
                               bool,
                               std::vector<std::string>,
                               std::map<std::string, std::string>>;

struct TomlEntry {
  std::string key;  // full, with dots
  TomlValue value;
  std::string text;  // what stands there, for an error: the string, or the name of its type
  std::uint32_t line = 0;
};

enum class TomlKey : std::uint8_t {
  kUnknown,
  kGroup,  // the first words of other keys
  kValue,
  kMap,
};

// Entries in the order of their keys; `kind` says what a key is. Tables are entered unless they are
// a kMap or stand where a kValue should. Errors have `path` and the line in `where`.
[[nodiscard]] Result<std::vector<TomlEntry>> read_toml(
    const std::string& text,
    std::string_view path,
    const std::function<TomlKey(std::string_view key)>& kind);

}  // namespace galley
