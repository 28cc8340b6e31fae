#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/clock.h"
#include "base/result.h"
#include "base/secret.h"

// Structured logging: a fixed message and key=value fields, so that lines can be searched by what
// happened.
//
//   log.info("request done", {{"request", id}, {"tokens_out", count}});
//   2026-01-31T12:00:00.250Z info  request done request=r-17 tokens_out=42
//
// What never appears: prompts, answers, headers and keys. Callers log names, counts and times, and
// a Secret (base/secret.h) does not compile as a field. Control characters in values are escaped
// and long ones cut, so no client can forge a line or flood the log with one.
namespace galley {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError };
inline constexpr std::array<std::string_view, 4> kLogLevelNames{"debug", "info", "warn", "error"};
[[nodiscard]] Result<LogLevel> parse_log_level(std::string_view name);

enum class LogFormat : std::uint8_t { kText, kJson };
inline constexpr std::array<std::string_view, 2> kLogFormatNames{"text", "json"};
[[nodiscard]] Result<LogFormat> parse_log_format(std::string_view name);

// Longer values are cut there and end in "…".
inline constexpr std::size_t kLogValueBytesMax = 1024;

// One field of a line. It refers to the caller's strings: use it in the call only.
struct LogField {
  using Value = std::variant<std::string_view, std::int64_t, std::uint64_t, double, bool>;

  // Keys are identifiers of ours, never outside input.
  template <class T>
  LogField(std::string_view field_key, const T& field_value)  // NOLINT(google-explicit-constructor)
      : key(field_key), value(to_value(field_value)) {}
  LogField(std::string_view, const Secret&) = delete;

  std::string_view key;
  Value value;

 private:
  template <class T>
  static Value to_value(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(
          value);
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(value);
    } else {
      return std::string_view(value);
    }
  }
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  // Takes each finished line, without line end, one at a time. Standard error when empty.
  std::function<void(std::string_view line)> write;
};

// Any thread may log; lines never mix. Owns its sink, uses `clock` for dates (it must outlive the
// log). There is no global one: whoever logs is given it.
class Log {
 public:
  explicit Log(const Clock& clock, LogOptions options = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  [[nodiscard]] bool enabled(LogLevel level) const { return level >= level_; }
  void debug(std::string_view message, std::initializer_list<LogField> fields = {});
  void info(std::string_view message, std::initializer_list<LogField> fields = {});
  void warn(std::string_view message, std::initializer_list<LogField> fields = {});
  void error(std::string_view message, std::initializer_list<LogField> fields = {});

 private:
  struct Sink;
  void write(LogLevel level, std::string_view message, std::initializer_list<LogField> fields);

  const Clock& clock_;
  LogLevel level_;
  LogFormat format_;
  std::unique_ptr<Sink> sink_;
};

}  // namespace galley
