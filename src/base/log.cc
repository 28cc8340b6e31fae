#include "base/log.h"

#include <algorithm>
#include <cmath>
#include <fmt/chrono.h>
#include <optional>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <string>
#include <utility>

#include "base/quote.h"

namespace galley {
namespace {

// Hands finished lines to a function; base_sink holds its mutex around each.
class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    write_({message.payload.data(), message.payload.size()});
  }
  void flush_() override {}

  std::function<void(std::string_view)> write_;
};

template <std::size_t kCount>
std::optional<std::size_t> index_of(const std::array<std::string_view, kCount>& names,
                                    std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found - names.begin());
}

// RFC 3339 in UTC with milliseconds.
std::string date(UnixTime time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds.time_since_epoch().count()),
                     ms.count());
}

// A word stands as it is; anything a reader could take for more than one value is quoted.
bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= kLogValueBytesMax && std::ranges::all_of(text, [](char c) {
    return c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  });
}

struct TextValue {
  std::string operator()(std::string_view text) const {
    return is_word(text) ? std::string(text) : quoted(text, kLogValueBytesMax);
  }
  std::string operator()(auto number) const { return fmt::format("{}", number); }
};

struct JsonValue {
  std::string operator()(std::string_view text) const { return quoted(text, kLogValueBytesMax); }
  std::string operator()(double number) const {
    return std::isfinite(number) ? fmt::format("{}", number) : fmt::format("\"{}\"", number);
  }
  std::string operator()(auto number) const { return fmt::format("{}", number); }
};

std::string text_line(std::string_view time,
                      std::string_view level,
                      std::string_view message,
                      std::initializer_list<LogField> fields) {
  std::string line = fmt::format("{} {:<5} {}", time, level, message);
  for (const LogField& field : fields) {
    line.append(" ").append(field.key).append("=").append(std::visit(TextValue{}, field.value));
  }
  return line;
}

std::string json_line(std::string_view time,
                      std::string_view level,
                      std::string_view message,
                      std::initializer_list<LogField> fields) {
  std::string line = fmt::format(R"({{"time":"{}","level":"{}","message":{})", time, level,
                                 quoted(message, kLogValueBytesMax));
  for (const LogField& field : fields) {
    line.append(",").append(quoted(field.key, kLogValueBytesMax)).append(":");
    line.append(std::visit(JsonValue{}, field.value));
  }
  return line.append("}");
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view name) {
  if (const auto index = index_of(kLogLevelNames, name)) {
    return static_cast<LogLevel>(*index);
  }
  return fail(Code::kInvalidArgument, "expected debug, info, warn or error");
}

Result<LogFormat> parse_log_format(std::string_view name) {
  if (const auto index = index_of(kLogFormatNames, name)) {
    return static_cast<LogFormat>(*index);
  }
  return fail(Code::kInvalidArgument, "expected text or json");
}

struct Log::Sink {
  spdlog::logger logger;
};

Log::Log(const Clock& clock, LogOptions options)
    : clock_(clock), level_(options.level), format_(options.format) {
  spdlog::sink_ptr sink;  // shared because spdlog's logger takes no other; one owner
  if (options.write) {
    sink = std::make_shared<FunctionSink>(std::move(options.write));
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  sink->set_pattern("%v");
  sink_ = std::make_unique<Sink>(Sink{spdlog::logger("galley", std::move(sink))});
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!enabled(level)) {
    return;
  }
  const std::string time = date(clock_.unix_time());
  const std::string_view name = kLogLevelNames[std::to_underlying(level)];
  const auto make_line = format_ == LogFormat::kJson ? json_line : text_line;
  // One spdlog level for all: the level was decided above and is part of the line.
  sink_->logger.log(spdlog::level::info, make_line(time, name, message, fields));
}

void Log::debug(std::string_view message, std::initializer_list<LogField> fields) {
  write(LogLevel::kDebug, message, fields);
}
void Log::info(std::string_view message, std::initializer_list<LogField> fields) {
  write(LogLevel::kInfo, message, fields);
}
void Log::warn(std::string_view message, std::initializer_list<LogField> fields) {
  write(LogLevel::kWarn, message, fields);
}
void Log::error(std::string_view message, std::initializer_list<LogField> fields) {
  write(LogLevel::kError, message, fields);
}

}  // namespace galley
