#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/secret.h"
#include "base/units.h"

// Configuration: one table of declared options, and their values from, in order of precedence,
// command-line flags, environment variables, one TOML file, and defaults. A key is spelled
// `server.port` in all of them:
//
//   --server.port 8000      "-" may stand for "." and "_"; "--key=value" works too
//   GALLEY_SERVER_PORT=8000
//   [server]                in the file named by --config or GALLEY_CONFIG
//   port = 8000
//
// Anything unknown or malformed stops the start with an error that names key, place (file:line,
// variable or flag) and what was expected, even where another source overrides it. Values of
// secret options appear nowhere: not in errors, not in table().
namespace galley {

enum class ConfigType : std::uint8_t {
  kString,
  kChoice,    // one of `choices`
  kInteger,   // within [min, max]
  kBool,      // true or false; a flag without a value means true
  kDuration,  // "30s" (base/units.h), within [min, max] nanoseconds
  kSize,      // "64MiB" or a number of bytes, within [min, max] bytes
  kList,      // TOML array of strings; elsewhere "a,b"
  kMap,       // TOML table of strings; elsewhere "name=value,name=value"
};

// One row of the table. Everything textual is written as in an environment variable.
struct ConfigOption {
  std::string_view key;  // lower_case words, "." between groups
  ConfigType type = ConfigType::kString;
  std::string_view initial;  // the default; must itself be valid
  std::string_view help;     // one line
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  std::span<const std::string_view> choices = {};
  bool secret = false;  // kString or kList only
};

using ConfigList = std::vector<std::string>;
using ConfigMap = std::map<std::string, std::string>;
using ConfigValue =
    std::variant<std::string, std::int64_t, bool, Duration, Bytes, ConfigList, ConfigMap>;

inline constexpr Bytes kConfigFileBytesMax{std::uint64_t{256} << 10U};

// Where values come from. Tests and the fuzzer fill it by hand.
struct ConfigInput {
  std::vector<std::string> args;         // flags, without the program and subcommand
  std::vector<std::string> environment;  // "NAME=value"; names without GALLEY_ are ignored
  // GALLEY_ variables that are not configuration; a trailing "*" stands for any rest.
  std::vector<std::string> exempt;
  std::function<Result<std::string>(const std::string& path)> read_file;
};

// The input of this process; reads files of up to kConfigFileBytesMax.
[[nodiscard]] ConfigInput process_config_input(std::vector<std::string> args,
                                               std::vector<std::string> exempt);

// The effective values. Immutable; any thread may read it. Getters assert that the key was declared
// with that type, so a wrong one cannot survive its first test.
class Config {
 public:
  // `options` need not outlive the call. The option `config` (the file's path, empty for none) is
  // always declared and cannot stand in the file itself.
  [[nodiscard]] static Result<Config> load(std::span<const ConfigOption> options,
                                           const ConfigInput& input);

  [[nodiscard]] const std::string& string(std::string_view key) const;  // also kChoice
  [[nodiscard]] std::int64_t integer(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] Duration duration(std::string_view key) const;
  [[nodiscard]] Bytes size(std::string_view key) const;
  [[nodiscard]] const ConfigList& list(std::string_view key) const;
  [[nodiscard]] const ConfigMap& map(std::string_view key) const;
  [[nodiscard]] Secret secret(std::string_view key) const;                // a secret kString
  [[nodiscard]] std::vector<Secret> secrets(std::string_view key) const;  // a secret kList

  // "default", "galley.toml:3", "GALLEY_SERVER_PORT" or "--server.port".
  [[nodiscard]] const std::string& source(std::string_view key) const;

  // One line per key, aligned: key, value, source. Secrets show as ***.
  [[nodiscard]] std::string table() const;

 private:
  struct Setting {
    ConfigValue value;
    std::string source;
    bool secret = false;
  };
  friend class ConfigLoader;

  template <class T>
  [[nodiscard]] const T& get(std::string_view key, bool secret = false) const;
  [[nodiscard]] const Setting& setting(std::string_view key) const;

  std::map<std::string, Setting, std::less<>> settings_;
};

// A help text: one paragraph per option with its type, default and variable.
[[nodiscard]] std::string config_help(std::span<const ConfigOption> options);

}  // namespace galley
