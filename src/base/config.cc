#include "base/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <numeric>
#include <unistd.h>
#include <utility>

#include "base/check.h"
#include "base/config_toml.h"
#include "base/file.h"
#include "base/quote.h"

namespace galley {
namespace {

constexpr std::string_view kPrefix = "GALLEY_";
constexpr std::size_t kTextBytesShown = 80;
constexpr std::size_t kPlaceBytesShown = 256;
constexpr std::string_view kDefaultSource = "default";

constexpr ConfigOption kFileOption{.key = "config",
                                   .type = ConfigType::kString,
                                   .initial = "",
                                   .help = "The TOML file to read; none when empty."};

std::string shown(std::string_view text) {
  return quoted(text, kTextBytesShown);
}

// "server.port" -> "SERVER_PORT". Flags are compared in this form as well, hence '-'.
std::string variable_form(std::string_view key) {
  std::string name(key);
  for (char& c : name) {
    if (c == '.' || c == '-') {
      c = '_';
    } else if (c >= 'a' && c <= 'z') {
      c = static_cast<char>(c - 'a' + 'A');
    }
  }
  return name;
}

bool well_formed_key(std::string_view key) {
  const bool characters = std::ranges::all_of(key, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
  return characters && !key.empty() && key.front() != '.' && key.back() != '.' &&
         key.find("..") == std::string_view::npos;
}

// Edits (insert, delete, replace) that turn one text into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string type_name(const ConfigOption& option) {
  switch (option.type) {
    case ConfigType::kString:
      return "string";
    case ConfigType::kChoice:
      return fmt::format("{}", fmt::join(option.choices, "|"));
    case ConfigType::kInteger:
      return "integer";
    case ConfigType::kBool:
      return "true|false";
    case ConfigType::kDuration:
      return "duration";
    case ConfigType::kSize:
      return "size";
    case ConfigType::kList:
      return "list";
    case ConfigType::kMap:
      return "map";
  }
  std::unreachable();
}

// What a bad value should have been: "an integer from 0 to 65535".
std::string expectation(const ConfigOption& option) {
  const auto range = [&](auto format) {
    return option.max == std::numeric_limits<std::int64_t>::max()
               ? fmt::format("of at least {}", format(option.min))
               : fmt::format("from {} to {}", format(option.min), format(option.max));
  };
  switch (option.type) {
    case ConfigType::kString:
      return "a string";
    case ConfigType::kChoice:
      return fmt::format("one of {}", fmt::join(option.choices, ", "));
    case ConfigType::kInteger:
      return "an integer " + range([](std::int64_t v) { return std::to_string(v); });
    case ConfigType::kBool:
      return "true or false";
    case ConfigType::kDuration:
      return "a duration such as 30s, " + range([](auto v) { return to_string(Duration(v)); });
    case ConfigType::kSize:
      return "a size such as 64MiB, " +
             range([](auto v) { return to_string(Bytes(static_cast<std::uint64_t>(v))); });
    case ConfigType::kList:
      return "strings that are not empty (in a variable or flag: a,b)";
    case ConfigType::kMap:
      return "names and values that are not empty (in a variable or flag: name=value,name=value)";
  }
  std::unreachable();
}

template <class T>
std::optional<ConfigValue> in_range(const ConfigOption& option, std::int64_t number, T value) {
  if (number < option.min || number > option.max) {
    return std::nullopt;
  }
  return value;
}

// Splits at commas; "" has no items.
std::vector<std::string_view> items_of(std::string_view text) {
  std::vector<std::string_view> items;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    items.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) {
      break;
    }
    text.remove_prefix(comma + 1);
    if (text.empty()) {
      items.emplace_back();  // "a," names an empty second item
    }
  }
  return items;
}

std::optional<ConfigValue> parse_list(std::string_view text) {
  ConfigList list;
  for (const std::string_view item : items_of(text)) {
    if (item.empty()) {
      return std::nullopt;
    }
    list.emplace_back(item);
  }
  return list;
}

std::optional<ConfigValue> parse_map(std::string_view text) {
  ConfigMap map;
  for (const std::string_view item : items_of(text)) {
    const std::size_t equals = item.find('=');
    if (equals == 0 || equals == std::string_view::npos || equals + 1 == item.size()) {
      return std::nullopt;
    }
    if (!map.emplace(item.substr(0, equals), item.substr(equals + 1)).second) {
      return std::nullopt;
    }
  }
  return map;
}

// A value as written in a variable or flag; nothing when it is not what the option expects.
std::optional<ConfigValue> parse_text(const ConfigOption& option, std::string_view text) {
  switch (option.type) {
    case ConfigType::kString:
      return std::string(text);
    case ConfigType::kChoice:
      if (std::ranges::find(option.choices, text) == option.choices.end()) {
        return std::nullopt;
      }
      return std::string(text);
    case ConfigType::kInteger: {
      std::int64_t number = 0;
      const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc{} || rest != text.data() + text.size()) {
        return std::nullopt;
      }
      return in_range(option, number, number);
    }
    case ConfigType::kBool:
      if (text != "true" && text != "false") {
        return std::nullopt;
      }
      return text == "true";
    case ConfigType::kDuration: {
      const auto duration = parse_duration(text);
      return duration ? in_range(option, duration->count(), *duration) : std::nullopt;
    }
    case ConfigType::kSize: {
      const auto size = parse_bytes(text);
      return size ? in_range(option, static_cast<std::int64_t>(size->value()), *size)
                  : std::nullopt;
    }
    case ConfigType::kList:
      return parse_list(text);
    case ConfigType::kMap:
      return parse_map(text);
  }
  std::unreachable();
}

// A value as TOML gave it. Types that TOML has no syntax for are strings there.
std::optional<ConfigValue> parse_toml_value(const ConfigOption& option, const TomlValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  const auto* const number = std::get_if<std::int64_t>(&value);
  const auto not_empty = [](const std::string& item) { return !item.empty(); };
  switch (option.type) {
    case ConfigType::kString:
    case ConfigType::kChoice:
    case ConfigType::kDuration:
      return text != nullptr ? parse_text(option, *text) : std::nullopt;
    case ConfigType::kSize:
      if (text != nullptr) {
        return parse_text(option, *text);
      }
      [[fallthrough]];
    case ConfigType::kInteger:
      return number != nullptr ? parse_text(option, std::to_string(*number)) : std::nullopt;
    case ConfigType::kBool:
      if (const auto* const flag = std::get_if<bool>(&value)) {
        return *flag;
      }
      return std::nullopt;
    case ConfigType::kList:
      if (const auto* const list = std::get_if<ConfigList>(&value);
          list != nullptr && std::ranges::all_of(*list, not_empty)) {
        return *list;
      }
      return std::nullopt;
    case ConfigType::kMap:
      if (const auto* const map = std::get_if<ConfigMap>(&value);
          map != nullptr && std::ranges::all_of(*map, [&](const auto& entry) {
            return not_empty(entry.first) && not_empty(entry.second);
          })) {
        return *map;
      }
      return std::nullopt;
  }
  std::unreachable();
}

// For people: strings quoted, everything else as it would be written in a variable.
struct Display {
  std::string operator()(const std::string& text) const { return quoted(text, text.size()); }
  std::string operator()(std::int64_t number) const { return std::to_string(number); }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(Duration duration) const { return to_string(duration); }
  std::string operator()(Bytes bytes) const { return to_string(bytes); }
  std::string operator()(const ConfigList& list) const {
    std::string out;
    for (const std::string& item : list) {
      out.append(out.empty() ? "" : ", ").append((*this)(item));
    }
    return "[" + out + "]";
  }
  std::string operator()(const ConfigMap& map) const {
    std::string out;
    for (const auto& [name, value] : map) {
      out.append(out.empty() ? "" : ", ").append((*this)(name)).append(" = ");
      out.append((*this)(value));
    }
    return "{" + out + "}";
  }
};

bool is_exempt(std::string_view name, std::span<const std::string> exempt) {
  return std::ranges::any_of(exempt, [&](std::string_view pattern) {
    if (pattern.ends_with('*')) {
      return name.starts_with(pattern.substr(0, pattern.size() - 1));
    }
    return name == pattern;
  });
}

}  // namespace

// One load: applies the sources from the weakest to the strongest.
class ConfigLoader {
 public:
  ConfigLoader(std::span<const ConfigOption> options, const ConfigInput& input) : input_(input) {
    declare(kFileOption);
    for (const ConfigOption& option : options) {
      declare(option);
    }
  }

  Result<Config> load() {
    GALLEY_TRY(const std::vector<Given> flags, read_flags());
    GALLEY_TRY(const std::vector<Given> variables, read_variables());
    std::string path;
    for (const auto* const source : {&variables, &flags}) {
      for (const Given& given : *source) {
        if (given.option->key == kFileOption.key) {
          path = std::get<std::string>(given.value);
        }
      }
    }
    if (!path.empty()) {
      GALLEY_CHECK_OK(apply_file(path));
    }
    apply(variables);
    apply(flags);
    return std::move(config_);
  }

 private:
  struct Given {
    const ConfigOption* option;
    ConfigValue value;
    std::string source;
  };

  void declare(const ConfigOption& option) {
    GALLEY_ASSERT(well_formed_key(option.key));
    GALLEY_ASSERT(!option.secret || option.type == ConfigType::kString ||
                  option.type == ConfigType::kList);
    std::optional<ConfigValue> value = parse_text(option, option.initial);
    GALLEY_ASSERT(value.has_value());
    // Two keys with one variable ("a.b" and "a_b") could not be told apart.
    GALLEY_ASSERT(by_variable_.emplace(variable_form(option.key), option).second);
    config_.settings_.emplace(
        option.key, Config::Setting{std::move(*value), std::string(kDefaultSource), option.secret});
  }

  const ConfigOption* find(std::string_view variable) const {
    const auto found = by_variable_.find(variable);
    return found == by_variable_.end() ? nullptr : &found->second;
  }

  std::unexpected<Error> unknown(std::string_view key, std::string where) const {
    // Long keys are cut: the distance costs the product of both lengths.
    const std::string form = variable_form(key.substr(0, kTextBytesShown));
    // A key without its section ("port") is nearer than one that merely looks alike.
    const auto distance = [&](const auto& entry) {
      return std::pair(!entry.first.ends_with("_" + form), edit_distance(form, entry.first));
    };
    const auto nearest = std::ranges::min_element(by_variable_, {}, distance);
    return fail(Code::kInvalidArgument,
                fmt::format("unknown configuration key {}; the nearest known key is {}", shown(key),
                            nearest->second.key),
                std::move(where));
  }

  static std::unexpected<Error> bad_value(const ConfigOption& option,
                                          std::string_view given,
                                          std::string where) {
    const std::string got = option.secret ? "***" : std::string(given);
    return fail(Code::kInvalidArgument,
                fmt::format("{}: expected {}, got {}", option.key, expectation(option), got),
                std::move(where));
  }

  Result<std::vector<Given>> read_variables() const {
    std::vector<Given> all;
    for (const std::string& entry : input_.environment) {
      const std::size_t equals = std::min(entry.find('='), entry.size());
      const std::string name = entry.substr(0, equals);
      if (!name.starts_with(kPrefix) || is_exempt(name, input_.exempt)) {
        continue;
      }
      const ConfigOption* const option = find(std::string_view(name).substr(kPrefix.size()));
      if (option == nullptr) {
        return unknown(std::string_view(name).substr(kPrefix.size()), shown_source(name));
      }
      const std::string_view text =
          std::string_view(entry).substr(std::min(equals + 1, entry.size()));
      std::optional<ConfigValue> value = parse_text(*option, text);
      if (!value) {
        return bad_value(*option, shown(text), name);
      }
      all.push_back({option, std::move(*value), name});
    }
    return all;
  }

  Result<std::vector<Given>> read_flags() const {
    std::vector<Given> all;
    for (std::size_t i = 0; i < input_.args.size(); ++i) {
      const std::string_view arg = input_.args[i];
      if (!arg.starts_with("--")) {
        return fail(Code::kInvalidArgument, "unexpected argument " + shown(arg));
      }
      const std::size_t equals = arg.find('=');
      const std::string_view flag = arg.substr(0, equals);
      const bool lower_case =
          std::ranges::none_of(flag, [](char c) { return c >= 'A' && c <= 'Z'; });
      const ConfigOption* const option = lower_case ? find(variable_form(flag.substr(2))) : nullptr;
      if (option == nullptr) {
        return unknown(flag.substr(2), shown_source(flag));
      }
      std::string source = fmt::format("--{}", option->key);
      const bool has_next = i + 1 < input_.args.size();
      std::string_view text;
      if (equals != std::string_view::npos) {
        text = arg.substr(equals + 1);
      } else if (has_next && !input_.args[i + 1].starts_with("--")) {
        text = input_.args[++i];
      } else if (option->type == ConfigType::kBool) {
        text = "true";
      } else {
        return bad_value(*option, "nothing", std::move(source));
      }
      std::optional<ConfigValue> value = parse_text(*option, text);
      if (!value) {
        return bad_value(*option, shown(text), std::move(source));
      }
      if (std::ranges::any_of(all, [&](const Given& given) { return given.option == option; })) {
        return fail(Code::kInvalidArgument, "flag given twice", std::move(source));
      }
      all.push_back({option, std::move(*value), std::move(source)});
    }
    return all;
  }

  Result<void> apply_file(const std::string& path) {
    GALLEY_TRY(const std::string text, input_.read_file(path));
    const auto kind = [this](std::string_view key) {
      if (const ConfigOption* const option = find_in_file(key)) {
        return option->type == ConfigType::kMap ? TomlKey::kMap : TomlKey::kValue;
      }
      return is_group(key) ? TomlKey::kGroup : TomlKey::kUnknown;
    };
    GALLEY_TRY(const std::vector<TomlEntry> entries, read_toml(text, shown_source(path), kind));
    for (const TomlEntry& entry : entries) {
      std::string source = fmt::format("{}:{}", shown_source(path), entry.line);
      const ConfigOption* const option = find_in_file(entry.key);
      if (option == nullptr) {
        return unknown(entry.key, std::move(source));
      }
      std::optional<ConfigValue> value = parse_toml_value(*option, entry.value);
      if (!value) {
        return bad_value(*option, shown(entry.text), std::move(source));
      }
      apply({{option, std::move(*value), std::move(source)}});
    }
    return {};
  }

  // In the file keys are exact: no other case, no other separators.
  const ConfigOption* find_in_file(std::string_view key) const {
    const ConfigOption* const option = find(variable_form(key));
    return option != nullptr && option->key == key && key != kFileOption.key ? option : nullptr;
  }

  // "server" when "server.port" exists.
  bool is_group(std::string_view key) const {
    return std::ranges::any_of(by_variable_, [&](const auto& entry) {
      const std::string_view known = entry.second.key;
      return known.starts_with(key) && known.substr(key.size()).starts_with('.');
    });
  }

  // A name of outside origin as the place of an error: as it is unless that could deceive.
  static std::string shown_source(std::string_view name) {
    const std::string text = quoted(name, kPlaceBytesShown);
    return text.substr(1, text.size() - 2);
  }

  void apply(const std::vector<Given>& all) {
    for (const Given& given : all) {
      Config::Setting& setting = config_.settings_.find(given.option->key)->second;
      setting.value = given.value;
      setting.source = given.source;
    }
  }

  const ConfigInput& input_;
  std::map<std::string, ConfigOption, std::less<>> by_variable_;
  Config config_;
};

Result<Config> Config::load(std::span<const ConfigOption> options, const ConfigInput& input) {
  return ConfigLoader(options, input).load();
}

const Config::Setting& Config::setting(std::string_view key) const {
  const auto found = settings_.find(key);
  GALLEY_ASSERT(found != settings_.end());
  return found->second;
}

template <class T>
const T& Config::get(std::string_view key, bool secret) const {
  const Setting& found = setting(key);
  GALLEY_ASSERT(found.secret == secret);
  const T* const value = std::get_if<T>(&found.value);
  GALLEY_ASSERT(value != nullptr);
  return *value;
}

const std::string& Config::string(std::string_view key) const {
  return get<std::string>(key);
}
std::int64_t Config::integer(std::string_view key) const {
  return get<std::int64_t>(key);
}
bool Config::boolean(std::string_view key) const {
  return get<bool>(key);
}
Duration Config::duration(std::string_view key) const {
  return get<Duration>(key);
}
Bytes Config::size(std::string_view key) const {
  return get<Bytes>(key);
}
const ConfigList& Config::list(std::string_view key) const {
  return get<ConfigList>(key);
}
const ConfigMap& Config::map(std::string_view key) const {
  return get<ConfigMap>(key);
}

Secret Config::secret(std::string_view key) const {
  return Secret(get<std::string>(key, true));
}

std::vector<Secret> Config::secrets(std::string_view key) const {
  std::vector<Secret> all;
  for (const std::string& value : get<ConfigList>(key, true)) {
    all.emplace_back(value);
  }
  return all;
}

const std::string& Config::source(std::string_view key) const {
  return setting(key).source;
}

std::string Config::table() const {
  std::vector<std::array<std::string, 3>> rows;
  std::array<std::size_t, 2> widths{};
  for (const auto& [key, setting] : settings_) {
    rows.push_back(
        {key, setting.secret ? "***" : std::visit(Display{}, setting.value), setting.source});
    for (std::size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], rows.back()[column].size());
    }
  }
  std::string out;
  for (const auto& [key, value, source] : rows) {
    out += fmt::format("{:<{}}  {:<{}}  {}\n", key, widths[0], value, widths[1], source);
  }
  return out;
}

std::string config_help(std::span<const ConfigOption> options) {
  std::string out;
  const auto add = [&out](const ConfigOption& option) {
    out += fmt::format("  --{} {}\n      {}\n      default {}, variable {}{}\n", option.key,
                       type_name(option), option.help,
                       option.initial.empty() ? "none" : option.initial, kPrefix,
                       variable_form(option.key));
  };
  add(kFileOption);
  for (const ConfigOption& option : options) {
    add(option);
  }
  return out;
}

ConfigInput process_config_input(std::vector<std::string> args, std::vector<std::string> exempt) {
  ConfigInput input{.args = std::move(args),
                    .environment = {},
                    .exempt = std::move(exempt),
                    .read_file = [](const std::string& path) {
                      return galley::read_file(path, kConfigFileBytesMax);
                    }};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    input.environment.emplace_back(*entry);
  }
  return input;
}

}  // namespace galley
