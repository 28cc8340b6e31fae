#include "base/config_toml.h"

#include <algorithm>
#include <fmt/core.h>

// Header-only, so that the parser is compiled here with our flags and sanitizers, and without
// exceptions.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
// Its assertions fire on bad files ("[%") where the next line reports the error; the fuzzer and the
// sanitizers look for what they might hide.
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

namespace galley {
namespace {

// The library limits the depth of nested values but not of dotted keys ("a.a.a.…"), and frees its
// tree by recursion. Each level costs one of these characters, so their number bounds the stack.
constexpr std::ptrdiff_t kNestingCharactersMax = 4096;

// Tables below this level are not entered: no option lies so deep, and each level copies its key.
constexpr int kLevelsMax = 8;

bool nests_too_deeply(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return c == '.' || c == '[' || c == '{'; }) >
         kNestingCharactersMax;
}

const char* type_text(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a float";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

TomlValue list_value(const toml::array& array) {
  std::vector<std::string> items;
  for (const toml::node& item : array) {
    if (!item.is_string()) {
      return {};
    }
    items.push_back(item.as_string()->get());
  }
  return items;
}

TomlValue map_value(const toml::table& table) {
  std::map<std::string, std::string> entries;
  for (const auto& [key, node] : table) {
    if (!node.is_string()) {
      return {};
    }
    entries.emplace(key.str(), node.as_string()->get());
  }
  return entries;
}

TomlEntry make_entry(std::string key, const toml::node& node, bool is_map) {
  TomlEntry entry{.key = std::move(key), .value = {}, .text = {}, .line = node.source().begin.line};
  if (const auto* const string = node.as_string()) {
    entry.value = entry.text = string->get();
    return entry;
  }
  entry.text = type_text(node);
  if (const auto* const integer = node.as_integer()) {
    entry.value = integer->get();
    entry.text = std::to_string(integer->get());
  } else if (const auto* const boolean = node.as_boolean()) {
    entry.value = boolean->get();
  } else if (const auto* const array = node.as_array()) {
    entry.value = list_value(*array);
  } else if (const auto* const table = node.as_table(); table != nullptr && is_map) {
    entry.value = map_value(*table);
  }
  return entry;
}

void flatten(const toml::table& table,
             const std::string& prefix,
             int level,
             const std::function<TomlKey(std::string_view)>& kind,
             std::vector<TomlEntry>& entries) {
  for (const auto& [name, node] : table) {
    // A quoted name with a dot is not the path it looks like; the quotes keep it unknown.
    const bool has_dot = name.str().find('.') != std::string_view::npos;
    const std::string quote = has_dot ? "\"" : "";
    std::string key = fmt::format("{}{}{}{}", prefix, quote, name.str(), quote);
    const TomlKey key_kind = kind(key);
    // An unknown table is entered too, so that the error names a whole key.
    const toml::table* const inner = node.as_table();
    const bool is_group =
        inner != nullptr && level < kLevelsMax &&
        (key_kind == TomlKey::kGroup || (key_kind == TomlKey::kUnknown && !inner->empty()));
    if (is_group) {
      flatten(*inner, key + ".", level + 1, kind, entries);
    } else {
      entries.push_back(make_entry(std::move(key), node, key_kind == TomlKey::kMap));
    }
  }
}

}  // namespace

Result<std::vector<TomlEntry>> read_toml(const std::string& text,
                                         std::string_view path,
                                         const std::function<TomlKey(std::string_view key)>& kind) {
  if (nests_too_deeply(text)) {
    return fail(Code::kTooLarge,
                fmt::format("more than {} dots and brackets", kNestingCharactersMax),
                std::string(path));
  }
  const toml::parse_result parsed = toml::parse(std::string_view(text));
  if (!parsed) {
    return fail(Code::kInvalidArgument, std::string(parsed.error().description()),
                fmt::format("{}:{}", path, parsed.error().source().begin.line));
  }
  std::vector<TomlEntry> entries;
  flatten(parsed.table(), "", 1, kind, entries);
  return entries;
}

}  // namespace galley
